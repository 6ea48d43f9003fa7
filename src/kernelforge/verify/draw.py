"""Drawn input values. Owns the distributions; respects an operator's domains and a dtype's range. Loads torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Generator, Tensor

from kernelforge.capture.types import TensorRef, TensorSpec
from kernelforge.cards.types import Variant
from kernelforge.operators import Domain, get_operator
from kernelforge.operators.types import FLOATING
from kernelforge.verify.layout import place, torch_dtype

SPIKE = 1.0e4
LARGEST_INT64 = 3_037_000_499
_WIDE = frozenset({"scaled", "spike", "mixed", "nonfinite", "offset", "magnitudes"})
"""Distributions in which integers are drawn from the dtype's whole range, not from the captured values."""

IN_WORDS: Mapping[str, str] = {
    "normal": "normal values", "scaled": "normal values times 10, plus 5", "negative": "uniform negative values",
    "spike": "heavy-tailed values with one spike of 1e4 somewhere", "mixed": "rows of magnitudes from 1e-3 to 1e3",
    "offset": "values around 1e2 to 1e4 that differ by about 1", "cancelling": "values that nearly cancel in pairs",
    "constant": "one constant", "nonfinite": "a few nan, inf, -inf",
    "subnormal": "normal values, some zeros and subnormal numbers among them",
    "magnitudes": "values of all magnitudes at which the operator's own arithmetic does not overflow",
}  # fmt: skip


def domains_of(variant: Variant) -> tuple[Domain, ...]:
    """The domain of each input tensor of a variant."""
    domains = get_operator(variant.operator).domains
    found = [Domain()] * len(variant.tensors)
    for name, value in variant.arguments:
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, TensorRef) and name in domains:
                found[item.index] = domains[name]
    return tuple(found)


def index_limits(variant: Variant, specs: Sequence[TensorSpec]) -> tuple[int | None, ...]:
    """For each input whose domain is "index": one more than the largest index it may hold."""
    arguments = dict(variant.arguments)
    limits: list[int | None] = []
    for domain in domains_of(variant):
        target = arguments.get(domain.of) if domain.kind == "index" else None
        limits.append(specs[target.index].shape[domain.axis] if isinstance(target, TensorRef) else None)
    return tuple(limits)


