"""What an export says while it runs, and of the kernels that are used in the end."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from kernelforge import exporting
from kernelforge.benchmark.types import Interval
from kernelforge.build.types import Artifact
from kernelforge.cards.types import SizePoint, Variant, VariantRecord
from kernelforge.evaluate.types import Certified, MemoryPassed, Scored, Trial
from kernelforge.generate.types import Candidate
from kernelforge.library.folder import Library
from kernelforge.library.types import Origin
from kernelforge.mode_timing import ModeTimings
from kernelforge.package.reader import read_package
from kernelforge.package.types import Entry, Off, Use
from kernelforge.report.grid import grid_text
from kernelforge.report.rows import dispatch_of, least_elements_of
from kernelforge.report.tables import export_grids, package_grids
from kernelforge.search.types import node_of
from kernelforge.search.winners import Choice
from kernelforge.settings import Settings, load_settings
from kernelforge.store.project import Project
from kernelforge.workshop import Workshop

WINS = Interval(median=3.0, low=2.9, high=3.1)
EVEN = Interval(median=1.0, low=0.99, high=1.01)
NO_LIBRARY = load_settings({"KFORGE_LIBRARY": "0"})


@dataclass(frozen=True)
class Timing:
    """What a timing in one mode says; and in the others. narrowed: of the same kernel, for larger sizes only."""

    interval: Interval = WINS
    least: int | None = None
    narrowed: Interval = WINS
    wrong: str = ""
    busy: bool = False
    others: Mapping[str, Interval] = field(default_factory=dict)
    untimed: Mapping[str, str] = field(default_factory=dict)

    def wins_from(self, _variant: Variant, _threshold: float) -> int | None:
        return self.least

    def to_json(self) -> dict[str, Any]:
        i = self.interval
        return {"speedup": {"median": i.median, "low": i.low, "high": i.high}}


def in_modes(timing: Timing) -> ModeTimings:
    others = {mode: Timing(interval) for mode, interval in timing.others.items()}
    return ModeTimings(timed=cast(Any, {"eager": timing, **others}), untimed=timing.untimed)


@dataclass(frozen=True)
class FakeJudge:
    scored: Scored

    def certify(self, _artifact: Artifact, _record: VariantRecord, _examples: object) -> Certified:
        v = self.scored.verdict
        memory = MemoryPassed(tools=("AddressSanitizer",))
        return Certified(cases=v.cases, worst=v.worst, bitwise=v.bitwise, memory=memory)


@dataclass(frozen=True)
class FakeBackend:
    scored: Scored
    name: str = "cpp"

    def brief(self) -> str:
        return "a compiler; target x86-64-v3"

    def build(self, candidate: Candidate, _variant: Variant) -> Artifact:
        return replace(self.scored.artifact, source=candidate.source)


@dataclass(frozen=True)
class FakeProject:
    folder: Path
    device: str = "cpu"
    model: str = "tiny"
    examples: None = None

    def binary(self, _digest: str) -> Path:
        return self.folder / "kernel.so"

    def nodes(self, _variant: str) -> tuple[()]:
        return ()

    def record_decisions(self, decisions: object, nodes: object) -> None:
        """Nobody reads them."""


@pytest.fixture
def run_export(
    tmp_path: Path, scored: Scored, entry_of: Callable[[str], Entry], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[exporting.Exported, list[str]]]:
    """Export one kernel for each operator, whose timings through dispatch are given; and what was said."""

    def choice(operator: str, share: float) -> Choice:
        variant = entry_of(operator).variant
        points = (SizePoint(dims={"n0": 4}, scalars={}, calls=1, eager_us=1.0),)
        candidate = Candidate(variant_id=variant.id, source="// x", backend="cpp", generator="manual")
        trial = Trial(candidate=candidate, outcome=scored, started=0.0, seconds=1.0)
        node = node_of(id=f"{1:064d}", number=1, parent="", trial=trial)
        return Choice(record=VariantRecord(variant=variant, points=points, share=share), node=node, reason="fastest")

    def run(
        timings: Mapping[str, Timing], settings: Settings = NO_LIBRARY, untried: Sequence[str] = ()
    ) -> tuple[exporting.Exported, list[str]]:
        choices = tuple(choice(operator, 0.5 - 0.1 * i) for i, operator in enumerate(timings))
        relu = choice("relu", 0.1)
        for operator in untried:
            record = replace(relu.record, variant=replace(relu.record.variant, operator=operator))
            choices += (replace(relu, record=record, node=None, reason="not tried"),)

        def time_all(_package: Path, records: Sequence[VariantRecord], *_: object, **__: object) -> list[ModeTimings]:
            found = [(timings[r.variant.operator], bool(r.variant.min_elements)) for r in records]
            return [in_modes(replace(t, interval=t.narrowed) if narrowed else t) for t, narrowed in found]

        monkeypatch.setattr(exporting, "choose_winners", lambda project, picks: choices)
        monkeypatch.setattr(exporting, "time_in_modes", time_all)
        said: list[str] = []
        workshop = Workshop(
            settings=settings, backend=cast(Any, FakeBackend(scored)), judge=cast(Any, FakeJudge(scored))
        )
        exported = exporting.export(
            cast(Project, FakeProject(folder=tmp_path)), tmp_path / "out.cast", workshop=workshop, say=said.append
        )
        return exported, said

    return run


def test_what_no_template_makes_is_told_as_in_the_operator_table(
    run_export: Callable[..., tuple[exporting.Exported, list[str]]],
) -> None:
    exported, _ = run_export({}, untried=("linear", "relu"))
    assert [why for _, why in exported.report.skipped] == ["no template makes linear", "not tried"]


def test_certificates_are_counted_and_the_rest_is_estimated(
    run_export: Callable[..., tuple[exporting.Exported, list[str]]],
) -> None:
    _, said = run_export({"relu": Timing(), "exp": Timing(), "sigmoid": Timing()})
    patterns = (r"certifying 1/3 relu-\w{8}", r"certifying 2/3 exp-\w{8}, about \S+ left",
                r"certifying 3/3 sigmoid-\w{8}, about \S+ left")  # fmt: skip
    assert len(said) == 3
    assert all(re.fullmatch(pattern, line) for pattern, line in zip(patterns, said, strict=True)), said


def test_kernels_in_use_are_listed_with_their_gain_and_sizes(
    run_export: Callable[..., tuple[exporting.Exported, list[str]]], tmp_path: Path
) -> None:
    exported, said = run_export({"relu": Timing(EVEN, least=16), "exp": Timing(), "sigmoid": Timing(EVEN)})
    entries = {e.variant.operator: e for e in read_package(tmp_path / "out.cast").entries}
    relu, exp = entries["relu"].variant, entries["exp"].variant
    origin = replace(relu, min_elements=0)
    assert (relu.min_elements, relu.label != origin.label) == (16, True)
    assert said[-1] == f"certifying {relu.label}", "what comes on top was not foreseen, and is not counted"
    assert [(u.label, u.origin, u.least_elements, u.dispatch) for u in exported.report.used] == [
        (relu.label, origin.label, 16, WINS), (exp.label, exp.label, 0, WINS),
    ]  # fmt: skip
    text = grid_text(export_grids(exported.report)[1])
    assert f"{origin.label} from 16 elements on" in text and "3.00x" in text
    assert "sigmoid" not in text and exported.report.to_json()["used"]
    narrowed, used = exported.decisions[origin.id], exported.decisions[exp.id]
    assert (least_elements_of(narrowed), dispatch_of(narrowed)) == (16, WINS)
    assert (least_elements_of(used), dispatch_of(used)) == (0, WINS)
    assert dispatch_of(exported.decisions[entries["sigmoid"].variant.id]) == EVEN


def test_a_name_that_was_narrowed_in_vain_is_told_too(
    run_export: Callable[..., tuple[exporting.Exported, list[str]]], tmp_path: Path
) -> None:
    exported, _ = run_export({"relu": Timing(EVEN, least=16, narrowed=EVEN)})
    (entry,) = read_package(tmp_path / "out.cast").entries
    decision = exported.decisions[replace(entry.variant, min_elements=0).id]
    assert decision.startswith("eager: also from 16 elements on through dispatch not faster")
    assert (least_elements_of(decision), dispatch_of(decision)) == (16, EVEN)


def test_inspect_names_the_captured_variant_and_its_sizes(
    run_export: Callable[..., tuple[exporting.Exported, list[str]]], tmp_path: Path
) -> None:
    from kernelforge import forge

    run_export({"relu": Timing(EVEN, least=16), "exp": Timing()})
    path = tmp_path / "out.cast"
    report = forge.inspect_package(path)
    exp, relu = sorted(report.entries, key=lambda e: e.operator)
    assert (exp.origin, exp.least_elements) == ("", 0)
    assert (relu.least_elements, relu.origin.startswith("relu-"), relu.origin != relu.label) == (16, True, True)
    text = grid_text(package_grids(report)[1])
    assert f"serves {relu.origin} from 16 elements on; relu(" in text
    assert relu.to_json()["origin"] == relu.origin


def test_what_is_used_is_kept_in_the_library_as_it_was_captured(
    run_export: Callable[..., tuple[exporting.Exported, list[str]]], tmp_path: Path
) -> None:
    settings = load_settings({"KFORGE_LIBRARY_DIR": str(tmp_path / "library")})
    run_export({"relu": Timing(EVEN, least=16), "exp": Timing(), "sigmoid": Timing(EVEN)}, settings)
    exp, relu = Library(tmp_path / "library").kernels()
    variants = {e.variant.operator: e.variant for e in read_package(tmp_path / "out.cast").entries}
    assert exp.variant == variants["exp"]
    assert relu.variant == replace(variants["relu"], min_elements=0) != variants["relu"]
    assert (relu.least_elements, exp.least_elements) == (16, 0)
    assert Library(tmp_path / "library").of(relu.variant) == (relu,)
    assert relu.dispatch == WINS and relu.speedup.median == 4.0
    assert (relu.source, relu.generator, relu.model) == ("// x", "manual", "tiny")
    torch_version = relu.origin.torch
    assert relu.origin == Origin(
        device="x86-64-v3", toolchain="a compiler; target x86-64-v3", torch=torch_version
    )  # fmt: skip


def test_a_library_that_cannot_be_written_ends_no_export(
    run_export: Callable[..., tuple[exporting.Exported, list[str]]], tmp_path: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(logging.getLogger("kernelforge"), "propagate", True)
    (tmp_path / "library").write_text("a file")
    exported, _ = run_export({"exp": Timing()}, load_settings({"KFORGE_LIBRARY_DIR": str(tmp_path / "library")}))
    assert exported.report.entries == 1
    assert "was not kept in the library" in caplog.text


Exports = Callable[..., tuple[exporting.Exported, list[str]]]
GRAPHED = Interval(median=1.6, low=1.5, high=1.7)


def test_each_mode_is_decided_for_itself(run_export: Exports, tmp_path: Path) -> None:
    run_export({"relu": Timing(others={"graphed": EVEN}, untimed={"compiled": "does not compile: no compiler"})})
    (entry,) = read_package(tmp_path / "out.cast").entries
    assert entry.decisions == {
        "eager": Use(),
        "graphed": Off(reason="in a CUDA graph not faster beyond noise: 1.00x [0.99, 1.01]"),
        "compiled": Off(reason="does not compile: no compiler"),
    }
    assert entry.measured("eager")["speedup"] == {"median": 3.0, "low": 2.9, "high": 3.1}
    assert entry.measured("graphed")["speedup"] == {"median": 1.0, "low": 0.99, "high": 1.01}
    assert entry.measured("compiled") == {}


def test_what_wins_in_graphs_alone_is_exported_and_told_as_such(run_export: Exports, tmp_path: Path) -> None:
    exported, _ = run_export({"relu": Timing(EVEN, others={"graphed": GRAPHED})})
    (entry,) = read_package(tmp_path / "out.cast").entries
    assert [m for m, d in entry.decisions.items() if isinstance(d, Use)] == ["graphed"]
    assert (exported.report.entries, exported.report.skipped) == (1, ())
    (used,) = exported.report.used
    assert (used.dispatch, dict(used.modes)) == (GRAPHED, {"graphed": GRAPHED})
    decision = exported.decisions[entry.variant.id]
    assert decision == "use: only in CUDA graphs, there 1.60x [1.50, 1.70]"
    assert dispatch_of(decision) is None, "that would be taken for eager's"
    assert "only in CUDA graphs" in grid_text(export_grids(exported.report)[1])


def test_what_wins_nowhere_says_so_for_each_mode(run_export: Exports, tmp_path: Path) -> None:
    exported, _ = run_export({"relu": Timing(EVEN, others={"graphed": EVEN})})
    ((_, reason),) = exported.report.skipped
    assert reason == (
        "through dispatch not faster beyond noise: 1.00x [0.99, 1.01]; "
        "in a CUDA graph not faster beyond noise: 1.00x [0.99, 1.01]"
    )
    assert dispatch_of(exported.decisions[read_package(tmp_path / "out.cast").entries[0].variant.id]) == EVEN
    assert exported.report.entries == 0


def test_a_kernel_for_all_sizes_in_graphs_ships_beside_one_for_large_sizes_in_eager(
    run_export: Exports, tmp_path: Path
) -> None:
    exported, _ = run_export({"relu": Timing(EVEN, least=16, others={"graphed": GRAPHED})})
    entries = {e.variant.min_elements: e for e in read_package(tmp_path / "out.cast").entries}
    on = {least: [m for m, d in e.decisions.items() if isinstance(d, Use)] for least, e in entries.items()}
    assert on == {0: ["graphed"], 16: ["eager", "graphed"]}
    decision = exported.decisions[entries[0].variant.id]
    assert (least_elements_of(decision), dispatch_of(decision)) == (16, WINS), "eager mode counts before graphs"


def test_if_only_graphs_are_left_the_narrowed_kernel_takes_nothing_back(run_export: Exports, tmp_path: Path) -> None:
    exported, _ = run_export({"relu": Timing(EVEN, least=16, narrowed=EVEN, others={"graphed": GRAPHED})})
    entries = {e.variant.min_elements: e for e in read_package(tmp_path / "out.cast").entries}
    assert exported.report.skipped == ()
    decision = exported.decisions[entries[0].variant.id]
    assert decision.startswith("use: only in CUDA graphs") and least_elements_of(decision) == 0
    assert isinstance(entries[16].decision("eager"), Off)


def test_one_wrong_mode_is_off_and_the_others_stand(run_export: Exports, tmp_path: Path) -> None:
    wrong = ModeTimings(timed=cast(Any, {"eager": Timing(), "graphed": Timing(wrong="in a CUDA graph: 7, not 8")}),
                        untimed={})  # fmt: skip
    assert wrong.decisions()["eager"] == Use()
    assert wrong.decisions()["graphed"] == Off(reason="wrong: in a CUDA graph: 7, not 8")
    assert (wrong.wrong, list(wrong.to_json())) == ("", ["eager"])
