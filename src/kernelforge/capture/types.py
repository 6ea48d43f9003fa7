"""One observed operator call, without torch. Owns `TensorSpec`, the argument values, `OperatorCall`, `Distribution`
and `Recording`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kernelforge.digest import Json, decode_float, digest, encode_float
from kernelforge.operators import TensorShape
from kernelforge.operators.types import DTYPE_BYTES

ALIGNMENTS = (16, 8, 4, 2, 1)


def alignment_of(address: int) -> int:
    """The largest of 16, 8, 4, 2, 1 that divides a data pointer (0, an empty tensor's pointer, counts as 16)."""
    return next(a for a in ALIGNMENTS if address % a == 0)


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements, as torch computes them (a size of 0 counts as 1)."""
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Metadata of one tensor of a call.

    Attributes:
        shape, stride: in elements.
        dtype: torch's name without "torch.", for example "bfloat16".
        device: device type, "cpu" or "cuda"; never an index.
        layout: "strided", or torch's name of another layout.
        alignment: largest of 16, 8, 4, 2, 1 bytes that divides the data pointer.
        requires_grad: as seen at the call.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str
    layout: str = "strided"
    alignment: int = 16
    requires_grad: bool = False

    @property
    def elements(self) -> int:
        return self.concrete.elements

    @property
    def concrete(self) -> TensorShape:
        return TensorShape(shape=self.shape, dtype=self.dtype)

    @property
    def storage_elements(self) -> int:
        """Elements from the first to the last that the strides reach, both included; 0 for an empty tensor."""
        if 0 in self.shape:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))

    @property
    def storage_bytes(self) -> int:
        return self.storage_elements * DTYPE_BYTES[self.dtype]

    def to_json(self) -> Json:
        return {
            "shape": list(self.shape), "stride": list(self.stride), "dtype": self.dtype, "device": self.device,
            "layout": self.layout, "alignment": self.alignment, "requires_grad": self.requires_grad,
        }  # fmt: skip

    @staticmethod
    def from_json(data: Mapping[str, Json]) -> TensorSpec:
        return TensorSpec(
            shape=_ints(data["shape"]), stride=_ints(data["stride"]), dtype=str(data["dtype"]),
            device=str(data["device"]), layout=str(data["layout"]), alignment=_int(data["alignment"]),
            requires_grad=bool(data["requires_grad"]),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorRef:
    """An argument that is the call's `index`-th input tensor."""

    index: int


@dataclass(frozen=True, slots=True)
class DtypeRef:
    """An argument that is a torch dtype."""

    name: str


@dataclass(frozen=True, slots=True)
class DimRef:
    """An integer argument that is a named dim of the variant (only in variants, never in calls)."""

    name: str


@dataclass(frozen=True, slots=True)
class ScalarRef:
    """A float argument that varies (only in variants, never in calls)."""

    name: str


Value: TypeAlias = "TensorRef | DtypeRef | DimRef | ScalarRef | bool | int | float | str | tuple[Value, ...] | None"
Arguments: TypeAlias = "tuple[tuple[str, Value], ...]"
"""Canonical arguments in the operator's order."""


def value_to_json(value: Value) -> Json:
    match value:
        case TensorRef(index):
            return {"tensor": index}
        case DtypeRef(name):
            return {"dtype": name}
        case DimRef(name):
            return {"dim": name}
        case ScalarRef(name):
            return {"scalar": name}
        case tuple():
            return [value_to_json(v) for v in value]
        case bool() | int() | str() | None:
            return value
        case float():
            # 1.0 and 1 are different arguments; JSON writers of other languages do not keep that apart.
            return {"number": encode_float(value)}


def value_from_json(data: Json) -> Value:
    if isinstance(data, Mapping):
        if "tensor" in data:
            return TensorRef(_int(data["tensor"]))
        if "dtype" in data:
            return DtypeRef(str(data["dtype"]))
        if "dim" in data:
            return DimRef(str(data["dim"]))
        if "scalar" in data:
            return ScalarRef(str(data["scalar"]))
        return decode_float(data["number"])
    if isinstance(data, Sequence) and not isinstance(data, str):
        return tuple(value_from_json(v) for v in data)
    return data


def arguments_to_json(arguments: Arguments) -> Json:
    return [[name, value_to_json(value)] for name, value in arguments]


def arguments_from_json(data: Json) -> Arguments:
    assert isinstance(data, Sequence)
    pairs = []
    for pair in data:
        assert isinstance(pair, Sequence) and len(pair) == 2
        pairs.append((str(pair[0]), value_from_json(pair[1])))
    return tuple(pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCall:
    """One observed call, canonical: positional and keyword forms of the same call are equal.

    Attributes:
        operator: canonical operator name.
        arguments: bound, default-filled, in the operator's order.
        tensors: the input tensors that `TensorRef` points to, in order of first appearance.
        outputs: the output tensors, flattened.
        output_kind: "tensor", "tuple" or "none" (in-place operators return their target).
        mutates: indices of input tensors that the call changes.
        aliases: pairs of input indices that share memory.
        output_aliases: for each output the input index whose storage it shares, or -1.
        autocast: dtype of autocast if on for the device type, else "".
        grad_enabled: grad mode at the call.
        precision: the flags that the operator follows and that were not at torch's defaults (see `capture.precision`).
        device: device type; capability: "sm_90", or "" on the CPU.
    """

    operator: str
    arguments: Arguments
    tensors: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    output_kind: str
    mutates: tuple[int, ...] = ()
    aliases: tuple[tuple[int, int], ...] = ()
    output_aliases: tuple[int, ...] = ()
    autocast: str = ""
    grad_enabled: bool = False
    precision: tuple[str, ...] = ()
    device: str = "cpu"
    capability: str = ""

    @property
    def id(self) -> str:
        return digest(self.to_json())

    def to_json(self) -> Json:
        return {
            "operator": self.operator, "arguments": arguments_to_json(self.arguments),
            "tensors": [t.to_json() for t in self.tensors], "outputs": [t.to_json() for t in self.outputs],
            "output_kind": self.output_kind, "mutates": list(self.mutates), "aliases": [list(p) for p in self.aliases],
            "output_aliases": list(self.output_aliases), "autocast": self.autocast,
            "grad_enabled": self.grad_enabled, "device": self.device, "capability": self.capability,
            # Said only where it is not as always, so that the ids of all other calls stay.
            **({"precision": list(self.precision)} if self.precision else {}),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """What is kept of a tensor above the example cap, so that the judge can redraw one like it.

    Attributes:
        shape, stride, dtype: of the tensor.
        mean, std, low, high: over the finite elements; all 0.0 when there are none.
        zeros, infinite, nan: fractions of the elements, in [0, 1].
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    mean: float
    std: float
    low: float
    high: float
    zeros: float = 0.0
    infinite: float = 0.0
    nan: float = 0.0

    def to_json(self) -> Json:
        return {
            "shape": list(self.shape), "stride": list(self.stride), "dtype": self.dtype, "mean": self.mean,
            "std": self.std, "low": self.low, "high": self.high, "zeros": self.zeros, "infinite": self.infinite,
            "nan": self.nan,
        }  # fmt: skip

    @staticmethod
    def from_json(data: Mapping[str, Json]) -> Distribution:
        return Distribution(
            shape=_ints(data["shape"]), stride=_ints(data["stride"]), dtype=str(data["dtype"]),
            mean=decode_float(data["mean"]), std=decode_float(data["std"]), low=decode_float(data["low"]),
            high=decode_float(data["high"]), zeros=decode_float(data["zeros"]),
            infinite=decode_float(data["infinite"]), nan=decode_float(data["nan"]),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedCall:
    """A distinct operator call with how often and how long it ran.

    Attributes:
        calls: how often it was seen.
        eager_us: mean eager time inside the model, microseconds (device time on CUDA, wall time on the CPU); the median
            of the repeats if there were any.
        example: digest of the stored inputs of its first occurrence, or "" if none is stored.
        unforgeable: "" if candidates can be made for such a call, else why not.
    """

    call: OperatorCall
    calls: int
    eager_us: float
    example: str = ""
    unforgeable: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UncoveredCall:
    """A torch function that the model called and that no operator describes.

    Attributes:
        name: torch's qualified name, or the operator's name when one of its call forms is not described.
        reason: why it is not covered.
        calls: how often it was seen; total_us: their time together, microseconds.
    """

    name: str
    reason: str
    calls: int
    total_us: float

    def to_json(self) -> Json:
        return {"name": self.name, "reason": self.reason, "calls": self.calls, "total_us": self.total_us}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What one capture saw.

    Attributes:
        calls: distinct calls of known operators, in order of first appearance.
        uncovered: everything else, longest first.
        warnings: what the reader should know, for people.
        samples: how many samples ran. repeats: how often they ran again to be timed; 0: times are of the recorded run.
        wall_us: wall time of the model over all samples without the recorder's own work, microseconds.
        coverage_wall: share of that time spent in `calls`, in [0, 1].
        coverage_device: the same of the device time of all torch functions; equals `coverage_wall` on the CPU.
    """

    device: str
    calls: tuple[ObservedCall, ...]
    uncovered: tuple[UncoveredCall, ...] = ()
    warnings: tuple[str, ...] = ()
    samples: int = 1
    repeats: int = 0
    wall_us: float = 0.0
    coverage_wall: float = 0.0
    coverage_device: float = 0.0


def _int(value: Json) -> int:
    assert isinstance(value, int)
    return value


def _ints(value: Json) -> tuple[int, ...]:
    assert isinstance(value, Sequence)
    return tuple(_int(v) for v in value)
