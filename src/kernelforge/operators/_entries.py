"""From a torch callable and its arguments to an operator and canonical arguments. Imports torch when called only."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kernelforge.errors import NotFound
from kernelforge.operators._targets import resolve_target
from kernelforge.operators.types import Entry, Operator, Unsupported

# torch's parser also takes NumPy's names.
_SYNONYMS = {"axis": "dim", "keepdims": "keepdim", "x1": "input", "x2": "other"}


def entry_table() -> dict[object, tuple[Operator, Entry]]:
    """Every live torch callable that means an operator. Targets that this torch lacks are left out.

    Look a function up by `==`, as a dict does: torch makes equal but not identical objects of one builtin. Where two
    targets are one object (`torch.conv2d` and `torch.nn.functional.conv2d`), the first entry stands for both.
    """
    from kernelforge.operators import get_operator, operator_names

    table: dict[object, tuple[Operator, Entry]] = {}
    for operator in map(get_operator, operator_names()):
        for entry in operator.entries:
            try:
                function = resolve_target(entry.target)[2]
            except NotFound:
                continue
            table.setdefault(function, (operator, entry))
    return table


def canonical_call(
    operator: Operator, entry: Entry, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> dict[str, object] | Unsupported:
    """The canonical arguments of a call, in the operator's order, or why the call is not forged. Never raises for a
    call that torch itself would refuse: that is `Unsupported` too, and eager then reports it.
    """
    if "out" in kwargs:
        if kwargs["out"] is not None:
            return Unsupported(reason="writes into an `out` tensor")
        kwargs = {k: v for k, v in kwargs.items() if k != "out"}
    try:
        try:
            bound = entry.bind(args, kwargs)
        except TypeError:
            renamed = {_SYNONYMS.get(k, k): v for k, v in kwargs.items()}
            bound = entry.bind(args, renamed)
        canonical = operator.normalise(bound)
    except (TypeError, ValueError, IndexError) as error:
        why = re.sub(r"^f\(\)", f"{operator.name}()", str(error))  # `Entry.bind` calls every form f
        return Unsupported(reason=f"arguments that {operator.name} does not describe: {why}")
    if isinstance(canonical, Unsupported):
        return canonical
    return _in_order(operator, canonical)


def _in_order(operator: Operator, canonical: dict[str, object]) -> dict[str, object] | Unsupported:
    import torch

    ordered = {name: canonical[name] for name in operator.arguments}
    device = None
    for value in ordered.values():
        for item in value if type(value) is tuple else (value,):
            if isinstance(item, torch.Tensor):
                if device is not None and item.device != device:
                    return Unsupported(reason="tensors on different devices")
                device = item.device
    if device is None:
        return Unsupported(reason="no tensor among the arguments")
    return ordered
