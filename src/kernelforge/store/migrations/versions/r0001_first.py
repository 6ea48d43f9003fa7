"""Schema 1: the project's row and the nodes, which can be inserted but neither changed nor deleted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables and the triggers that keep finished trials as they are."""
    op.create_table(
        "project",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("schema", sa.Integer, nullable=False),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("device", sa.String, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.CheckConstraint("id = 1", name="one_row"),
    )
    op.create_table(
        "nodes",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("variant_id", sa.String, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("parent", sa.String, sa.ForeignKey("nodes.id")),
        sa.Column("candidate", sa.String, nullable=False),
        sa.Column("source", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("outcome", sa.String, nullable=False),
        sa.Column("started", sa.Double, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("artifact", sa.String),
        sa.UniqueConstraint("variant_id", "number", name="number_per_variant"),
    )
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER nodes_refuse_{verb.lower()} BEFORE {verb} ON nodes "
            "BEGIN SELECT RAISE(ABORT, 'finished trials never change'); END"
        )
