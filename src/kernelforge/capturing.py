"""From a model to a project: record its operator calls, make cards, write everything at once. Owns `capture_calls`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from kernelforge.digest import Json, digest, digest_bytes
from kernelforge.errors import ModelError, UsageError
from kernelforge.report.rows import CaptureReport
from kernelforge.report.units import format_share, format_us
from kernelforge.wording import plural

Shapes: TypeAlias = Literal["auto", "exact"]
Device: TypeAlias = Literal["cpu", "cuda"]

if TYPE_CHECKING:
    import torch

    from kernelforge.benchmark.clock import ForeignLoad
    from kernelforge.capture.models import ModelOptions
    from kernelforge.capture.types import Recording

LOAD_SECONDS = 0.2
"""The load is looked at for no less: the system counts CPU time in steps of 10 ms."""


def capture_calls(
    calls: Sequence[Callable[[], object]],
    *,
    model: str,
    device: Device,
    project: Path,
    shapes: Shapes,
    overwrite: bool,
    repeats: int | None = None,
    source: str = "",
    fingerprint: str = "",
) -> CaptureReport:
    """Record the calls of one model and publish its project; nothing is left behind if the model raises.

    Args:
        calls: run the model once each, one per sample.
        model: its name. source: how it was named by the user, for the record.
        repeats: how often the samples run again to be timed; None: a few times, for no longer than a second.
        fingerprint: of all that decides what is captured; a later run on the project compares it.

    Raises:
        ModelError: the model raised, or called no operator. ProjectError: the project cannot be written.
    """
    from kernelforge.benchmark.clock import BUSY_SHARE, ForeignLoad
    from kernelforge.capture.recorder import record
    from kernelforge.cards.distill import distill
    from kernelforge.native.extension import extension
    from kernelforge.settings import load_settings
    from kernelforge.store.draft import start_draft

    extension(load_settings())  # the compiler that makes it at the first use is no load of others
    with start_draft(project, overwrite=overwrite) as draft:
        load, began = ForeignLoad(()), time.monotonic()
        recording = record(calls, device=device, example_store=draft.examples, repeats=repeats, name=model)
        if not recording.calls:
            raise _nothing_recorded(recording, model)
        cards = distill(recording, model=model, shapes=shapes)
        draft.examples.prune({p.example for card in cards for r in card.variants for p in r.points if p.example})
        foreign = _foreign_share(load, began)
        warnings = (*recording.warnings, *([_busy(foreign)] if foreign > BUSY_SHARE else []))
        info = {
            **_capture_info(recording, source), "fingerprint": fingerprint, "warnings": list(warnings),
            "foreign_cpu_share": foreign,
        }  # fmt: skip
        draft.publish(model=model, device=device, cards=cards, capture_info=info)
    records = [r for card in cards for r in card.variants]
    return CaptureReport(
        project=str(project), model=model, device=device, variants=len(records), calls=sum(r.calls for r in records),
        coverage_wall=recording.coverage_wall,
        coverage_device=recording.coverage_device if device == "cuda" else None,
        unsupported=tuple((u.name, u.calls) for u in recording.uncovered), warnings=warnings,
        repeats=recording.repeats, disturbed=foreign > BUSY_SHARE, foreign_cpu_share=foreign,
    )  # fmt: skip


def _foreign_share(load: ForeignLoad, began: float) -> float:
    """What others used of the CPUs since `began`, a time of `time.monotonic`."""
    time.sleep(max(0.0, LOAD_SECONDS - (time.monotonic() - began)))
    return load.share()


def _busy(foreign_share: float) -> str:
    return (
        f"others used {format_share(foreign_share)} of the CPUs while the model was timed: the shares are less "
        "certain; capture again on a quiet machine if they matter"
    )


def _nothing_recorded(recording: Recording, model: str) -> ModelError:
    ran = f"{plural(recording.samples, 'sample')} ran, in {format_us(recording.wall_us)}"
    seen = [u.name for u in recording.uncovered]
    what = f"only what no operator describes: {', '.join(seen[:5])}" if seen else "no torch operator was called"
    notes = "".join(f"; {warning}" for warning in recording.warnings)
    return ModelError(
        f"nothing was recorded of {model}: {ran}, and {what}{notes}",
        hint="capture the function that calls torch's operators eagerly, in this thread: the calls of a scripted or "
        "compiled model, or of another thread, are not seen",
    )


def python_calls(
    model: Callable[..., Any], args: object, kwargs: Mapping[str, object] | None, samples: object
) -> list[Callable[[], object]]:
    """One call per sample; `args` is one, if there are no `samples`.

    A sample is a tuple or list of positional arguments, a mapping of keyword ones, or one argument (a tensor, say).
    """

    def bind(sample: object, more: Mapping[str, object]) -> Callable[[], object]:
        if isinstance(sample, Mapping):
            return lambda: model(**{**sample, **more})
        if isinstance(sample, tuple | list):
            return lambda: model(*sample, **more)
        return lambda: model(sample, **more)

    if samples is None:
        return [bind(args, kwargs or {})]
    assert isinstance(samples, Sequence)
    return [bind(sample, {}) for sample in samples]


def device_of(model: object, args: Sequence[object]) -> Device:
    """The device type that the model's parameters are on, else that of its tensor arguments (also in mappings), else
    "cpu".
    """
    import torch

    if isinstance(model, torch.nn.Module):
        for parameter in model.parameters():
            if not parameter.is_meta:
                return _device(parameter.device.type)
        if home := _computes_on(model):
            return _device(home)
    for value in args:
        for one in value.values() if isinstance(value, Mapping) else (value,):
            if isinstance(one, torch.Tensor):
                return _device(one.device.type)
    return "cpu"


def _computes_on(model: torch.nn.Module) -> str:
    """Where a model computes whose weights wait elsewhere and come in by hooks of accelerate, or ""."""
    import torch

    for module in model.modules():
        device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
        if device is not None:
            # A number is one of the accelerators, of which torch would name none on a machine that has none.
            return "cuda" if isinstance(device, int) else torch.device(device).type
    return ""


def present_device(wanted: str | None) -> Device:
    """The wanted device, or CUDA if there is a GPU, else the CPU."""
    import torch

    return _device(wanted or ("cuda" if torch.cuda.is_available() else "cpu"))


def source_fingerprint(source: str, options: ModelOptions) -> str:
    """A digest of all that a named model's capture depends on: its file's content and the options."""
    path = Path(source)
    content = digest_bytes(path.read_bytes()) if path.is_file() else source
    return digest([content, options.device, options.dtype, options.samples, options.random_weights, options.seed])


def _device(name: str) -> Device:
    if name == "cuda":
        return "cuda"
    if name == "cpu":
        return "cpu"
    raise UsageError(f"no kernels are made for device {name!r}", hint="use cpu or cuda")


def _capture_info(recording: Recording, source: str) -> Mapping[str, Json]:
    return {
        "source": source,
        "coverage_wall": recording.coverage_wall,
        "coverage_device": recording.coverage_device,
        "unsupported": [u.to_json() for u in recording.uncovered],
        "repeats": recording.repeats,
    }
