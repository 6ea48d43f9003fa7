"""At which sizes a ranged variant is judged."""

from __future__ import annotations

import random

import pytest

from kernelforge.capture.types import TensorRef
from kernelforge.cards.types import Dim, Extent, SizePoint, TensorPattern, Variant, VariantRecord
from kernelforge.verify.sizes import choose_sizes, footprint_bytes, secret_point

ROWS, COLUMNS = Extent(1, ("n0",)), Extent(1, ("n1",))


def softmax(*, high: int = 4096, multiple_of: int = 1, max_elements: int = 2**31 - 1) -> VariantRecord:
    pattern = TensorPattern(shape=(ROWS, COLUMNS), stride=(COLUMNS, Extent(1)), dtype="float32")
    variant = Variant(
        operator="softmax", arguments=(("input", TensorRef(0)), ("dim", 1), ("dtype", None)),
        tensors=(pattern,), outputs=(pattern,), max_elements=max_elements,
        dims=(Dim(name="n0", low=1, high=64), Dim(name="n1", low=8, high=high, multiple_of=multiple_of)),
    )  # fmt: skip
    points = tuple(
        SizePoint(dims={"n0": 4, "n1": 8 * k}, scalars={}, calls=k, eager_us=1.0) for k in range(1, 7)
    )  # fmt: skip
    return VariantRecord(variant=variant, points=points, share=1.0)


def test_ends_neighbours_prime_and_secret_points_are_there() -> None:
    choices = choose_sizes(softmax(), observed=2, extra=24, cap_bytes=2**24, generator=random.Random(1))
    kinds = {c.why.rsplit(" of n", 1)[0] for c in choices}
    assert {"observed", "low end", "high end", "prime", "non-multiple of 8", "high end - 1", "secret interior"} <= kinds
    values = {c.dims["n1"] for c in choices}
    assert {8, 9, 4096, 4095} <= values


def test_the_heaviest_observed_points_come_first() -> None:
    choices = choose_sizes(softmax(), observed=2, extra=0, cap_bytes=2**24, generator=random.Random(1))
    assert [c.dims["n1"] for c in choices] == [48, 40]


@pytest.mark.parametrize("seed", range(5))
def test_every_choice_is_admitted_and_within_the_cap(seed: int) -> None:
    record = softmax(high=2**20, multiple_of=8, max_elements=100_000)
    cap_bytes = 2**19
    choices = choose_sizes(record, observed=3, extra=24, cap_bytes=cap_bytes, generator=random.Random(seed))
    assert len(choices) > 8
    for choice in choices:
        assert record.variant.admits_dims(choice.dims), choice
        assert footprint_bytes(record.variant, choice.dims) <= cap_bytes
    assert len({tuple(c.dims.items()) for c in choices}) == len(choices)


def test_secret_points_differ_between_draws() -> None:
    generator = random.Random(3)
    points = [secret_point(softmax(), cap_bytes=2**24, generator=generator) for _ in range(10)]
    assert len({tuple(p.dims.items()) for p in points if p is not None}) > 5


def test_a_fixed_variant_has_its_observed_size_only() -> None:
    pattern = TensorPattern(shape=(Extent(8),), stride=(Extent(1),), dtype="float32")
    variant = Variant(operator="relu", arguments=(("input", TensorRef(0)), ("inplace", False)),
                      tensors=(pattern,), outputs=(pattern,))  # fmt: skip
    record = VariantRecord(
        variant=variant, share=1.0, points=(SizePoint(dims={}, scalars={}, calls=1, eager_us=1.0),)
    )  # fmt: skip
    assert len(choose_sizes(record, observed=4, extra=9, cap_bytes=2**20, generator=random.Random(0))) == 1
    assert secret_point(record, cap_bytes=2**20, generator=random.Random(0)) is None
