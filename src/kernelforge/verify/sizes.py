"""At which sizes a variant is judged. Pure: no torch, no clock; randomness comes from the caller's generator.

Owns `SizeChoice` and `choose_sizes`: observed sizes first, then the ends of each named dim, their neighbours, a prime,
sizes that no vector width divides, and secret interior points, all within a cap of bytes and the variant's size rules.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kernelforge.cards.types import Dim, DimValues, ScalarValues, SizePoint, Variant, VariantRecord
from kernelforge.cards.types import Scalar as ScalarRange

SECRET_POINTS = 5
"""Interior points of a ranged variant that no generator can have seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChoice:
    """One combination of sizes to judge at.

    Attributes:
        why: "observed", "low end", "prime" ... in words.
        example: digest of the captured example of these sizes, or "".
    """

    dims: DimValues
    scalars: ScalarValues
    why: str
    example: str = ""


def footprint_bytes(variant: Variant, dims: DimValues) -> int:
    """Bytes of all inputs and outputs at given sizes."""
    return sum(p.spec(dims, variant.device).storage_bytes for p in (*variant.tensors, *variant.outputs))


def observed_points(record: VariantRecord, *, limit: int) -> tuple[SizePoint, ...]:
    """The observed points that matter most: by calls times eager time, ties by size."""
    ranked = sorted(record.points, key=lambda p: (-p.calls * p.eager_us, sorted(p.dims.items())))
    return tuple(ranked[:limit])


def choose_sizes(
    record: VariantRecord, *, observed: int, extra: int, cap_bytes: int, generator: random.Random
) -> tuple[SizeChoice, ...]:
    """Sizes to judge a variant at, without repetition.

    Args:
        observed: at most so many observed points, whatever their size: what is timed must be verified.
        extra: at most so many further points; only a variant with named dims has any.
        cap_bytes: no further point's inputs and outputs may be larger in total.
    """
    points = observed_points(record, limit=observed)
    choices = [SizeChoice(dims=p.dims, scalars=p.scalars, why="observed", example=p.example) for p in points]
    seen = {tuple(sorted(c.dims.items())) for c in choices}
    for choice in _further(record, cap_bytes, generator):
        if len(choices) - len(points) >= extra:
            break
        key = tuple(sorted(choice.dims.items()))
        if key not in seen:
            seen.add(key)
            choices.append(choice)
    return tuple(choices)


def draw_scalars(scalars: Iterable[ScalarRange], generator: random.Random) -> dict[str, float]:
    """A value in each scalar's range: one of the ends or between, by chance."""
    return {s.name: generator.choice((s.low, s.high, generator.uniform(s.low, s.high))) for s in scalars}


def secret_point(record: VariantRecord, *, cap_bytes: int, generator: random.Random) -> SizeChoice | None:
    """A random interior point within the cap, or None if the variant has no named dims or none was found."""
    variant = record.variant
    if not variant.dims:
        return None
    for _ in range(32):
        start = dict(generator.choice(record.points).dims)
        for dim in variant.dims:
            if generator.random() < 0.7:
                start[dim.name] = _random_value(dim, dim.high, generator)
        dims = _shrink(variant, start, cap_bytes, keep="")
        if dims is not None:
            return SizeChoice(dims=dims, scalars=draw_scalars(variant.scalars, generator), why="secret interior")
    return None


def _further(record: VariantRecord, cap_bytes: int, generator: random.Random) -> Iterator[SizeChoice]:
    """Points of special interest: the kinds rotate over the dims, so that a short prefix already has several kinds."""
    variant = record.variant
    if not variant.dims:
        return
    for position, kind in enumerate(_KINDS):
        shift = position % len(variant.dims)
        for dim in (*variant.dims[shift:], *variant.dims[:shift]):
            base = dict(generator.choice(record.points).dims)
            top = _highest_within(variant, base, dim, cap_bytes)
            value = _value(kind, dim, top, generator) if top is not None else None
            if value is None:
                continue
            dims = _shrink(variant, {**base, dim.name: value}, cap_bytes, keep=dim.name)
            if dims is not None:
                scalars = draw_scalars(variant.scalars, generator)
                yield SizeChoice(dims=dims, scalars=scalars, why=f"{kind} of {dim.name}")
    drawn: set[tuple[int, ...]] = set()
    for _ in range(8 * SECRET_POINTS):
        point = secret_point(record, cap_bytes=cap_bytes, generator=generator)
        if point is not None and len(drawn) < SECRET_POINTS:
            drawn.add(tuple(point.dims.values()))
            yield point


_KINDS = ("low end", "prime", "high end", "non-multiple of 8", "low end + 1", "high end - 1", "interior")


def _value(kind: str, dim: Dim, top: int, generator: random.Random) -> int | None:
    """The value of that kind in [dim.low, top], or None if there is none."""
    match kind:
        case "low end":
            value: int | None = dim.low + (-dim.low) % dim.multiple_of
        case "low end + 1":
            value = dim.low + (-dim.low) % dim.multiple_of + dim.multiple_of
        case "high end":
            value = top
        case "high end - 1":
            value = top - dim.multiple_of
        case "prime":
            value = _pick(dim, top, generator, lambda v: _is_prime(v // dim.multiple_of))
        case "non-multiple of 8":
            value = _pick(dim, top, generator, lambda v: v % 8 != 0 and v > 8)
        case _:
            value = _random_value(dim, top, generator)
    return value if value is not None and dim.admits(value) and value <= top else None


def _pick(dim: Dim, top: int, generator: random.Random, accept: object) -> int | None:
    assert callable(accept)
    tries = (_random_value(dim, top, generator) for _ in range(64))
    return next((v for v in tries if accept(v)), None)


def _random_value(dim: Dim, top: int, generator: random.Random) -> int:
    step = dim.multiple_of
    first, last = -(-dim.low // step), max(top // step, -(-dim.low // step))
    return step * generator.randint(first, last)


def _is_prime(value: int) -> bool:
    return value > 1 and all(value % d for d in range(2, min(int(value**0.5) + 1, 10_000)))


def _highest_within(variant: Variant, base: dict[str, int], dim: Dim, cap_bytes: int) -> int | None:
    """The highest admitted value of one dim within the cap, the other dims at their lowest; None if even low is not."""
    floor = {d.name: min(d.low + (-d.low) % d.multiple_of, base[d.name]) for d in variant.dims}
    low, high = -(-dim.low // dim.multiple_of), dim.high // dim.multiple_of

    def fits(steps: int) -> bool:
        dims = {**floor, dim.name: steps * dim.multiple_of}
        return footprint_bytes(variant, dims) <= cap_bytes and variant.largest_elements(dims) <= variant.max_elements

    if low > high or not fits(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low * dim.multiple_of


def _shrink(variant: Variant, start: dict[str, int], cap_bytes: int, *, keep: str) -> dict[str, int] | None:
    """Lower the dims other than `keep`, the largest first, until the point is within the cap and admitted."""
    dims = dict(start)
    lows = {d.name: d.low + (-d.low) % d.multiple_of for d in variant.dims}
    steps = {d.name: d.multiple_of for d in variant.dims}
    for _ in range(64):
        if footprint_bytes(variant, dims) <= cap_bytes and variant.largest_elements(dims) <= variant.max_elements:
            return dims if variant.admits_dims(dims) else None
        loose = [n for n in dims if n != keep and dims[n] > lows[n]]
        if not loose:
            return None
        name = max(loose, key=lambda n: dims[n])
        dims[name] = max(lows[name], dims[name] // 2 // steps[name] * steps[name])
    return None
