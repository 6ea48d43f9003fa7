"""README's table of what can be forged is what the registry says."""

from __future__ import annotations

from pathlib import Path

from kernelforge.operators import Operator, get_operator, operator_names

README = Path(__file__).parents[2] / "README.md"
EMITTER = "templates: pointwise and row reductions, by the emitter"
TEMPLATE = "templates of their own"
BY_HAND = "no template; any other generator, or a kernel by hand"
RECORDED = "only recorded: views, which move no data, and what draws random numbers"


def how(operator: Operator) -> str:
    if operator.view or operator.random:
        return RECORDED
    if not operator.family:
        return BY_HAND
    return EMITTER if operator.family == "emitter" else TEMPLATE


def table() -> str:
    """The rows that README must have."""
    rows: dict[str, list[str]] = {kind: [] for kind in (EMITTER, TEMPLATE, BY_HAND, RECORDED)}
    for name in operator_names():
        rows[how(get_operator(name))].append(f"`{name}`")
    return "\n".join(f"| {kind} | {' '.join(names)} |" for kind, names in rows.items())


def test_the_table_of_what_can_be_forged_is_up_to_date() -> None:
    assert table() in README.read_text(), f"README must hold\n{table()}"
