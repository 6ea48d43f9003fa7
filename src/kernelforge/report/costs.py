"""What language models cost, as plain data and as a table: equation (8) of arXiv:2607.24762 for every call, summed.

What a call cost is not always known: its process died in it, the reply was cut off, the model has no known price. Such
calls are counted as unknown, beside the most that they can have cost, and never as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeAlias, get_args

from kernelforge.digest import Json
from kernelforge.generate.llm.account import Call, Failure
from kernelforge.report.grid import Cell, Column, Grid, Record
from kernelforge.report.units import UNKNOWN
from kernelforge.wording import plural

CostKey: TypeAlias = Literal["op", "model", "run", "step"]
COST_KEYS: tuple[CostKey, ...] = get_args(CostKey)
TITLES: Mapping[CostKey, str] = {"op": "operator", "model": "model", "run": "run", "step": "step"}
STEPS = {"propose": "new kernels", "repair": "repairs", "again": "useless replies, asked again"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """Some calls together.

    Attributes:
        name: what they have in common. failed: calls without a reply.
        tokens_in, cached, tokens_out: of the calls that say it; `cached` is the part of `tokens_in` that was read from
            the provider's cache.
        usd: US dollars of the calls whose cost is known. total_usd: the same of this row and all above.
        unknown: calls whose cost is not known. unknown_usd: the most that they can have cost; None if that is unknown
            too.
    """

    name: str
    calls: int
    failed: int
    tokens_in: int
    cached: int
    tokens_out: int
    usd: float
    total_usd: float
    unknown: int
    unknown_usd: float | None

    def to_json(self) -> dict[str, Json]:
        return {
            "name": self.name, "calls": self.calls, "failed": self.failed, "tokens_in": self.tokens_in,
            "cached": self.cached, "tokens_out": self.tokens_out, "usd": self.usd, "total_usd": self.total_usd,
            "unknown": self.unknown, "unknown_usd": self.unknown_usd,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport:
    """by: what the rows are. whole: all calls in one row."""

    by: CostKey
    rows: tuple[CostRow, ...]
    whole: CostRow

    def to_json(self) -> dict[str, Json]:
        return {"by": self.by, "rows": [row.to_json() for row in self.rows], "whole": self.whole.to_json()}


def cost_report(calls: Sequence[Call], operators: Mapping[str, str], *, by: CostKey) -> CostReport:
    """Sum the calls up.

    Args:
        calls: oldest first. operators: variant id -> operator.
        by: runs stand in the order of their start and steps in their natural one, the others by cost.
    """
    key: dict[CostKey, Callable[[Call], str]] = {
        "op": lambda call: operators.get(call.intent.variant_id, call.intent.variant_id[:8]),
        "model": lambda call: call.intent.model,
        "run": lambda call: call.run,
        "step": lambda call: call.intent.step,
    }
    groups: dict[str, list[Call]] = {}
    for call in calls:
        groups.setdefault(key[by](call), []).append(call)
    names = list(groups)
    if by in ("op", "model"):
        names.sort(key=lambda name: (-_known_usd(groups[name]), name))
    elif by == "step":
        names.sort(key=list(STEPS).index)
    rows, total = list[CostRow](), 0.0
    for name in names:
        rows.append(_row(_shown(by, name, groups[name]), groups[name], total))
        total = rows[-1].total_usd
    return CostReport(by=by, rows=tuple(rows), whole=_row("all", calls, 0.0))


def _shown(by: CostKey, name: str, calls: Sequence[Call]) -> str:
    if by == "run":
        return f"{name[:8]}  {datetime.fromtimestamp(calls[0].started, UTC):%Y-%m-%d %H:%M} UTC"
    return STEPS[name] if by == "step" else name


def _known_usd(calls: Sequence[Call]) -> float:
    return sum(call.usd or 0.0 for call in calls)


def _row(name: str, calls: Sequence[Call], before_usd: float) -> CostRow:
    usages = [call.usage for call in calls if call.usage is not None]
    unknown = [call for call in calls if call.usd is None]
    bounds = [call.intent.bound_usd for call in unknown]
    known = _known_usd(calls)
    return CostRow(
        name=name, calls=len(calls), failed=sum(isinstance(call.end, Failure) for call in calls),
        tokens_in=sum(u.input_tokens for u in usages), cached=sum(u.cache_read_tokens for u in usages),
        tokens_out=sum(u.output_tokens for u in usages), usd=known, total_usd=before_usd + known, unknown=len(unknown),
        unknown_usd=None if None in bounds else sum(b for b in bounds if b is not None),
    )  # fmt: skip


def cost_grid(report: CostReport) -> Grid:
    """The table of a report."""
    numbers = ("calls", "failed", "tokens in", "cached", "tokens out", "cost", "so far", "unknown")
    columns = (Column(title=TITLES[report.by]), *(Column(title=title, align="right") for title in numbers))
    records = [_record(row) for row in report.rows]
    if len(records) > 1:
        records.append(_record(report.whole))
    return Grid(columns=columns, records=tuple(records), footer=_footer(report.whole))


def _record(row: CostRow) -> Record:
    unknown = Cell(f"{row.unknown}, {_at_most(row.unknown_usd)}", "warn") if row.unknown else Cell("")
    texts = (
        row.name, str(row.calls), str(row.failed or ""), f"{row.tokens_in:,}", f"{row.cached:,}", f"{row.tokens_out:,}",
        format_usd(row.usd) if row.unknown < row.calls else UNKNOWN, format_usd(row.total_usd),
    )  # fmt: skip
    return Record((*(Cell(text) for text in texts), unknown))


def _at_most(usd: float | None) -> str:
    return "no bound" if usd is None else f"<= {format_usd(usd)}"


def _footer(whole: CostRow) -> tuple[str, ...]:
    if not whole.calls:
        return ("no language model was asked: kforge forge --generator llm:PROVIDER/MODEL",)
    lines = []
    if whole.unknown:
        lines.append(
            f"What {plural(whole.unknown, 'call')} cost is not known: no price, no end, or no usage in the reply."
        )
    return (*lines, "Only what kforge asked for itself; what coding agents cost, their own tools say.")


def format_usd(usd: float | None) -> str:
    """US dollars: "$12.35", "$0.0042", "-" if unknown."""
    if usd is None:
        return UNKNOWN
    return f"${usd:.2f}" if usd >= 1 or usd == 0 else f"${usd:.4f}"
