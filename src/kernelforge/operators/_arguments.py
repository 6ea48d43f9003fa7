"""Small steps that `normalise` functions share: dims, tuples of integers, numbers. Looks at metadata only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

from kernelforge.operators.types import ConcreteArguments, TensorShape, Unsupported

if TYPE_CHECKING:
    import torch

Canonical: TypeAlias = "dict[str, object] | Unsupported"


def tensor(value: object) -> torch.Tensor:
    """The value as a tensor.

    Raises:
        TypeError: it is none.
    """
    if not hasattr(value, "data_ptr"):
        raise TypeError(f"expected a tensor, got {type(value).__name__}")
    return cast("torch.Tensor", value)


def is_number(value: object) -> bool:
    return isinstance(value, bool | int | float)


def shape_of(value: object) -> tuple[int, ...]:
    return tuple(tensor(value).shape)


def dim_of(value: object, rank: int) -> int:
    """A dim in [0, rank); negative ones count from the end. A 0-dim tensor counts as rank 1.

    Raises:
        IndexError: out of range.
    """
    dim, rank = as_int(value), max(rank, 1)
    if not -rank <= dim < rank:
        raise IndexError(f"dim {dim} of a tensor of rank {rank}")
    return dim % rank


def dims_of(value: object, rank: int) -> tuple[int, ...]:
    """Sorted non-negative dims of a reduction; None and () mean all of them."""
    if value is None:
        return tuple(range(rank))
    items = tuple(value) if isinstance(value, Sequence) else (value,)
    return tuple(sorted(dim_of(v, rank) for v in items)) or tuple(range(rank))


def as_int(value: object) -> int:
    """A Python integer.

    Raises:
        TypeError: the value is of another kind (a tensor or a symbolic size, say).
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"expected an integer, got {type(value).__name__}")
    return value


def as_float(value: object) -> float:
    """A number as a Python float.

    Raises:
        TypeError: the value is no number (a tensor, say).
    """
    if not isinstance(value, int | float):
        raise TypeError(f"expected a number, got {type(value).__name__}")
    return float(value)


def ints(value: object, length: int | None = None) -> tuple[int, ...]:
    """A tuple of integers; one integer (or a sequence of one) is repeated `length` times.

    Raises:
        ValueError: the sequence has another length.
    """
    if type(value) is int:
        items: tuple[int, ...] = (value,)
    else:
        # A NumPy-like or symbolic integer is no sequence, and as_int refuses it.
        items = tuple(map(as_int, value)) if isinstance(value, Sequence) else (as_int(value),)
    if length is None:
        return items
    if len(items) == 1:
        return items * length
    if len(items) != length:
        raise ValueError(f"expected {length} integers, got {len(items)}")
    return items


def varargs(values: object) -> tuple[object, ...]:
    """Sizes or dims that torch takes either as separate arguments or as one sequence.

    Raises:
        TypeError: no sequence.
    """
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise TypeError(f"expected a sequence, got {type(values).__name__}")
    if len(values) == 1 and isinstance(values[0], Sequence):
        return varargs(values[0])
    return tuple(values)


def is_floating(value: object) -> bool:
    return bool(tensor(value).dtype.is_floating_point)


def scalar_for(value: object, like: object) -> object:
    """A number next to a floating tensor as a float, so that `x + 1` and `x + 1.0` are one call; tensors unchanged.

    Next to an integer tensor the number keeps its type, which decides the result's dtype.
    """
    if isinstance(value, int) and is_floating(like) and float(value) == value:
        return float(value)
    if not is_number(value):
        return tensor(value)
    return value


def accept(arguments: dict[str, object]) -> Canonical:
    """The normalise of an operator whose bound arguments are canonical already."""
    return arguments


def per_element(cost: int) -> Callable[[ConcreteArguments, tuple[TensorShape, ...]], int]:
    """FLOPs of an operator that does `cost` operations for each element of its first output (or input, in place)."""

    def flops(arguments: ConcreteArguments, outputs: tuple[TensorShape, ...]) -> int:
        return max(1, cost * (outputs[0] if outputs else first_tensor(arguments)).elements)

    return flops


def per_input_element(cost: int) -> Callable[[ConcreteArguments, tuple[TensorShape, ...]], int]:
    """FLOPs of an operator that does `cost` operations for each element of its first input."""

    def flops(arguments: ConcreteArguments, outputs: tuple[TensorShape, ...]) -> int:  # noqa: ARG001 - one signature
        return max(1, cost * first_tensor(arguments).elements)

    return flops


def first_tensor(arguments: ConcreteArguments) -> TensorShape:
    """The first tensor among the arguments."""
    for value in arguments.values():
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, TensorShape):
                return item
    raise AssertionError("an operator call without a tensor")


def concrete_tensor(arguments: ConcreteArguments, name: str) -> TensorShape:
    value = arguments[name]
    assert isinstance(value, TensorShape), name
    return value


def concrete_ints(arguments: ConcreteArguments, name: str) -> tuple[int, ...]:
    value = arguments[name]
    assert isinstance(value, tuple), name
    return tuple(as_int(v) for v in value)


def input_bytes(arguments: ConcreteArguments, *, without: str = "") -> int:
    """Bytes of all tensor arguments but one."""
    return sum(v.size_bytes for k, v in arguments.items() if k != without and isinstance(v, TensorShape))


def pick(arguments: Mapping[str, object], *names: str) -> dict[str, object]:
    """Those arguments, in that order."""
    return {name: arguments[name] for name in names}
