"""Properties of the choice of the next variant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelforge.audit.types import AuditKind
from kernelforge.build.types import BuildFailure
from kernelforge.cards.types import VariantRecord
from kernelforge.evaluate.types import Scored, WorkerFailure
from kernelforge.search.scheduler import Policy, VariantState, expected_gain, next_variant, park_reason, state_of
from kernelforge.search.types import Node

MakeNode = Callable[..., Node]
MakeScored = Callable[..., Scored]
MakeRecord = Callable[..., VariantRecord]
POLICY = Policy()
FAILED = BuildFailure(reason="compile_error", detail="line 1")
BROKEN = WorkerFailure(detail="no GPU")
STATE = VariantState(variant_id="v", share=0.5, trials=10)

UNIT = st.floats(0.0, 1.0)
STATES = st.builds(
    VariantState, variant_id=st.uuids().map(str), share=UNIT, trials=st.integers(0, 30), stalled=st.integers(0, 20),
    left=UNIT, floor=UNIT, worker_failures=st.integers(0, 4), exhausted=st.sampled_from(["", "no more schedules"]),
)  # fmt: skip
SEVERAL = st.lists(STATES, max_size=6, unique_by=lambda s: s.variant_id)


@settings(deadline=None)
@given(SEVERAL)
def test_choice_is_open_and_does_not_depend_on_order(states: list[VariantState]) -> None:
    chosen = next_variant(states, POLICY)
    is_open = [s for s in states if not park_reason(s, POLICY)]
    assert (chosen is None) == (not is_open)
    assert chosen is None or chosen in is_open
    assert next_variant(sorted(states, key=lambda s: s.variant_id[::-1]), POLICY) == chosen


@settings(deadline=None)
@given(SEVERAL, st.integers(0, 2))
def test_warm_up_comes_first(states: list[VariantState], trials: int) -> None:
    states = [*states, VariantState(variant_id="cold", share=0.001, trials=trials)]
    chosen = next_variant(states, POLICY)
    warming = [s for s in states if not park_reason(s, POLICY) and s.trials < POLICY.warm_up]
    assert chosen is not None
    assert chosen.trials == min(s.trials for s in warming)
    assert chosen.share == max(s.share for s in warming if s.trials == chosen.trials)


@settings(deadline=None)
@given(SEVERAL)
def test_after_warm_up_the_largest_gain(states: list[VariantState]) -> None:
    warm = [replace(s, trials=POLICY.warm_up + s.trials) for s in (*states, STATE)]
    chosen = next_variant(warm, POLICY)
    assert chosen is not None
    assert all(expected_gain(chosen) >= expected_gain(s) for s in warm if not park_reason(s, POLICY))


def test_warm_up_is_a_round_robin_by_share() -> None:
    trials = {"a": 0, "b": 0, "c": 0}
    shares = {"a": 0.2, "b": 0.5, "c": 0.3}
    order = []
    for _ in range(9):
        states = [VariantState(variant_id=v, share=shares[v], trials=trials[v]) for v in trials]
        chosen = next_variant(states, POLICY)
        assert chosen is not None
        order.append(chosen.variant_id)
        trials[chosen.variant_id] += 1
    assert order == ["b", "c", "a"] * 3


def test_gain_grows_with_share_and_headroom_and_falls_when_stalled() -> None:
    assert expected_gain(replace(STATE, share=0.6)) > expected_gain(STATE)
    assert expected_gain(replace(STATE, left=0.5)) < expected_gain(STATE)
    assert expected_gain(replace(STATE, floor=0.5)) < expected_gain(STATE)
    assert expected_gain(replace(STATE, stalled=3)) < expected_gain(STATE)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (STATE, ""),
        (replace(STATE, floor=0.1, left=0.109), "roofline floor"),
        (replace(STATE, floor=0.1, left=0.12), ""),
        (replace(STATE, stalled=12), "no progress in 12 trials"),
        (replace(STATE, stalled=11), ""),
        (replace(STATE, share=0.0004), "at most 0.040%"),
        (replace(STATE, share=0.001, left=0.4), "at most"),
        (replace(STATE, worker_failures=3), "the judge failed 3 times"),
        (replace(STATE, exhausted="no more schedules"), "no more schedules"),
    ],
)
def test_parking(state: VariantState, reason: str) -> None:
    parked = park_reason(state, POLICY)
    assert reason in parked and bool(reason) == bool(parked)


def test_patience_can_be_switched_off() -> None:
    assert park_reason(replace(STATE, stalled=1000), replace(POLICY, patience=None)) == ""


def test_state_of_a_history(make_node: MakeNode, make_scored: MakeScored, make_record: MakeRecord) -> None:
    nodes = [make_node(1, FAILED), make_node(2, make_scored(2.0, floor_us=1.0)), make_node(3, BROKEN),
             make_node(4, make_scored(2.01, floor_us=1.0)), make_node(5, FAILED)]  # fmt: skip
    state = state_of(make_record(share=0.3), nodes, in_flight=2)
    assert (state.share, state.trials, state.floor) == (0.3, 7, 0.1)
    assert state.left == pytest.approx(1 / 2.01)
    assert state.stalled == 2, "0.5% is noise and no progress; a fault of the judge does not count"
    progressed = state_of(make_record(), [*nodes, make_node(6, make_scored(2.1))])
    assert progressed.stalled == 0


def test_variant_whose_eager_is_at_the_floor_is_parked(
    make_node: MakeNode, make_scored: MakeScored, make_record: MakeRecord
) -> None:
    slower = make_node(1, make_scored(0.5, floor_us=9.5))
    assert "roofline floor" in park_reason(state_of(make_record(), [slower]), POLICY)


def test_borrowed_work_is_no_progress(make_node: MakeNode, make_scored: MakeScored, make_record: MakeRecord) -> None:
    state = state_of(make_record(), [make_node(1, make_scored(5.0, audit=AuditKind.BACKEND))])
    assert state.left == 1.0 and state.stalled == 1


def test_only_failures_of_this_call_count(make_node: MakeNode, make_record: MakeRecord) -> None:
    nodes = [make_node(i, BROKEN) for i in range(1, 6)]
    assert state_of(make_record(), nodes).worker_failures == 5
    assert state_of(make_record(), nodes, since=4).worker_failures == 1
