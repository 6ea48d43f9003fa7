"""The main job on the CPU: a small model from capture to a package that other sizes hit, through the public verbs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import kernelforge
import kernelforge.errors
from kernelforge import forge
from kernelforge.build.types import Artifact
from kernelforge.cards.types import VariantRecord
from kernelforge.evaluate.judge import Judge
from kernelforge.evaluate.types import WorkerFailure
from kernelforge.search.types import Budget
from kernelforge.verify.types import Rejected, RejectReason, Verdict

pytestmark = pytest.mark.slow


class Pooled(nn.Module):
    """Max pooling is slow in eager mode on the CPU, so a win is certain there."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x, 3, 2, 1).softmax(-1)


def samples() -> list[tuple[torch.Tensor]]:
    return [(torch.randn(batch, 16, 64, 64),) for batch in (1, 2)]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A captured and forged project with its package."""
    folder = tmp_path_factory.mktemp("job")
    path = folder / "pooled.kforge"
    report = kernelforge.capture(Pooled(), samples=samples(), project=path)
    assert (report.variants, report.calls) == (2, 4)
    assert report.coverage_wall > 0.3 and not report.unsupported
    forged = forge.forge_project(path, budget=Budget(trials=3))
    assert forged.trials == 3
    exported = forge.export_project(path, output=folder / "pooled.cast")
    assert exported.entries >= 1, exported
    return path


def test_the_operator_table_says_what_was_won(project: Path) -> None:
    rows = {row.operator: row for row in forge.list_operators(project)}
    pool = rows["max_pool2d"]
    assert pool.decision.startswith("use") and pool.speedup is not None and pool.speedup > 2
    assert sum(row.share for row in rows.values()) == pytest.approx(1.0)
    data = json.loads(json.dumps(pool.to_json()))
    assert {"variant", "operator", "calls", "share", "eager_us", "best_us", "speedup", "decision"} <= data.keys()


def test_another_batch_hits_the_same_package_and_a_miss_runs_eager(project: Path) -> None:
    package = kernelforge.load(project.parent / "pooled.cast")
    model = Pooled()
    for batch, dtype, hit in ((3, torch.float32, True), (5, torch.float32, True), (2, torch.float64, False)):
        x = torch.randn(batch, 16, 64, 64, dtype=dtype)
        want = model(x)
        before = {row.operator: row.hits for row in package.stats()}
        with package.dispatch(model):
            got = model(x)
        after = {row.operator: row.hits for row in package.stats()}
        torch.testing.assert_close(got, want)
        assert after["max_pool2d"] - before["max_pool2d"] == int(hit)
    misses = next(row.misses for row in package.stats() if row.operator == "max_pool2d")
    assert any("dtype" in reason for reason in misses), misses


def test_a_wrong_candidate_is_stored_with_its_reason_and_never_exported(project: Path, tmp_path: Path) -> None:
    source = tmp_path / "kernel.cpp"
    source.write_text(
        'extern "C" int launch(const float*, int64_t n0, float* out, void*) {'
        " for (int64_t i = 0; i < n0 * 16 * 32 * 32; ++i) out[i] = 0; return 0; }"
    )
    pool = next(row for row in forge.list_operators(project) if row.operator == "max_pool2d")
    report = forge.evaluate_file(source, project=project, variant=pool.variant[:12])
    assert (report.outcome, report.reason, report.speedup) == ("rejected", "wrong_value", None)
    assert report.detail
    trials = forge.show_variant(project, pool.variant).trials
    assert trials[-1].outcome == "rejected"
    with pytest.raises(kernelforge.errors.UsageError, match="not valid"):
        forge.export_project(project, output=tmp_path / "x.cast", picks={pool.variant: str(trials[-1].number)})
    assert not (tmp_path / "x.cast").exists()


def test_search_resumes_and_repeats_nothing(project: Path) -> None:
    pool = next(row for row in forge.list_operators(project) if row.operator == "softmax")
    before = forge.show_variant(project, pool.variant).trials
    forge.forge_project(project, operators=["softmax"], budget=Budget(trials=1))
    after = forge.show_variant(project, pool.variant).trials
    assert [t.node for t in after[: len(before)]] == [t.node for t in before]
    assert len({t.notes for t in after}) == len(after)


def test_the_next_node_is_exported_when_the_certificate_turns_the_best_down(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forge.forge_project(project, operators=["max_pool2d"], budget=Budget(trials=2))
    asked: list[Artifact] = []

    def certify(judge: Judge, artifact: Artifact, record: VariantRecord, examples: Any) -> Verdict | WorkerFailure:
        if record.variant.operator != "max_pool2d":
            return real(judge, artifact, record, examples)
        asked.append(artifact)
        if len(asked) == 1:
            return Rejected(reason=RejectReason.WRONG_VALUE, case="one", detail="made up")
        return real(judge, artifact, record, examples)

    real = Judge.certify
    monkeypatch.setattr(Judge, "certify", certify)
    report = forge.export_project(project, output=tmp_path / "second.cast")
    assert len({a.digest for a in asked}) == 2, "the runner-up was not tried"
    (pool,) = [
        e for e in kernelforge.load(tmp_path / "second.cast").package.entries if e.variant.operator == "max_pool2d"
    ]
    assert pool.binary.digest == asked[1].digest
    assert not any("max_pool2d" in label for label, _ in report.skipped)


def test_optimize_gives_a_callable_that_is_the_model(tmp_path: Path) -> None:
    model = Pooled()
    fast = kernelforge.optimize(model.eval(), samples(), max_time="18s", output=tmp_path / "pooled.cast")
    x = torch.randn(3, 16, 64, 64)
    torch.testing.assert_close(fast(x), model(x))
    assert fast.whole_model is not None and fast.whole_model.outputs_match
    assert fast.training == model.training
    assert {row.operator for row in fast.rows} == {"max_pool2d", "softmax"}


def test_a_model_in_training_mode_is_not_optimized() -> None:
    with pytest.raises(kernelforge.errors.UsageError, match="training mode"):
        kernelforge.optimize(Pooled().train(), samples(), max_time="5s")
