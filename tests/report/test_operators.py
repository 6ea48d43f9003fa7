"""The rows of a project: whose word counts, which timings were disturbed, and what a candidate is compiled with."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kernelforge.audit.types import AuditKind, AuditLabel
from kernelforge.benchmark.clock import BUSY_SHARE
from kernelforge.benchmark.protocol import Protocol
from kernelforge.benchmark.types import Interval, Measurement
from kernelforge.build.abi import prelude
from kernelforge.build.types import Artifact
from kernelforge.capture.types import TensorRef
from kernelforge.cards.types import Extent, OperatorCard, SizePoint, TensorPattern, Variant, VariantRecord
from kernelforge.evaluate.types import Scored, Trial
from kernelforge.generate.types import Candidate
from kernelforge.operators import get_operator
from kernelforge.report.evaluation import eval_report
from kernelforge.report.nodes import trial_row
from kernelforge.report.operators import project_rows, variant_report
from kernelforge.report.rows import OperatorRow, used_decision
from kernelforge.search.types import Node
from kernelforge.search.winners import choose_winner
from kernelforge.store.project import Project
from kernelforge.verify.types import Accepted, ErrorStatistics

TENSOR = TensorPattern(shape=(Extent(8),), stride=(Extent(1),), dtype="float32")
VARIANT = Variant(operator="relu", arguments=(("input", TensorRef(0)),), tensors=(TENSOR,), outputs=(TENSOR,))


def record(forgeable: str = "") -> VariantRecord:
    point = SizePoint(dims={}, scalars={}, calls=1, eager_us=10.0)
    return VariantRecord(variant=VARIANT, points=(point,), share=1.0, forgeable=forgeable)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    card = OperatorCard(operator="relu", model="tiny", device="cpu", variants=(record(),))
    return Project.create(tmp_path / "tiny.kforge", model="tiny", device="cpu", cards=(card,), capture_info={})


def append(project: Project, speedup: float, *, foreign_cpu_share: str = "0.00") -> Node:
    """An accepted trial, unlike those with another speed-up."""
    binary = project.path / "kernel.so"
    binary.write_bytes(b"\x7fELF a binary")
    scored = Scored(
        verdict=Accepted(
            cases=1, worst=ErrorStatistics(max_abs=0.0, rms=0.0, eager_max_abs=0.0, eager_rms=0.0), bitwise=True
        ),
        measurement=Measurement(
            points=(), speedup=Interval(median=speedup, low=0.95 * speedup, high=1.05 * speedup), eager_us=20.0,
            candidate_us=20.0 / speedup, floor_us=1.0, environment={"foreign_cpu_share": foreign_cpu_share},
        ),
        audit=AuditLabel(kind=AuditKind.GENERATED, evidence=()),
        artifact=Artifact(
            digest=hashlib.sha256(binary.read_bytes()).hexdigest(), path=binary, backend="cpp", target="x86-64-v3",
            compiler="g++ 12", flags=(), seconds=0.0, log="",
        ),
    )  # fmt: skip
    candidate = Candidate(variant_id=VARIANT.id, source=f"// {speedup}\n", backend="cpp", generator="template")
    return project.append(Trial(candidate=candidate, outcome=scored, started=time.time(), seconds=0.5))


def only_row(project: Project, decisions: dict[str, str] | None = None) -> OperatorRow:
    (row,) = project_rows(Project.open(project.path), decisions)
    return row


def test_what_an_export_decided_is_said_until_there_is_a_better_node(project: Project) -> None:
    first = append(project, 2.0)
    assert only_row(project).decision == "use"
    project.record_decisions({VARIANT.id: "eager: slow through dispatch"}, {VARIANT.id: first.id})
    assert only_row(project).decision == "eager: slow through dispatch"
    append(project, 1.5)
    assert only_row(project).decision == "eager: slow through dispatch", "a slower node changes nothing"
    append(project, 3.0)
    assert only_row(project).decision == "use"


def test_what_an_export_decided_is_shown_of_the_node_that_it_is_about(project: Project) -> None:
    first, second = append(project, 2.0), append(project, 1.9)
    text = used_decision(Interval(median=1.8, low=1.7, high=1.9), 0)
    project.record_decisions({VARIANT.id: text}, {VARIANT.id: second.id})
    row = only_row(project)
    assert (row.decision, row.speedup) == (text, 1.9), "the finals may choose another one than the search"
    assert first.number == 1


def test_eager_in_the_model_is_the_captured_time_also_after_a_trial(project: Project) -> None:
    before = only_row(project)
    append(project, 2.0)
    after = only_row(project)
    assert (before.eager_us, before.judged_eager_us) == (10.0, None)
    assert (after.eager_us, after.judged_eager_us) == (10.0, 20.0)


def test_the_packages_name_of_a_variant_outlives_a_better_node(project: Project) -> None:
    text = used_decision(Interval(median=3.0, low=2.9, high=3.1), 64)
    project.record_decisions({VARIANT.id: text}, {VARIANT.id: append(project, 2.0).id})
    name = replace(VARIANT, min_elements=64).label
    assert (only_row(project).packaged, only_row(project).dispatch) == (name, Interval(median=3.0, low=2.9, high=3.1))
    append(project, 3.0)
    assert (only_row(project).packaged, only_row(project).dispatch) == (name, None)


def test_a_decision_that_is_passed_beats_the_stored_one(project: Project) -> None:
    node = append(project, 2.0)
    project.record_decisions({VARIANT.id: "eager: slow through dispatch"}, {VARIANT.id: node.id})
    assert only_row(project, {VARIANT.id: "use: from 64 elements on"}).decision == "use: from 64 elements on"
    assert only_row(project, {"another": "use"}).decision == "eager: slow through dispatch"


def test_one_variant_in_full_knows_the_stored_decision(project: Project) -> None:
    node = append(project, 2.0)
    project.record_decisions({VARIANT.id: "eager: slow through dispatch"}, {VARIANT.id: node.id})
    nodes = project.nodes(VARIANT.id)
    report = variant_report(choose_winner(record(), nodes), nodes, project.decisions().get(VARIANT.id))
    assert report.row.decision == "eager: slow through dispatch"


@pytest.mark.parametrize(("share", "disturbed"), [("0.00", False), ("0.20", False), ("0.39", True), ("odd", False)])
def test_timing_while_others_used_the_machine_is_marked(project: Project, share: str, disturbed: bool) -> None:
    node = append(project, 2.0, foreign_cpu_share=share)
    assert only_row(project).disturbed is disturbed
    assert trial_row(node).disturbed is disturbed
    assert eval_report(node, record()).disturbed is disturbed
    assert only_row(project).to_json()["disturbed"] is disturbed


def test_row_of_a_variant_without_a_measurement_is_not_marked(project: Project) -> None:
    assert not only_row(project).disturbed


def test_busy_is_what_the_judge_calls_busy() -> None:
    assert Protocol().busy_share == BUSY_SHARE


def test_prelude_is_that_of_the_build_for_every_backend() -> None:
    report = variant_report(choose_winner(record(), ()), ())
    assert report.preludes == {backend: prelude(VARIANT, backend) for backend in ("cpp", "cuda")}
    assert report.backend == "cpp"


def test_variant_that_is_not_forged_has_no_prelude() -> None:
    refused = record(forgeable="no C type for complex64")
    assert variant_report(choose_winner(refused, ()), ()).preludes == {}


def test_eval_report_has_the_number_of_the_trial(project: Project) -> None:
    append(project, 2.0)
    report = eval_report(append(project, 1.5), record())
    assert (report.number, report.to_json()["number"]) == (2, 2)


def test_whether_a_template_makes_a_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(operator: str) -> bool:
        of_it = replace(record(forgeable="no"), variant=replace(VARIANT, operator=operator))
        return variant_report(choose_winner(of_it, ()), ()).has_template

    assert made("relu")
    assert not made("operator_of_a_plugin_that_is_not_here")
    without = replace(get_operator("relu"), family="")
    monkeypatch.setattr("kernelforge.report.operators.get_operator", lambda _name: without)
    assert not made("relu")
