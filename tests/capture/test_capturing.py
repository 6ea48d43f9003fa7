"""From a model to a project: the forms of its inputs, and what a capture says when it is worth little."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import kernelforge
from kernelforge import capturing
from kernelforge.benchmark.clock import ForeignLoad
from kernelforge.errors import ModelError, UsageError
from kernelforge.report.rows import CaptureReport
from kernelforge.report.tables import capture_grid
from kernelforge.store.project import Project


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ForeignLoad, "share", lambda load: 0.0)
    monkeypatch.setattr(capturing, "LOAD_SECONDS", 0.0)


def capture(project: Path, model: Any, *args: Any) -> CaptureReport:
    return kernelforge.capture(model, *args, project=project)


def softmax(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return F.softmax(x, dim=dim)


@pytest.mark.parametrize(
    "args", [(torch.ones(3, 5),), ([torch.ones(3, 5)],), ((torch.ones(3, 5), 1),), ({"x": torch.ones(3, 5)},)]
)
def test_inputs_are_one_tensor_a_sequence_or_a_mapping(args: tuple[Any, ...], tmp_path: Path) -> None:
    report = capture(tmp_path / "m.kforge", softmax, *args)
    (card,) = Project.open(Path(report.project)).cards()
    assert report.calls == 1
    assert card.variants[0].variant.describe().startswith("softmax(input [3, 5] float32")


def test_one_tensor_goes_with_keyword_arguments(tmp_path: Path) -> None:
    report = capture(tmp_path / "m.kforge", softmax, torch.ones(3, 5), {"dim": 0})
    (card,) = Project.open(Path(report.project)).cards()
    assert dict(card.variants[0].variant.arguments)["dim"] in {0, -2}


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("tiny.py", "not the name 'tiny.py'\n  hint: load the model first, .*: kforge capture tiny.py"),
        (3, "a callable is wanted, not a int"),
    ],
)
def test_what_is_no_callable_is_refused(tmp_path: Path, model: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        capture(tmp_path / "m.kforge", model, torch.ones(3, 5))
    with pytest.raises(UsageError, match=words):
        kernelforge.optimize(model, torch.ones(3, 5))


def test_an_existing_project_is_replaced_in_the_words_of_python(tmp_path: Path) -> None:
    capture(tmp_path / "m.kforge", softmax, torch.ones(3, 5))
    with pytest.raises(UsageError, match="there is already a project") as caught:
        capture(tmp_path / "m.kforge", softmax, torch.ones(3, 5))
    assert "give overwrite=True to replace" in caught.value.hint and "--" not in caught.value.hint
    kernelforge.capture(softmax, torch.ones(3, 5), project=tmp_path / "m.kforge", overwrite=True)


def test_a_capture_that_records_nothing_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"nothing was recorded of function: 1 sample ran.*no torch operator"
    ) as caught:
        capture(tmp_path / "m.kforge", lambda x: x, torch.ones(3))
    assert "in this thread" in caught.value.hint
    assert not (tmp_path / "m.kforge").exists()
    with pytest.raises(ModelError, match=r"only what no operator describes: torch\.linalg\.det"):
        capture(tmp_path / "m.kforge", torch.linalg.det, torch.ones(3, 3))


def test_a_capture_on_a_busy_machine_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calm = capture(tmp_path / "calm.kforge", softmax, torch.ones(3, 5))
    monkeypatch.setattr(ForeignLoad, "share", lambda load: 0.43)
    busy = capture(tmp_path / "busy.kforge", softmax, torch.ones(3, 5))
    assert (calm.disturbed, calm.warnings, busy.disturbed) == (False, (), True)
    assert "others used 43.0% of the CPUs" in busy.warnings[0]
    assert capture_grid(busy).footer and not capture_grid(calm).footer
    info = Project.open(Path(busy.project)).capture_info
    assert (info["warnings"], info["foreign_cpu_share"]) == (list(busy.warnings), 0.43)
    assert json.dumps(busy.to_json())


def test_the_report_says_over_how_many_runs_the_times_are_medians(tmp_path: Path) -> None:
    report = capture(tmp_path / "m.kforge", softmax, torch.ones(3, 5))
    assert report.repeats > 1
    times = next(r for r in capture_grid(report).records if r.cells[0].text == "times")
    assert times.cells[1].text == f"medians of {report.repeats} runs"


def test_a_model_is_where_it_computes_and_not_where_its_weights_wait() -> None:
    inner, outer = torch.nn.Linear(3, 5, device="meta"), torch.nn.Sequential()
    outer.append(inner)
    assert capturing.device_of(outer, (torch.ones(1, 3),)) == "cpu", "as its inputs"
    vars(inner)["_hf_hook"] = hook = SimpleNamespace(execution_device=0)
    assert capturing.device_of(outer, (torch.ones(1, 3),)) == "cuda"
    hook.execution_device = "cpu"
    assert capturing.device_of(outer, ()) == "cpu"
