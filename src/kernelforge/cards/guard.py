"""The guard: does this call belong to that variant? Pure, torch-free, and derived from the variant alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from kernelforge.capture.types import Arguments, DimRef, ScalarRef, TensorSpec, Value
from kernelforge.cards.types import DimValues, Extent, ScalarValues, TensorPattern, Variant

Term: TypeAlias = Literal[
    "operator", "device", "capability", "autocast", "precision", "grad", "arity", "argument", "layout", "dtype", "rank",
    "size", "stride", "alignment", "alias", "dim", "elements", "scalar",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFacts:
    """What a guard looks at of one live call.

    Attributes:
        operator, arguments, tensors: as in `OperatorCall`.
        aliases: pairs of input indices that share memory; may be empty when the operator changes no input.
        autocast: autocast dtype if on for the device type, else "".
        precision: as in `OperatorCall`.
        grad_enabled: grad mode at the call.
        deterministic: torch was told to compute everything in the same way each time. No term of the guard: whether a
            kernel does is not known from the variant.
        device, capability: "cpu" and "", or "cuda" and for example "sm_90".
    """

    operator: str
    arguments: Arguments
    tensors: tuple[TensorSpec, ...]
    aliases: tuple[tuple[int, int], ...] = ()
    autocast: str = ""
    precision: tuple[str, ...] = ()
    grad_enabled: bool = False
    deterministic: bool = False
    device: str = "cpu"
    capability: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The call belongs to the variant, at these dims and scalars (in the variant's order)."""

    dims: DimValues
    scalars: ScalarValues


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The call does not belong to the variant.

    Attributes:
        term: the term of the guard that failed.
        detail: what was seen and what was wanted, for people: "dtype of input: float16, not float32".
    """

    term: Term
    detail: str


@dataclass(frozen=True, slots=True)
class Guard:
    """The admission rule of one variant. Build with `Guard.of`."""

    variant: Variant
    names: tuple[str, ...]

    @staticmethod
    def of(variant: Variant) -> Guard:
        return Guard(variant, variant.tensor_names())

    def check(self, facts: CallFacts) -> Admitted | Refused:
        """Decide whether the call belongs to the variant; the cheapest terms come first."""
        dims: dict[str, int] = {}
        scalars: dict[str, float] = {}
        refused = (
            self._state(facts)
            or self._tensors(facts, dims)
            or self._arguments(facts, dims, scalars)
            or self._products(facts, dims)
            or self._memory(facts, dims)
            or self._ranges(dims, scalars)
        )
        if refused:
            return refused
        return Admitted(
            dims={d.name: dims[d.name] for d in self.variant.dims},
            scalars={s.name: scalars[s.name] for s in self.variant.scalars},
        )

    def _state(self, facts: CallFacts) -> Refused | None:
        variant = self.variant
        if facts.operator != variant.operator:
            return _refuse("operator", "operator", facts.operator, variant.operator)
        if facts.device != variant.device:
            return _refuse("device", "device", facts.device, variant.device)
        if variant.capability and facts.capability != variant.capability:
            return _refuse("capability", "capability", facts.capability, variant.capability)
        if facts.autocast != variant.autocast:
            return _refuse("autocast", "autocast", facts.autocast or "off", variant.autocast or "off")
        if facts.precision != variant.precision:
            wanted = ", ".join(variant.precision) or "as torch begins"
            return _refuse("precision", "flags", ", ".join(facts.precision) or "as torch begins", wanted)
        if facts.grad_enabled and any(t.requires_grad for t in facts.tensors):
            return Refused(term="grad", detail="grad mode is on and an input requires grad")
        if len(facts.tensors) != len(variant.tensors):
            return _refuse("arity", "input tensors", len(facts.tensors), len(variant.tensors))
        return None

    def _tensors(self, facts: CallFacts, dims: dict[str, int]) -> Refused | None:
        for name, spec, pattern in zip(self.names, facts.tensors, self.variant.tensors, strict=True):
            if spec.layout != "strided":
                return _refuse("layout", f"layout of {name}", spec.layout, "strided")
            if spec.dtype != pattern.dtype:
                return _refuse("dtype", f"dtype of {name}", spec.dtype, pattern.dtype)
            if spec.device != self.variant.device:
                return _refuse("device", f"device of {name}", spec.device, self.variant.device)
            if len(spec.shape) != len(pattern.shape):
                return _refuse("rank", f"rank of {name}", len(spec.shape), len(pattern.shape))
            if spec.alignment % pattern.alignment:
                return _refuse("alignment", f"alignment of {name}", spec.alignment, pattern.alignment)
            for axis, (size, extent) in enumerate(zip(spec.shape, pattern.shape, strict=True)):
                if len(extent.dims) <= 1 and not _matches(size, extent, dims):
                    return _refuse("size", f"size of {name} axis {axis}", size, _wanted(extent, dims))
        return None

    def _arguments(self, facts: CallFacts, dims: dict[str, int], scalars: dict[str, float]) -> Refused | None:
        for (name, wanted), (seen_name, seen) in zip(self.variant.arguments, facts.arguments, strict=False):
            if name != seen_name or not _same(seen, wanted, dims, scalars):
                return _refuse("argument", f"argument {name}", _text(seen), _text(wanted, dims))
        if len(facts.arguments) != len(self.variant.arguments):
            return _refuse("arity", "arguments", len(facts.arguments), len(self.variant.arguments))
        return None

    def _products(self, facts: CallFacts, dims: dict[str, int]) -> Refused | None:
        """Sizes that are products of several dims are compared once every dim is known."""
        for name, spec, pattern in zip(self.names, facts.tensors, self.variant.tensors, strict=True):
            for axis, (size, extent) in enumerate(zip(spec.shape, pattern.shape, strict=True)):
                if len(extent.dims) > 1 and (any(d not in dims for d in extent.dims) or extent.evaluate(dims) != size):
                    return _refuse("size", f"size of {name} axis {axis}", size, _wanted(extent, dims))
        return None

    def _memory(self, facts: CallFacts, dims: dict[str, int]) -> Refused | None:
        for name, spec, pattern in zip(self.names, facts.tensors, self.variant.tensors, strict=True):
            axis = _wrong_stride(spec, pattern, dims)
            if axis is not None:
                wanted = _wanted(pattern.stride[axis], dims)
                return _refuse("stride", f"stride of {name} axis {axis}", spec.stride[axis], wanted)
        if self.variant.mutates and facts.aliases:
            changed = tuple(p for p in facts.aliases if set(p) & set(self.variant.mutates))
            if changed != self.variant.aliases:
                return Refused(term="alias", detail=f"an input that the call changes shares memory: {changed}")
        return None

    def _ranges(self, dims: dict[str, int], scalars: dict[str, float]) -> Refused | None:
        variant = self.variant
        for dim in variant.dims:
            value = dims.get(dim.name)
            if value is None or not dim.admits(value):
                rule = f"in [{dim.low}, {dim.high}]" + (f" by {dim.multiple_of}" if dim.multiple_of > 1 else "")
                return Refused(term="dim", detail=f"dim {dim.name}: {value}, not {rule}")
        for scalar in variant.scalars:
            number = scalars.get(scalar.name, math.nan)
            if not scalar.low <= number <= scalar.high:
                return Refused(
                    term="scalar", detail=f"scalar {scalar.name}: {number}, not in [{scalar.low}, {scalar.high}]"
                )
        largest = variant.largest_elements(dims)
        if not variant.min_elements <= largest <= variant.max_elements:
            bounds = f"in [{variant.min_elements}, {variant.max_elements}]"
            return Refused(term="elements", detail=f"elements of the largest tensor: {largest}, not {bounds}")
        return None


def _matches(size: int, extent: Extent, dims: dict[str, int]) -> bool:
    """Whether a size fits a constant or one (multiple of a) dim; the first appearance fixes the dim's value."""
    if not extent.dims:
        return size == extent.coefficient
    value, rest = divmod(size, extent.coefficient)
    return rest == 0 and dims.setdefault(extent.dims[0], value) == value


