"""Truth in float64, conditioning, and what lower precisions would give, for one case. Loads torch.

Runs the operator itself in the judge's process, on inputs that no candidate has touched. Eager's own output in the
captured dtypes comes from the eager worker, not from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from kernelforge.cards.bind import concrete, output_shapes, to_bound
from kernelforge.cards.types import DimValues, ScalarValues, Variant
from kernelforge.operators import TensorShape, get_operator
from kernelforge.verify.draw import keeps_elements_apart
from kernelforge.verify.layout import clone_like
from kernelforge.verify.tolerance import PERTURBATION

WEIGHTED = frozenset({"interpolate"})
"""Native, and no reduction, and yet an element is a weighted sum of several."""

CANCELLING = frozenset({"gelu"})
"""It adds 1 to what is near -1, and multiplies by its input: eager and the float64 evaluation lose what the input does
not, and a kernel that loses nothing differs from both."""

FOLDS = frozenset({"sum", "mean", "avg_pool2d", "adaptive_avg_pool2d"})
"""Each element adds up inputs of its own, of which neighbours know nothing: rows may be of different magnitudes. Many
probes make its own sensitivity certain instead."""
FOLD_PROBES = 6

SMALL_ELEMENTS = 1 << 16
"""Outputs with fewer elements are probed twice: their neighbours smooth a chance zero of one probe less well."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Truth:
    """One output: its float64 values (or exact integers) and, for float outputs, its sensitivity (see tolerance).

    Attributes:
        shared: whether the neighbours of an element have its conditioning (a row of a softmax has, the sums of several
            rows have not), so that a chance zero of its sensitivity may be mended by theirs.
        reach: of an operator whose formula cancels in whatever precision, the magnitude of each input element, float64.
    """

    values: Tensor
    sensitivity: Tensor | None
    shared: bool = True
    reach: Tensor | None = None


