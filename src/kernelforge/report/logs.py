"""What happened to one kernel, in the order in which it happened, for people. Owns `LogReport`. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from kernelforge.benchmark.types import Measurement
from kernelforge.cards.types import VariantRecord
from kernelforge.digest import Json
from kernelforge.evaluate.types import Scored
from kernelforge.explain.outcome import explain
from kernelforge.generate.llm.account import Call, Failure
from kernelforge.generate.llm.types import Completion
from kernelforge.report.nodes import trial_line
from kernelforge.report.units import format_duration, format_interval, format_speedup, format_us
from kernelforge.search.duplicates import MEASURED_AS
from kernelforge.search.lineage import attempts_at
from kernelforge.search.orders import Order
from kernelforge.search.types import Node
from kernelforge.wording import plural

LogPhase: TypeAlias = Literal["lineage", "ask", "call", "propose", "compile", "validate", "bench", "audit", "again"]
PHASES: tuple[LogPhase, ...] = get_args(LogPhase)
INDENT = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One thing that happened.

    Attributes:
        phase: "lineage" is a trial that this one comes from, "call" one of a language model, "again" a later judgement
            of the same source.
        at: POSIX seconds, None where only the order is known. text: one line or several.
    """

    phase: LogPhase
    text: str
    at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReport:
    """The story of a trial."""

    label: str
    trial: int
    node: str
    entries: tuple[LogEntry, ...]

    def text(self) -> str:
        """For the terminal: the phase once, then its lines."""
        lines = [f"trial {self.trial} of {self.label}, node {self.node[:16]}"]
        for entry in self.entries:
            when = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(entry.at))}  " if entry.at is not None else ""
            first, *rest = (when + entry.text).splitlines() or [""]
            lines += [f"  {entry.phase:<{INDENT - 4}}  {first}", *(" " * INDENT + line for line in rest)]
        return "\n".join(line.rstrip() for line in lines)

    def to_json(self) -> dict[str, Json]:
        entries: list[Json] = [{"phase": e.phase, "at": e.at, "text": e.text} for e in self.entries]
        return {"label": self.label, "trial": self.trial, "node": self.node, "entries": entries}


def log_report(
    record: VariantRecord,
    nodes: Sequence[Node],
    node: Node,
    orders: Sequence[Order],
    *,
    calls: Sequence[Call] = (),
    phase: LogPhase | None = None,
) -> LogReport:
    """The story of `node`.

    Args:
        nodes: all of the variant. orders: all of the project, closed ones too. calls: for the node's order.
        phase: only that part of it; of calls then with all that was said.
    """
    entries = [
        *_lineage(nodes, node),
        *(_asked(o, nodes) for o in orders if o.node == node.id),
        *(_called(call, whole=phase == "call") for call in calls),
        LogEntry(phase="propose", text=_proposal(node)),
        *_compiled(node),
        LogEntry(phase="validate", text=_validated(node, record), at=node.started),
        *_timed(node),
        *_audited(node),
        *(
            LogEntry(phase="again", text=trial_line(n), at=n.started)
            for n in nodes
            if n.candidate_id == node.candidate_id and n.number > node.number
        ),
    ]
    chosen = tuple(e for e in entries if phase in (None, e.phase))
    return LogReport(label=record.variant.label, trial=node.number, node=node.id, entries=chosen)


def _lineage(nodes: Sequence[Node], node: Node) -> list[LogEntry]:
    by_id = {n.id: n for n in nodes}
    chain = list(reversed(attempts_at(node, nodes)[:-1]))
    above = by_id.get(node.parent)
    while above is not None and above not in chain:
        chain.append(above)
        above = by_id.get(above.parent)
    return [LogEntry(phase="lineage", text=trial_line(n), at=n.started) for n in reversed(chain)]


def _asked(order: Order, nodes: Sequence[Node]) -> LogEntry:
    numbers = {n.id: n.number for n in nodes}
    what = f"for a revision of trial {numbers[order.parent]}" if order.parent in numbers else "for a start from scratch"
    if order.repairs in numbers:
        what = f"to mend trial {numbers[order.repairs]}"
    return LogEntry(phase="ask", text=f"{what}: {order.reason}", at=order.created)