def draw_inputs(
    variant: Variant, specs: Sequence[TensorSpec], distribution: str, *, pools: Sequence[Tensor | None], seed: int,
    device: torch.device,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Draw all inputs of one case.

    Args:
        specs: the concrete inputs.
        distribution: a key of `IN_WORDS`.
        pools: per input the captured values (flat), from which integers and bools without a domain are drawn.
        seed: of the one generator; from the operating system's entropy, it never leaves the judge.
    """
    generator = torch.Generator(device=device)
    generator.manual_seed(seed)
    inputs = []
    largest = max(spec.elements for spec in specs)
    whole = keeps_elements_apart(variant)
    for spec, domain, limit, pool in zip(
        specs, domains_of(variant), index_limits(variant, specs), pools, strict=True
    ):  # fmt: skip
        dtype = torch_dtype(spec.dtype)
        if dtype.is_floating_point:
            # What an infinite weight gives depends on how a formula is written: eager itself folds a batch norm into
            # one scale on the CPU and not on CUDA. What an infinite or nan *datum* gives does not.
            # A mean far from 0 is one of data, too.
            # The magnitudes of weights are the data's only where an element meets no more than one of them.
            data_only = distribution in ("nonfinite", "offset") or (distribution == "magnitudes" and not whole)
            parameter = data_only and 2 * spec.elements < largest
            name = "normal" if parameter else distribution
            values = _floats(spec.shape, dtype, name, domain, generator, whole=whole)
        else:
            values = _integers(spec.shape, dtype, limit, None if distribution in _WIDE else pool, generator)
        inputs.append(place(values, spec))
    return tuple(inputs)


def keeps_elements_apart(variant: Variant) -> bool:
    """Whether an element of the output is made of at most one element of each of two float inputs.

    Then magnitudes are no matter of order: sums of many terms, or scales multiplied as in a batch norm, overflow in one
    order and not in another. And not into integers: what they are of 1e30 is undefined.
    """
    operator = get_operator(variant.operator)
    floats = sum(p.dtype in FLOATING for p in variant.tensors)
    return (
        not operator.reduction and operator.provider == "native" and floats <= 2
        and all(p.dtype in FLOATING for p in variant.outputs)
    )  # fmt: skip


def _floats(
    shape: tuple[int, ...], dtype: torch.dtype, name: str, domain: Domain, generator: Generator, *, whole: bool
) -> Tensor:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    if name == "magnitudes":
        exponent = _largest_exponent(dtype, whole=whole)
        values = _magnitudes(shape, wide, exponent, generator) if whole else _rows_of(shape, wide, exponent, generator)
        if whole and domain.kind == "positive":
            return values.abs().to(dtype)
    else:
        values = _SHAPES[name](shape, wide, generator)
    if name == "subnormal":
        values = _with_subnormals(values, torch.finfo(dtype).smallest_normal, generator)
    if domain.kind == "positive" and name == "nonfinite":
        # The edge of the domain and what lies beyond it: eager's nan and infinities there are part of its contract.
        flat = values.view(-1)
        if flat.numel():
            flat[_positions(flat.numel(), 1 + flat.numel() // 64, generator)] = 0.0
    elif domain.kind == "positive":
        # Not below 1e-3: a variance near zero makes any arithmetic's error large, which proves nothing.
        values = values.nan_to_num(nan=1.0, posinf=1.0, neginf=1.0).abs() + 1e-3
    elif domain.kind == "unit":
        values = torch.sigmoid(values.nan_to_num(nan=0.0, posinf=1.0, neginf=-1.0))
    limit = torch.finfo(dtype).max / 2
    clamped = torch.where(values.isfinite(), values.clamp(-limit, limit), values)
    return clamped.to(dtype)


def _integers(
    shape: tuple[int, ...], dtype: torch.dtype, limit: int | None, pool: Tensor | None, generator: Generator
) -> Tensor:
    device = generator.device
    if pool is not None and pool.numel() and limit is None:
        picks = torch.randint(pool.numel(), shape, generator=generator, device=device)
        return pool.to(device)[picks].to(dtype)
    if dtype == torch.bool:
        return torch.randint(2, shape, generator=generator, device=device).to(dtype)
    if limit is not None:
        return torch.randint(max(limit, 1), shape, generator=generator, device=device).to(dtype)
    info = torch.iinfo(dtype)
    # Beyond 32 bits where the dtype goes beyond them; but products of two do not overflow.
    most = LARGEST_INT64 if dtype == torch.int64 else 2**30
    low, high = max(info.min, -most), min(info.max, most)
    values = torch.randint(low, high, shape, generator=generator, device=device)
    # Sizes of all orders: most numbers below 2**30 are near it, and a kernel may go wrong at 128 or at 2**24.
    shifts = torch.randint(most.bit_length(), shape, generator=generator, device=device)
    return (values >> shifts).to(dtype)


def _normal(shape: tuple[int, ...], dtype: torch.dtype, generator: Generator) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=generator, device=generator.device)


def _scaled(shape: tuple[int, ...], dtype: torch.dtype, generator: Generator) -> Tensor:
    return _normal(shape, dtype, generator) * 10 + 5


def _negative(shape: tuple[int, ...], dtype: torch.dtype, generator: Generator) -> Tensor:
    return -torch.rand(shape, dtype=dtype, generator=generator, device=generator.device) * 4 - 0.05


def _spike(shape: tuple[int, ...], dtype: torch.dtype, generator: Generator) -> Tensor:
    values = _normal(shape, dtype, generator) ** 3
    if values.numel():
        values.view(-1)[_positions(values.numel(), 1, generator)] = SPIKE
    return values


def _mixed(shape: tuple[int, ...], dtype: torch.dtype, generator: Generator) -> Tensor:
    return _rows_of(shape, dtype, 3 * math.log2(10), generator)


def _rows_of(shape: tuple[int, ...], dtype: torch.dtype, exponent: float, generator: Generator) -> Tensor:
    """Normal values, each row of a magnitude from 2**-exponent to 2**exponent."""
    values = _normal(shape, dtype, generator)
    rows = (*shape[:-1], 1) if len(shape) > 1 else shape
    chance = torch.rand(rows, dtype=dtype, generator=generator, device=generator.device)
    return values * torch.exp2((2 * chance - 1) * exponent)


def _offset(shape: tuple[int, ...], dtype: torch.dtype, generator: Generator) -> Tensor:
    """One offset for each index of the first axis: the mean is far from 0 in whatever is normalised or summed up."""
    values = _normal(shape, dtype, generator)
    samples = (shape[0], *[1] * (len(shape) - 1)) if len(shape) > 1 else (1,) * len(shape)
    exponents = torch.rand(samples, dtype=dtype, generator=generator, device=generator.device) * 2 + 2
    signs = torch.rand(samples, dtype=dtype, generator=generator, device=generator.device).sub(0.5).sign()
    return values + signs * 10.0**exponents


def _cancelling(shape: tuple[int, ...], dtype: torch.dtype, generator: Generator) -> Tensor:
    values = _normal(shape, dtype, generator).reshape(-1) * 100
    half = values.numel() // 2
    values[half : 2 * half] = -values[:half] + values[half : 2 * half] * 1e-4
    order = torch.randperm(values.numel(), generator=generator, device=generator.device)
    return values[order].reshape(shape)


def _constant(shape: tuple[int, ...], dtype: torch.dtype, generator: Generator) -> Tensor:
    return torch.full(shape, float(_normal((), dtype, generator)) + 0.1, dtype=dtype, device=generator.device)


def _nonfinite(shape: tuple[int, ...], dtype: torch.dtype, generator: Generator) -> Tensor:
    values = _normal(shape, dtype, generator)
    flat = values.view(-1)
    if flat.numel():
        for value in (float("nan"), float("inf"), float("-inf")):
            flat[_positions(flat.numel(), 1 + flat.numel() // 5000, generator)] = value
    return values


def _largest_exponent(dtype: torch.dtype, *, whole: bool) -> int:
    """The power of two up to which, and from whose inverse on, magnitudes are drawn.

    All but the outermost powers, whose inverses are subnormal; or a quarter of them where elements are added, squared
    and scaled, so that no order of doing so overflows.
    """
    _, most = math.frexp(torch.finfo(dtype).max)
    return most - 2 if whole else most // 4


def _magnitudes(shape: tuple[int, ...], dtype: torch.dtype, exponent: int, generator: Generator) -> Tensor:
    """Log-uniform from 2**-exponent to 2**exponent, either sign."""
    chance = torch.rand((2, *shape), dtype=dtype, generator=generator, device=generator.device)
    return torch.exp2((2 * chance[0] - 1) * exponent) * torch.where(chance[1] < 0.5, -1.0, 1.0)


def _with_subnormals(values: Tensor, smallest_normal: float, generator: Generator) -> Tensor:
    """An eighth of the values below the smallest normal number, a sixteenth 0 or -0."""
    chance = torch.rand(values.shape, generator=generator, device=generator.device)
    values = torch.where(chance < 1 / 8, values.clamp(-4, 4) / 4 * smallest_normal, values)
    return torch.where(chance > 15 / 16, values * 0.0, values)


def _positions(count: int, picks: int, generator: Generator) -> Tensor:
    return torch.randint(count, (picks,), generator=generator, device=generator.device)


_SHAPES: Mapping[str, Callable[[tuple[int, ...], torch.dtype, Generator], Tensor]] = {
    "normal": _normal, "scaled": _scaled, "negative": _negative, "spike": _spike, "mixed": _mixed,
    "offset": _offset, "cancelling": _cancelling, "constant": _constant, "nonfinite": _nonfinite, "subnormal": _normal,
}  # fmt: skip
