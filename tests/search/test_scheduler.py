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
from kernelforge.errors import NotFound
from kernelforge.evaluate.types import Scored, WorkerFailure
from kernelforge.search.scheduler import (
    POLICIES,
    Policy,
    VariantState,
    expected_gain,
    get_policy,
    next_variant,
    park_reason,
    progress_chance,
    state_of,
)
from kernelforge.search.types import Node
from kernelforge.verify.types import Rejected, RejectReason

MakeNode = Callable[..., Node]
MakeScored = Callable[..., Scored]
MakeRecord = Callable[..., VariantRecord]
WRONG = Rejected(reason=RejectReason.WRONG_VALUE, case="c", detail="out[0]", worst_abs=1.0)
POLICY = Policy(warm_up=3, patience=12)
UNIFORM = POLICIES["uniform"]
FAILED = BuildFailure(reason="compile_error", detail="line 1")
BROKEN = WorkerFailure(detail="no GPU")
STATE = VariantState(variant_id="v", share=0.5, trials=10, judged=10)

UNIT = st.floats(0.0, 1.0)
STATES = st.builds(
    VariantState, variant_id=st.uuids().map(str), share=UNIT, trials=st.integers(0, 30), stalled=st.integers(0, 20),
    judged=st.integers(0, 30), speedup=st.floats(0.0, 2.0), prior_floor=UNIT, vendor=st.booleans(),
    left=UNIT, floor=UNIT, worker_failures=st.integers(0, 4), exhausted=st.sampled_from(["", "no more schedules"]),
)  # fmt: skip
SEVERAL = st.lists(STATES, max_size=6, unique_by=lambda s: s.variant_id)


@settings(deadline=None)
@given(SEVERAL)
def test_choice_is_open_and_does_not_depend_on_order(states: list[VariantState]) -> None:
    for policy in POLICIES.values():
        chosen = next_variant(states, policy)
        is_open = [s for s in states if not park_reason(s, policy)]
        assert (chosen is None) == (not is_open)
        assert chosen is None or chosen in is_open
        assert next_variant(sorted(states, key=lambda s: s.variant_id[::-1]), policy) == chosen


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
    gain = expected_gain(chosen, POLICY)
    assert all(gain >= expected_gain(s, POLICY) for s in warm if not park_reason(s, POLICY))


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


@pytest.mark.parametrize(
    ("state", "gain"),
    [
        (STATE, 0.25),  # 0.5 x 1.0 x 1/2
        (replace(STATE, share=0.6), 0.3),
        (replace(STATE, left=0.6), 0.15),  # 0.5 x 0.6 x 1/2
        (replace(STATE, left=0.6, floor=0.2), 0.1),  # 0.5 x 0.4 x 1/2
        (replace(STATE, left=0.6, prior_floor=0.2), 0.1),
        (replace(STATE, left=0.6, floor=0.4, prior_floor=0.2), 0.05),  # the measured one counts
        (replace(STATE, stalled=3), 0.1),  # 0.5 x 1.0 x 1/5
        (replace(STATE, stalled=2, vendor=True), 0.0625),  # 0.5 x 1.0 x 1/(2 + 2 + 4)
    ],
)
def test_gain_is_share_times_headroom_times_chance(state: VariantState, gain: float) -> None:
    assert expected_gain(state, POLICY) == pytest.approx(gain)


def test_chance_of_several_trials_is_that_of_one_after_the_other() -> None:
    """1 - (1 - 1/4) (1 - 1/5) (1 - 1/6) = 1/2."""
    assert progress_chance(replace(STATE, stalled=2), POLICY, 3) == pytest.approx(0.5)
    assert progress_chance(STATE, POLICY, 0) == 0.0


def test_a_framework_s_kernel_comes_before_an_equal_one_of_a_vendor() -> None:
    own, vendors = STATE, replace(STATE, variant_id="a", vendor=True, share=0.9, judged=0)
    assert next_variant([own, vendors], POLICY) == own, "0.5 x 1/2 > 0.9 x 1/6"
    assert next_variant([replace(own, stalled=4), vendors], POLICY) == vendors, "0.5 x 1/6 < 0.9 x 1/6"


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (STATE, ""),
        (replace(STATE, floor=0.1, left=0.109), "the best kernel takes 1.09x the roofline floor"),
        (replace(STATE, floor=0.95), "eager takes 1.05x the roofline floor"),
        (replace(STATE, floor=0.1, left=0.12), ""),
        (replace(STATE, prior_floor=1.0), ""),
        (replace(STATE, stalled=12), "no progress in 12 trials"),
        (replace(STATE, stalled=11), ""),
        (replace(STATE, share=0.0004), "at most 0.040%"),
        (
            replace(STATE, share=0.001, left=0.4),
            "at most 0.040% of the model's time, and below 0.05% no trial is spent",
        ),
        (replace(STATE, share=0.001, left=0.6, floor=0.2), "at most 0.040%"),
        (replace(STATE, vendor=True, judged=8, speedup=0.979), "the best kernel has 0.98x after 8 trials"),
        (replace(STATE, vendor=True, judged=8), "no kernel is valid after 8 trials against a vendor's library"),
        (replace(STATE, vendor=True, judged=8, speedup=0.98), ""),
        (replace(STATE, vendor=True, judged=7, speedup=0.5), ""),
        (replace(STATE, vendor=False, judged=8, speedup=0.5), ""),
        (replace(STATE, worker_failures=3), "the judge failed 3 times"),
        (replace(STATE, exhausted="no more schedules"), "no more schedules"),
    ],
)
def test_parking(state: VariantState, reason: str) -> None:
    parked = park_reason(state, POLICY)
    assert reason in parked and bool(reason) == bool(parked)