def _called(call: Call, *, whole: bool) -> LogEntry:
    """How a call went; all that was said in it if it is `whole`."""
    match call.end:
        case Completion():
            usage = call.end.usage
            tokens = "tokens unknown"
            if usage is not None:
                cached = f" ({usage.cache_read_tokens} cached)" if usage.cache_read_tokens else ""
                tokens = f"{usage.input_tokens} tokens in{cached}, {usage.output_tokens} out"
            said = f"{call.end.finish_reason} after {format_duration(call.end.seconds)}, {tokens}"
        case Failure():
            said = f"{call.end.kind.replace('_', ' ')} after {format_duration(call.end.seconds)}: {call.end.detail}"
        case None:
            said = "its end is not known"
    cost = "unknown" if call.usd is None else f"${call.usd:.4f}"
    text = f"{call.intent.model}, {call.intent.step}: {said}, cost {cost}"
    if whole:
        request = call.intent.request
        parts = [("system", request.system), ("user", request.stable), *((t.role, t.text) for t in request.turns)]
        if isinstance(call.end, Completion):
            parts.append(("assistant", call.end.text))
        text += "".join(f"\n\n[{role}]\n{words.rstrip()}" for role, words in parts)
    return LogEntry(phase="call", text=text, at=call.started)


def _proposal(node: Node) -> str:
    candidate = node.candidate
    parts = [f"by the {candidate.generator} generator" + (f" ({candidate.model})" if candidate.model else "")]
    if candidate.tokens_in is not None and candidate.tokens_out is not None and candidate.model:
        cost = "unknown" if candidate.cost_usd is None else f"${candidate.cost_usd:.4f}"
        parts.append(f"{candidate.tokens_in} tokens in, {candidate.tokens_out} out, cost {cost}")
    parts.append(
        plural(len(candidate.source.splitlines()), "line") + (f": {candidate.notes}" if candidate.notes else "")
    )
    return ", ".join(parts)


def _compiled(node: Node) -> Iterator[LogEntry]:
    if isinstance(node.outcome, Scored):
        artifact = node.outcome.artifact
        lines = [f"{artifact.compiler} for {artifact.target} in {format_duration(artifact.seconds)}"]
        lines += [" ".join(artifact.flags), *artifact.log.strip().splitlines()]
        yield LogEntry(phase="compile", text="\n".join(lines))
    elif node.kind == "build_failure":
        yield LogEntry(phase="compile", text=trial_line(node))


def _validated(node: Node, record: VariantRecord) -> str:
    if isinstance(node.outcome, Scored):
        verdict = node.outcome.verdict
        how = "bit for bit as eager" if verdict.bitwise else f"largest error {verdict.worst.max_abs:.3g}"
        return f"right on {plural(verdict.cases, 'case')}, {how}; the trial took {format_duration(node.seconds)}"
    return "\n".join(explain(node.outcome, source=node.candidate.source, record=record))


def _timed(node: Node) -> Iterator[LogEntry]:
    if not isinstance(node.outcome, Scored):
        return
    measurement = node.outcome.measurement
    same = measurement.environment.get(MEASURED_AS)
    notes = [f"the same binary as {same}, whose times these are"] if same else []
    yield LogEntry(phase="bench", text="\n".join([_total(measurement), *notes, *_points(measurement)]))


def _total(measurement: Measurement) -> str:
    s = measurement.speedup
    return (
        f"{format_speedup(s.median)} ({format_interval(s.low, s.high)}): eager {format_us(measurement.eager_us)}, "
        f"kernel {format_us(measurement.candidate_us)}, floor {format_us(measurement.floor_us)}"
    )


def _points(measurement: Measurement) -> Iterator[str]:
    for point in measurement.points:
        sizes = ", ".join(f"{name}={size}" for name, size in point.dims.items()) or "the fixed sizes"
        s = point.speedup
        yield (
            f"{sizes} ({plural(point.calls, 'call')}, {point.regime}): {format_speedup(s.median)} "
            f"({format_interval(s.low, s.high)}), {plural(len(point.eager_us), 'pair')}"
        )


def _audited(node: Node) -> Iterator[LogEntry]:
    if isinstance(node.outcome, Scored):
        label = node.outcome.audit
        yield LogEntry(phase="audit", text="\n".join([str(label.kind), *label.evidence]))
