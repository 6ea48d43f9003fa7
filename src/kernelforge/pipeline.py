"""Everything in one go: capture -> forge -> certify -> export -> load -> measure the whole model. Anytime.

The time limit is for all of it. The search gets what is left after the capture, less a reserve for the certificate and
for the whole-model A/B, which is made and reported whatever it says.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelforge.capture.models import LoadedModel
from kernelforge.capturing import Device, capture_calls, device_of, python_calls
from kernelforge.errors import UsageError
from kernelforge.exporting import export, leave_out
from kernelforge.optimized import OptimizedModel
from kernelforge.report.operators import project_rows
from kernelforge.report.rows import DECISION_EAGER, RunReport, WholeModel
from kernelforge.search.types import Budget
from kernelforge.settings import load_settings
from kernelforge.store.project import Project
from kernelforge.whole_model import measure_whole_model
from kernelforge.workshop import open_workshop

if TYPE_CHECKING:
    from kernelforge.dispatch.loading import LoadedPackage

RESERVE_SHARE = 0.35
RESERVE_MAX_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineResult:
    """The report, and the loaded package (None if no kernel was worth packing)."""

    report: RunReport
    package: LoadedPackage | None


def run_pipeline(
    loaded: LoadedModel,
    *,
    device: Device,
    project: Path,
    output: Path,
    max_time_s: float | None,
    on_event: Callable[[Any], None],
    should_stop: Callable[[], bool],
    source: str = "",
    fingerprint: str = "",
    allow_unchecked: bool = False,
    library: bool = True,
) -> PipelineResult:
    """Run all stages on a loaded model. A project that exists is resumed, not captured again.

    Args:
        allow_unchecked: as `exporting.export`.
        library: try the kernels of this machine's library first, and keep those that are used there.

    Raises:
        UsageError: the project was captured from another model, or from this one with other options.
    """
    started = time.monotonic()
    settings = load_settings()
    settings = settings if library else replace(settings, library=False)
    if not (project / "nodes.db").exists():
        on_event(f"capturing {loaded.name}")
        captured = capture_calls(
            loaded.calls, model=loaded.name, device=device, project=project, shapes="auto", overwrite=False,
            source=source, fingerprint=fingerprint,
        )  # fmt: skip
        for warning in captured.warnings:
            on_event(f"warning: {warning}")
    opened = Project.open(project)
    if fingerprint and opened.capture_info.get("fingerprint", "") not in {"", fingerprint}:
        raise UsageError(
            f"{project} was captured from another {loaded.name}: the model's file or the options have changed",
            hint="name another project with --project, or capture anew: kforge capture MODEL -o PROJECT --overwrite",
        )
    records = [r for card in opened.cards() for r in card.variants]
    with open_workshop(opened.device, settings) as workshop:
        summary = workshop.search(
            opened, records, Budget(seconds=_search_seconds(max_time_s, time.monotonic() - started)),
            on_event=on_event, should_stop=should_stop,
        )  # fmt: skip
        exported = export(
            opened, output, workshop=workshop, write_empty=False, allow_unchecked=allow_unchecked, say=on_event
        )
    seconds = _model_seconds(max_time_s, time.monotonic() - started)
    shipped = _ship(loaded, output if exported.report.entries else None, device, seconds, on_event)
    package, whole, decisions = shipped.package, shipped.whole, {**exported.decisions, **shipped.decisions}
    opened.record_decisions(decisions, exported.nodes)
    report = RunReport(
        rows=project_rows(opened, decisions), whole_model=whole,
        package=str(output) if package is not None else "", project=str(project),
        seconds=time.monotonic() - started, stopped=summary.stopped,
        unused=shipped.unused,
    )  # fmt: skip
    return PipelineResult(report=report, package=package)


def optimize_model(
    model: Callable[..., Any],
    samples: Sequence[object],
    *,
    max_time_s: float,
    project: str | Path | None,
    output: str | Path | None,
    on_event: Callable[[Any], None],
    should_stop: Callable[[], bool],
    allow_unchecked: bool = False,
) -> OptimizedModel:
    """`kernelforge.optimize`: the pipeline on live objects. Runs without gradients."""
    import torch

    if isinstance(model, torch.nn.Module) and model.training:
        raise UsageError(
            "the model is in training mode; what is optimised is inference",
            hint="call model.eval() first: in training mode a run would change running statistics and drop at random",
        )
    first = samples[0]
    device = device_of(model, first if isinstance(first, tuple | list) else (first,))
    calls = tuple(_no_grad(c) for c in python_calls(model, (), None, samples))
    loaded = LoadedModel(name=type(model).__name__, model=model, calls=calls)
    with tempfile.TemporaryDirectory(prefix="kernelforge-") as temporary, torch.no_grad():
        result = run_pipeline(
            loaded, device=device, project=Path(project or Path(temporary) / "model.kforge"),
            output=Path(output or Path(temporary) / "model.cast"), max_time_s=max_time_s, on_event=on_event,
            should_stop=should_stop, allow_unchecked=allow_unchecked,
        )  # fmt: skip
    whole: WholeModel | None = result.report.whole_model
    return OptimizedModel(model, result.package, rows=result.report.rows, whole_model=whole)


def _no_grad(call: Callable[[], object]) -> Callable[[], object]:
    import torch

    def run() -> object:
        with torch.no_grad():
            return call()

    return run


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shipped:
    """What is left of a package when the whole model has been timed.

    Attributes:
        decisions: variant id -> why it was left out.
        unused: path of the package if all of it was left out, else "".
    """

    package: LoadedPackage | None
    whole: WholeModel
    decisions: Mapping[str, str]
    unused: str


def _ship(
    loaded: LoadedModel, output: Path | None, device: Device, seconds: float, say: Callable[[str], None]
) -> _Shipped:
    """Time the whole model, and ship nothing that makes it slower beyond the noise.

    Each kernel has won when called as the model calls it; but calls that it does not serve pay for being looked at. So
    the variants that the model never reached go first, and then, if it is still slower, all.
    """
    package, decisions = _load(output) if output is not None else None, dict[str, str]()
    while True:
        say(f"timing the whole model {loaded.name}")
        whole = measure_whole_model(loaded, package, device=device, budget_s=seconds)
        if package is None or output is None or whole.speedup.high >= 1.0:
            unused = str(output) if package is None and output is not None else ""
            return _Shipped(package=package, whole=whole, decisions=decisions, unused=unused)
        i = whole.speedup
        reason = f"the whole model was slower with it: {i.median:.3f}x [{i.low:.3f}, {i.high:.3f}]"
        on = [row for row in package.stats() if row.state == "on"]
        idle = [row.variant for row in on if row.hits == 0]
        out = idle if 0 < len(idle) < len(on) else [row.variant for row in on]
        leave_out(output, out, reason=reason)
        # A variant that was narrowed to its larger sizes stands for the captured one.
        captured = {e.variant.id: replace(e.variant, min_elements=0).id for e in package.package.entries}
        decisions.update({captured[variant]: DECISION_EAGER + reason for variant in out})
        package = _load(output) if len(out) < len(on) else None


def _load(path: Path) -> LoadedPackage:
    from kernelforge.dispatch.loading import load

    return load(path)


def _search_seconds(max_time_s: float | None, spent_s: float) -> float | None:
    if max_time_s is None:
        return None
    return max(1.0, max_time_s - spent_s - min(RESERVE_MAX_S, RESERVE_SHARE * max_time_s))


def _model_seconds(max_time_s: float | None, spent_s: float) -> float:
    """At least a few seconds, whatever the rest took: without the whole model's time the rest says little."""
    return 15.0 if max_time_s is None else min(15.0, max(4.0, max_time_s - spent_s))
