"""The whole model with and without its package: outputs compared, times paired. The number that users care for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from kernelforge.benchmark.whole_model import compare_runs
from kernelforge.report.rows import WholeModel

if TYPE_CHECKING:
    from torch import Tensor

    from kernelforge.capture.models import LoadedModel
    from kernelforge.dispatch.loading import LoadedPackage

OUTPUT_TOLERANCE: Mapping[str, float] = {"float64": 1e-6, "float32": 1e-3, "float16": 2e-2, "bfloat16": 5e-2}
"""Largest absolute difference over eager's largest magnitude; what rounding in another order explains after dozens of
layers, and far below what a wrong kernel does."""


def measure_whole_model(
    loaded: LoadedModel, package: LoadedPackage | None, *, device: str, budget_s: float
) -> WholeModel:
    """Run all of the model's samples both ways; one run is a pass over them.

    Args:
        package: None measures eager against itself, which is what the user gets then.
        budget_s: wall seconds for the timing.
    """
    import torch

    def eager() -> list[object]:
        return [call() for call in loaded.calls]

    def fast() -> list[object]:
        with package.dispatch() if package is not None else nullcontext():
            return eager()

    with torch.no_grad():
        want = list(_tensors(eager()))
        before = _counts(package)
        got = list(_tensors(fast()))
        hits, misses = (after - first for after, first in zip(_counts(package), before, strict=True))
        max_abs, relative, matches, tokens = compare_outputs(want, got)
        synchronize: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else _nothing
        runs = compare_runs(eager, fast, synchronize=synchronize, budget_s=budget_s)
    middle = len(runs.eager_ms) // 2
    return WholeModel(
        name=loaded.name, speedup=runs.speedup, eager_ms=sorted(runs.eager_ms)[middle],
        fast_ms=sorted(runs.fast_ms)[middle], output_max_abs=max_abs, output_rel=relative, outputs_match=matches,
        hits=hits, misses=misses, tokens_equal=tokens, pairs=len(runs.eager_ms),
    )  # fmt: skip


def compare_outputs(want: Sequence[Tensor], got: Sequence[Tensor]) -> tuple[float, float, bool, bool | None]:
    """Largest absolute difference, the same over eager's largest magnitude, whether all match, and for integer outputs
    (tokens) whether they are equal; None if there are none.
    """
    max_abs = relative = 0.0
    matches = len(want) == len(got)
    tokens: bool | None = None
    for a, b in zip(want, got, strict=False):
        if a.shape != b.shape or a.dtype != b.dtype:
            return float("inf"), float("inf"), False, False if tokens is not None else None
        if not a.dtype.is_floating_point:
            tokens = bool((a == b).all()) and tokens is not False
            matches = matches and tokens
            continue
        wide_a, wide_b = a.double(), b.double()
        same = (wide_a == wide_b) | (wide_a.isnan() & wide_b.isnan())
        difference = float((wide_a - wide_b).abs().masked_fill(same, 0.0).max()) if a.numel() else 0.0
        finite = wide_a[wide_a.isfinite()]
        scale = float(finite.abs().max()) if finite.numel() else 1.0
        share = difference / max(scale, 1e-30)
        max_abs, relative = max(max_abs, difference), max(relative, share)
        matches = matches and share <= OUTPUT_TOLERANCE[str(a.dtype).removeprefix("torch.")]
    return max_abs, relative, matches, tokens


def _tensors(value: Any) -> Iterator[Tensor]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)


def _counts(package: LoadedPackage | None) -> tuple[int, int]:
    if package is None:
        return 0, 0
    rows = package.stats()
    # A call that no kernel served is a miss of every variant of its operator; count it once.
    misses = {r.operator: sum(r.misses.values()) for r in rows}
    return sum(r.hits for r in rows), sum(misses.values())


def _nothing() -> None:
    """The CPU has nothing to wait for."""
