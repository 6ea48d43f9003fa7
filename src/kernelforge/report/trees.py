"""A variant's revision tree and the difference of two of its kernels, for people. Owns `TreeReport`, `DiffReport`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernelforge.audit.types import TORCH_TIER, AuditKind
from kernelforge.cards.types import VariantRecord
from kernelforge.digest import Json
from kernelforge.report.grid import Cell, Column, Grid, Record, Tone
from kernelforge.report.nodes import trial_line, trial_row
from kernelforge.report.rows import TrialRow
from kernelforge.report.tables import DISTURBED_NOTE, marked
from kernelforge.report.units import format_interval, format_us
from kernelforge.search.lineage import best_node
from kernelforge.search.types import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRow:
    """One node.

    Attributes:
        branch: the lines that lead to it, as text: "│  └─ ". best: the variant's best node. path: on the way to it.
        repairs: number of the failed attempt before, of the same proposal; 0 for a first one.
    """

    branch: str
    trial: TrialRow
    repairs: int = 0
    best: bool = False
    path: bool = False

    def to_json(self) -> dict[str, Json]:
        return {**self.trial.to_json(), "best": self.best, "on_best_path": self.path, "repairs": self.repairs}


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeReport:
    """All trials of a variant, each below the one that it revises, siblings oldest first."""

    variant: str
    label: str
    rows: tuple[TreeRow, ...]

    def to_json(self) -> dict[str, Json]:
        return {"variant": self.variant, "label": self.label, "nodes": [row.to_json() for row in self.rows]}


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffReport:
    """A unified diff of two sources of a variant. old: number of the first node, 0 for no source at all."""

    label: str
    old: int
    new: int
    text: str

    def to_json(self) -> dict[str, Json]:
        return {"label": self.label, "old": self.old, "new": self.new, "diff": self.text}


def tree_report(record: VariantRecord, nodes: Sequence[Node]) -> TreeReport:
    """The tree of a variant's nodes."""
    best = best_node(nodes)
    by_id, numbers = {n.id: n for n in nodes}, {n.candidate_id: n.number for n in nodes}
    path, above = set[str](), best
    while above is not None and above.id not in path:
        path.add(above.id)
        above = by_id.get(above.parent)
    children: dict[str, list[Node]] = {}
    for node in nodes:
        children.setdefault(node.parent if node.parent in by_id else "", []).append(node)

    def rows() -> Iterator[TreeRow]:
        waiting = [(node, "", "") for node in reversed(children.get("", []))]
        while waiting:
            node, branch, indent = waiting.pop()
            yield TreeRow(
                branch=branch, trial=trial_row(node), best=best is not None and node.id == best.id,
                path=node.id in path, repairs=numbers.get(node.summary.repairs, 0),
            )  # fmt: skip
            below = children.get(node.id, [])
            for i, child in reversed([*enumerate(below)]):
                last = i == len(below) - 1
                waiting.append((child, indent + ("└─ " if last else "├─ "), indent + ("   " if last else "│  ")))

    return TreeReport(variant=record.variant.id, label=record.variant.label, rows=tuple(rows()))


def tree_grid(report: TreeReport) -> Grid:
    """The tree as a table: the branch and the node's number, then what came of it."""
    columns = (
        Column(title="node"), Column(title="speed-up", align="right"), Column(title="95% interval", align="right"),
        Column(title="time", align="right"), Column(title="outcome, candidate", flexible=True),
    )  # fmt: skip
    marks = any(row.trial.disturbed for row in report.rows)
    records = tuple(_record(row, marks) for row in report.rows)
    footer = [DISTURBED_NOTE] if marks else [] if records else ["no trials yet"]
    footer += [TORCH_TIER] if any(row.trial.audit == AuditKind.TORCH for row in report.rows) else []
    return Grid(title=report.label, columns=columns, records=records, footer=tuple(footer))


def diff_report(record: VariantRecord, old: Node | None, new: Node) -> DiffReport:
    """What `new` changes in the source of `old`, or all of it."""
    before = old.candidate.source.splitlines() if old is not None else []
    lines = difflib.unified_diff(
        before, new.candidate.source.splitlines(), lineterm="",
        fromfile=trial_line(old) if old is not None else "from scratch", tofile=trial_line(new),
    )  # fmt: skip
    text = "\n".join(lines)
    return DiffReport(
        label=record.variant.label, old=old.number if old is not None else 0, new=new.number,
        text=text or f"#{new.number} has the same source",
    )  # fmt: skip


def _record(row: TreeRow, marks: bool) -> Record:
    trial, speedup = row.trial, row.trial.speedup
    low, median, high = (speedup.low, speedup.median, speedup.high) if speedup else (None, None, None)
    failed = trial.outcome != "accepted"
    words = [trial.words, f"repair of #{row.repairs}" if row.repairs else "", trial.notes or trial.generator]
    tone: Tone = "good" if row.best else "bad" if failed else "strong" if row.path else ""
    return Record((
        Cell(f"{row.branch}#{trial.number}{' best' if row.best else ''}", tone),
        Cell(marked(median, disturbed=trial.disturbed, marks=marks)),
        Cell(format_interval(low, high), "dim"),
        Cell(format_us(trial.candidate_us)), Cell(", ".join(w for w in words if w)),
    ))  # fmt: skip
