"""`kforge forge --plan`: what it prints, and that it leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernelforge.benchmark.machine import MachineFacts
from kernelforge.build.types import BuildFailure
from kernelforge.capture.types import TensorRef
from kernelforge.cards.types import Extent, OperatorCard, SizePoint, TensorPattern, Variant, VariantRecord
from kernelforge.evaluate.types import Trial
from kernelforge.generate.types import Candidate
from kernelforge.report.grid import grid_text
from kernelforge.report.plan import PlanReport, PlanRow, plan_grids
from kernelforge.report.rows import ForgeReport
from kernelforge.search.strategies import get_strategy
from kernelforge.search.study import Study
from kernelforge.search.types import Budget
from kernelforge.store.project import Project

FACTS = MachineFacts(device="d", bandwidth=((1, 1e9),), cache_bytes=64, dispatch_overhead_us=1.0)


def record(operator: str, share: float) -> VariantRecord:
    """256 floats in and out: 2048 bytes, which take 2.048 us at 1e9 bytes/s; eager takes 4.096 us."""
    tensor = TensorPattern(shape=(Extent(256),), stride=(Extent(1),), dtype="float32")
    arguments = (("input", TensorRef(0)), ("inplace", False))
    variant = Variant(operator=operator, arguments=arguments, tensors=(tensor,), outputs=(tensor,))
    point = SizePoint(dims={}, scalars={}, calls=1, eager_us=4.096)
    return VariantRecord(variant=variant, points=(point,), share=share)


RELU, LINEAR = record("relu", 0.75), record("linear", 0.25)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Relu failed once, in 2 s; linear has no template. Of the model's time 80% were captured."""
    monkeypatch.setenv("KFORGE_LIBRARY", "0")
    monkeypatch.setattr("kernelforge.planning.known_facts", lambda *_, **__: FACTS)
    cards = [OperatorCard(operator=r.variant.operator, model="m", device="cpu", variants=(r,)) for r in (RELU, LINEAR)]
    opened = Project.create(
        tmp_path / "m.kforge", model="m", device="cpu", cards=cards, capture_info={"coverage_wall": 0.8}
    )
    candidate = Candidate(variant_id=RELU.variant.id, source="//", backend="cpp", generator="template")
    opened.append(
        Trial(candidate=candidate, outcome=BuildFailure(reason="compile_error", detail=""), started=1.0, seconds=2.0)
    )
    return opened.path


def test_plan_of_a_project(kforge: Any, project: Path) -> None:
    before = {p: p.read_bytes() for p in project.rglob("*") if p.is_file()}
    ran = kforge("forge", str(project), "--plan", "--trials", "3")
    assert ran.code == 0
    lines = ran.stdout.splitlines()
    assert lines[2].split() == [RELU.variant.label, "75.0%", "4.10", "us", "-", "2.05", "us", "50.0%", "1", "+3"]
    assert lines[3].startswith(f"{LINEAR.variant.label}  25.0%")
    assert lines[3].endswith("0  no template family makes linear")
    assert lines[4] == "planned: 3 trials by policy gain, as if none of them brought progress"
    # Amdahl: all of relu's headroom is 0.8 x 0.75 x 0.5 = 0.3 of the time, linear's 0.8 x 0.25 x 0.5 = 0.1 more; the
    # estimate is half of relu's at the chance of three trials after one failure, 3/5.
    text = ran.stdout
    assert "now       1.00x with the best kernels so far" in text
    assert "estimate  1.10x after 3 more trials" in text
    assert "bound     1.43x if all that this search can work on reached its floor" in text
    assert "          1.67x if every variant that may be forged did" in text
    assert "the 20.0% of the model's time that was not captured stays" in text
    assert ran.stderr == f"next: kforge forge {project} --trials 3\n"
    assert {p: p.read_bytes() for p in project.rglob("*") if p.is_file()} == before


def test_plan_counts_what_waits_for_the_judge(kforge: Any, project: Path) -> None:
    opened = Project.open(project)
    candidate = Candidate(variant_id=LINEAR.variant.id, source="// by hand", backend="cpp", generator="agent")
    Study(opened, [LINEAR], strategy=get_strategy("best-first")).enqueue(candidate)
    lines = kforge("forge", str(project), "--plan", "--trials", "3").stdout.splitlines()
    assert lines[2].endswith("+2") and "  +1  " in lines[3]
    assert lines[5] == "of them first: 1 candidate delivered before and not judged yet"
    assert json.loads(kforge("forge", str(project), "--plan", "--trials", "3", "--json").stdout)["waiting"] == 1


