"""Builder for operators that return a view of their input: recorded, never forged."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from kernelforge.operators._arguments import Canonical, as_int
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Bound, ConcreteArguments, Entry, Operator, TensorShape


def view(
    name: str,
    arguments: tuple[str, ...],
    entries: tuple[Entry, ...],
    normalise: Callable[[dict[str, object]], Canonical],
    *,
    call: Callable[[Bound], object] | None = None,
) -> Operator:
    """A view operator; `call` is torch.NAME with the canonical arguments by position if not given."""
    return Operator(
        name=name,
        arguments=arguments,
        entries=entries,
        normalise=normalise,
        call=call or eager(f"torch.{name}", positional=len(arguments)),
        flops=_no_flops,
        bytes_read=lambda _: 0,
        view=True,
    )


def _no_flops(arguments: ConcreteArguments, outputs: tuple[TensorShape, ...]) -> int:  # noqa: ARG001 - one signature
    return 0


def sizes(values: tuple[object, ...], known: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes with one -1 filled in so that their product is that of the sizes `known`.

    Raises:
        ValueError: no such size.
        TypeError: a value is no integer.
    """
    wanted = tuple(as_int(v) for v in values)
    if -1 not in wanted:
        return wanted
    rest = -prod(wanted)
    if rest <= 0 or prod(known) % rest:
        raise ValueError(f"sizes {wanted} for {known}")
    return tuple(prod(known) // rest if w == -1 else w for w in wanted)
