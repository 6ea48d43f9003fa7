"""Opens, creates and migrates a project's SQLite file. Owns the pragmas, the transactions and the schema number.

Every connection is opened for one transaction and closed after it (no pool): a project needs no `close`, survives a
fork, and leaves a single file behind. WAL keeps readers and the one writer out of each other's way; writers queue
through `BEGIN IMMEDIATE` and the busy timeout, so a read-then-insert never fails half-way on a lock upgrade.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, NullPool, create_engine, event, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from kernelforge.errors import ProjectError, SchemaTooNew
from kernelforge.store.models import ProjectRow

SCHEMA = 4
BUSY_TIMEOUT_MS = 60_000
MIGRATIONS = Path(__file__).parent / "migrations"


def make_engine(file: Path) -> Engine:
    """An engine on an existing or (for `create_database`) new file. Opens nothing yet."""
    engine = create_engine("sqlite+pysqlite://", creator=lambda: _connect(file), poolclass=NullPool)
    event.listen(engine, "begin", _begin)
    return engine


def _connect(file: Path) -> sqlite3.Connection:
    # isolation_level None: transactions are begun by `_begin`, not guessed by the driver from the first statement.
    connection = sqlite3.connect(file, isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000, check_same_thread=False)
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA synchronous=FULL")
    return connection


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("kforge_begin", "BEGIN"))


@contextmanager
def reading(engine: Engine) -> Iterator[Session]:
    """A transaction that sees one consistent state of the file.

    Raises:
        ProjectError: the file cannot be read.
    """
    with _translated(), Session(engine) as session, session.begin():
        yield session


@contextmanager
def writing(engine: Engine) -> Iterator[Session]:
    """The one write transaction of the file; others wait for it. Committed at the end, rolled back on an exception.

    Raises:
        ProjectError: the file cannot be written, or another writer held it for the whole busy timeout.
    """
    immediate = engine.execution_options(kforge_begin="BEGIN IMMEDIATE")
    with _translated(), Session(immediate) as session, session.begin():
        yield session


def create_database(file: Path, *, model: str, device: str, created: float) -> None:
    """Create the file with the newest schema and the project's row.

    Raises:
        ProjectError: the file cannot be written.
    """
    engine = make_engine(file)
    with _translated(), engine.connect() as connection:
        # WAL is a property of the file: set once here, kept by every later connection. Not inside a transaction.
        connection.connection.driver_connection.execute("PRAGMA journal_mode=WAL")  # type: ignore[union-attr]
    with writing(engine) as session:
        _upgrade(session.connection())
        session.add(ProjectRow(id=1, schema=SCHEMA, model=model, device=device, created=created))


def open_database(file: Path) -> tuple[Engine, ProjectRow]:
    """Open a file, migrating it to the newest schema if it is older; returns the engine and a detached row.

    Raises:
        SchemaTooNew: written by a newer kernelforge; the file is left untouched.
        ProjectError: not a database, damaged, or not writable.
    """
    engine = make_engine(file)
    with reading(engine) as session:
        row = _project_row(session, file)
        schema = row.schema
    if schema > SCHEMA:
        raise SchemaTooNew(
            f"{file} has schema {schema}, this kernelforge knows up to {SCHEMA}",
            hint="install the newer kernelforge that wrote it: pip install --upgrade kernelforge",
        )
    # A write transaction even when there is nothing to migrate: a project that cannot be written must be refused
    # now and not after the first trial.
    with writing(engine) as session:
        if schema < SCHEMA:
            _upgrade(session.connection())
        row = _project_row(session, file)
        row.schema = SCHEMA
        session.flush()
        session.expunge(row)
    return engine, row


def _project_row(session: Session, file: Path) -> ProjectRow:
    # Only the columns that every schema has may be read before the migration; schema 1 has them all.
    row = session.scalars(select(ProjectRow)).one_or_none()
    if row is None:
        raise ProjectError(f"{file} holds no project", hint="capture again with --overwrite")
    return row


def _upgrade(connection: Connection) -> None:
    # Half a second of imports that only creating and migrating need.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


@contextmanager
def _translated() -> Iterator[None]:
    """Driver errors as `ProjectError` with the next step."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise ProjectError(f"the project's nodes.db: a text is no UTF-8: {error}") from error
    except (SQLAlchemyError, sqlite3.Error) as error:
        cause = error.__cause__ if isinstance(error, SQLAlchemyError) and error.__cause__ else error
        raise ProjectError(f"the project's nodes.db: {cause}", hint=_hint(str(cause))) from error


def _hint(message: str) -> str:
    if "readonly" in message or "unable to open" in message:
        return "make the project folder and nodes.db writable for this user"
    if "full" in message:
        return "free disk space and run the same command again"
    if "locked" in message:
        return "another process holds the project; wait for it or end it, then run the same command again"
    if "malformed" in message or "not a database" in message or "no such table" in message:
        return "the file is damaged: restore it from a copy, or capture again with --overwrite"
    return ""
