"""Alembic's entry: runs the revisions on the connection that `store.database` hands over, in its transaction."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from kernelforge.store.models import Base

connection = context.config.attributes["connection"]
assert isinstance(connection, Connection)
context.configure(
    connection=connection, target_metadata=Base.metadata, transactional_ddl=True, render_as_batch=True
)  # fmt: skip
with context.begin_transaction():
    context.run_migrations()
