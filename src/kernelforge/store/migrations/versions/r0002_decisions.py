"""Schema 2: what exports decided. Unlike the nodes it is replaced by later exports."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the table, empty: what earlier exports decided was not kept."""
    op.create_table(
        "decisions",
        sa.Column("variant_id", sa.String, primary_key=True),
        sa.Column("decision", sa.String, nullable=False),
        sa.Column("node", sa.String, sa.ForeignKey("nodes.id"), nullable=False),
        sa.Column("recorded", sa.Double, nullable=False),
    )
