"""max_pool2d, avg_pool2d and adaptive_avg_pool2d, of contiguous [..., H, W] tensors.

A mean of whole planes is a row reduction, so on the CPU (and, as an alternative, on CUDA) the emitter makes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from string import Template

from kernelforge.cards.types import Extent, Variant
from kernelforge.generate.emitter.choose import Weights, schedules
from kernelforge.generate.emitter.expressions import Backend, c_extent
from kernelforge.generate.emitter.functions import cpu_functions
from kernelforge.generate.emitter.graph import Graph, Node, Ref
from kernelforge.generate.emitter.loops import bound, nest
from kernelforge.generate.emitter.lowering import lower
from kernelforge.generate.templates import _pool_cpp, _pool_cuda
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

_MAX_COLUMNS = 1 << 15  # of a row kept on the stack
_MAX_SPAN = 48  # input columns that a CUDA thread keeps in registers


def sources(variant: Variant, backend: Backend, weights: Weights) -> Iterator[TemplateSource]:
    """All sources of the family for a variant, best guess first."""
    source, result = image(variant, 2)
    common = {
        "PLANES": extent_product(source.shape[:-2]), "H": c_extent(source.shape[-2]), "W": c_extent(source.shape[-1]),
        "OUT_H": c_extent(result.shape[-2]), "OUT_W": c_extent(result.shape[-1]), "INDEX": index_type(variant),
        "BACKEND": backend, "ACC": "double" if source.dtype == "float64" else "float",
    }  # fmt: skip
    if variant.operator == "adaptive_avg_pool2d":
        yield from _adaptive(variant, backend, common, weights)
    elif backend == "cpp":
        yield from _window_cpp(variant, common)
    else:
        yield from _window_cuda(variant, common)


def _integers(variant: Variant, name: str) -> tuple[int, int]:
    value = variant.argument(name)
    if not isinstance(value, tuple) or len(value) != 2 or not all(isinstance(v, int) for v in value):
        raise Unforgeable(f"{name} is not a pair of fixed integers")
    first, second = value
    assert isinstance(first, int) and isinstance(second, int)
    return first, second


def _window(variant: Variant, common: Mapping[str, str]) -> dict[str, str]:
    """What both backends fill in for a window: dilation, the divisor of an average, the start of a maximum."""
    values = dict(common)
    if variant.operator == "max_pool2d":
        dilation = _integers(variant, "dilation")
        values.update(DILATION_H=str(dilation[0]), DILATION_W=str(dilation[1]), START="-INFINITY", DIVISOR="")
        return values
    if variant.operator != "avg_pool2d":
        raise Unforgeable(f"the pool template does not make {variant.operator}")
    override, padding = variant.argument("divisor_override"), _integers(variant, "padding")
    # Windows that end inside the padding are counted whole or only inside the image, as the caller chose.
    whole = not variant.argument("ceil_mode") and (bool(variant.argument("count_include_pad")) or padding == (0, 0))
    inside = not variant.argument("count_include_pad")
    smallest, largest = ("std::min", "std::max<int64_t>") if values["BACKEND"] == "cpp" else ("min", "max")
    areas = {
        axis.upper() + "_AREA": f"{smallest}({axis}_last, {size}) - {largest}({axis}_first, 0)" if inside
        else f"{axis}_last - {axis}_first"
        for axis, size in (("h", "height"), ("w", "width"))
    }  # fmt: skip
    divisor = "v::divisor_override" if override is not None else "KERNEL_H * KERNEL_W" if whole else ""
    values.update(DILATION_H="1", DILATION_W="1", START=f"{values['ACC']}(0)", DIVISOR=divisor, **areas)
    return values


def _average(values: Mapping[str, str], fixed: str, varying: str) -> str:
    return fixed if values["DIVISOR"] else varying


def _parts(texts: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    return {name: Template(text).substitute(values) for name, text in texts.items()}


def _window_cpp(variant: Variant, common: Mapping[str, str]) -> Iterator[TemplateSource]:
    values = _window(variant, common)
    source, result = variant.tensors[0], variant.outputs[0]
    kernel, stride, padding = (_integers(variant, n) for n in ("kernel_size", "stride", "padding"))
    reach = (bound(result.shape[-1], variant) - 1) * stride[1] + (kernel[1] - 1) * int(values["DILATION_W"]) + 1
    columns = max(bound(source.shape[-1], variant) + 2 * padding[1], reach)
    if columns > _MAX_COLUMNS:
        raise Unforgeable("image rows too long for the pool template")
    largest = variant.operator == "max_pool2d"
    values.update(
        COLUMNS=str(columns), T=_cpp_type(source.dtype), FUNCTIONS=_functions(source.dtype),
        LOAD_W=cpu_load(source.dtype, "source[w]"), STORE_BEST=cpu_store(source.dtype, "best"),
        STORE_AVERAGE=cpu_store(source.dtype, "average"),
    )  # fmt: skip
    texts = {
        "COMBINE": _pool_cpp.MAX_COMBINE if largest else _pool_cpp.SUM_COMBINE,
        "FINISH": _pool_cpp.MAX_FINISH
        if largest
        else _average(values, _pool_cpp.FIXED_FINISH, _pool_cpp.AVERAGE_FINISH),
    }
    values.update(_parts(texts, values))
    for grain in (1 << 15, 1 << 13, 1 << 17):
        yield filled(_pool_cpp.WINDOW, variant, "cpp", {"GRAIN": grain}, values)


def _cpp_type(dtype: str) -> str:
    return {"float32": "float", "float64": "double"}.get(dtype, "uint16_t")


def _functions(dtype: str) -> str:
    return cpu_functions(["half"] if dtype == "float16" else [])


def _window_cuda(variant: Variant, common: Mapping[str, str]) -> Iterator[TemplateSource]:
    values = _window(variant, common)
    source, result = variant.tensors[0], variant.outputs[0]
    kernel, stride, padding = (_integers(variant, n) for n in ("kernel_size", "stride", "padding"))
    largest = variant.operator == "max_pool2d"
    widest = 16 // ITEM_BYTES[source.dtype]
    made = False
    for outputs, threads in ((4, 256), (2, 256), (8, 256), (4, 128), (1, 256), (8, 128), (2, 128), (16, 128)):
        span = padding[1] + max(
            outputs * stride[1], (outputs - 1) * stride[1] + (kernel[1] - 1) * int(values["DILATION_W"]) + 1
        )
        if span > _MAX_SPAN or outputs > max(1, bound(result.shape[-1], variant)) or outputs > widest * 2:
            continue
        vector = next(v for v in (16, 8, 4, 2, 1) if v <= widest and outputs * stride[1] % v == 0)
        vector = vector if source.alignment >= vector * ITEM_BYTES[source.dtype] else 1
        launch = _pool_cuda.LAUNCH_VECTOR if vector > 1 else _pool_cuda.LAUNCH_SCALAR
        pack_bytes = outputs * ITEM_BYTES[source.dtype]
        own = {
            **values, "T": _cuda_type(source.dtype), "UNROLL": str(kernel[0] if kernel[0] <= 4 else 1),
            "VECTOR": str(vector), "OUT_ALIGNED": "true" if pack_bytes <= result.alignment else "false",
        }  # fmt: skip
        texts = {
            "COMBINE": _pool_cuda.MAX_COMBINE if largest else _pool_cuda.SUM_COMBINE,
            "FINISH": _pool_cuda.MAX_FINISH if largest
            else _average(values, _pool_cuda.FIXED_FINISH, _pool_cuda.AVERAGE_FINISH),
            "LAUNCH": launch,
        }  # fmt: skip
        own.update(_parts(texts, own))
        made = True
        yield filled(_pool_cuda.WINDOW, variant, "cuda", {"OUTPUTS": outputs, "THREADS": threads}, own)
    if not made:
        raise Unforgeable("a pooling window too wide for the registers of a thread")


def _cuda_type(dtype: str) -> str:
    return {"float16": "__half", "bfloat16": "__nv_bfloat16"}.get(dtype, _cpp_type(dtype))


def _adaptive(
    variant: Variant, backend: Backend, common: Mapping[str, str], weights: Weights
) -> Iterator[TemplateSource]:
    source, result = variant.tensors[0], variant.outputs[0]
    values = {**common}
    if all(size == Extent(1) for size in result.shape[-2:]):
        if backend == "cuda":
            yield from _plane_means(variant, values)
        yield from _plane_means_emitted(variant, backend, weights)
        return
    if backend == "cuda":
        for threads in (256, 128):
            yield filled(_pool_cuda.ADAPTIVE, variant, "cuda", {"THREADS": threads}, values)
        return
    columns = bound(source.shape[-1], variant)
    if columns > _MAX_COLUMNS:
        raise Unforgeable("image rows too long for the pool template")
    values.update(
        COLUMNS=str(columns), FUNCTIONS=_functions(source.dtype), LOAD_W=cpu_load(source.dtype, "source[w]"),
        STORE_AVERAGE=cpu_store(source.dtype, "average"),
    )  # fmt: skip
    for grain in (1 << 15, 1 << 13, 1 << 17):
        yield filled(_pool_cpp.ADAPTIVE, variant, "cpp", {"GRAIN": grain}, values)


def _plane_means(variant: Variant, values: Mapping[str, str]) -> Iterator[TemplateSource]:
    """Small planes of fixed size, through shared memory."""
    source = variant.tensors[0]
    area = source.shape[-1].times(source.shape[-2]).constant
    if area is None or source.alignment < 16:
        return
    for lanes, threads in ((1, 128), (4, 128), (1, 64), (2, 128), (8, 256), (32, 256)):
        planes = threads // lanes
        item = ITEM_BYTES[source.dtype]
        if planes * area * item <= 48 * 1024 and planes * area * item % 16 == 0 and lanes <= area:
            own = {**values, "AREA": str(area), "PLANES_COUNT": values["PLANES"]}
            yield filled(_pool_cuda.GLOBAL, variant, "cuda", {"LANES": lanes, "THREADS": threads}, own)


def _plane_means_emitted(variant: Variant, backend: Backend, weights: Weights) -> Iterator[TemplateSource]:
    from kernelforge.generate.emitter import emit

    rank = len(variant.tensors[0].shape)
    mean = Node(
        name="mean", op="mean", args=(Ref("input"), (-1, -2), True), dtype=variant.tensors[0].dtype, rank=rank,
    )  # fmt: skip
    loops = nest(lower(variant, Graph(inputs=("input",), nodes=(mean,), outputs=("mean",))), variant)
    for schedule in schedules(loops, variant, backend, weights):
        yield TemplateSource(
            source=emit(loops, schedule, variant, backend), schedule=schedule.to_json(), notes=schedule.describe()
        )