def test_patience_can_be_switched_off() -> None:
    assert park_reason(replace(STATE, stalled=1000), replace(POLICY, patience=None)) == ""


@pytest.mark.parametrize(
    "state",
    [
        replace(STATE, floor=0.1, left=0.1),
        replace(STATE, share=0.0),
        replace(STATE, vendor=True, judged=100),
        replace(STATE, stalled=100),
    ],
)
def test_uniform_parks_nothing_but_what_cannot_be_tried(state: VariantState) -> None:
    assert park_reason(state, POLICY) and not park_reason(state, UNIFORM)
    assert park_reason(replace(state, exhausted="no more schedules"), UNIFORM) == "no more schedules"
    assert "judge failed" in park_reason(replace(state, worker_failures=3), UNIFORM)


def test_uniform_gives_each_as_many_the_largest_share_first() -> None:
    states = {
        "a": VariantState(variant_id="a", share=0.1, trials=2),
        "b": VariantState(variant_id="b", share=0.7, stalled=90),
        "c": VariantState(variant_id="c", share=0.2, left=0.1, floor=0.1),
    }
    order = []
    for _ in range(10):
        chosen = next_variant(states.values(), UNIFORM)
        assert chosen is not None
        order.append(chosen.variant_id)
        states[chosen.variant_id] = replace(chosen, trials=chosen.trials + 1)
    assert order == ["b", "c", "b", "c", *"bca", *"bca"], "two trials of a are older than the search"


def test_policies_by_name() -> None:
    assert get_policy("gain") == Policy()
    with pytest.raises(NotFound, match="no policy 'fair'"):
        get_policy("fair")


def test_state_of_a_history(make_node: MakeNode, make_scored: MakeScored, make_record: MakeRecord) -> None:
    nodes = [make_node(1, FAILED), make_node(2, make_scored(2.0, floor_us=1.0)), make_node(3, BROKEN),
             make_node(4, make_scored(2.01, floor_us=1.0)), make_node(5, FAILED)]  # fmt: skip
    state = state_of(make_record(share=0.3), nodes, in_flight=2)
    assert (state.share, state.trials, state.judged, state.floor, state.speedup) == (0.3, 7, 4, 0.1, 2.01)
    assert state.left == pytest.approx(1 / 2.01)
    assert state.stalled == 2, "0.5% is noise and no progress; a fault of the judge does not count"
    progressed = state_of(make_record(), [*nodes, make_node(6, make_scored(2.1))])
    assert progressed.stalled == 0


def test_a_kernel_that_is_rejected_later_is_no_bar_for_progress(
    make_node: MakeNode, make_scored: MakeScored, make_record: MakeRecord
) -> None:
    nodes = [make_node(1, make_scored(5.0), "// lie"), make_node(2, WRONG, "// lie")]
    nodes += [make_node(3 + i, make_scored(1.05**i)) for i in range(12)]
    state = state_of(make_record(), nodes)
    assert (state.stalled, state.judged) == (0, 14)


def test_parking_does_not_depend_on_the_direction_of_a_merge(
    make_node: MakeNode, make_scored: MakeScored, make_record: MakeRecord
) -> None:
    early, late = [make_node(i, make_scored(2.0)) for i in (1, 2, 3)], [make_node(i, make_scored(3.0)) for i in (4, 5)]
    numbered = [replace(n, number=i) for i, n in enumerate(late + early, 1)]
    one, other = state_of(make_record(), early + late), state_of(make_record(), numbered)
    assert (one.stalled, one.speedup) == (other.stalled, other.speedup) == (1, 3.0)


def test_variant_whose_eager_is_at_the_floor_is_parked(
    make_node: MakeNode, make_scored: MakeScored, make_record: MakeRecord
) -> None:
    slower = make_node(1, make_scored(0.5, floor_us=9.5))
    assert "roofline floor" in park_reason(state_of(make_record(), [slower]), POLICY)


def test_borrowed_work_is_no_progress(make_node: MakeNode, make_scored: MakeScored, make_record: MakeRecord) -> None:
    state = state_of(make_record(), [make_node(1, make_scored(5.0, audit=AuditKind.BACKEND))])
    assert state.left == 1.0 and state.stalled == 1


def test_state_of_a_vendor_s_operator(make_node: MakeNode, make_scored: MakeScored, make_record: MakeRecord) -> None:
    slow = [make_node(i, make_scored(0.5 + i / 100)) for i in range(1, 9)]
    state = state_of(make_record("matmul"), slow)
    assert (state.vendor, state.judged, state.speedup, state.left) == (True, 8, 0.58, 1.0)
    assert park_reason(state, POLICY) == "the best kernel has 0.58x after 8 trials against a vendor's library"
    assert not state_of(make_record("relu"), slow).vendor
    assert not state_of(make_record("of a plug-in"), slow).vendor


def test_a_prior_floor_holds_until_one_is_measured(
    make_node: MakeNode, make_scored: MakeScored, make_record: MakeRecord
) -> None:
    untried = state_of(make_record(), [], prior_floor=0.3)
    assert (untried.least, untried.headroom, untried.most) == (0.3, 0.7, 0.5)
    tried = state_of(make_record(), [make_node(1, make_scored(2.0, floor_us=1.0))], prior_floor=0.3)
    assert (tried.least, tried.headroom) == (0.1, 0.4)


def test_only_failures_of_this_call_count(make_node: MakeNode, make_record: MakeRecord) -> None:
    nodes = [make_node(i, BROKEN) for i in range(1, 6)]
    assert state_of(make_record(), nodes).worker_failures == 5
    assert state_of(make_record(), nodes, since=4).worker_failures == 1
