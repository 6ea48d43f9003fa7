"""Best node, standing judgements, the generator's history and the weights of sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from kernelforge.audit.types import AuditKind
from kernelforge.build.types import BuildFailure
from kernelforge.cards.types import SizePoint, VariantRecord
from kernelforge.evaluate.types import Scored, WorkerFailure
from kernelforge.explain.profile import KernelProfile, Profile
from kernelforge.search.lineage import best_node, feedback_of, history, parent_node, standing, weights
from kernelforge.search.study import Track
from kernelforge.search.types import Node
from kernelforge.verify.types import Rejected, RejectReason

MakeNode = Callable[..., Node]
MakeScored = Callable[..., Scored]
WRONG = Rejected(reason=RejectReason.WRONG_VALUE, case="n0=8", detail="out[0] is 1, expected 2", worst_abs=1.0)
BROKEN = WorkerFailure(detail="the eager worker died")


def test_best_is_the_fastest_accepted(make_node: MakeNode, make_scored: MakeScored) -> None:
    nodes = [make_node(1, make_scored(1.5)), make_node(2, make_scored(2.5)), make_node(3, make_scored(2.0)),
             make_node(4, WRONG)]  # fmt: skip
    assert best_node(nodes) == nodes[1]
    assert best_node([]) is None and best_node(nodes[3:]) is None


def test_best_prefers_what_is_surely_faster(make_node: MakeNode, make_scored: MakeScored) -> None:
    sure, noisy = make_node(1, make_scored(1.2, low=1.1)), make_node(2, make_scored(1.4, low=0.8))
    assert best_node([sure, noisy]) == sure
    assert best_node([noisy]) == noisy


def test_best_ignores_borrowed_work(make_node: MakeNode, make_scored: MakeScored) -> None:
    own, borrowed = make_node(1, make_scored(1.2)), make_node(2, make_scored(9.0, audit=AuditKind.BACKEND))
    assert best_node([own, borrowed]) == own
    assert best_node([borrowed]) is None


def test_the_latest_judgement_stands(make_node: MakeNode, make_scored: MakeScored) -> None:
    accepted, rejected = make_node(1, make_scored(3.0), source="a"), make_node(2, WRONG, source="a")
    other, broken = make_node(3, make_scored(1.5)), make_node(4, BROKEN, source="a")
    assert standing([accepted, rejected, other, broken]) == (rejected, other)
    assert best_node([accepted, rejected, other, broken]) == other
    assert best_node([accepted, broken]) == accepted, "a fault of the judge takes nothing back"


def test_history_in_words(make_node: MakeNode, make_scored: MakeScored) -> None:
    nodes = [make_node(1, make_scored(2.0)), make_node(2, WRONG),
             make_node(3, BuildFailure(reason="compile_error", detail="line 3: ';'"))]  # fmt: skip
    accepted, rejected, failed = history(nodes)
    assert (accepted.outcome, accepted.speedup) == ("accepted", 2.0)
    assert (rejected.outcome, rejected.speedup) == ("rejected", None)
    assert "wrong_value" in rejected.detail and "expected 2" in rejected.detail
    assert failed.outcome == "build_failure"
    assert "compile_error" in failed.detail and "line 3: ';'" in failed.detail


def test_unjudged_candidate_is_offered_again_once(make_node: MakeNode) -> None:
    first, second = make_node(1, BROKEN, source="a"), make_node(2, BROKEN, source="a")
    assert history([first]) == ()
    assert [f.outcome for f in history([first, second])] == ["worker_failure", "worker_failure"]
    judged = make_node(3, WRONG, source="a")
    assert [f.outcome for f in history([first, judged])] == ["worker_failure", "rejected"]


def test_a_kernel_that_looks_slow_on_a_busy_machine_is_offered_again_once(
    make_node: MakeNode, make_scored: MakeScored
) -> None:
    def timed(number: int, speedup: float, load: float) -> Node:
        scored = make_scored(speedup)
        measurement = replace(scored.measurement, environment={"foreign_cpu_share": str(load)})
        return make_node(number, replace(scored, measurement=measurement), source="a")

    busy, quiet = timed(1, 0.07, 0.6), timed(2, 1.26, 0.0)
    assert history([busy]) == ()
    assert len(history([busy, quiet])) == 2 and best_node([busy, quiet]) == quiet
    assert len(history([busy, timed(2, 0.06, 0.6)])) == 2, "twice is enough"
    assert len(history([timed(1, 0.07, 0.0)])) == 1, "it is just slow"
    assert len(history([timed(1, 0.9, 0.6)])) == 1, "noise does not make this of a fast one"


def test_parent_is_the_newest_node_of_the_candidate(make_node: MakeNode) -> None:
    nodes = [make_node(1, WRONG, source="a"), make_node(2, WRONG, source="a"), make_node(3, WRONG)]
    assert parent_node(nodes[0].candidate.id, nodes) == nodes[1].id
    assert parent_node("", nodes) == "" and parent_node("unknown", nodes) == ""


def test_weights_are_shares_of_time(make_record: Callable[..., VariantRecord]) -> None:
    points = (
        SizePoint(dims={"n0": 8}, scalars={"s": 1.0}, calls=1, eager_us=10.0),
        SizePoint(dims={"n0": 64}, scalars={}, calls=3, eager_us=20.0),
        SizePoint(dims={"n0": 8}, scalars={"s": 2.0}, calls=1, eager_us=10.0),
    )
    record = replace(make_record(), points=points)
    assert weights(record) == (({"n0": 64}, 0.75), ({"n0": 8}, 0.25))
    untimed = replace(record, points=tuple(replace(p, eager_us=0.0) for p in points))
    assert [dims for dims, _ in weights(untimed)] == [{"n0": 64}, {"n0": 8}]
    assert math.isclose(sum(w for _, w in weights(untimed)), 1.0)
    assert weights(replace(record, points=())) == ()


def test_feedback_has_the_kernel_s_own_time_and_what_a_profiler_found(
    make_node: MakeNode, make_scored: MakeScored, make_record: Callable[..., VariantRecord]
) -> None:
    scored = make_scored(2.0)
    busy = {"device": "H200", "foreign_cpu_share": "0.9"}
    told = feedback_of(make_node(1, replace(scored, measurement=replace(scored.measurement, environment=busy))))
    assert (told.us, told.device, told.disturbed) == (5.0, "H200", True)
    failed = feedback_of(make_node(2, WRONG))
    assert (failed.us, failed.device, failed.disturbed) == (None, "", False)
    kernel = KernelProfile(name="k", grid=1, block=32, duration_us=4.0, units={"dram": 90.0})
    profile = Profile(device="H200", dims={}, cold=True, kernels=(kernel,), recorded=1.0)
    node, record = make_node(3, scored), make_record()
    assert "bound by the GPU's memory" in feedback_of(node, record, profile).detail
    track = Track(record=record, nodes=[node], since=0)
    assert "profiled" not in track.history()[0].detail
    track.profiles = {node.summary.binary: profile}
    assert "bound by the GPU's memory" in track.history()[0].detail, "though it was explained before"
