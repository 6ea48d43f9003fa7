"""Builders for operators of one tensor that work element by element. Owns `unary` and `activation`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kernelforge.operators._arguments import Canonical, as_float, per_element, tensor
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Domain, Entry, Operator


def unary(
    name: str,
    *,
    cost: int = 1,
    domain: Domain | None = None,
    extra: tuple[Entry, ...] = (),
    functional: bool = False,
) -> Operator:
    """An operator `torch.NAME(input)`, with in-place forms and no further argument.

    Args:
        name: of the operator and of its torch function.
        cost: floating-point operations per element.
        domain: of the input.
        extra: further entries.
        functional: `torch.nn.functional` has it too.
    """
    entries = [Entry(target=f"torch.{name}", parameters="(input)", preset=PLAIN)]
    if functional:
        target = f"torch.nn.functional.{name}"
        entries.append(Entry(target=target, parameters="(input)", preset=PLAIN, passes_on=True))
    entries += [
        Entry(target=f"torch.Tensor.{name}", parameters="(input, /)", preset=PLAIN),
        Entry(target=f"torch.{name}_", parameters="(input)", preset=INPLACE),
        Entry(target=f"torch.Tensor.{name}_", parameters="(input, /)", preset=INPLACE),
        Entry(target=f"torch.ops.aten.{name}.default", parameters="(input, /)", preset=PLAIN),
        Entry(target=f"torch.ops.aten.{name}_.default", parameters="(input, /)", preset=INPLACE),
    ]
    return Operator(
        name=name,
        arguments=("input", "inplace"),
        entries=(*entries, *extra),
        normalise=floats(),
        call=eager(f"torch.{name}", inplace=f"torch.Tensor.{name}_"),
        flops=per_element(cost),
        family="emitter",
        domains={"input": domain} if domain else {},
    )


PLAIN: Mapping[str, object] = {"inplace": False}
INPLACE: Mapping[str, object] = {"inplace": True}


def activation(
    name: str,
    entries: tuple[Entry, ...],
    *,
    scalars: tuple[str, ...] = (),
    inplace: bool = True,
    cost: int = 1,
    call: str = "",
) -> Operator:
    """A pointwise operator of `torch.nn.functional` whose further arguments are floats.

    Args:
        name: of the operator.
        entries: all call forms.
        scalars: its float arguments.
        inplace: whether it has the argument `inplace`.
        cost: floating-point operations per element.
        call: what computes it, taking the canonical arguments by name; `torch.nn.functional.NAME` if empty.
    """
    return Operator(
        name=name,
        arguments=("input", *scalars, *(("inplace",) if inplace else ())),
        entries=entries,
        normalise=floats(*scalars),
        call=eager(call or f"torch.nn.functional.{name}"),
        flops=per_element(cost),
        family="emitter",
    )


def activation_entries(name: str, scalars: str = "", *, inplace_function: bool = False) -> tuple[Entry, ...]:
    """Entries of an activation with the argument `inplace`: its functional form and its direct operator forms.

    Args:
        name: of the function.
        scalars: parameters between `input` and `inplace`, with defaults.
        inplace_function: `torch.nn.functional` has `NAME_` too.
    """
    middle = f", {scalars}" if scalars else ""
    entries = [
        Entry(target=f"torch.nn.functional.{name}", parameters=f"(input{middle}, inplace=False)"),
        Entry(target=f"torch.ops.aten.{name}.default", parameters=f"(input, /{middle})", preset=PLAIN),
        Entry(target=f"torch.ops.aten.{name}_.default", parameters=f"(input, /{middle})", preset=INPLACE),
    ]
    if inplace_function:
        entries.append(Entry(target=f"torch.nn.functional.{name}_", parameters=f"(input{middle})", preset=INPLACE))
    return tuple(entries)


def floats(*names: str) -> Callable[[dict[str, object]], Canonical]:
    """A normalise that makes those arguments floats."""

    def normalise(bound: dict[str, object]) -> Canonical:
        tensor(bound["input"])
        for name in names:
            bound[name] = as_float(bound[name])
        return bound

    return normalise
