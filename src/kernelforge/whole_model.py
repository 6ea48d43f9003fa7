"""The whole model with and without its package: outputs compared, times paired. The number that users care for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from kernelforge.benchmark.whole_model import compare_runs
from kernelforge.dispatch.agreement import compare_outputs, tensors_in
from kernelforge.report.rows import WholeModel

if TYPE_CHECKING:
    from kernelforge.capture.models import LoadedModel
    from kernelforge.dispatch.loading import LoadedPackage


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

    def dispatched() -> AbstractContextManager[object]:
        return package.dispatch() if package is not None else nullcontext()

    with torch.no_grad():
        want = list(tensors_in(eager()))
        before = _counts(package)
        with dispatched():
            got = list(tensors_in(eager()))
        hits, misses = (after - first for after, first in zip(_counts(package), before, strict=True))
        max_abs, relative, matches, tokens = compare_outputs(want, got)
        synchronize: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else _nothing
        runs = compare_runs(eager, eager, synchronize=synchronize, around_fast=dispatched, budget_s=budget_s)
    middle = len(runs.eager_ms) // 2
    return WholeModel(
        name=loaded.name, speedup=runs.speedup, eager_ms=sorted(runs.eager_ms)[middle],
        fast_ms=sorted(runs.fast_ms)[middle], output_max_abs=max_abs, output_rel=relative, outputs_match=matches,
        hits=hits, misses=misses, tokens_equal=tokens, pairs=len(runs.eager_ms),
    )  # fmt: skip


def _counts(package: LoadedPackage | None) -> tuple[int, int]:
    if package is None:
        return 0, 0
    rows = package.stats()
    # A call that no kernel served is a miss of every variant of its operator; count it once.
    misses = {r.operator: sum(r.misses.values()) for r in rows}
    return sum(r.hits for r in rows), sum(misses.values())


def _nothing() -> None:
    """The CPU has nothing to wait for."""
