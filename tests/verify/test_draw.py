"""Drawn inputs reach what captured ones did not: whole ranges of integers, and the edges of an operator's domain."""

from __future__ import annotations

import torch

from kernelforge.capture.types import TensorRef
from kernelforge.cards.types import Extent, TensorPattern, Variant
from kernelforge.verify.draw import draw_inputs


def variant_of(operator: str, dtype: str, *arguments: tuple[str, object]) -> Variant:
    pattern = TensorPattern(shape=(Extent(4096),), stride=(Extent(1),), dtype=dtype)
    return Variant(
        operator=operator,
        arguments=(("input", TensorRef(0)), *arguments),  # type: ignore[arg-type]
        tensors=(pattern,),
        outputs=(pattern,),
    )


def draw(variant: Variant, distribution: str, pool: torch.Tensor | None = None) -> torch.Tensor:
    specs = [p.spec({}, "cpu") for p in variant.tensors]
    cpu = torch.device("cpu")
    return draw_inputs(variant, specs, distribution, pools=[pool], seed=7, device=cpu)[0]


def test_integers_of_all_sizes_are_drawn_although_only_small_ones_were_captured() -> None:
    """A kernel that computes in int8, or in float32, was right on everything that had been captured."""
    variant = variant_of("add", "int64", ("other", 1), ("alpha", 1), ("inplace", False))
    pool = torch.arange(-9, 10)
    assert draw(variant, "normal", pool).abs().max() <= 9
    wide = draw(variant, "scaled", pool).abs()
    assert ((wide > 127) & (wide < 2**15)).any() and (wide > 2**24).any()


def test_subnormal_numbers_and_both_zeros_are_drawn_in_every_dtype() -> None:
    """A kernel that flushes them is right; one that divides by their reciprocal is not."""
    for dtype in ("float32", "float16", "bfloat16"):
        values = draw(variant_of("neg", dtype), "subnormal")
        smallest = torch.finfo(values.dtype).smallest_normal
        below = (values != 0) & (values.abs() < smallest)
        assert below.float().mean() > 0.05 and (values.abs() >= smallest).float().mean() > 0.5
        zeros = values[values == 0]
        assert zeros.signbit().any() and not zeros.signbit().all()


def test_the_edge_of_a_positive_domain_and_what_lies_beyond_it_are_drawn() -> None:
    """x * rsqrt(x) is nan at 0, where sqrt is 0; sqrt(abs(x)) is a number where sqrt is nan."""
    variant = variant_of("sqrt", "float32")
    assert (draw(variant, "normal") > 0).all()
    edge = draw(variant, "nonfinite")
    assert (edge == 0).any() and (edge < 0).any() and edge.isnan().any() and edge.isinf().any()
