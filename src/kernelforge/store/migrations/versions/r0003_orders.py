"""Schema 3: summaries of the nodes, made of what the nodes say, and the work orders of a study."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

from kernelforge.digest import decode_float, digest

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create both tables; fill the first."""
    op.create_table(
        "summaries",
        sa.Column("node", sa.String, sa.ForeignKey("nodes.id"), primary_key=True),
        sa.Column("candidate_id", sa.String, nullable=False),
        sa.Column("speedup", sa.Double),
        sa.Column("low", sa.Double),
        sa.Column("candidate_us", sa.Double),
        sa.Column("eager_us", sa.Double),
        sa.Column("floor_us", sa.Double),
    )
    op.create_table(
        "orders",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("variant_id", sa.String, nullable=False),
        sa.Column("parent", sa.String, sa.ForeignKey("nodes.id")),
        sa.Column("reason", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("expires", sa.Double, nullable=False),
        sa.Column("candidate", sa.String),
        sa.Column("source", sa.String),
        sa.Column("detail", sa.String, nullable=False),
        sa.Column("node", sa.String, sa.ForeignKey("nodes.id")),
        sa.CheckConstraint(
            "state IN ('waiting', 'asked', 'delivered', 'judging', 'done', 'failed')", name="known_state"
        ),
    )
    op.create_index("orders_by_state", "orders", ["state"])
    nodes = op.get_bind().exec_driver_sql("SELECT id, variant_id, source, candidate, outcome FROM nodes").all()
    # A damaged trial must not keep the project shut: it gets no summary, and whoever reads it is told.
    rows = [summary for row in nodes if (summary := _summary(*row)) is not None]
    if rows:
        op.bulk_insert(sa.table("summaries", *(sa.column(name) for name in rows[0])), rows)


def _summary(node: str, variant_id: str, source: str, candidate: str, outcome: str) -> dict[str, object] | None:
    try:
        return _read_summary(node, variant_id, source, json.loads(candidate), json.loads(outcome))
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None


def _read_summary(node: str, variant_id: str, source: str, candidate: Any, judged: Any) -> dict[str, object]:
    row: dict[str, object] = {
        "node": node, "candidate_id": digest([variant_id, candidate["backend"], source]),
        "speedup": None, "low": None, "candidate_us": None, "eager_us": None, "floor_us": None,
    }  # fmt: skip
    if judged["kind"] == "accepted":
        measured = judged["measurement"]
        row |= {name: decode_float(measured[name]) for name in ("candidate_us", "eager_us", "floor_us")}
        if judged["audit"]["kind"] == "generated":
            median, low, _ = measured["speedup"]
            row |= {"speedup": decode_float(median), "low": decode_float(low)}
    return row
