"""The variants that the rows of the suite are judged for, and how a variant is made of one eager call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from kernelforge.capture.types import DtypeRef, TensorRef, Value
from kernelforge.cards.types import Dim, Extent, SizePoint, TensorPattern, Variant, VariantRecord
from kernelforge.operators import Unsupported, get_operator


def variant_of_call(
    operator: str, *tensors: object, dims: Mapping[int, Dim] | None = None, **keywords: object
) -> Variant | Unsupported:
    """The variant of the call `operator(*tensors, **keywords)`.

    Args:
        dims: sizes that become named dims; a size that is one appears nowhere else.
    """
    known = get_operator(operator)
    entry = next(e for e in known.entries if all(k in e.parameters for k in keywords))
    canonical = known.normalise(entry.bind(tensors, keywords))
    if isinstance(canonical, Unsupported):
        return canonical
    inputs: list[Tensor] = []
    arguments = tuple((name, _value(item, inputs)) for name, item in canonical.items())
    result = known.call(canonical)
    outputs = [result] if isinstance(result, Tensor) else list(result)  # type: ignore[call-overload]
    named = dims or {}
    in_place = bool(canonical.get("inplace"))
    return Variant(
        operator=operator, arguments=arguments, tensors=tuple(_pattern(t, named) for t in inputs),
        outputs=() if in_place else tuple(_pattern(t, named) for t in outputs),
        mutates=(0,) if in_place else (), dims=tuple(named.values()),
    )  # fmt: skip


def _value(item: object, inputs: list[Tensor]) -> Value:
    if isinstance(item, Tensor):
        inputs.append(item)
        return TensorRef(len(inputs) - 1)
    if isinstance(item, torch.dtype):
        return DtypeRef(str(item).removeprefix("torch."))
    if isinstance(item, tuple | list):
        return tuple(_value(i, inputs) for i in item)
    assert item is None or isinstance(item, bool | int | float | str)
    return item


def _pattern(tensor: Tensor, dims: Mapping[int, Dim]) -> TensorPattern:
    shape = tuple(Extent(1, (dims[s].name,)) if s in dims else Extent(s) for s in tensor.shape)
    stride = tuple(_stride(s, dims) for s in tensor.stride())
    return TensorPattern(shape=shape, stride=stride, dtype=str(tensor.dtype).removeprefix("torch."))


def _stride(stride: int, dims: Mapping[int, Dim]) -> Extent:
    """A stride as a multiple of the dims that divide it; the sizes that are dims are primes for that reason."""
    names: list[str] = []
    for size, dim in dims.items():
        if stride and stride % size == 0:
            stride, names = stride // size, [*names, dim.name]
    return Extent(stride, tuple(sorted(names)))


def record_of(variant: Variant | Unsupported, **sizes: int) -> VariantRecord:
    """A variant as if a model had called it at one size."""
    assert isinstance(variant, Variant), variant
    point = SizePoint(dims=sizes, scalars={}, calls=3, eager_us=20.0)
    return VariantRecord(variant=variant, points=(point,), share=0.5)


ROWS, COLUMNS = 61, 97
"""Sizes that become n0 and n1."""


POINTWISE = ("exp", "gelu", "reciprocal", "rsqrt", "silu", "softplus", "sqrt", "square")


@cache
def records(device: str = "cpu") -> Mapping[str, VariantRecord]:
    """All variants of the suite, by name."""
    n0, n1 = Dim(name="n0", low=0, high=256), Dim(name="n1", low=1, high=4096)
    both, rows = {ROWS: n0, COLUMNS: n1}, {ROWS: n0}
    wide = torch.zeros(ROWS, COLUMNS)
    flat = torch.zeros(4, 1000)
    norm, parameter = torch.zeros(ROWS, 64), torch.ones(64)
    integers = torch.zeros(1000, dtype=torch.int32)
    softmax = variant_of_call("softmax", wide, dim=1, dims=both)
    made = {
        "relu": record_of(variant_of_call("relu", flat)),
        "relu_in_place": record_of(variant_of_call("relu", flat, inplace=True)),
        "relu_gaps": record_of(variant_of_call("relu", torch.zeros(8, 104)[:, :100])),
        "softmax": record_of(softmax, n0=64, n1=100),
        "softmax_bf16": record_of(variant_of_call("softmax", wide.bfloat16(), dim=1, dims=both), n0=64, n1=100),
        "softmax_transposed": record_of(variant_of_call("softmax", torch.zeros(33, 40).t(), dim=1)),
        "sum": record_of(variant_of_call("sum", torch.zeros(16, 1000), dim=1)),
        "layer_norm": record_of(
            variant_of_call("layer_norm", norm, normalized_shape=(64,), weight=parameter, bias=parameter, dims=rows),
            n0=50,
        ),
        "add": record_of(variant_of_call("add", torch.zeros(ROWS, 48), torch.zeros(48), dims=rows), n0=70),
        "add_int": record_of(variant_of_call("add", integers, integers.clone())),
        **{name: record_of(variant_of_call(name, flat)) for name in POINTWISE},
        **{name: record_of(variant_of_call(name, flat, flat.clone())) for name in ("mul", "div")},
        "pad": record_of(variant_of_call("pad", flat, pad=(1, 2))),
        "mean": record_of(variant_of_call("mean", torch.zeros(16, 1000), dim=1)),
        "matmul": record_of(variant_of_call("matmul", torch.zeros(24, 64), torch.zeros(64, 32))),
    }
    if device == "cpu":
        return made
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
    capability = f"sm_{major}{minor}"
    return {n: replace(r, variant=replace(r.variant, device=device, capability=capability)) for n, r in made.items()}
