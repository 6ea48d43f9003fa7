"""Alembic migrations of `nodes.db`, run by `store.database`; a released revision is never edited."""
