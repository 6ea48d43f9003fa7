"""The emitter: a variant's ATen graph -> loop IR -> source under a schedule."""

from __future__ import annotations

from kernelforge.cards.types import Variant
from kernelforge.generate.emitter.emit_cpp import emit_cpp
from kernelforge.generate.emitter.emit_cuda import emit_cuda
from kernelforge.generate.emitter.expressions import Backend
from kernelforge.generate.emitter.graph import trace
from kernelforge.generate.emitter.loops import Nest, nest
from kernelforge.generate.emitter.lowering import lower
from kernelforge.generate.emitter.schedule import Schedule
from kernelforge.operators import Operator

__all__ = ["Backend", "Nest", "Schedule", "emit", "loop_nest"]


def loop_nest(variant: Variant, operator: Operator) -> Nest:
    """Trace, lower and normalise a variant.

    Raises:
        Unforgeable: it is not of the shape that the emitter makes.
    """
    return nest(lower(variant, trace(variant, operator.call)), variant)


def emit(loops: Nest, schedule: Schedule, variant: Variant, backend: Backend) -> str:
    """One self-contained source file, without prelude and glue."""
    return emit_cuda(loops, schedule, variant) if backend == "cuda" else emit_cpp(loops, schedule, variant)
