"""Schema 4: calls of language models with their texts, of which attempt something is the repair, and profiles."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Create the three tables; no candidate of an older project is a repair."""
    op.add_column("summaries", sa.Column("repairs", sa.String, nullable=False, server_default=""))
    # Not `batch_alter_table`: SQLite adds a column with a reference in place, as long as it is null.
    op.execute("ALTER TABLE orders ADD COLUMN repairs VARCHAR REFERENCES nodes (id)")
    op.create_table(
        "texts",
        sa.Column("digest", sa.String, primary_key=True),
        sa.Column("text", sa.String, nullable=False),
    )
    op.create_table(
        "calls",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("run", sa.String, nullable=False),
        sa.Column("order_id", sa.String, nullable=False),
        sa.Column("variant_id", sa.String, nullable=False),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("step", sa.String, nullable=False),
        sa.Column("started", sa.Double, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("counted_tokens", sa.Integer, nullable=False),
        sa.Column("counted_usd", sa.Double),
        sa.Column("tokens", sa.Integer),
        sa.Column("usd", sa.Double),
        sa.Column("request", sa.String, nullable=False),
        sa.Column("reply", sa.String),
        sa.Column("result", sa.String, nullable=False),
        sa.CheckConstraint("state IN ('open', 'replied', 'failed')", name="known_call_state"),
    )
    op.create_index("calls_by_run", "calls", ["run"])
    op.create_index("calls_by_order", "calls", ["order_id"])
    op.create_table(
        "profiles",
        sa.Column("binary", sa.String, primary_key=True),
        sa.Column("device", sa.String, primary_key=True),
        sa.Column("metrics", sa.String, nullable=False),
        sa.Column("recorded", sa.Double, nullable=False),
    )
