"""One file per operator. An operator without a file is recorded, never forged."""

from __future__ import annotations

from functools import cache

from kernelforge.operators._entries import canonical_call, entry_table
from kernelforge.operators._targets import resolve_target
from kernelforge.operators.types import Bound, Concrete, Domain, Entry, Operator, TensorShape, Unsupported
from kernelforge.plugins import load_plugin, plugin_names

__all__ = [
    "Bound", "Concrete", "Domain", "Entry", "Operator", "TensorShape", "Unsupported", "canonical_call", "entry_table",
    "get_operator", "operator_names", "resolve_target",
]  # fmt: skip


@cache
def operator_names() -> tuple[str, ...]:
    """Names of all operators that have a file, sorted."""
    return plugin_names(__name__)


@cache
def get_operator(name: str) -> Operator:
    """The operator of that name.

    Raises:
        NotFound: no file defines it.
    """
    operator = load_plugin(__name__, name, "OPERATOR")
    assert isinstance(operator, Operator)
    return operator
