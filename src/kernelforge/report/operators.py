"""The operator table from cards, nodes and decisions. Sees no SQL and no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kernelforge.benchmark.clock import was_disturbed
from kernelforge.build.abi import prelude
from kernelforge.cards.types import VariantRecord
from kernelforge.errors import NotFound
from kernelforge.evaluate.types import Scored
from kernelforge.operators import get_operator
from kernelforge.report.asking import OpenOrder, StatusReport
from kernelforge.report.nodes import trial_row
from kernelforge.report.rows import (
    DECISION_EAGER,
    DECISION_NOT_FORGED,
    DECISION_PENDING,
    DECISION_USE,
    DimRow,
    OperatorRow,
    VariantReport,
    dispatch_of,
    least_elements_of,
)
from kernelforge.search.lineage import best_node, ranked_nodes
from kernelforge.search.types import Node
from kernelforge.search.winners import Choice, choose_winners

if TYPE_CHECKING:
    from kernelforge.store.project import Project
    from kernelforge.store.types import StoredDecision

PRELUDE_BACKENDS = ("cpp", "cuda")


def operator_row(
    choice: Choice, nodes: Sequence[Node], *, stored: StoredDecision | None = None, override: str = ""
) -> OperatorRow:
    """One variant's row.

    Args:
        stored: what the last export decided; counts until a later trial is better than the node that it decided on.
        override: a decision that counts before all others, or "".
    """
    record = choice.record
    decided = None if stored is None else _decided(nodes, stored)
    best = decided or choice.node or best_node(nodes)
    if not override and stored is not None and decided is not None:
        override = stored.text
    decision = override or _decision(choice, nodes)
    measured = best.outcome.measurement if best is not None and isinstance(best.outcome, Scored) else None
    return OperatorRow(
        variant=record.variant.id, label=record.variant.label, operator=record.variant.operator, calls=record.calls,
        share=record.share, eager_us=record.eager_us,
        judged_eager_us=None if measured is None else measured.eager_us,
        best_us=None if measured is None else measured.candidate_us,
        speedup=None if measured is None else measured.speedup.median,
        speedup_low=None if measured is None else measured.speedup.low,
        speedup_high=None if measured is None else measured.speedup.high,
        floor_us=measured.floor_us if measured is not None and measured.floor_us > 0 else None,
        dispatch=dispatch_of(decision), decision=decision, trials=len(nodes), describe=record.variant.describe(),
        disturbed=measured is not None and was_disturbed(measured),
        packaged=_packaged(record, override or (stored.text if stored is not None else "")),
    )  # fmt: skip


def project_rows(project: Project, decisions: Mapping[str, str] | None = None) -> tuple[OperatorRow, ...]:
    """The rows of a project, largest share first.

    Args:
        decisions: those that were taken after the search, by variant id; they count before those that are stored.
    """
    passed, stored = decisions or {}, project.decisions()
    chosen = {choice.record.variant.id: choice for choice in choose_winners(project)}
    return tuple(
        operator_row(choice, project.nodes(key), stored=stored.get(key), override=passed.get(key, ""))
        for key, choice in chosen.items()
    )


def project_status(project: Project) -> StatusReport:
    """The rows of a project and its open orders, oldest first."""
    rows = project_rows(project)
    labels = {row.variant: row.label for row in rows}
    return StatusReport(
        project=str(project.path), model=project.model, device=project.device, rows=rows,
        orders=tuple(
            OpenOrder(
                order=o.id, label=labels.get(o.variant_id, o.variant_id[:8]), state=o.state, reason=o.reason,
                asked=o.created, expires=o.expires,
            )
            for o in project.orders()
        ),
    )  # fmt: skip


def variant_report(choice: Choice, nodes: Sequence[Node], stored: StoredDecision | None = None) -> VariantReport:
    """One variant in full. stored: what the last export decided on it."""
    variant = choice.record.variant
    # A variant that is not forgeable may hold what has no C type.
    backends = () if choice.record.forgeable else PRELUDE_BACKENDS
    return VariantReport(
        row=operator_row(choice, nodes, stored=stored), dims=_dim_rows(choice.record),
        trials=tuple(trial_row(node) for node in nodes), backend="cuda" if variant.device == "cuda" else "cpp",
        preludes={backend: prelude(variant, backend) for backend in backends},
        has_template=_has_template(variant.operator),
    )  # fmt: skip


def _decided(nodes: Sequence[Node], stored: StoredDecision) -> Node | None:
    """The node that an export decided on, which need not be the search's first; None if that is history."""
    ranked = ranked_nodes(nodes)
    place = next((i for i, n in enumerate(ranked) if n.id == stored.node), None)
    if place is None or any(n.started > stored.recorded for n in ranked[:place]):
        return None
    return ranked[place]


def _packaged(record: VariantRecord, decision: str) -> str:
    least = least_elements_of(decision)
    return replace(record.variant, min_elements=least).label if least else ""


def _decision(choice: Choice, nodes: Sequence[Node]) -> str:
    if choice.node is not None:
        return DECISION_USE
    if choice.record.forgeable:
        return DECISION_NOT_FORGED + choice.record.forgeable
    if nodes:
        return DECISION_EAGER + choice.reason
    return DECISION_EAGER + why if (why := untried_reason(choice.record)) else DECISION_PENDING


def untried_reason(record: VariantRecord) -> str:
    """Why a variant without trials will get none from the templates, or ""."""
    operator = record.variant.operator
    return "" if _has_template(operator) else f"no template makes {operator}"


def _has_template(operator: str) -> bool:
    """Whether the template generator makes it. An operator of a plugin may be unknown here."""
    try:
        return bool(get_operator(operator).family)
    except NotFound:
        return False


def _dim_rows(record: VariantRecord) -> tuple[DimRow, ...]:
    def observed(values: Sequence[tuple[float, int]]) -> tuple[tuple[float, int], ...]:
        counts: Counter[float] = Counter()
        for value, calls in values:
            counts[value] += calls
        return tuple(sorted(counts.items()))

    dims = tuple(
        DimRow(
            name=d.name, low=d.low, high=d.high, multiple_of=d.multiple_of,
            observed=observed([(p.dims[d.name], p.calls) for p in record.points]),
        )
        for d in record.variant.dims
    )  # fmt: skip
    return dims + tuple(
        DimRow(
            name=s.name, low=s.low, high=s.high,
            observed=observed([(p.scalars[s.name], p.calls) for p in record.points]),
        )
        for s in record.variant.scalars
    )  # fmt: skip
