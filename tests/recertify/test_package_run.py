"""A model with and without a package: what is compared, timed and told."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from kernelforge.capture.models import ModelOptions, load_model
from kernelforge.cli.main import make_app
from kernelforge.dispatch import graphs
from kernelforge.errors import ModelError, UntrustedPackage, UsageError
from kernelforge.package.types import Entry, Use
from kernelforge.package_run import run_package
from kernelforge.report.grid import grid_text
from kernelforge.report.package_run import PackageRunReport
from kernelforge.report.package_tables import package_run_grids, packages_grid
from kernelforge.settings import Settings

Write = Callable[..., Path]
HERE = torch.__version__.split("+")[0]
MODEL = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return {body}

def get_inputs():
    return [8 * torch.rand(64, 64) - 4]
"""


@pytest.fixture
def model(tmp_path: Path) -> Callable[[str], Path]:
    def write_model(body: str) -> Path:
        path = tmp_path / "net.py"
        path.write_text(MODEL.format(body=body))
        return path

    return write_model


def run(path: Path, model: Path, settings: Settings, **options: object) -> PackageRunReport:
    options = {"max_time_s": 0.5, **options}
    return run_package(
        path, str(model), options=ModelOptions(), settings=settings, say=lambda _: None, **options,  # type: ignore[arg-type]
    )  # fmt: skip


def test_outputs_times_and_hits(write: Write, model: Callable[[str], Path], settings: Settings) -> None:
    package = write("relu", "abs", torch_version=HERE)
    report = run(package, model("torch.relu(x) + torch.relu(x.double()).float()"), settings)
    (eager,) = report.runs
    assert (eager.mode, eager.why_not, eager.matches, eager.max_abs) == ("eager", "", True, 0.0)
    assert len(eager.without_ms) == len(eager.with_ms) >= 5 and eager.speedup is not None
    served = {e.label.split("-")[0]: (e.state, e.hits, dict(e.misses)) for e in eager.entries}
    assert served == {"relu": ("on", 1, {"dtype": 1}), "abs": ("on", 0, {})}
    assert (report.kernels, report.on, report.matches, report.notes) == (2, 2, True, ())
    json.dumps(report.to_json(), allow_nan=False)
    text = "\n".join(grid_text(grid) for grid in package_run_grids(report))
    assert "match" in text and "1 by dtype" in text and re.search(r"2, 2 on; loaded in [\d.]+ m?s", text)
    row = grid_text(packages_grid({"net": report})).splitlines()[3]
    assert re.match(r"net +2 of 2 on +[\d.]+ m?s +eager .* match +\d+ +1 +1$", row), row


def test_a_wrong_kernel_shows_in_the_outputs(
    write: Write, model: Callable[[str], Path], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, net = write("wrong", torch_version=HERE), model("torch.neg(x)")
    report = run(package, net, settings)
    assert (report.matches, report.runs[0].matches) == (False, False)
    assert report.runs[0].max_abs == pytest.approx(8.0, abs=0.1)
    monkeypatch.setenv("KFORGE_CONFIG_DIR", str(settings.config_dir))
    monkeypatch.setenv("KFORGE_CACHE_DIR", str(settings.cache_dir))
    command = ["cast", "run", str(package), str(net), "--max-time", "1s", "-q"]
    result = CliRunner().invoke(make_app(), [*command, "--device", "cpu"])
    assert result.exit_code == 4 and "DIFFER" in result.stdout and "largest difference" in result.stdout
    result = CliRunner().invoke(make_app(), [*command, "--modes", "eager,fast"])
    assert (result.exit_code, "no way to run a model: 'fast'" in result.stderr) == (2, True)


def test_what_is_off_is_told(write: Write, model: Callable[[str], Path], settings: Settings) -> None:
    report = run(write("abs"), model("torch.abs(x)"), settings)
    (note,) = report.notes
    assert note.startswith("none of the 1 kernel is on here: judged under torch 2.4.1")
    assert report.matches and report.runs[0].entries[0].hits == 0


def test_the_packages_origin_and_the_models_faults_are_told_apart(
    write: Write, model: Callable[[str], Path], settings: Settings, tmp_path: Path
) -> None:
    package = write("abs", torch_version=HERE)
    with pytest.raises(ModelError, match="net raised ValueError: no"):
        run(package, model("torch.abs(x) if x.sum() is None else (_ for _ in ()).throw(ValueError('no'))"), settings)
    with pytest.raises(UntrustedPackage):
        run(package, model("x"), replace(settings, config_dir=tmp_path / "stranger"))
    with pytest.raises(UsageError):
        run(package, model("x"), settings, ways=["reduce overhead"])


def test_ways_that_need_a_gpu_and_time_that_is_spent(
    write: Write, model: Callable[[str], Path], settings: Settings
) -> None:
    report = run(
        write("abs", torch_version=HERE), model("torch.abs(x)"), settings,
        ways=["eager", "graphed", "reduce-overhead"],
    )  # fmt: skip
    assert [r.why_not for r in report.runs] == ["", "needs a CUDA device", "needs a CUDA device"]
    spent = run(
        write("abs", torch_version=HERE), model("torch.abs(x)"), settings, ways=["eager", "compiled"], max_time_s=0.0
    )
    assert [r.why_not for r in spent.runs] == ["", "--max-time was spent"]


def test_a_model_that_cannot_be_graphed_says_by_which_line(
    write: Write, model: Callable[[str], Path], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On this CPU no graph can be made; why a model is none is found before one is."""
    from kernelforge import package_run

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    real = graphs.GraphedModel

    class OnCpu:
        device = "cpu"

        def busy(self) -> bool:
            return False

        def record(self, *_: object, **__: object) -> object:
            raise AssertionError("nothing is to be captured")

    monkeypatch.setattr(graphs, "graphed", lambda model, package=None: real(model, package, machine=OnCpu()))  # type: ignore[arg-type]
    net = model("torch.abs(x) if x.mean().item() > -9 else x")
    package = write("abs", torch_version=HERE)
    loaded = load_model(str(net), ModelOptions())
    from kernelforge.dispatch.loading import load

    comparison = package_run._Comparison(
        loaded=loaded, package=load(package, settings=settings), device="cuda", say=lambda _: None
    )
    outcome = comparison.compare("graphed", budget_s=0.1)
    assert "net.py:6" in outcome.why_not, outcome.why_not


def test_compilers_that_fail_are_a_reason(
    write: Write, model: Callable[[str], Path], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> object:
        raise RuntimeError("no working C++ compiler\nand more")

    monkeypatch.setattr(torch, "compile", broken)
    report = run(write("abs", torch_version=HERE), model("torch.abs(x)"), settings, ways=["eager", "compiled"])
    assert [r.why_not for r in report.runs] == ["", "no working C++ compiler"]
    assert report.matches


# torch's own, when Inductor is first imported.
@pytest.mark.filterwarnings("ignore:.torch.jit.*. is", "ignore::DeprecationWarning")
@pytest.mark.slow
def test_compiled_code_with_and_without(
    write: Write, model: Callable[[str], Path], settings: Settings, entries: Mapping[str, Entry]
) -> None:
    on = replace(entries["abs"], decisions=dict.fromkeys(("eager", "compiled"), Use()))
    report = run(write(on, torch_version=HERE), model("torch.abs(x) + 1"), settings, ways=["compiled"])
    (compiled,) = report.runs
    assert (compiled.why_not, compiled.matches) == ("", True)
    assert [e.hits for e in compiled.entries] == [1]
