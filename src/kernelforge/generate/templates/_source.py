"""What the templates share: one made source, the filling-in of names, and the checks of layouts and dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import Template

from kernelforge.cards.types import Extent, TensorPattern, Variant
from kernelforge.digest import canonical_json
from kernelforge.generate.emitter.expressions import Backend, c_extent
from kernelforge.generate.emitter.signature import c_type, launch_head
from kernelforge.generate.types import Unforgeable

ITEM_BYTES: Mapping[str, int] = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSource:
    """One source of a template or of the emitter, its schedule as canonical JSON and in words."""

    source: str
    schedule: str
    notes: str


def filled(
    template: str, variant: Variant, backend: Backend, schedule: Mapping[str, int | str], values: Mapping[str, str]
) -> TemplateSource:
    """Fill a template's `$NAME`s: the values, the schedule's numbers, `$HEAD` (the head of launch) and `$T`."""
    notes = " ".join(f"{key.lower()}={value}" for key, value in schedule.items())
    names = {
        **{key: str(value) for key, value in schedule.items()}, "HEAD": launch_head(variant, backend),
        "T": c_type(variant.tensors[0].dtype, backend), "SCHEDULE": notes, "OPERATOR": variant.operator, **values,
    }  # fmt: skip
    source = Template(template).substitute(names)
    return TemplateSource(source=source, schedule=canonical_json(dict(schedule)), notes=notes)


def image(variant: Variant, rank: int) -> tuple[TensorPattern, TensorPattern]:
    """The patterns of `input` and `out`, both contiguous, floating, with at least `rank` trailing spatial axes.

    Raises:
        Unforgeable: another layout or dtype.
    """
    if len(variant.outputs) != 1 or variant.mutates:
        raise Unforgeable("this template makes one new output")
    source, result = variant.tensors[0], variant.outputs[0]
    if not source.is_contiguous or not result.is_contiguous:
        raise Unforgeable(f"this template needs contiguous tensors, not {source}")
    if source.dtype != result.dtype or source.dtype not in ITEM_BYTES:
        raise Unforgeable(f"this template has no kernel for {source.dtype}")
    if len(source.shape) < rank:
        raise Unforgeable(f"this template needs {rank} spatial axes")
    return source, result


def extent_product(extents: tuple[Extent, ...]) -> str:
    """A product of extents as C."""
    result = Extent(1)
    for extent in extents:
        result = result.times(extent)
    return c_extent(result)


def index_type(variant: Variant) -> str:
    """The C type of an offset into any tensor: the templates' tensors are contiguous."""
    return "int" if variant.max_elements < 2**31 else "int64_t"


def cpu_load(dtype: str, place: str) -> str:
    return {"float16": f"half_to_float({place})", "bfloat16": f"kf::bf16_to_float({place})"}.get(dtype, place)


def cpu_store(dtype: str, text: str) -> str:
    return {"float16": f"float_to_half({text})", "bfloat16": f"kf::float_to_bf16({text})"}.get(dtype, text)
