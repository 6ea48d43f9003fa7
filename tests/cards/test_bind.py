"""A variant's arguments at given dims, with tensors for the eager call and with shapes for the traffic formulas."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from kernelforge.capture.recorder import record
from kernelforge.cards.bind import concrete, output_shapes, to_bound
from kernelforge.cards.distill import distill
from kernelforge.operators import TensorShape, get_operator


def test_bound_arguments_run_the_operator_at_unseen_sizes() -> None:
    def model() -> None:
        for n in (2, 3):
            F.softmax(torch.randn(n, 5), dim=1, dtype=torch.float64)
            torch.cat([torch.randn(n, 2), torch.randn(n, 3)], dim=1)
            torch.randn(n, 4) * (n / 4)

    cards = {c.operator: c.variants[0].variant for c in distill(record(model), model="m")}
    x = torch.randn(6, 5)
    bound = to_bound(cards["softmax"], {"n0": 6}, {}, [x])
    result = get_operator("softmax").call(bound)
    assert isinstance(result, torch.Tensor)
    assert torch.equal(result, F.softmax(x, dim=1, dtype=torch.float64))
    parts = [torch.randn(6, 2), torch.randn(6, 3)]
    joined = get_operator("cat").call(to_bound(cards["cat"], {"n0": 6}, {}, parts))
    assert isinstance(joined, torch.Tensor) and torch.equal(joined, torch.cat(parts, dim=1))
    assert to_bound(cards["mul"], {"n0": 6}, {"s0": 0.6}, [x])["other"] == 0.6


def test_concrete_arguments_have_shapes_for_tensors() -> None:
    def model() -> None:
        for n in (2, 3):
            F.interpolate(torch.randn(1, 1, n, n), size=(2 * n + 1, 2 * n + 1))

    (card,) = (c for c in distill(record(model), model="m") if c.operator == "interpolate")
    variant = card.variants[0].variant
    n, out = (d.name for d in variant.dims)
    arguments = concrete(variant, {n: 4, out: 7}, {})
    assert arguments["input"] == TensorShape(shape=(1, 1, 4, 4), dtype="float32")
    assert arguments["size"] == (7, 7)
    assert output_shapes(variant, {n: 4, out: 7}) == (TensorShape(shape=(1, 1, 7, 7), dtype="float32"),)
