"""A case made ready: raw buffers for the runner, truth, eager's outputs and the limits. Loads torch.

Truth is computed here, in the judge's process. Eager's outputs come from whoever the caller names (the eager worker),
so that they are those of the timed baseline.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kernelforge.cards.types import Variant
from kernelforge.errors import HarnessError
from kernelforge.runner.arena import shared_inputs
from kernelforge.runner.eager import EagerWorker
from kernelforge.runner.protocol import Buffer, BufferSet
from kernelforge.verify.cases import Case
from kernelforge.verify.layout import bytes_of, from_bytes, to_bytes
from kernelforge.verify.reference import emulate_lower, reduction_terms, truths
from kernelforge.verify.tolerance import Expected, expect

logger = logging.getLogger(__name__)

SHARED_FROM_BYTES = 64 << 20
"""Inputs that are larger together are written once for all who get them; each such set keeps two descriptors open."""
TIMING_ALIGNMENT = 64
"""What torch's allocator gives; timing uses it, correctness uses the pattern's own alignment."""


class EagerBaseline:
    """The eager worker as a `Baseline`."""

    def __init__(self, worker: EagerWorker) -> None:
        self._worker = worker

    def outputs(self, variant: Variant, work: BufferSet) -> Sequence[bytearray]:
        dims, scalars = named_values(variant, work)
        return self._worker.run(variant.to_json(), dims, scalars, work.buffers).outputs


class Baseline(Protocol):
    """Runs eager on raw buffers."""

    def outputs(self, variant: Variant, work: BufferSet) -> Sequence[bytes | bytearray | memoryview]:
        """Eager's outputs, raw, in the order of `Case.outputs`.

        Raises:
            HarnessError: the worker died or the operator failed.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedCase:
    """A case with everything that judging needs. `expected` never leaves the judge's process.

    Attributes:
        probes: cases that differ from this one in a few elements of one input, and in their outputs; see `probes`.
    """

    case: Case
    work: BufferSet
    expected: tuple[Expected, ...]
    probes: tuple[PreparedCase, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Without its probes."""
        inputs = sum(b.size_bytes for b in self.work.buffers if b.data is not None)
        return inputs + sum(e.size_bytes for e in self.expected)

    def tensors_of(self, outputs: Sequence[bytes | bytearray | memoryview]) -> tuple[Tensor, ...]:
        """A reply's raw outputs as tensors on the device of the truth.

        Raises:
            ValueError: their number or sizes are not the case's.
        """
        specs = self.case.outputs
        device = self.expected[0].truth.device if self.expected else torch.device("cpu")
        return tuple(from_bytes(o, s, device) for o, s in zip(outputs, specs, strict=True))


def buffers_of(variant: Variant, case: Case, *, alignment: int = 0) -> BufferSet:
    """The raw buffers of a case in the order of the ABI: inputs, then outputs.

    Args:
        alignment: of every buffer; 0 means each pattern's own, the least that the guard admits.
    """
    buffers = []
    parts = [bytes_of(t) for t in case.inputs]
    if sum(size for size, _ in parts) >= SHARED_FROM_BYTES:
        contents = shared_inputs(parts)
    else:
        contents = tuple(to_bytes(t) for t in case.inputs)
    for index, (pattern, data) in enumerate(zip(variant.tensors, contents, strict=True)):
        buffers.append(Buffer(
            kind="inout" if index in variant.mutates else "input", data=data, size_bytes=len(data),
            alignment=alignment or pattern.alignment,
        ))  # fmt: skip
    for pattern in variant.outputs:
        spec = pattern.spec(case.dims, variant.device)
        align = alignment or pattern.alignment
        buffers.append(Buffer(kind="output", data=None, size_bytes=spec.storage_bytes, alignment=align))
    dims = tuple(case.dims[d.name] for d in variant.dims)
    scalars = tuple(case.scalars[s.name] for s in variant.scalars)
    return BufferSet(buffers=tuple(buffers), dims=dims, scalars=scalars)


def named_values(variant: Variant, work: BufferSet) -> tuple[dict[str, int], dict[str, float]]:
    """Dims and scalars of a set by name, as the eager worker takes them."""
    dims = {d.name: v for d, v in zip(variant.dims, work.dims, strict=True)}
    return dims, {s.name: v for s, v in zip(variant.scalars, work.scalars, strict=True)}


def prepare(variant: Variant, case: Case, baseline: Baseline) -> PreparedCase | None:
    """Compute truth and limits of a case; None if the operator does not accept these sizes in this combination.

    Raises:
        HarnessError: eager fails where the float64 evaluation did not, or on captured sizes.
    """
    observed = case.plan.choice.why == "observed"
    try:
        exact = truths(variant, case.dims, case.scalars, case.inputs, secrets.randbits(63))
    except (RuntimeError, ValueError, IndexError) as error:
        if observed:
            raise HarnessError(f"{variant.label} cannot be evaluated in float64: {error}") from error
        logger.debug("%s: no case at %s: %s", variant.label, case.description, error)
        return None
    shapes = [tuple(t.values.shape) for t in exact]
    if shapes != [s.shape for s in case.outputs]:
        if observed:
            raise HarnessError(
                f"{variant.label} gives shapes {shapes}, its card says {[s.shape for s in case.outputs]}"
            )
        return None
    work = buffers_of(variant, case)
    device = case.inputs[0].device if case.inputs else torch.device("cpu")
    try:
        raw = baseline.outputs(variant, work)
    except HarnessError as error:
        if observed:
            raise
        logger.debug("%s: eager refuses %s: %s", variant.label, case.description, error)
        return None
    eager = [from_bytes(r, s, device) for r, s in zip(raw, case.outputs, strict=True)]
    terms = reduction_terms(variant, case.dims, case.scalars)
    expected = tuple(
        expect(e, t.values, t.sensitivity, terms=terms, shared=t.shared, reach=t.reach)
        for e, t in zip(eager, exact, strict=True)
    )
    return PreparedCase(case=case, work=work, expected=expected)


def lower_precisions(variant: Variant, prepared: PreparedCase) -> tuple[tuple[Tensor, ...], ...]:
    """What the next lower precisions give on a case; empty if no output is of a float dtype."""
    dtypes = [e.eager.dtype for e in prepared.expected]
    if not any(d.is_floating_point for d in dtypes):
        return ()
    case = prepared.case
    return emulate_lower(variant, case.dims, case.scalars, case.inputs, dtypes)
