"""What the binary operators share: entries of the method, operator and in-place forms, and their operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelforge.operators._arguments import Canonical, is_number, scalar_for
from kernelforge.operators._pointwise import INPLACE, PLAIN
from kernelforge.operators.types import Entry, Unsupported


def binary_entries(
    functions: Sequence[str], *, dunders: Sequence[str] = (), idunders: Sequence[str] = (), options: str = ""
) -> tuple[Entry, ...]:
    """Entries of an operator of two operands.

    Args:
        functions: names that `torch` and `torch.Tensor` both have, each with an in-place method `NAME_`.
        dunders, idunders: `torch.Tensor.__NAME__` forms that take (self, other), plain and in place.
        options: further parameters, for example ", *, alpha=1".
    """
    entries = []
    for name in functions:
        entries += [
            Entry(target=f"torch.{name}", parameters=f"(input, other{options})", preset=PLAIN),
            Entry(target=f"torch.Tensor.{name}", parameters=f"(input, /, other{options})", preset=PLAIN),
            Entry(target=f"torch.Tensor.{name}_", parameters=f"(input, /, other{options})", preset=INPLACE),
        ]
    entries += [Entry(target=f"torch.Tensor.__{n}__", parameters="(input, other, /)", preset=PLAIN) for n in dunders]
    entries += [Entry(target=f"torch.Tensor.__{n}__", parameters="(input, other, /)", preset=INPLACE) for n in idunders]
    name = functions[0]
    for overload in ("Tensor", "Scalar"):
        entries += [
            Entry(target=f"torch.ops.aten.{name}.{overload}", parameters=f"(input, other, /{options})", preset=PLAIN),
            Entry(
                target=f"torch.ops.aten.{name}_.{overload}", parameters=f"(input, other, /{options})", preset=INPLACE
            ),
        ]
    return tuple(entries)


def operands(*, commutes: bool, alpha: bool = False) -> Callable[[dict[str, object]], Canonical]:
    """A normalise for input, other and alpha: numbers next to floating tensors become floats.

    Args:
        commutes: a number on the left may change places with the tensor on the right.
        alpha: the operator has the argument `alpha`; the forms without it mean 1.
    """

    def normalise(bound: dict[str, object]) -> Canonical:
        first, second = bound["input"], bound["other"]
        if isinstance(bound.get("alpha"), bool):
            return Unsupported(reason="alpha is a bool, which torch refuses of numbers")
        if commutes and is_number(first) and bound.get("alpha", 1) == 1:
            first, second = second, first
        bound["input"] = scalar_for(first, second) if is_number(first) else first
        bound["other"] = scalar_for(second, first) if is_number(second) else second
        if alpha:
            bound["alpha"] = scalar_for(bound.get("alpha", 1), second if is_number(first) else first)
        return bound

    return normalise
