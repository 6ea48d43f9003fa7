"""The loop IR: what is computed for each point of an index space, before any decision on how.

A `Program` is a space of axes, of which some may be reduced, a list of values in single-assignment form (a value
names earlier ones by position), and stores. It has no sizes but the variant's extents, and no schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from kernelforge.cards.types import Extent

Kind: TypeAlias = Literal["real", "int", "bool"]
ReduceKind: TypeAlias = Literal["max", "sum", "amax", "amin"]

INTEGER_DTYPES = frozenset({"int64", "int32", "int16", "int8", "uint8"})


def kind_of(dtype: str) -> Kind:
    """What a value of a dtype is computed as: a float (or double), an int64, or a bool."""
    return "bool" if dtype == "bool" else "int" if dtype in INTEGER_DTYPES else "real"


@dataclass(frozen=True, slots=True)
class Load:
    """An input tensor at the current point. Strides in elements, one per axis of the space, 0 where broadcast."""

    tensor: str
    dtype: str
    strides: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class Const:
    value: bool | int | float


@dataclass(frozen=True, slots=True)
class Parameter:
    """A float scalar of the variant: a `double` parameter of `launch`."""

    name: str


@dataclass(frozen=True, slots=True)
class Apply:
    """A pointwise operation of `expressions.OPERATIONS` on earlier values."""

    operation: str
    arguments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cast:
    """A conversion to another dtype. Between floating dtypes it is none: values are kept in the accumulation type."""

    dtype: str
    argument: int


@dataclass(frozen=True, slots=True)
class Reduce:
    """A reduction over all reduced axes. "max" may ignore NaN, "amax" and "amin" must pass it on."""

    kind: ReduceKind
    argument: int


@dataclass(frozen=True, slots=True)
class Count:
    """The number of points that a reduction runs over, as a float."""


Definition: TypeAlias = "Load | Const | Parameter | Apply | Cast | Reduce | Count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value of the program; `name` is how the source calls it, "" if it is written inline where used."""

    definition: Definition
    kind: Kind
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Writes a value to an output, or to an input that the operator changes. Strides as in `Load`."""

    tensor: str
    dtype: str
    strides: tuple[Extent, ...]
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    size: Extent
    reduced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """See the module's docstring.

    Attributes:
        compute: C type of "real" values, "float" or "double".
    """

    title: str
    axes: tuple[Axis, ...]
    values: tuple[Value, ...]
    stores: tuple[Store, ...]
    compute: Literal["float", "double"]

    @property
    def reduced(self) -> bool:
        return any(axis.reduced for axis in self.axes)

    def loads(self) -> tuple[Load, ...]:
        return tuple(v.definition for v in self.values if isinstance(v.definition, Load))

    def arguments(self, index: int) -> tuple[int, ...]:
        """The values that a value is computed from."""
        match self.values[index].definition:
            case Apply(_, arguments):
                return arguments
            case Cast(_, argument) | Reduce(_, argument):
                return (argument,)
            case _:
                return ()

    def varies(self, axes: Iterable[int]) -> tuple[bool, ...]:
        """For each value, whether it differs between points that differ along the given axes only."""
        along = tuple(axes)
        result: list[bool] = []
        for index, value in enumerate(self.values):
            match value.definition:
                case Load(_, _, strides):
                    result.append(any(strides[a] != Extent(0) for a in along))
                case Reduce():
                    inner = result[self.arguments(index)[0]]
                    result.append(inner and any(not self.axes[a].reduced for a in along))
                case _:
                    result.append(any(result[a] for a in self.arguments(index)))
        return tuple(result)

    def with_strides(self, axes: tuple[Axis, ...], move: Callable[[tuple[Extent, ...]], tuple[Extent, ...]]) -> Program:
        """The same program over other axes, `move` mapping each access' strides to the new axes."""
        values = tuple(
            replace(v, definition=replace(v.definition, strides=move(v.definition.strides)))
            if isinstance(v.definition, Load) else v
            for v in self.values
        )  # fmt: skip
        stores = tuple(replace(s, strides=move(s.strides)) for s in self.stores)
        return replace(self, axes=axes, values=values, stores=stores)

    def accesses(self) -> tuple[Load | Store, ...]:
        return (*self.loads(), *self.stores)