def evaluate(variant: Variant, dims: DimValues, scalars: ScalarValues, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The operator's outputs on copies of the inputs, flattened; an in-place operator's are its changed inputs."""
    copies = clone_like(inputs)
    return _call(variant, to_bound(variant, dims, scalars, copies), copies)


def evaluate_wide(
    variant: Variant, dims: DimValues, scalars: ScalarValues, inputs: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """The same with every float tensor, and every float dtype among the arguments, raised to float64."""
    wide = tuple(t.double() if t.is_floating_point() else t.clone() for t in inputs)
    # `.double()` returns the tensor itself when it already is float64; an in-place operator must not reach the case.
    wide = tuple(t.clone() if t is original else t for t, original in zip(wide, inputs, strict=True))
    bound = {name: _raise(value) for name, value in to_bound(variant, dims, scalars, wide).items()}
    return _call(variant, bound, wide)


def truths(
    variant: Variant, dims: DimValues, scalars: ScalarValues, inputs: Sequence[Tensor], seed: int
) -> tuple[Truth, ...]:
    """Truth and conditioning of every output of one case.

    Args:
        seed: of the random signs by which the inputs are perturbed.
    """
    with torch.no_grad():
        exact = evaluate_wide(variant, dims, scalars, inputs)
        if not any(t.is_floating_point() for t in inputs):
            return tuple(Truth(values=v, sensitivity=_zeros(v)) for v in exact)
        apart = keeps_elements_apart(variant) and variant.operator not in WEIGHTED
        folds = variant.operator in FOLDS
        device = inputs[0].device if inputs else torch.device("cpu")
        generator = torch.Generator(device=device)
        generator.manual_seed(seed)
        probes: list[list[Tensor]]
        if apart:
            # Each input for itself: their errors add up, whatever signs a probe of all at once would happen to draw.
            probes = [_perturbed(inputs, PERTURBATION, generator, only=i) for i in _floats(inputs)]
        else:
            few = max((v.numel() for v in exact), default=0) < SMALL_ELEMENTS
            count = FOLD_PROBES if folds else 2 if few else 1
            probes = [_perturbed(inputs, PERTURBATION, generator) for _ in range(count)]
        moved = [_zeros(v) for v in exact]
        for inputs_of_probe in probes:
            probe = evaluate_wide(variant, dims, scalars, inputs_of_probe)
            for position, (value, other) in enumerate(zip(exact, probe, strict=True)):
                so_far = moved[position]
                if so_far is not None:
                    step = ((other - value).abs() / PERTURBATION).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
                    if apart:
                        moved[position] = so_far + step
                    elif folds:
                        moved[position] = torch.hypot(so_far, step / FOLD_PROBES**0.5)
                    else:
                        moved[position] = torch.maximum(so_far, step)
        return tuple(
            Truth(
                values=v,
                sensitivity=m,
                shared=not (apart or folds),
                reach=_reach(inputs, v) if variant.operator in CANCELLING and m is not None else None,
            )
            for v, m in zip(exact, moved, strict=True)
        )


def _floats(inputs: Sequence[Tensor]) -> list[int]:
    return [i for i, t in enumerate(inputs) if t.is_floating_point()]


def _reach(inputs: Sequence[Tensor], output: Tensor) -> Tensor | None:
    """None unless the output has the shape to which its inputs broadcast."""
    try:
        fits = torch.broadcast_shapes(*(t.shape for t in inputs)) == output.shape  # type: ignore[no-untyped-call]
    except RuntimeError:
        fits = False
    if not fits:
        return None
    largest = torch.zeros_like(output)
    for tensor in inputs:
        if tensor.is_floating_point():
            largest = torch.maximum(largest, tensor.double().abs())
    return largest.nan_to_num(nan=0.0, posinf=0.0)


def emulate_lower(
    variant: Variant, dims: DimValues, scalars: ScalarValues, inputs: Sequence[Tensor], dtypes: Sequence[torch.dtype]
) -> tuple[tuple[Tensor, ...], ...]:
    """What arithmetic in the next lower precisions gives, one tuple of outputs for each precision.

    For outputs of 32 bits and more the inputs and outputs are rounded to the lower dtype; for 16-bit outputs, whose
    inputs already are of that dtype, the inputs are moved by one rounding error, as rounded intermediates would be.

    Args:
        dtypes: eager's output dtypes.
    """
    with torch.no_grad():
        if any(d in (torch.float16, torch.bfloat16) for d in dtypes):
            low = torch.bfloat16 if torch.bfloat16 in dtypes else torch.float16
            generator = torch.Generator(device=inputs[0].device)
            generator.manual_seed(0)
            noisy = _perturbed([t.double() if t.is_floating_point() else t for t in inputs], _unit(low), generator)
            outputs = evaluate_wide(variant, dims, scalars, noisy)
            return (_rounded(outputs, low),)
        lower = (torch.float32,) if torch.float64 in dtypes else (torch.float16, torch.bfloat16)
        return tuple(
            _rounded(evaluate_wide(variant, dims, scalars, _rounded(inputs, low)), low) for low in lower
        )  # fmt: skip


def reduction_terms(variant: Variant, dims: DimValues, scalars: ScalarValues) -> int:
    """About how many terms one output element adds up; 1 if the operator reduces nothing."""
    if not get_operator(variant.operator).reduction:
        return 1
    arguments = concrete(variant, dims, scalars)
    source = max((v for v in arguments.values() if isinstance(v, TensorShape)), key=lambda t: t.elements)
    shape = source.shape
    match arguments:
        case {"dim": int() as dim} if not isinstance(dim, bool):
            return shape[dim] if shape else 1
        case {"dim": tuple() as axes} if axes and all(isinstance(a, int) for a in axes):
            return prod(shape[a] for a in axes if isinstance(a, int))
        case {"normalized_shape": tuple() as sizes}:
            return prod(s for s in sizes if isinstance(s, int))
        case {"num_groups": int() as groups} if len(shape) >= 2:
            return source.elements // max(shape[0] * groups, 1)
    written = max((t.elements for t in output_shapes(variant, dims)), default=1)
    terms = source.elements // max(written, 1)
    return terms if terms > 1 else max(source.elements // max(shape[0], 1), 1) if shape else 1


def _call(variant: Variant, bound: Mapping[str, object], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    result = get_operator(variant.operator).call(bound)
    if variant.mutates:
        return tuple(inputs[i] for i in sorted(variant.mutates))
    return tuple(_flatten(result))


def _flatten(result: object) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, tuple | list):
        return [tensor for item in result for tensor in _flatten(item)]
    return []


def _raise(value: object) -> object:
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    if isinstance(value, tuple | list):
        return tuple(_raise(v) for v in value)
    return value


def _zeros(value: Tensor) -> Tensor | None:
    return torch.zeros_like(value, dtype=torch.float64) if value.is_floating_point() else None


def _perturbed(
    inputs: Sequence[Tensor], size: float, generator: torch.Generator, *, only: int | None = None
) -> list[Tensor]:
    moved = []
    for position, tensor in enumerate(inputs):
        if not tensor.is_floating_point() or only not in (None, position):
            moved.append(tensor)
            continue
        signs = torch.empty(tensor.shape, dtype=torch.float32, device=tensor.device).bernoulli_(generator=generator)
        factor = torch.where(signs > 0, 1 + size, 1 - size).to(torch.float64) if tensor.numel() else signs.double()
        moved.append(tensor.double() * factor)
    return moved


def _unit(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2


def _rounded(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(t.to(dtype).to(torch.float64) if t.is_floating_point() else t for t in tensors)
