"""group_norm of contiguous [N, C, *] tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kernelforge.capture.types import ScalarRef, TensorRef
from kernelforge.cards.types import Variant
from kernelforge.generate.emitter.choose import Weights
from kernelforge.generate.emitter.expressions import Backend, c_extent
from kernelforge.generate.emitter.functions import cpu_functions
from kernelforge.generate.emitter.loops import product
from kernelforge.generate.emitter.signature import c_type
from kernelforge.generate.templates._group_norm_text import CPP, CUDA_BLOCK, CUDA_SPLIT
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


def sources(variant: Variant, backend: Backend, weights: Weights) -> Iterator[TemplateSource]:
    """All sources for a variant, best guess first."""
    source, _ = image(variant, 0)
    if len(source.shape) < 2:
        raise Unforgeable("group_norm of a tensor without channels")
    values = {
        "BATCH": c_extent(source.shape[0]), "CHANNELS": c_extent(source.shape[1]),
        "SPATIAL": extent_product(source.shape[2:]), "INDEX": index_type(variant),
        "ACC": "double" if source.dtype == "float64" else "float", **_affine(variant, backend), "EPS": _eps(variant),
    }  # fmt: skip
    if backend == "cpp":
        yield from _cpp(variant, values)
    else:
        yield from _cuda(variant, values, weights)


def _eps(variant: Variant) -> str:
    eps = variant.argument("eps")
    return eps.name if isinstance(eps, ScalarRef) else "v::eps"


def _affine(variant: Variant, backend: Backend) -> dict[str, str]:
    """Weight and bias, each of which may be absent."""
    present = {}
    for name in ("weight", "bias"):
        argument = variant.argument(name)
        if isinstance(argument, TensorRef):
            pattern = variant.tensors[argument.index]
            if not pattern.is_contiguous:
                raise Unforgeable(f"a {name} that is not contiguous")
            place = f"{name}[channel]"
            present[name] = (
                cpu_load(pattern.dtype, place) if backend == "cpp" else f"float({place})",
                f"const {c_type(pattern.dtype, backend)}* __restrict__ {name}, ",
            )
    names = [n for n in variant.tensor_names() if n in present]
    return {
        "WEIGHT": f" * {present['weight'][0]}" if "weight" in present else "",
        "BIAS": present["bias"][0] if "bias" in present else "0",
        "PARAMETERS": "".join(present[n][1] for n in names), "ARGUMENTS": "".join(f"{n}, " for n in names).rstrip(),
    }  # fmt: skip


def _cpp(variant: Variant, values: Mapping[str, str]) -> Iterator[TemplateSource]:
    dtype = variant.tensors[0].dtype
    own = {
        **values, "FUNCTIONS": cpu_functions(["half"] if dtype == "float16" else []),
        "LOAD": cpu_load(dtype, "x[i]"), "STORE": cpu_store(dtype, "normal"),
    }  # fmt: skip
    for grain in (1 << 15, 1 << 13, 1 << 17):
        yield filled(CPP, variant, "cpp", {"GRAIN": grain}, own)


def _cuda(variant: Variant, values: Mapping[str, str], weights: Weights) -> Iterator[TemplateSource]:
    source = variant.tensors[0]
    if source.dtype == "float64":
        raise Unforgeable("the CUDA group_norm template accumulates in float32")
    vector = min(16, source.alignment, variant.outputs[0].alignment) // ITEM_BYTES[source.dtype]
    own = {
        **values, "VECTOR": str(max(1, vector)),
        "DIMS": ", ".join(f"int64_t {d.name}" for d in variant.dims) or "void",
    }  # fmt: skip
    own["BATCH"] = values["BATCH"]
    dims = weights[0][0] if weights else {d.name: d.high for d in variant.dims}
    groups_argument = variant.argument("num_groups")
    assert isinstance(groups_argument, int)
    groups = source.shape[0].evaluate(dims) * groups_argument
    size = max(1, product(source.shape).evaluate(dims) // max(groups, 1))
    block = [(t, u) for t, u in ((512, 4), (1024, 4), (256, 4))]
    split = [(s, t, u) for t, u in ((256, 4), (512, 4), (256, 8), (128, 4)) for s in _splits(groups, size, t * u)]
    by_block = [filled(CUDA_BLOCK, variant, "cuda", {"THREADS": t, "UNROLL": u}, own) for t, u in block]
    by_split = [filled(CUDA_SPLIT, variant, "cuda", {"SPLITS": s, "THREADS": t, "UNROLL": u}, own) for s, t, u in split]
    # One block can stream a group of up to some ten thousand elements before a second launch costs more.
    yield from (*by_block, *by_split) if size <= 16384 else (*by_split, *by_block)


def _splits(groups: int, size: int, block_items: int) -> tuple[int, ...]:
    """Blocks per group: about 2,000 blocks in all, none with less than a few accesses per thread."""
    most = max(1, size // (block_items * 8))
    wanted = [max(1, total // max(groups, 1)) for total in (2048, 1024, 4096)]
    return tuple(dict.fromkeys(min(w, most, 1024) for w in wanted))
