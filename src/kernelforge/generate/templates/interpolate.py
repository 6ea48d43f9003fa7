"""Nearest and bilinear interpolation of contiguous [N, C, H, W] tensors (nearest also of [N, C, L])."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from string import Template

from kernelforge.cards.types import Extent, Variant
from kernelforge.generate.emitter.choose import Weights
from kernelforge.generate.emitter.expressions import Backend, c_extent
from kernelforge.generate.emitter.functions import cpu_functions
from kernelforge.generate.emitter.loops import bound
from kernelforge.generate.emitter.signature import c_type
from kernelforge.generate.templates import _interpolate_text as text
from kernelforge.generate.templates._source import (
    ITEM_BYTES,
    TemplateSource,
    cpu_load,
    cpu_store,
    extent_product,
    filled,
    image,
    index_type,
)
from kernelforge.generate.types import Unforgeable

_MAX_COLUMNS = 1 << 14  # of an output row whose tables fit on the stack


def sources(variant: Variant, backend: Backend, weights: Weights) -> Iterator[TemplateSource]:
    """All sources for a variant, best guess first. The order is the same for all sizes, so weights do not matter."""
    del weights
    source, result = image(variant, 1)
    mode = variant.argument("mode")
    ranks = {"nearest": (3, 4), "nearest-exact": (3, 4), "bilinear": (4,)}
    if not isinstance(mode, str) or len(source.shape) not in ranks.get(mode, ()):
        raise Unforgeable(f"interpolation in mode {mode} of {len(source.shape)} axes")
    if variant.argument("antialias"):
        raise Unforgeable("interpolation with antialiasing")
    sizes, results = ((Extent(1), *p.shape[2:])[-2:] for p in (source, result))
    values = {
        "PLANES": extent_product(source.shape[:2]), "INDEX": index_type(variant), "MODE": mode.capitalize(),
        "H": c_extent(sizes[0]), "W": c_extent(sizes[1]), "OUT_H": c_extent(results[0]), "OUT_W": c_extent(results[1]),
        "ACC": "double" if source.dtype == "float64" else "float", "INT": "int64_t" if backend == "cpp" else "int",
        "DEVICE": "static inline" if backend == "cpp" else "__device__ __forceinline__",
    }  # fmt: skip
    values["SCALE_TYPE"] = values["ACC"] if mode == "bilinear" else "float"
    values.update(_scales(variant, values["SCALE_TYPE"]))
    values["INDEX_FUNCTION"] = _index_function(variant, values)
    yield from _cpp(variant, values) if backend == "cpp" else _cuda(variant, values)


def _scales(variant: Variant, number: str) -> dict[str, str]:
    """The input positions per output position: the inverse of a given factor, else the ratio of the sizes."""
    factors = variant.argument("scale_factor")
    given: tuple[float | None, ...] = (None, None)
    if isinstance(factors, tuple) and not variant.argument("recompute_scale_factor"):
        checked = [f for f in factors if isinstance(f, int | float)]
        if len(checked) != len(factors):
            raise Unforgeable("a scale factor that varies")
        given = (None, *checked)[-2:]
    result = {}
    for factor, axis, size in zip(given, "HW", ("height", "width"), strict=True):
        scale = f"{number}({size}) / {number}(out_{size})" if factor is None else f"{number}(1.0 / {float(factor)!r})"
        if variant.argument("mode") == "bilinear" and variant.argument("align_corners"):
            scale = f"out_{size} > 1 ? {number}({size} - 1) / {number}(out_{size} - 1) : {number}(0)"
        result[f"SCALE_{axis}"] = scale
    return result


def _index_function(variant: Variant, values: Mapping[str, str]) -> str:
    if variant.argument("mode") == "bilinear":
        position = text.ALIGNED_POSITION if variant.argument("align_corners") else text.CENTRE_POSITION
        filled_text = Template(text.LINEAR_POSITION.replace("$POSITION", position)).substitute(values)
    else:
        exact = variant.argument("mode") == "nearest-exact"
        own = {**values, "EXACT": "" if exact else text.SHORTCUTS, "OFFSET": " + 0.5f" if exact else "",
               "OUT_SIZE": "" if exact else " out_size"}  # fmt: skip
        filled_text = Template(text.NEAREST_INDEX).substitute(own)
    # Device code has its own overloads of these.
    return (
        filled_text if values["INT"] == "int64_t" else filled_text.replace("std::floor", "floorf").replace("std::", "")
    )


def _cpp(variant: Variant, values: Mapping[str, str]) -> Iterator[TemplateSource]:
    dtype = variant.tensors[0].dtype
    columns = bound(variant.outputs[0].shape[-1], variant)
    if columns > _MAX_COLUMNS:
        raise Unforgeable("output rows too long for the interpolation template")
    linear = variant.argument("mode") == "bilinear"
    own = {
        **values, "COLUMNS": str(columns),
        "FUNCTIONS": cpu_functions(["half"] if linear and dtype == "float16" else []),
        "STORE": cpu_store(dtype, "mixed"),
        **{f"{row}_{side}".upper(): cpu_load(dtype, f"{row}[{side}[ow]]")
           for row in ("upper", "lower") for side in ("left", "right")},
    }  # fmt: skip
    for grain in (1 << 15, 1 << 13, 1 << 17):
        yield filled(text.CPP_LINEAR if linear else text.CPP_NEAREST, variant, "cpp", {"GRAIN": grain}, own)


def _cuda(variant: Variant, values: Mapping[str, str]) -> Iterator[TemplateSource]:
    result = variant.outputs[0]
    body = text.CUDA_LINEAR_BODY if variant.argument("mode") == "bilinear" else text.CUDA_NEAREST_BODY
    own = {**values, "T": c_type(result.dtype, "cuda")}
    own["BODY"] = Template(body).substitute(own)
    widest = max(1, min(16, result.alignment) // ITEM_BYTES[result.dtype])
    for vector in dict.fromkeys((widest, max(1, widest // 2), max(1, widest // 4))):
        for threads in (256, 128, 512):
            yield filled(text.CUDA, variant, "cuda", {"VECTOR": vector, "THREADS": threads}, own)