def test_plan_as_json(kforge: Any, project: Path) -> None:
    ran = kforge("forge", str(project), "linear", "--plan", "--max-time", "10s", "--budget-usd", "2", "--json", "-q")
    document = json.loads(ran.stdout)
    assert document["budget"] == {"trials": None, "seconds": 10.0, "tokens": None, "usd": 2.0}
    assert document["policy"] == "gain"
    (row,) = document["rows"]
    assert (row["operator"], row["allotted"], row["floor_us"]) == ("linear", 0, pytest.approx(2.048))
    assert document["speedup"]["bound_all"] == pytest.approx(1 / 0.9)
    assert (document["limit"], document["unknown_limits"]) == (None, ["seconds"]), "linear was never tried"


def test_time_is_told_in_trials_by_what_those_before_took(kforge: Any, project: Path) -> None:
    text = kforge("forge", str(project), "--plan", "--max-time", "9s", "--policy", "uniform").stdout
    assert "planned: 3 trials by policy uniform, as if none of them brought progress" in text
    assert "; a limit of 9.0s allows for about 4; then no variant is left to try\n" in text, "2 s each; 3 schedules"


def test_without_facts_of_the_machine_the_floor_is_unknown(
    kforge: Any, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelforge.planning.known_facts", lambda *_, **__: None)
    text = kforge("forge", str(project), "--plan", "--trials", "1").stdout
    assert text.splitlines()[2].split()[-4:] == ["unknown", "unknown", "1", "+1"]
    assert "now       1.00x with the best kernels so far" in text
    assert "estimate  unknown after 1 more trial" in text
    assert "bound     unknown if all that this search can work on reached its floor" in text
    assert "          unknown if every variant that may be forged did" in text
    assert f"no floor is known for {RELU.variant.label}, {LINEAR.variant.label}: 100.0% of the captured time" in text
    assert "memory has not been measured yet: any `kforge forge` does so first, also with --trials 1" in text
    document = json.loads(kforge("forge", str(project), "--plan", "--trials", "1", "--json").stdout)
    assert document["speedup"] == {"now": 1.0, "estimate": None, "bound": None, "bound_all": None}
    assert document["missing_floors"] == [RELU.variant.label, LINEAR.variant.label]


def test_a_narrow_terminal_has_the_reasons_under_the_lines() -> None:
    row = PlanRow(
        variant="0a" * 32, label="max_pool2d-0a0a0a0a", operator="max_pool2d", share=0.5, eager_us=80.0, best_us=40.0,
        floor_us=38.0, headroom=0.025, trials=7, allotted=0, parked="no progress in 12 trials",
    )  # fmt: skip
    report = PlanReport(
        rows=(row,), policy="gain", budget=Budget(usd=2.0), limit=None, limit_by="", unknown_limits=("usd",),
        coverage=1.0, now=1.33, estimate=1.33, bound=1.36, bound_all=1.36, unknown_floors=0.0,
    )  # fmt: skip
    text = "\n".join(grid_text(grid, width=80) for grid in plan_grids(report, width=80))
    assert "\n  7 trials so far; best 40.0 us; no progress in 12 trials\n" in text
    assert "how many trials a limit of $2.00 allows for is unknown before the first" in text
    assert max(map(len, text.splitlines())) <= 80


def test_budgets_and_policy_reach_the_search(kforge: Any, fake_verbs: Any) -> None:
    asked: dict[str, object] = {}

    def forge_project(project: Path, **options: object) -> ForgeReport:
        asked.update(options, project=project)
        return ForgeReport(rows=(), trials=12, seconds=40.0, stopped="usd", tokens=12_300, usd=1.2)

    fake_verbs(forge_project=forge_project)
    words = ("--budget-tokens", "20000", "--budget-usd", "1.25", "--policy", "uniform")
    ran = kforge("forge", "x.kforge", *words)
    assert asked["budget"] == Budget(tokens=20_000, usd=1.25)
    assert asked["policy"] == "uniform"
    assert (
        "12 trials in 40s, 12,300 tokens, $1.20; ended by: --budget-usd is spent (the next proposal would not fit)"
        in ran.stderr
    )
    assert f"resume: kforge forge x.kforge {' '.join(words)}" in ran.stderr
