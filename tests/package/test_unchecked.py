"""Kernels whose memory could not be checked: exported only when that is allowed, and then the package says so."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from kernelforge import exporting
from kernelforge.benchmark.types import Interval, Measurement
from kernelforge.build.types import Artifact
from kernelforge.cards.types import SizePoint, VariantRecord
from kernelforge.errors import PackageError
from kernelforge.evaluate.types import Certified, MemoryPassed, MemoryUnavailable, Scored, Trial
from kernelforge.generate.types import Candidate
from kernelforge.mode_timing import ModeTimings
from kernelforge.package.archive import pack, unpack
from kernelforge.package.layout import HEADER, MANIFEST, SEALS, seal
from kernelforge.package.reader import read_package
from kernelforge.package.serial import accepted_from_json, make_entry
from kernelforge.package.signing import Signer
from kernelforge.package.types import Entry, Header, Use
from kernelforge.package.writer import write_package
from kernelforge.search.types import Node, node_of
from kernelforge.search.winners import Choice
from kernelforge.settings import load_settings
from kernelforge.store.project import Project
from kernelforge.verify.types import Rejected, RejectReason
from kernelforge.workshop import Workshop

PASSED = MemoryPassed(tools=("AddressSanitizer", "UndefinedBehaviorSanitizer"))
WINS = Interval(median=3.0, low=2.9, high=3.1)
NO_TOOL = MemoryUnavailable(reason="compute-sanitizer was not found", anywhere=True)
ODD = MemoryUnavailable(reason="the checked form does not build")


def certified(scored: Scored, memory: MemoryPassed | MemoryUnavailable) -> Scored:
    v = scored.verdict
    return replace(scored, verdict=Certified(cases=v.cases, worst=v.worst, bitwise=v.bitwise, memory=memory))


def entry_with(entry: Entry, scored: Scored, memory: MemoryPassed | MemoryUnavailable) -> Entry:
    candidate = Candidate(variant_id=entry.variant.id, source=entry.source, backend="cpp", generator="manual")
    return make_entry(
        variant=entry.variant, candidate=candidate, scored=certified(scored, memory), decisions=entry.decisions
    )


def test_entry_and_header_say_it(
    tmp_path: Path, header: Header, entry_of: Callable[[str], Entry], scored: Scored
) -> None:
    checked = entry_with(entry_of("exp"), scored, PASSED)
    unchecked = entry_with(entry_of("relu"), scored, NO_TOOL)
    write_package(tmp_path / "a.cast", [unchecked, checked], header=header)
    package = read_package(tmp_path / "a.cast")
    assert package.header.unchecked == (unchecked.variant.label,)
    exp, relu = package.entries
    assert exp.memory == {"state": "passed", "tools": list(PASSED.tools)}
    assert relu.memory == {"state": "unavailable", "reason": NO_TOOL.reason}
    assert accepted_from_json(relu.verdict).cases == scored.verdict.cases
    # What the header says follows from the entries, also when one of them is left out later.
    write_package(tmp_path / "b.cast", [exp], header=package.header)
    assert read_package(tmp_path / "b.cast").header.unchecked == ()


def edited_header(written: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The package with another header, signed by somebody who knows the format."""
    files = unpack(written.read_bytes(), first=HEADER)
    head = json.loads(files[HEADER])
    change(head)
    inner = {name: data for name, data in files.items() if name not in SEALS}
    records = json.loads(files[MANIFEST])["entries"]
    sealed = seal({**inner, HEADER: json.dumps(head).encode()}, records, signer=Signer.of(bytes(32)))
    path = written.with_name("edited.cast")
    path.write_bytes(pack(sealed, compress=False))
    return path


@pytest.mark.parametrize("value", ["relu", [1], None])
def test_a_header_with_no_list_of_labels_is_refused(written: Path, value: object) -> None:
    with pytest.raises(PackageError, match="unchecked"):
        read_package(edited_header(written, lambda head: head.update(unchecked=value)))


def test_a_header_that_hides_an_unchecked_kernel_is_refused(
    tmp_path: Path, header: Header, entry_of: Callable[[str], Entry], scored: Scored
) -> None:
    path = tmp_path / "a.cast"
    write_package(path, [entry_with(entry_of("relu"), scored, NO_TOOL)], header=header)
    with pytest.raises(PackageError, match="'unchecked' names others"):
        read_package(edited_header(path, lambda head: head.update(unchecked=[])))


@dataclass
class FakeJudge:
    """Certifies everything, with the memory checks given in turn."""

    scored: Scored
    memory: list[MemoryPassed | MemoryUnavailable]
    sources: list[str] = field(default_factory=list)
    final: Mapping[str, float] = field(default_factory=dict)
    finals: list[list[str]] = field(default_factory=list)

    def certify(self, artifact: Artifact, record: VariantRecord, examples: object) -> Certified:
        self.sources.append(artifact.source)
        verdict = certified(self.scored, self.memory[len(self.sources) - 1]).verdict
        assert isinstance(verdict, Certified)
        return verdict

    def retime(
        self, artifacts: Sequence[Artifact], record: VariantRecord, examples: object
    ) -> tuple[tuple[Measurement, ...] | Rejected, ...]:
        """By the artifacts' sources: their speed-ups in the final, or 0 for one that is wrong by now."""
        self.finals.append([a.source for a in artifacts])
        wrong = Rejected(reason=RejectReason.WRONG_VALUE, case="timed calls", detail="out[0]", worst_abs=1.0)
        speedups = [self.final.get(a.source, 1.5) for a in artifacts]
        interval = [Interval(median=s, low=s, high=s) for s in speedups]
        return tuple(
            (replace(self.scored.measurement, speedup=i),) * 2 if s else wrong
            for i, s in zip(interval, speedups, strict=True)
        )


