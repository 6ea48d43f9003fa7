"""What others wrote reaches the terminal as text: no escape sequence moves its cursor or sets its title."""

from __future__ import annotations

from typing import Any

import pytest

from kernelforge.cli.output import Output
from kernelforge.cli.progress import Progress
from kernelforge.errors import UsageError
from kernelforge.report.grid import Column, Grid, Record, cells, grid_text
from kernelforge.wording import printable

HOSTILE = "\x1b[31mred\x1b]0;title\x07\x9b2J\r"
SHOWN = r"\x1b[31mred\x1b]0;title\x07\x9b2J\x0d"


def test_control_characters_are_spelled_out() -> None:
    assert printable(HOSTILE) == SHOWN
    assert printable("two\nlines\tand ünïcode 日本 →") == "two\nlines\tand ünïcode 日本 →"


def test_no_way_to_the_terminal_lets_them_through(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output(color=False)
    out.show_text({}, HOSTILE)
    out.note(HOSTILE)
    out.error(UsageError(HOSTILE, hint=HOSTILE))
    grid = Grid(
        columns=(Column(title="a"), Column(title="b", flexible=True)),
        records=(Record(cells("x", HOSTILE), note=HOSTILE),), footer=(HOSTILE,),
    )  # fmt: skip
    out.show({}, [grid])
    with Progress(out) as progress:
        progress(HOSTILE)
    said = "".join(capsys.readouterr())
    assert "\x1b" not in said and "\x9b" not in said and "\x07" not in said
    assert said.count(SHOWN.removesuffix(r"\x0d")) == 8
    assert SHOWN in grid_text(grid)


def test_a_budget_without_end_is_none(kforge: Any) -> None:
    for amount in ("inf", "1e999", "nan"):
        done = kforge("forge", "x.kforge", "--budget-usd", amount)
        assert done.code == 2 and ("no number of dollars" in done.stderr or "0.01" in done.stderr)