def _wrong_stride(spec: TensorSpec, pattern: TensorPattern, dims: DimValues) -> int | None:
    """The first axis whose stride differs; nothing is addressed through axes of size 1, nor in an empty tensor."""
    if 0 in spec.shape:
        return None
    for axis, (size, stride, extent) in enumerate(zip(spec.shape, spec.stride, pattern.stride, strict=True)):
        if size != 1 and stride != extent.evaluate(dims):
            return axis
    return None


def _same(seen: Value, wanted: Value, dims: dict[str, int], scalars: dict[str, float]) -> bool:
    if isinstance(wanted, DimRef):
        return type(seen) is int and dims.setdefault(wanted.name, seen) == seen
    if isinstance(wanted, ScalarRef):
        return type(seen) is float and _equal(scalars.setdefault(wanted.name, seen), seen)
    if isinstance(wanted, tuple):
        if not isinstance(seen, tuple) or len(seen) != len(wanted):
            return False
        return all(_same(s, w, dims, scalars) for s, w in zip(seen, wanted, strict=True))
    if type(seen) is not type(wanted):
        return False  # True, 1 and 1.0 are different arguments
    return _equal(seen, wanted)


def _equal(first: Value, second: Value) -> bool:
    """Equality in which NaN equals NaN."""
    if isinstance(first, float) and isinstance(second, float) and math.isnan(first):
        return math.isnan(second)
    return first == second


def _refuse(term: Term, what: str, seen: object, wanted: object) -> Refused:
    return Refused(term=term, detail=f"{what}: {seen}, not {wanted}")


def _wanted(extent: Extent, dims: DimValues) -> str:
    if not extent.dims or any(d not in dims for d in extent.dims):
        return str(extent)
    return f"{extent.evaluate(dims)} ({extent})"


def _text(value: Value, dims: DimValues | None = None) -> str:
    if isinstance(value, DimRef) and dims is not None and value.name in dims:
        return f"{dims[value.name]} ({value.name})"
    name = getattr(value, "name", None)
    return str(name) if name is not None else repr(value)
