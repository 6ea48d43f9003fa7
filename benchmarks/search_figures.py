"""Plain SVG: lines in panels, and differences with their intervals. Owns `lines`, `bars`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#111111", "#8c564b", "#e69f00", "#111111")
DASHES = ("", "", "", "", "", "", "", "5 3")
FONT = 'font-family="Helvetica, Arial, sans-serif" font-size="12"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Values at 1, 2, 3, ..."""

    label: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Lines over trials, drawn from trial `first` to `last` (0: as long as they are)."""

    title: str
    lines: tuple[Line, ...]
    first: int = 1
    last: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A row: per series a value and the half-width of its interval."""

    label: str
    values: tuple[tuple[float, float], ...]


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from low to high."""
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(s * step for s in (1, 2, 5, 10) if (high - low) / (s * step) <= most)
    return [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def lines(panels: Sequence[Panel], *, across: int, x: str, y: str) -> str:
    """Panels side by side with one legend below; each has its own scale of y."""
    width, height, left, top = 270, 210, 48, 28
    down = -(-len(panels) // across)
    labels = [line.label for line in panels[0].lines]
    columns = max(1, across * (width + left) // 200)
    legend_rows = -(-len(labels) // columns)
    total = (across * (width + left) + 20, down * (height + top + 40) + 20 * legend_rows + 14)
    parts: list[str] = []
    for index, panel in enumerate(panels):
        x0 = left + (index % across) * (width + left)
        y0 = top + (index // across) * (height + top + 40)
        parts += _panel(panel, (x0, y0, width, height), x, y if index % across == 0 else "")
    for index, label in enumerate(labels):
        at_x = left + (index % columns) * 200
        at_y = total[1] - 20 * legend_rows + 20 * (index // columns)
        parts.append(f'<line x1="{at_x}" y1="{at_y}" x2="{at_x + 26}" y2="{at_y}" {_stroke(index)}/>')
        parts.append(f'<text x="{at_x + 32}" y="{at_y + 4}">{escape(label)}</text>')
    return _document(total, parts)


def _stroke(index: int) -> str:
    dash = f' stroke-dasharray="{DASHES[index]}"' if DASHES[index] else ""
    return f'fill="none" stroke="{COLOURS[index]}" stroke-width="1.8"{dash}'


def _panel(panel: Panel, box: tuple[int, int, int, int], x: str, y: str) -> Iterator[str]:
    x0, y0, width, height = box
    first, last = panel.first, panel.last or max(len(line.values) for line in panel.lines)
    values = [v for line in panel.lines for v in line.values[first - 1 : last]]
    low, high = min(values), max(values)

    def place(trial: float, value: float) -> tuple[float, float]:
        across = (trial - first) / max(1, last - first)
        return x0 + width * across, y0 + height * (high - value) / max(1e-9, high - low)

    yield f'<rect x="{x0}" y="{y0}" width="{width}" height="{height}" fill="none" stroke="#888"/>'
    title = escape(panel.title)
    yield f'<text x="{x0 + width / 2}" y="{y0 - 8}" text-anchor="middle" font-weight="bold">{title}</text>'
    for tick in ticks(low, high):
        at = place(first, tick)[1]
        yield f'<line x1="{x0}" y1="{at:.1f}" x2="{x0 + width}" y2="{at:.1f}" stroke="#ddd"/>'
        yield f'<text x="{x0 - 5}" y="{at + 4:.1f}" text-anchor="end">{tick:g}</text>'
    for trial in (first, *(t for t in (5, 10, 15, 20, 30, 40, 50) if first < t <= last and (t != 15 or last <= 20))):
        at = place(trial, low)[0]
        yield f'<text x="{at:.1f}" y="{y0 + height + 16}" text-anchor="middle">{trial}</text>'
    yield f'<text x="{x0 + width / 2}" y="{y0 + height + 31}" text-anchor="middle">{escape(x)}</text>'
    if y:
        middle = y0 + height / 2
        yield f'<text transform="translate({x0 - 36} {middle}) rotate(-90)" text-anchor="middle">{escape(y)}</text>'
    for index, line in reversed([*enumerate(panel.lines)]):  # the first on top
        placed = (place(i, v) for i, v in enumerate(line.values[first - 1 : last], first))
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in placed)
        yield f'<polyline points="{points}" {_stroke(index)}/>'


def bars(rows: Sequence[Bar], *, series: Sequence[str], x: str) -> str:
    """A row per comparison; right of zero is better."""
    left, width, pitch, top = 250, 460, 26, 34
    ends = [v + sign * half for row in rows for v, half in row.values for sign in (-1, 1)]
    low, high = min(0.0, *ends), max(0.0, *ends)
    total = (left + width + 30, top + pitch * len(rows) + 50)
    bottom = top + pitch * len(rows)

    def place(value: float) -> float:
        return left + width * (value - low) / (high - low)

    parts = []
    for tick in ticks(low, high, 8):
        at, colour = place(tick), "#444" if abs(tick) < 1e-9 else "#ddd"
        parts.append(f'<line x1="{at:.1f}" y1="{top}" x2="{at:.1f}" y2="{bottom}" stroke="{colour}"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text x="{left + width / 2}" y="{bottom + 36}" text-anchor="middle">{escape(x)}</text>')
    for index, label in enumerate(series):
        parts.append(f'<circle cx="{left + 120 * index + 6}" cy="14" r="4" fill="{COLOURS[index]}"/>')
        parts.append(f'<text x="{left + 120 * index + 16}" y="18">{escape(label)}</text>')
    for number, row in enumerate(rows):
        middle = top + pitch * (number + 0.5)
        parts.append(f'<text x="{left - 8}" y="{middle + 4}" text-anchor="end">{escape(row.label)}</text>')
        for index, (value, half) in enumerate(row.values):
            at = middle + 8 * (index - (len(row.values) - 1) / 2)
            parts.append(
                f'<line x1="{place(value - half):.1f}" y1="{at}" x2="{place(value + half):.1f}" y2="{at}" '
                f'stroke="{COLOURS[index]}" stroke-width="1.8"/>'
            )
            parts.append(f'<circle cx="{place(value):.1f}" cy="{at}" r="3.5" fill="{COLOURS[index]}"/>')
    return _document(total, parts)


def _document(total: tuple[int, int], parts: Sequence[str]) -> str:
    width, height = total
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" {FONT}>',
        f'<rect width="{width}" height="{height}" fill="white"/>', *parts, "</svg>", "",
    ])  # fmt: skip