@dataclass
class FakeProject:
    folder: Path
    device: str = "cpu"
    model: str = "tiny"
    examples: None = None
    appended: list[Trial] = field(default_factory=list)

    def binary(self, digest: str) -> Path:
        return self.folder / "kernel.so"

    def record_decisions(self, decisions: object, nodes: object) -> None:
        self.decisions = decisions

    def append(self, trial: Trial) -> None:
        self.appended.append(trial)


@dataclass(frozen=True)
class Timing:
    interval: Interval = WINS
    wrong: str = ""

    def to_json(self) -> dict[str, float]:
        return {}


@pytest.fixture
def run_export(
    tmp_path: Path, scored: Scored, entry_of: Callable[[str], Entry], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[exporting.Exported, FakeJudge]]:
    """Export one variant with three nodes, whose memory checks say what is given."""
    variant = entry_of("relu").variant
    record = VariantRecord(
        variant=variant, points=(SizePoint(dims={"n0": 4}, scalars={}, calls=1, eager_us=1.0),), share=1.0
    )

    def node(number: int) -> Node:
        candidate = Candidate(variant_id=variant.id, source=f"// {number}", backend="cpp", generator="manual")
        trial = Trial(candidate=candidate, outcome=scored, started=0.0, seconds=1.0)
        return node_of(id=f"{number:064d}", number=number, parent="", trial=trial)

    choice = Choice(record=record, node=node(1), reason="fastest", runners_up=(node(2), node(3)))
    monkeypatch.setattr(exporting, "choose_winners", lambda project, picks: (choice,))
    timings = ModeTimings(timed={"eager": cast(Any, Timing())}, untimed={})
    monkeypatch.setattr(exporting, "time_in_modes", lambda package, records, *_, **__: [timings] * len(records))

    def run(
        *memory: MemoryPassed | MemoryUnavailable, allow_unchecked: bool = False,
        final: Mapping[str, float] | None = None, project: FakeProject | None = None,
    ) -> tuple[exporting.Exported, FakeJudge]:  # fmt: skip
        judge = FakeJudge(scored=scored, memory=list(memory), final=final or {})
        workshop = Workshop(
            settings=load_settings({"KFORGE_LIBRARY": "0"}), backend=cast(Any, None), judge=cast(Any, judge)
        )
        exported = exporting.export(
            cast(Project, project or FakeProject(folder=tmp_path)), tmp_path / "out.cast", workshop=workshop,
            allow_unchecked=allow_unchecked, say=lambda _: None,
        )  # fmt: skip
        return exported, judge

    return run


def test_a_kernel_that_cannot_be_checked_is_skipped_and_says_how_to_export_it(
    run_export: Callable[..., tuple[exporting.Exported, FakeJudge]], tmp_path: Path
) -> None:
    exported, judge = run_export(NO_TOOL)
    ((_, reason),) = exported.report.skipped
    assert NO_TOOL.reason in reason and "--allow-unchecked" in reason
    assert judge.sources == ["// 1"], "no other node's memory can be checked either"
    assert exported.report.entries == 0 and not read_package(tmp_path / "out.cast").entries
    assert next(iter(exported.decisions.values())).startswith("eager")


def test_another_node_is_tried_where_it_may_be_checked(
    run_export: Callable[..., tuple[exporting.Exported, FakeJudge]], tmp_path: Path
) -> None:
    exported, judge = run_export(ODD, PASSED)
    assert judge.sources == ["// 1", "// 2"] and not exported.report.skipped
    (entry,) = read_package(tmp_path / "out.cast").entries
    assert entry.source == "// 2" and entry.memory["state"] == "passed"


def test_it_is_exported_where_that_is_allowed(
    run_export: Callable[..., tuple[exporting.Exported, FakeJudge]], tmp_path: Path
) -> None:
    exported, _ = run_export(NO_TOOL, allow_unchecked=True)
    assert exported.report.entries == 1 and not exported.report.skipped
    package = read_package(tmp_path / "out.cast")
    assert isinstance(package.entries[0].decision("eager"), Use)
    assert package.header.unchecked == (package.entries[0].variant.label,)


def test_inspect_shows_it(tmp_path: Path, header: Header, entry_of: Callable[[str], Entry], scored: Scored) -> None:
    from kernelforge import forge

    entries = [entry_with(entry_of("relu"), scored, NO_TOOL), entry_with(entry_of("exp"), scored, PASSED)]
    write_package(tmp_path / "a.cast", entries, header=header)
    assert forge.inspect_package(tmp_path / "a.cast").environment["memory unchecked"] == entries[0].variant.label


def test_candidates_close_to_the_best_are_timed_again_and_the_fastest_then_comes_first(
    run_export: Callable[..., tuple[exporting.Exported, FakeJudge]], tmp_path: Path
) -> None:
    exported, judge = run_export(PASSED, final={"// 1": 1.4, "// 2": 1.3, "// 3": 1.6})
    assert judge.finals == [["// 1", "// 2", "// 3"]]
    assert judge.sources == ["// 3"] and exported.report.entries == 1
    assert [*exported.nodes.values()] == [f"{3:064d}"], (
        "the decision is on what was packaged, not on the search's first"
    )


def test_one_that_is_wrong_in_the_final_is_a_rejected_trial(
    run_export: Callable[..., tuple[exporting.Exported, FakeJudge]], tmp_path: Path
) -> None:
    project = FakeProject(folder=tmp_path)
    _, judge = run_export(PASSED, final={"// 1": 0.0, "// 2": 1.3, "// 3": 1.2}, project=project)
    assert judge.sources == ["// 2"]
    assert [(t.candidate.source, type(t.outcome)) for t in project.appended] == [("// 1", Rejected)]
