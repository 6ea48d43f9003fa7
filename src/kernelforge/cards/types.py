"""Operator cards and their variants. Owns every type of this stage.

A *variant* is one runtime-compatible group of calls: the unit of search and of dispatch. Sizes that differed between
its calls are *named dims*; everything else is exact. A card holds the variants of one operator of one model on one
device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kernelforge.capture.types import (
    Arguments,
    DimRef,
    ScalarRef,
    TensorRef,
    TensorSpec,
    Value,
    arguments_from_json,
    arguments_to_json,
)
from kernelforge.digest import Json, decode_float, digest, encode_float

DimValues: TypeAlias = "Mapping[str, int]"
ScalarValues: TypeAlias = "Mapping[str, float]"

CARD_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Extent:
    """A size or a stride: `coefficient` times the product of named dims (dims sorted, with repetition).

    Extent(64) is the constant 64; Extent(1, ("n0",)) is the dim n0; Extent(64, ("n0", "n1")) is 64*n0*n1.
    """

    coefficient: int
    dims: tuple[str, ...] = ()

    def evaluate(self, dims: DimValues) -> int:
        result = self.coefficient
        for name in self.dims:
            result *= dims[name]
        return result

    def times(self, other: Extent) -> Extent:
        return Extent(self.coefficient * other.coefficient, tuple(sorted(self.dims + other.dims)))

    @property
    def constant(self) -> int | None:
        return None if self.dims else self.coefficient

    def __str__(self) -> str:
        if not self.dims:
            return str(self.coefficient)
        names = "*".join(self.dims)
        return names if self.coefficient == 1 else f"{self.coefficient}*{names}"

    def to_json(self) -> Json:
        return [self.coefficient, *self.dims] if self.dims else self.coefficient

    @staticmethod
    def from_json(data: Json) -> Extent:
        if isinstance(data, int):
            return Extent(data)
        assert isinstance(data, Sequence) and isinstance(data[0], int)
        return Extent(data[0], tuple(str(d) for d in data[1:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dim:
    """A named size that varies between the calls of a variant.

    The guard admits value v if low <= v <= high and v % multiple_of == 0.
    """

    name: str
    low: int
    high: int
    multiple_of: int = 1

    def admits(self, value: int) -> bool:
        return self.low <= value <= self.high and value % self.multiple_of == 0

    def to_json(self) -> Json:
        return {"name": self.name, "low": self.low, "high": self.high, "multiple_of": self.multiple_of}

    @staticmethod
    def from_json(data: Mapping[str, Json]) -> Dim:
        low, high, multiple = data["low"], data["high"], data["multiple_of"]
        assert isinstance(low, int) and isinstance(high, int) and isinstance(multiple, int)
        return Dim(name=str(data["name"]), low=low, high=high, multiple_of=multiple)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """A float argument that varies between the calls of a variant: any finite value in [low, high]."""

    name: str
    low: float
    high: float

    def to_json(self) -> Json:
        return {"name": self.name, "low": encode_float(self.low), "high": encode_float(self.high)}

    @staticmethod
    def from_json(data: Mapping[str, Json]) -> Scalar:
        return Scalar(name=str(data["name"]), low=decode_float(data["low"]), high=decode_float(data["high"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPattern:
    """One tensor of a variant. Strides of axes of size 1 do not matter: nothing is addressed through them.

    Attributes:
        shape, stride: in elements.
        dtype: torch's name without "torch.".
        alignment: bytes that must divide the data pointer.
    """

    shape: tuple[Extent, ...]
    stride: tuple[Extent, ...]
    dtype: str
    alignment: int = 16

    def spec(self, dims: DimValues, device: str) -> TensorSpec:
        """The concrete tensor at given dims."""
        return TensorSpec(
            shape=tuple(e.evaluate(dims) for e in self.shape), stride=tuple(e.evaluate(dims) for e in self.stride),
            dtype=self.dtype, device=device, alignment=self.alignment,
        )  # fmt: skip

    @property
    def is_contiguous(self) -> bool:
        """Row-major for every value of the dims."""
        step = Extent(1)
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != Extent(1):
                if stride != step:
                    return False
                step = step.times(size)
        return True

    def __str__(self) -> str:
        layout = "contiguous" if self.is_contiguous else "stride [" + ", ".join(map(str, self.stride)) + "]"
        return f"[{', '.join(map(str, self.shape))}] {self.dtype} {layout}"

    def to_json(self) -> Json:
        return {
            "shape": [e.to_json() for e in self.shape], "stride": [e.to_json() for e in self.stride],
            "dtype": self.dtype, "alignment": self.alignment,
        }  # fmt: skip

    @staticmethod
    def from_json(data: Mapping[str, Json]) -> TensorPattern:
        shape, stride, alignment = data["shape"], data["stride"], data["alignment"]
        assert isinstance(shape, Sequence) and isinstance(stride, Sequence) and isinstance(alignment, int)
        return TensorPattern(
            shape=tuple(Extent.from_json(e) for e in shape), stride=tuple(Extent.from_json(e) for e in stride),
            dtype=str(data["dtype"]), alignment=alignment,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One runtime-compatible group of calls of one operator. Its id and its Guard derive from it alone.

    Attributes:
        operator: canonical operator name.
        arguments: canonical arguments; varying sizes are `DimRef`, varying floats `ScalarRef`.
        tensors: the input tensors, in order of first appearance in `arguments`.
        outputs: what eager returns: shape, stride and dtype. Empty for an in-place operator.
        mutates: indices of inputs that the call changes (in-place operators).
        aliases: pairs of inputs that share memory, one of which the call changes. Inputs that are only read may share
            memory in any way, so those pairs are not kept.
        dims, scalars: what varies, in order of first appearance (tensors in order, then arguments).
        max_elements: the most elements that any tensor of an admitted call may have.
        min_elements: the fewest elements that the largest tensor of an admitted call has.
        device: "cpu" or "cuda"; capability: "sm_90", or "" on the CPU.
        autocast: autocast dtype under which the calls ran, "" if off.
        precision: the flags of torch (TF32 and the like) that the operator follows and that were not at their defaults.
        target: "operator"; "region" is reserved.
    """

    operator: str
    arguments: Arguments
    tensors: tuple[TensorPattern, ...]
    outputs: tuple[TensorPattern, ...]
    mutates: tuple[int, ...] = ()
    aliases: tuple[tuple[int, int], ...] = ()
    dims: tuple[Dim, ...] = ()
    scalars: tuple[Scalar, ...] = ()
    max_elements: int = 2**31 - 1
    min_elements: int = 0
    device: str = "cpu"
    capability: str = ""
    autocast: str = ""
    precision: tuple[str, ...] = ()
    target: str = "operator"

    @property
    def id(self) -> str:
        """Hex sha256 of the canonical JSON; commands accept any unique prefix."""
        return digest(self.to_json())

    @property
    def label(self) -> str:
        """A short name for people: operator and the first 8 digits of the id."""
        return f"{self.operator}-{self.id[:8]}"

    def argument(self, name: str) -> Value:
        """The value of a canonical argument.

        Raises:
            KeyError: the operator has no such argument.
        """
        return dict(self.arguments)[name]

    def tensor_names(self) -> tuple[str, ...]:
        """A C identifier for each input tensor: the argument's name, with the position appended in lists."""
        names: dict[int, str] = {}
        for name, value in self.arguments:
            items = value if isinstance(value, tuple) else (value,)
            for position, item in enumerate(items):
                if isinstance(item, TensorRef):
                    names.setdefault(item.index, f"{name}_{position}" if isinstance(value, tuple) else name)
        return tuple(names[i] for i in range(len(self.tensors)))

    def output_names(self) -> tuple[str, ...]:
        """A C identifier for each output tensor: "out", or "out_0", "out_1" ... for several."""
        return ("out",) if len(self.outputs) == 1 else tuple(f"out_{i}" for i in range(len(self.outputs)))

    def largest_elements(self, dims: DimValues) -> int:
        """Elements of the largest tensor, inputs and outputs, at given dims."""
        specs = [p.spec(dims, self.device) for p in (*self.tensors, *self.outputs)]
        return max((s.elements for s in specs), default=0)

    def admits_dims(self, dims: DimValues) -> bool:
        """Whether the guard's size rules admit these dims."""
        return (
            all(d.admits(dims[d.name]) for d in self.dims)
            and self.min_elements <= self.largest_elements(dims) <= self.max_elements
        )

    def describe(self) -> str:
        """One line for people: tensors, scalar arguments and outputs."""
        parts = [f"{n} {p}" for n, p in zip(self.tensor_names(), self.tensors, strict=True)]
        parts += [f"{n}={_show(v)}" for n, v in self.arguments if not _holds_tensor(v)]
        out = ", ".join(str(p) for p in self.outputs) or "in place"
        return f"{self.operator}({', '.join(parts)}) -> {out}"

    def to_json(self) -> Json:
        return {
            "operator": self.operator, "arguments": arguments_to_json(self.arguments),
            "tensors": [t.to_json() for t in self.tensors], "outputs": [t.to_json() for t in self.outputs],
            "mutates": list(self.mutates), "aliases": [list(p) for p in self.aliases],
            "dims": [d.to_json() for d in self.dims],
            "scalars": [s.to_json() for s in self.scalars], "max_elements": self.max_elements,
            "min_elements": self.min_elements, "device": self.device, "capability": self.capability,
            "autocast": self.autocast, "target": self.target,
            # Said only where it is not as always, so that the ids of all other variants stay.
            **({"precision": list(self.precision)} if self.precision else {}),
        }  # fmt: skip

    @staticmethod
    def from_json(data: Mapping[str, Json]) -> Variant:
        def items(key: str) -> Sequence[Json]:
            value = data.get(key, ()) if key == "precision" else data[key]
            assert isinstance(value, Sequence)
            return value

        def integer(value: Json) -> int:
            assert isinstance(value, int)
            return value

        def mapping(value: Json) -> Mapping[str, Json]:
            assert isinstance(value, Mapping)
            return value

        return Variant(
            operator=str(data["operator"]), arguments=arguments_from_json(data["arguments"]),
            tensors=tuple(TensorPattern.from_json(mapping(t)) for t in items("tensors")),
            outputs=tuple(TensorPattern.from_json(mapping(t)) for t in items("outputs")),
            mutates=tuple(integer(i) for i in items("mutates")),
            aliases=tuple(_pair(p) for p in items("aliases")),
            dims=tuple(Dim.from_json(mapping(d)) for d in items("dims")),
            scalars=tuple(Scalar.from_json(mapping(s)) for s in items("scalars")),
            max_elements=integer(data["max_elements"]), min_elements=integer(data["min_elements"]),
            device=str(data["device"]), capability=str(data["capability"]), autocast=str(data["autocast"]),
            target=str(data["target"]), precision=tuple(map(str, items("precision"))),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SizePoint:
    """One observed combination of dim and scalar values of a variant.

    Attributes:
        calls: how often it was seen in the capture.
        eager_us: mean eager time of a call inside the model, microseconds (device time on CUDA, wall on the CPU).
        example: digest of the stored example of this point (see `cards.examples`), or "" if none is kept: a variant
            has a few. Tensors above the cap are kept in it as distributions and redrawn.
    """

    dims: DimValues
    scalars: ScalarValues
    calls: int
    eager_us: float
    example: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantRecord:
    """A variant as one model used it.

    Attributes:
        share: runtime share by equation (1) of the paper, over all captured variants of the model, in [0, 1].
        forgeable: "" if candidates can be made for it, else why not.
        requires_grad: some call ran with grad mode on and an input that required grad.
    """

    variant: Variant
    points: tuple[SizePoint, ...]
    share: float
    forgeable: str = ""
    requires_grad: bool = False

    @property
    def calls(self) -> int:
        return sum(p.calls for p in self.points)

    @property
    def eager_us(self) -> float:
        """Mean eager time of a call in the model, microseconds."""
        return sum(p.calls * p.eager_us for p in self.points) / max(self.calls, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCard:
    """All variants of one operator of one model on one device. Never mentions a kernel."""

    operator: str
    model: str
    device: str
    variants: tuple[VariantRecord, ...]

    @property
    def share(self) -> float:
        return sum(v.share for v in self.variants)


def _pair(data: Json) -> tuple[int, int]:
    assert isinstance(data, Sequence)
    first, second = data
    assert isinstance(first, int) and isinstance(second, int)
    return first, second


def _holds_tensor(value: Value) -> bool:
    return isinstance(value, TensorRef) or (isinstance(value, tuple) and any(_holds_tensor(v) for v in value))


def _show(value: Value) -> str:
    if isinstance(value, DimRef | ScalarRef):
        return value.name
    if isinstance(value, tuple):
        return "[" + ", ".join(_show(v) for v in value) + "]"
    name = getattr(value, "name", None)
    return str(name) if name is not None else str(value)
