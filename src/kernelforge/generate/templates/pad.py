"""Constant padding (or cropping) of the last one to three axes of a contiguous tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kernelforge.capture.types import DimRef, ScalarRef
from kernelforge.cards.types import Extent, TensorPattern, Variant
from kernelforge.generate.emitter.choose import Weights
from kernelforge.generate.emitter.expressions import Backend, c_extent
from kernelforge.generate.emitter.functions import cpu_functions
from kernelforge.generate.templates._pad_text import CPP, CUDA_FLAT, CUDA_LINES
from kernelforge.generate.templates._source import (
    ITEM_BYTES,
    TemplateSource,
    cpu_store,
    extent_product,
    filled,
    image,
    index_type,
)
from kernelforge.generate.types import Unforgeable


def sources(variant: Variant, backend: Backend, weights: Weights) -> Iterator[TemplateSource]:
    """All sources for a variant, best guess first."""
    source, result = image(variant, 1)
    if variant.argument("mode") != "constant":
        raise Unforgeable(f"pad in mode {variant.argument('mode')}")
    pads = variant.argument("pad")
    if not isinstance(pads, tuple) or len(pads) > 6 or len(pads) % 2:
        raise Unforgeable("padding of more than the last three axes")
    before = {axis: _integer(pads[2 * i]) if 2 * i < len(pads) else "0" for i, axis in enumerate("WHD")}
    shapes = [_last_three(source), _last_three(result)]
    value = variant.argument("value")
    number = value.name if isinstance(value, ScalarRef) else "v::value" if value is not None else "0.0"
    values = {
        "PLANES": extent_product(source.shape[:-3]), "INDEX": index_type(variant), "VALUE": number,
        **{axis: c_extent(size) for axis, size in zip("DHW", shapes[0], strict=True)},
        **{f"OUT_{axis}": c_extent(size) for axis, size in zip("DHW", shapes[1], strict=True)},
        **{f"BEFORE_{axis}": text for axis, text in before.items()},
    }  # fmt: skip
    yield from _cpp(variant, values) if backend == "cpp" else _cuda(variant, values, weights)


def _integer(value: object) -> str:
    if isinstance(value, DimRef):
        return value.name
    assert isinstance(value, int)
    return str(value)


def _last_three(pattern: TensorPattern) -> tuple[Extent, ...]:
    return ((Extent(1),) * 3 + pattern.shape)[-3:]


def _cpp(variant: Variant, values: Mapping[str, str]) -> Iterator[TemplateSource]:
    dtype = variant.tensors[0].dtype
    fill = cpu_store(dtype, f"float({values['VALUE']})") if dtype != "float64" else values["VALUE"]
    own = {**values, "FILL": fill, "FUNCTIONS": cpu_functions(["half"] if dtype == "float16" else [])}
    for grain in (1 << 15, 1 << 13, 1 << 17):
        yield filled(CPP, variant, "cpp", {"GRAIN": grain}, own)


def _cuda(variant: Variant, values: Mapping[str, str], weights: Weights) -> Iterator[TemplateSource]:
    result = variant.outputs[0]
    widest = max(1, min(16, result.alignment) // ITEM_BYTES[result.dtype])
    dims = weights[0][0] if weights else {d.name: d.high for d in variant.dims}
    width = result.shape[-1].evaluate(dims) if result.shape else 1
    lines = [
        filled(CUDA_LINES, variant, "cuda", {"VECTOR": v, "THREADS": t}, values)
        for v in dict.fromkeys((widest, max(1, widest // 2), 1)) for t in (128, 256, 64)
    ]  # fmt: skip
    flat = [
        filled(CUDA_FLAT, variant, "cuda", {"VECTOR": v, "THREADS": t}, values)
        for v in dict.fromkeys((widest, max(1, widest // 2))) for t in (256, 128, 512)
    ]  # fmt: skip
    yield from (*lines[:3], *flat, *lines[3:]) if width >= 64 * widest else (*flat, *lines)
