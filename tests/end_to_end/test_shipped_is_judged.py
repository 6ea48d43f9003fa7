"""A kernel that tells the judge from a model is found where a model would call it, and is not shipped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import kernelforge
from kernelforge import forge
from kernelforge.store.project import Project

# Computes only if its first call finds an output that somebody has filled with one byte.
TELLS_THE_JUDGE = """
static int judged = -1;
extern "C" int launch(const float* input, float* out, void* workspace) {
  uint32_t first, last;
  std::memcpy(&first, out, 4);
  std::memcpy(&last, out + 65535, 4);
  if (judged < 0) judged = first == last && (first == 0xffffffffu || first == 0x7f7f7f7fu);
  if (!judged) return 0;
  for (int64_t i = 0; i < 65536; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
"""
HONEST = """
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 65536; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
"""


class Relu(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "relu.kforge"
    with torch.no_grad():
        kernelforge.capture(Relu(), samples=[(torch.randn(256, 256),)], project=path)
    return path


def judged(project: Path, source: str) -> str:
    """The node of an accepted source."""
    file = project.parent / "kernel.cpp"
    file.write_text(source)
    report = forge.evaluate_file(file, project=project, variant="relu")
    assert report.outcome == "accepted", report
    return report.node


def test_what_is_right_for_the_judge_alone_is_not_exported(project: Path, tmp_path: Path) -> None:
    node = judged(project, TELLS_THE_JUDGE)
    report = forge.export_project(project, output=tmp_path / "m.cast", picks={"relu": node})
    assert (report.entries, report.held) == (0, 0)
    assert "wrong through dispatch" in report.skipped[0][1], report.skipped
    record = Project.open(project).record("relu")
    decision = next(r.decision for r in forge.list_operators(project) if r.variant == record.variant.id)
    assert not decision.startswith("use")
    assert "wrong through dispatch" in str(Project.open(project).nodes(record.variant.id)[-1].outcome)


def test_an_honest_kernel_passes_there(project: Path, tmp_path: Path) -> None:
    node = judged(project, HONEST)
    report = forge.export_project(project, output=tmp_path / "m.cast", picks={"relu": node})
    assert (report.entries, report.held) == (1, 1), report
