"""The report on one judged candidate. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

from kernelforge.benchmark.types import Interval
from kernelforge.digest import Json
from kernelforge.evaluate.types import Scored
from kernelforge.report.nodes import trial_row
from kernelforge.report.rows import EvalReport
from kernelforge.search.types import Node


def eval_report(node: Node) -> EvalReport:
    """The node as `kforge eval` reports it."""
    row = trial_row(node)
    scored = node.outcome if isinstance(node.outcome, Scored) else None
    return EvalReport(
        outcome=cast(Literal["accepted", "rejected", "build_failure", "worker_failure"], row.outcome),
        reason=row.reason, detail=row.detail, speedup=row.speedup,
        audit=None if scored is None else str(scored.audit.kind),
        evidence=() if scored is None else scored.audit.evidence,
        floor_us=None if scored is None else scored.measurement.floor_us,
        eager_us=None if scored is None else scored.measurement.eager_us,
        candidate_us=None if scored is None else scored.measurement.candidate_us,
        variant=node.variant_id, node=node.id, disturbed=row.disturbed,
    )  # fmt: skip


def recorded_interval(measurement: Mapping[str, Json]) -> Interval | None:
    """The speed-up of a package's measurement: through dispatch if that was timed, else of the kernel alone."""
    dispatch = measurement.get("dispatch")
    source = dispatch.get("speedup") if isinstance(dispatch, Mapping) else measurement.get("speedup")
    if not isinstance(source, Mapping):
        return None
    values = [source.get(key) for key in ("median", "low", "high")]
    if not all(isinstance(v, int | float) for v in values):
        return None
    median, low, high = (float(cast(float, v)) for v in values)
    return Interval(median=median, low=low, high=high)
