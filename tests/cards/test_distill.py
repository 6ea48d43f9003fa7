"""Grouping calls into variants: what merges, what stays apart, and that eager agrees beyond the captured sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch.nn import functional as F

from kernelforge.capture.recorder import record
from kernelforge.capture.types import DimRef, ScalarRef
from kernelforge.cards.bind import to_bound
from kernelforge.cards.distill import COUNTS, NO_RULE, distill
from kernelforge.cards.types import Extent, VariantRecord
from kernelforge.operators import get_operator


def variants(
    model: Callable[[], object], operator: str, shapes: Literal["auto", "exact"] = "auto"
) -> tuple[VariantRecord, ...]:
    cards = {c.operator: c for c in distill(record(model), model="m", shapes=shapes)}
    return cards[operator].variants


def sizes(*shapes: tuple[int, ...]) -> Callable[[Callable[[torch.Tensor], object]], Callable[[], None]]:
    def over(function: Callable[[torch.Tensor], object]) -> Callable[[], None]:
        def model() -> None:
            for shape in shapes:
                function(torch.randn(shape))

        return model

    return over


def test_sizes_that_vary_become_dims_and_others_stay_exact() -> None:
    (record_,) = variants(sizes((2, 5, 8), (3, 7, 8), (3, 7, 8))(lambda x: x.softmax(-1)), "softmax")
    variant = record_.variant
    assert variant.tensors[0].shape == (Extent(1, ("n0",)), Extent(1, ("n1",)), Extent(8))
    assert variant.tensors[0].stride == (Extent(8, ("n1",)), Extent(8), Extent(1))
    assert variant.outputs[0].shape == variant.tensors[0].shape
    assert [(p.dims, p.calls) for p in record_.points] == [({"n0": 2, "n1": 5}, 1), ({"n0": 3, "n1": 7}, 2)]


def test_sizes_that_always_coincide_share_a_dim() -> None:
    model = sizes((2, 4, 4), (2, 6, 6))(lambda x: F.layer_norm(x, x.shape[-1:], torch.ones(x.shape[-1])))
    (record_,) = variants(model, "layer_norm")
    assert [d.name for d in record_.variant.dims] == ["n0"]
    assert record_.variant.argument("normalized_shape") == (DimRef("n0"),)


def test_exact_shapes_give_one_variant_per_size() -> None:
    found = variants(sizes((2, 5), (3, 5))(torch.relu), "relu", "exact")
    assert [v.variant.dims for v in found] == [(), ()]


def test_structure_is_never_merged() -> None:
    def model() -> None:
        x = torch.randn(4, 6)
        x.softmax(0)
        x.softmax(1)
        x.double().softmax(1)
        x[None].softmax(1)

    assert len(variants(model, "softmax")) == 4


def test_broadcasting_patterns_stay_apart() -> None:
    def model() -> None:
        for n in (5, 7):
            torch.randn(n, 4) + torch.randn(n, 4)
            torch.randn(n, 4) + torch.randn(1, 4)

    found = variants(model, "add")
    assert [v.variant.tensors[1].shape[0] for v in found] == [Extent(1, ("n0",)), Extent(1)]


def test_an_operand_that_is_always_one_merges_with_the_batch_of_one() -> None:
    model = sizes((1, 3, 4), (2, 3, 4))(lambda x: x + torch.ones(1, 3, 4))
    (record_,) = variants(model, "add")
    assert record_.variant.tensors[1].shape[0] == Extent(1)


def test_prefill_and_decode_share_a_variant_although_a_size_becomes_one() -> None:
    def model() -> None:
        for q, k in ((17, 17), (1, 18), (1, 19)):
            scores = torch.randn(1, 4, q, k) + torch.randn(1, 1, q, k)
            scores.softmax(-1)
            torch.randn(1, q, 4, 8).transpose(1, 2) * 2.0

    assert len(variants(model, "softmax")) == 1
    assert len(variants(model, "add")) == 1
    (scaled,) = variants(model, "mul")
    assert scaled.variant.tensors[0].stride[2] == Extent(32)


def test_memory_layouts_stay_apart() -> None:
    def model() -> None:
        for n in (2, 3):
            x = torch.randn(n, 4, 5, 6)
            torch.relu(x)
            torch.relu(x.to(memory_format=torch.channels_last))

    found = variants(model, "relu")
    assert [v.variant.tensors[0].is_contiguous for v in found] == [True, False]
    assert all(v.variant.outputs[0].stride == v.variant.tensors[0].stride for v in found)


def test_strides_of_a_slice_follow_the_parents_dims() -> None:
    model = sizes((2, 6), (3, 6), (5, 6))(lambda x: torch.relu(x.repeat(1, 2)[:, 3:9]))
    (record_,) = variants(model, "relu")
    assert record_.variant.tensors[0].stride == (Extent(12), Extent(1))
    assert record_.variant.tensors[0].alignment == 4


def test_one_float_that_varies_is_a_scalar_and_epsilons_are_exact() -> None:
    def model() -> None:
        x = torch.randn(4, 8)
        x * 0.5, x * 0.25
        F.layer_norm(x, (8,), eps=1e-5), F.layer_norm(x, (8,), eps=1e-6)

    (scaled,) = variants(model, "mul")
    assert scaled.variant.argument("other") == ScalarRef("s0")
    assert scaled.variant.scalars[0].low <= 0.25 and scaled.variant.scalars[0].high >= 0.5
    assert [dict(p.scalars) for p in scaled.points] == [{"s0": 0.25}, {"s0": 0.5}]
    assert len(variants(model, "layer_norm")) == 2


def test_an_infinite_float_is_exact() -> None:
    def model() -> None:
        mask = torch.tensor([True, False])
        torch.ones(2).masked_fill(mask, -torch.inf)
        torch.ones(2).masked_fill(mask, 0.5)

    assert len(variants(model, "masked_fill")) == 2


def test_halved_sizes_make_the_output_size_the_dim() -> None:
    model = sizes((1, 2, 8, 8), (1, 2, 12, 12))(lambda x: F.max_pool2d(x, 2))
    (record_,) = variants(model, "max_pool2d")
    assert record_.forgeable == ""
    assert record_.variant.tensors[0].shape[2] == Extent(2, ("n0",))
    assert record_.variant.outputs[0].shape[2] == Extent(1, ("n0",))


def test_sizes_without_a_rule_become_exact_variants() -> None:
    model = sizes((1, 2, 8, 8), (1, 2, 13, 13))(lambda x: F.max_pool2d(x, 3))
    found = variants(model, "max_pool2d")
    assert [v.variant.dims for v in found] == [(), ()]
    assert all(v.forgeable == "" for v in found)


def test_very_many_sizes_without_a_rule_are_recorded_whole_and_not_forged() -> None:
    model = sizes(*((1, n) for n in range(3, 40)))(lambda x: torch.cat((x, torch.ones(1, 1)), dim=1))
    (record_,) = variants(model, "cat")
    assert record_.forgeable == NO_RULE
    assert record_.calls == 37


def test_an_equality_by_chance_is_found_out_by_eager() -> None:
    """Both calls have as many output columns as input rows; that is no rule of `linear`."""

    def model() -> None:
        F.max_pool2d(torch.randn(1, 4, 10, 10), 7)
        F.max_pool2d(torch.randn(1, 5, 11, 11), 7)

    for found in variants(model, "max_pool2d"):
        variant = found.variant
        for dim in variant.dims:
            for value in (dim.low, dim.high):
                dims = {**found.points[0].dims, dim.name: value}
                if variant.admits_dims(dims):
                    assert eager_shapes(found, dims) == output_shapes_of(found, dims)


def eager_shapes(found: VariantRecord, dims: dict[str, int]) -> list[tuple[int, ...]]:
    specs = [p.spec(dims, "cpu") for p in found.variant.tensors]
    tensors = [torch.empty_strided(s.shape, s.stride, dtype=getattr(torch, s.dtype)) for s in specs]
    result = get_operator(found.variant.operator).call(to_bound(found.variant, dims, {}, tensors))
    assert isinstance(result, torch.Tensor)
    return [tuple(result.shape)]


def output_shapes_of(found: VariantRecord, dims: dict[str, int]) -> list[tuple[int, ...]]:
    return [p.spec(dims, "cpu").shape for p in found.variant.outputs]


def test_ranges_end_where_eager_refuses() -> None:
    model = sizes((2, 3, 8, 8), (2, 3, 16, 16))(lambda x: F.avg_pool2d(x, 4))
    (record_,) = variants(model, "avg_pool2d")
    (dim,) = record_.variant.dims
    assert eager_shapes(record_, {dim.name: dim.low})
    assert eager_shapes(record_, {dim.name: dim.high})


def test_ranges_reach_beyond_what_was_seen() -> None:
    (record_,) = variants(sizes((1, 16), (2, 16))(torch.relu), "relu")
    (dim,) = record_.variant.dims
    assert (dim.low, dim.high, dim.multiple_of) == (1, 8, 1)
    assert record_.variant.admits_dims({dim.name: 7})


def test_short_texts_of_many_lengths_leave_room_for_long_ones() -> None:
    (record_,) = variants(sizes(*((1, 4, 1, n) for n in (17, 24, 30, 41)))(lambda x: x.softmax(-1)), "softmax")
    assert record_.variant.admits_dims({record_.variant.dims[0].name: 4128})
    # Two sizes may be batches: kernels for them stay as narrow as they are.
    (record_,) = variants(sizes((17, 3), (24, 3))(torch.relu), "relu")
    assert record_.variant.dims[0].high == 128


def number_beside(count: int, x: torch.Tensor) -> Callable[[], None]:
    """Adds each of so many numbers once, and each again."""

    def model() -> None:
        for number in (*range(count), *range(count)):
            x.add(number)

    return model


def test_a_number_that_counts_the_calls_is_recorded_whole_and_not_forged() -> None:
    (record_,) = variants(number_beside(6, torch.arange(5)), "add")
    assert (record_.forgeable, record_.calls) == (COUNTS, 12)


def test_a_few_numbers_beside_integers_are_variants_of_their_own() -> None:
    found = variants(number_beside(3, torch.arange(5)), "add")
    assert [(v.variant.argument("other"), v.forgeable, v.calls) for v in found] == [(0, "", 2), (1, "", 2), (2, "", 2)]


def test_numbers_beside_floats_are_one_variant_whatever_their_count() -> None:
    (record_,) = variants(number_beside(6, torch.ones(5)), "add")
    assert (record_.forgeable, len(record_.points)) == ("", 6)


def test_a_common_factor_of_many_sizes_is_a_rule() -> None:
    model = sizes(*((n, 3) for n in (64, 128, 192, 320)))(torch.relu)
    (record_,) = variants(model, "relu")
    assert record_.variant.dims[0].multiple_of == 64


def test_shares_follow_equation_one_and_sum_to_one() -> None:
    def model() -> None:
        x = torch.randn(64, 64)
        for _ in range(3):
            x.softmax(-1)
        torch.relu(x)

    records = [v for c in distill(record(model), model="m") for v in c.variants]
    assert sum(v.share for v in records) == pytest.approx(1)
    total = sum(v.calls * v.eager_us for v in records)
    assert records[0].share == pytest.approx(records[0].calls * records[0].eager_us / total)


def test_ids_do_not_depend_on_the_run() -> None:
    def ids() -> list[str]:
        cards = distill(record(sizes((2, 3), (4, 3))(lambda x: torch.relu(x.softmax(-1)))), model="m")
        return [v.variant.id for c in cards for v in c.variants]

    assert ids() == ids()


def test_requires_grad_is_noted() -> None:
    weight = torch.ones(3, 3, requires_grad=True)
    (record_,) = variants(lambda: F.linear(torch.ones(2, 3), weight), "linear")
    assert record_.requires_grad
