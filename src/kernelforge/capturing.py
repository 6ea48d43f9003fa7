"""From a model to a project: record its operator calls, make cards, write everything at once. Owns `capture_calls`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from kernelforge.digest import Json, digest, digest_bytes
from kernelforge.errors import UsageError
from kernelforge.report.rows import CaptureReport

Shapes: TypeAlias = Literal["auto", "exact"]
Device: TypeAlias = Literal["cpu", "cuda"]

if TYPE_CHECKING:
    from kernelforge.capture.models import ModelOptions
    from kernelforge.capture.types import Recording


def capture_calls(
    calls: Sequence[Callable[[], object]],
    *,
    model: str,
    device: Device,
    project: Path,
    shapes: Shapes,
    overwrite: bool,
    source: str = "",
    fingerprint: str = "",
) -> CaptureReport:
    """Record the calls of one model and publish its project; nothing is left behind if the model raises.

    Args:
        calls: run the model once each, one per sample.
        model: its name. source: how it was named by the user, for the record.
        fingerprint: of all that decides what is captured; a later run on the project compares it.

    Raises:
        ModelError: the model raised. ProjectError: the project cannot be written.
    """
    from kernelforge.capture.recorder import record
    from kernelforge.cards.distill import distill
    from kernelforge.store.draft import start_draft

    with start_draft(project, overwrite=overwrite) as draft:
        recording = record(calls, device=device, example_store=draft.examples, name=model)
        cards = distill(recording, model=model, shapes=shapes)
        draft.examples.prune({p.example for card in cards for r in card.variants for p in r.points if p.example})
        info = {**_capture_info(recording, source), "fingerprint": fingerprint}
        draft.publish(model=model, device=device, cards=cards, capture_info=info)
    records = [r for card in cards for r in card.variants]
    return CaptureReport(
        project=str(project), model=model, device=device, variants=len(records), calls=sum(r.calls for r in records),
        coverage_wall=recording.coverage_wall,
        coverage_device=recording.coverage_device if device == "cuda" else None,
        unsupported=tuple((u.name, u.calls) for u in recording.uncovered), warnings=tuple(recording.warnings),
    )  # fmt: skip


def python_calls(
    model: Callable[..., Any], args: Sequence[object], kwargs: Mapping[str, object] | None, samples: object
) -> list[Callable[[], object]]:
    """One call per sample. A sample is a tuple of positional arguments, a mapping of keyword ones, or one argument."""

    def bind(sample: object) -> Callable[[], object]:
        if isinstance(sample, Mapping):
            return lambda: model(**sample)
        if isinstance(sample, tuple | list):
            return lambda: model(*sample)
        return lambda: model(sample)

    if samples is None:
        return [lambda: model(*args, **(kwargs or {}))]
    assert isinstance(samples, Sequence)
    return [bind(sample) for sample in samples]


def device_of(model: object, args: Sequence[object]) -> Device:
    """The device type that the model's parameters are on, else its tensor arguments', else "cpu"."""
    import torch

    if isinstance(model, torch.nn.Module):
        for parameter in model.parameters():
            return _device(parameter.device.type)
    for value in args:
        if isinstance(value, torch.Tensor):
            return _device(value.device.type)
    return "cpu"


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
        "warnings": list(recording.warnings),
    }
