"""A table as plain data, and its two renderings: plain text for pipes, a rich table for terminals.

Owns `Column`, `Cell`, `Grid`; knows nothing about what is in a table (see `report.tables`). A record of a grid is one
line of cells and, if it has one, a note under it that spans the whole width, so that long text never squeezes numbers.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from kernelforge.wording import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

Tone = Literal["", "good", "bad", "warn", "dim", "strong"]

_STYLES: dict[str, str] = {
    "": "", "good": "green", "bad": "red", "warn": "yellow", "dim": "dim", "strong": "bold",
}  # fmt: skip
_GAP = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column. flexible: its text may wrap (the last column only); all others keep their natural width."""

    title: str
    align: Literal["left", "right"] = "left"
    flexible: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """Text of one cell; the tone says how it is meant, never what it says (colour alone carries nothing)."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Record:
    """One line of cells, with an optional note under it."""

    cells: tuple[Cell, ...]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A titled table. header: whether column titles are shown. footer: lines below the table."""

    columns: tuple[Column, ...]
    records: tuple[Record, ...]
    title: str = ""
    header: bool = True
    footer: tuple[str, ...] = field(default=())


def cells(*texts: str) -> tuple[Cell, ...]:
    """Cells without a tone."""
    return tuple(Cell(text) for text in texts)


def grid_text(grid: Grid, *, width: int | None = None) -> str:
    """The grid as lines of plain text, without colour or box characters.

    Args:
        width: wrap flexible columns and notes to it; None never wraps, so that each record stays greppable.
    """
    widths = _widths(grid)
    lines = [grid.title] if grid.title else []
    if grid.header and grid.records:
        lines.append(_line([c.title for c in grid.columns], grid, widths))
        lines.append(_GAP.join("-" * w for w in widths))
    for record in grid.records:
        lines += _record_lines(record, grid, widths, width)
    lines += [line for text in grid.footer for line in _wrap(text, width)]
    return "\n".join(lines)


def grid_rich(grid: Grid, *, width: int) -> RenderableType:
    """The grid for a terminal of `width` columns."""
    from rich.console import Group
    from rich.text import Text

    widths = _widths(grid)
    parts: list[RenderableType] = []
    if grid.title:
        parts.append(Text(grid.title, style="bold"))
    if grid.header and grid.records:
        parts.append(Text(_line([c.title for c in grid.columns], grid, widths), style="dim", no_wrap=True))
        parts.append(Text("─" * min(width, sum(widths) + len(_GAP) * (len(widths) - 1)), style="dim", no_wrap=True))
    for record in grid.records:
        parts += _record_texts(record, grid, widths, width)
    parts += [Text(line, style="dim") for text in grid.footer for line in _wrap(text, width)]
    return Group(*parts)


def _record_texts(record: Record, grid: Grid, widths: Sequence[int], width: int) -> list[RenderableType]:
    """A record as styled lines. Laid out here, not by `rich.table`, so that both renderings agree."""
    from rich.text import Text

    texts: list[RenderableType] = []
    for line in _cell_lines(record, grid, widths, width):
        text = Text(no_wrap=True)
        for i, (piece, cell) in enumerate(zip(line, record.cells, strict=True)):
            text.append(_GAP if i else "")
            text.append(piece, style=_STYLES[cell.tone])
        text.rstrip()
        texts.append(text)
    return texts + [Text(line, style="dim", no_wrap=True) for line in _note_lines(record, width)]


def _record_lines(record: Record, grid: Grid, widths: Sequence[int], width: int | None) -> list[str]:
    lines = [_GAP.join(line).rstrip() for line in _cell_lines(record, grid, widths, width)]
    return lines + _note_lines(record, width)


def _cell_lines(record: Record, grid: Grid, widths: Sequence[int], width: int | None) -> list[list[str]]:
    """The record's cells, padded, on as many lines as its flexible cells need."""
    wrapped: list[list[str]] = []
    for index, (cell, column) in enumerate(zip(record.cells, grid.columns, strict=True)):
        room = None
        if width is not None and column.flexible:
            others = sum(w for i, w in enumerate(widths) if i != index) + len(_GAP) * (len(widths) - 1)
            room = max(16, width - others)
        wrapped.append([piece for line in cell.text.splitlines() or [""] for piece in _wrap(line, room, indent="")])
    height = max(len(pieces) for pieces in wrapped)
    return [
        [
            _pad(pieces[i] if i < len(pieces) else "", column, w)
            for pieces, column, w in zip(wrapped, grid.columns, widths, strict=True)
        ]
        for i in range(height)
    ]


def _note_lines(record: Record, width: int | None) -> list[str]:
    return ["  " + line for line in _wrap(record.note, None if width is None else width - 2)] if record.note else []


def _line(texts: Sequence[str], grid: Grid, widths: Sequence[int]) -> str:
    return _GAP.join(_pad(t, c, w) for t, c, w in zip(texts, grid.columns, widths, strict=True)).rstrip()


def _pad(text: str, column: Column, width: int) -> str:
    if column.flexible:
        return text
    return text.rjust(width) if column.align == "right" else text.ljust(width)


def _widths(grid: Grid) -> list[int]:
    """Natural width of each column; a flexible one counts its title only, as it takes what is left."""
    widths = []
    for index, column in enumerate(grid.columns):
        title = len(column.title) if grid.header else 0
        body = 0 if column.flexible else max((len(r.cells[index].text) for r in grid.records), default=0)
        widths.append(max(title, body))
    return widths


def _wrap(text: str, width: int | None, *, indent: str = "  ") -> list[str]:
    text = printable(text)
    if width is None or len(text) <= width:
        return [text]
    return textwrap.wrap(text, max(width, 12), subsequent_indent=indent) or [""]
