"""Plans of a search, with numbers by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from kernelforge.benchmark.machine import MachineFacts
from kernelforge.build.types import BuildFailure
from kernelforge.cards.types import SizePoint, VariantRecord
from kernelforge.evaluate.types import Scored, Trial, WorkerFailure
from kernelforge.search.plan import (
    allotments,
    allowed_trials,
    estimated_left,
    plan_search,
    prior_floor_us,
    prior_floors,
    whole_speedup,
)
from kernelforge.search.scheduler import POLICIES, Policy, VariantState
from kernelforge.search.types import Budget, Node, node_of

MakeNode = Callable[..., Node]
MakeScored = Callable[..., Scored]
MakeRecord = Callable[..., VariantRecord]
POLICY = Policy(warm_up=3, patience=12)
FAILED = BuildFailure(reason="compile_error", detail="line 1")
FACTS = MachineFacts(device="d", bandwidth=((64, 1e6), (1024, 5e5)), cache_bytes=64, dispatch_overhead_us=1.0)


def costing(node: Node, tokens: int | None, usd: float | None) -> Node:
    """The node with a candidate that cost that; half of the tokens were read."""

    half = None if tokens is None else tokens // 2
    candidate = replace(node.candidate, tokens_in=half, tokens_out=half, cost_usd=usd)
    trial = Trial(candidate=candidate, outcome=node.outcome, started=node.started, seconds=node.seconds)
    return node_of(id=node.id, number=node.number, parent="", trial=trial)


def test_amdahl() -> None:
    assert whole_speedup(1.0, 0.8) == 1.0
    assert whole_speedup(0.5, 0.8) == pytest.approx(1 / 0.6)
    assert whole_speedup(0.0, 0.8) == pytest.approx(5.0)
    assert whole_speedup(0.0, 1.0) == math.inf


def test_allotments_follow_the_scheduler() -> None:
    """After three trials each a wins 0.6/5, then 0.6/6 and 0.6/7; b wins 0.4/5 = 0.08 < 0.6/7 = 0.0857."""
    states = [VariantState(variant_id="a", share=0.6), VariantState(variant_id="b", share=0.4)]
    assert allotments(states, POLICY, trials=4, ideas={}) == {"a": 2, "b": 2}
    assert allotments(states, POLICY, trials=9, ideas={}) == {"a": 6, "b": 3}
    assert allotments(states, POLICY, trials=10, ideas={}) == {"a": 6, "b": 4}, "0.6/8 = 0.075 < 0.08"
    assert allotments(states, POLICY, trials=None, ideas={}) == {"a": 12, "b": 12}, "then the patience is over"
    assert allotments(states, POLICY, trials=9, ideas={"a": 1}) == {"a": 1, "b": 8}
    assert allotments(states, POLICIES["uniform"], trials=9, ideas={}) == {"a": 5, "b": 4}


def test_delivered_candidates_have_their_trials_before_others_are_asked_for() -> None:
    states = [VariantState(variant_id="a", share=0.6), VariantState(variant_id="b", share=0.4, exhausted="no idea")]
    assert allotments(states, POLICY, trials=5, ideas={}, waiting={"b": 2}) == {"a": 3, "b": 2}
    assert allotments(states, POLICY, trials=1, ideas={}, waiting={"b": 2}) == {"a": 0, "b": 1}
    assert allotments(states, POLICY, trials=9, ideas={"a": 1}, waiting={"a": 2}) == {"a": 3, "b": 0}


def test_a_vendor_s_library_is_parked_in_the_simulation_too() -> None:
    states = [VariantState(variant_id="a", share=0.9, vendor=True), VariantState(variant_id="b", share=0.1)]
    assert allotments(states, POLICY, trials=None, ideas={}) == {"a": 8, "b": 12}


def test_estimate_is_half_of_the_headroom_times_the_chance() -> None:
    state = VariantState(variant_id="a", share=0.5, left=0.8, floor=0.2, stalled=2)
    assert estimated_left(state, POLICY, 3) == pytest.approx(0.65)  # 0.8 - 0.5 x 0.6 x 3/6
    assert estimated_left(state, POLICY, 0) == 0.8


def test_what_a_budget_allows_for(make_node: MakeNode) -> None:
    nodes = [replace(costing(make_node(i, FAILED), 100 * i, 0.1), seconds=2.0 * i) for i in (1, 2, 3)]
    assert allowed_trials(Budget(), nodes, generator="template").trials is None
    limits = [
        (Budget(trials=9), 9, "trials"),
        (Budget(seconds=30.0), 7, "seconds"),  # 4 s each
        (Budget(tokens=1000), 5, "tokens"),  # 200 each
        (Budget(usd=0.7), 7, "usd"),
        (Budget(trials=9, seconds=30.0, tokens=1000, usd=0.7), 5, "tokens"),
    ]
    for budget, trials, by in limits:
        allowed = allowed_trials(budget, nodes, generator="template")
        assert (allowed.trials, allowed.by, allowed.unknown) == (trials, by, ())
    other = allowed_trials(Budget(trials=9, usd=0.7), nodes, generator="other")
    assert (other.trials, other.by, other.unknown) == (9, "trials", ("usd",))
    assert allowed_trials(Budget(seconds=9.0), [], generator="template").unknown == ("seconds",)
    free = [costing(n, 0, 0.0) for n in nodes]
    assert allowed_trials(Budget(usd=0.7), free, generator="template").unknown == ()


def test_floor_from_bytes_and_bandwidth(make_record: MakeRecord) -> None:
    """8 floats in, 8 out: 64 bytes. Two sets of buffers exceed the cache by half: 128 bytes, at 1e6 bytes/s."""
    record = make_record("relu")
    assert prior_floor_us(record, FACTS) == pytest.approx(64.0)
    assert prior_floors([record], FACTS) == {record.variant.id: 1.0}, "eager takes 10 us; it cannot beat the floor"
    slower = replace(record, points=(SizePoint(dims={}, scalars={}, calls=1, eager_us=256.0),))
    assert prior_floors([slower], FACTS) == {record.variant.id: pytest.approx(0.25)}
    assert prior_floors([make_record("of a plug-in"), make_record("relu", forgeable="random")], FACTS) == {}
    assert prior_floors([record], None) == {}


def test_plan_by_hand(make_record: MakeRecord, make_node: MakeNode, make_scored: MakeScored) -> None:
    """relu: 2x, floor at 0.1. add: never tried, floor at 0.3. matmul: no template. view: not forgeable. mul: another.

    Captured 80%. Fractions of the captured time: now 0.4 x 0.5 + 0.6 = 0.8; at the floors of relu and add
    0.4 x 0.1 + 0.1 x 0.3 + 0.5 = 0.57, with matmul's floor at 0.2 beside them 0.07 + 0.04 + 0.3 = 0.41.
    """
    relu, add, matmul = make_record("relu", 0.4), make_record("add", 0.1), make_record("matmul", 0.2)
    view, other = make_record("view", 0.1, forgeable="returns a view"), make_record("mul", 0.2)
    nodes = {relu.variant.id: [make_node(1, make_scored(2.0, floor_us=1.0))]}
    plan = plan_search(
        [relu, add, matmul, view], lambda r: nodes.get(r.variant.id, []), Budget(trials=5), POLICY,
        generator="template", others=[other], prior_floors={matmul.variant.id: 0.2, add.variant.id: 0.3},
        exhausted={matmul.variant.id: "no template family makes matmul"}, coverage=0.8,
    )  # fmt: skip
    rows = {v.record.variant.operator: v for v in plan.variants}
    # add gets its warm-up of 3 and relu the 2 that it lacks.
    assert {name: v.allotted for name, v in rows.items()} == {"relu": 2, "add": 3, "matmul": 0, "view": 0}
    assert {name: v.parked for name, v in rows.items()} == {
        "relu": "", "add": "", "matmul": "no template family makes matmul", "view": "returns a view",
    }  # fmt: skip
    assert (rows["relu"].eager_us, rows["relu"].best_us, rows["relu"].floor_us) == (10.0, 5.0, 1.0)
    assert (rows["add"].eager_us, rows["add"].best_us, rows["add"].floor_us) == (10.0, None, 3.0)
    assert rows["matmul"].floor_us == pytest.approx(2.0)
    assert plan.now == pytest.approx(1 / (0.2 + 0.8 * 0.8))
    # relu: 0.5 - 0.5 x 0.4 x 2/3 = 0.3667; add: 1 - 0.5 x 0.7 x 3/4 = 0.7375; the rest 0.5.
    left = 0.4 * (0.5 - 0.4 / 3) + 0.1 * 0.7375 + 0.5
    assert plan.estimate == pytest.approx(1 / (0.2 + 0.8 * left))
    assert plan.bound == pytest.approx(1 / (0.2 + 0.8 * 0.57))
    assert plan.bound_all == pytest.approx(1 / (0.2 + 0.8 * 0.41))
    assert plan.unknown_floors == 0.0


def test_a_number_that_an_unknown_floor_enters_is_unknown(make_record: MakeRecord) -> None:
    """Of matmul, which the search cannot work on, only the bound of all that may be forged knows."""
    relu, matmul = make_record("relu", 0.4), make_record("matmul", 0.6)
    exhausted = {matmul.variant.id: "no template family makes matmul"}

    def plan(**floors: float) -> tuple[object, ...]:
        known = {r.variant.id: floors[r.variant.operator] for r in (relu, matmul) if r.variant.operator in floors}
        made = plan_search(
            [relu, matmul], lambda _: (), Budget(trials=1), POLICY, generator="template", prior_floors=known,
            exhausted=exhausted,
        )  # fmt: skip
        assert made.now == 1.0
        return made.estimate, made.bound, made.bound_all, made.unknown_floors

    assert plan() == (None, None, None, pytest.approx(1.0))
    # One trial has the chance 1/2, and progress wins half of the headroom of 0.5.
    assert plan(relu=0.5) == (pytest.approx(1 / 0.95), pytest.approx(1 / 0.8), None, pytest.approx(0.6))
    assert plan(matmul=0.5) == (None, None, None, pytest.approx(0.4))


def test_failures_of_the_judge_before_the_search_do_not_park(make_record: MakeRecord, make_node: MakeNode) -> None:

    broken = [make_node(i, WorkerFailure(detail="no GPU")) for i in range(1, 6)]
    plan = plan_search([make_record()], lambda _: broken, Budget(trials=2), POLICY, generator="template")
    assert (plan.variants[0].parked, plan.allotted) == ("", 2)
