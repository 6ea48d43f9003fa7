"""The schema: migrations against models, and a kept database of every schema number."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from kernelforge.audit.types import AuditKind
from kernelforge.build.types import BuildFailure
from kernelforge.errors import ProjectError
from kernelforge.evaluate.types import Scored, Trial, WorkerFailure
from kernelforge.generate.types import Candidate
from kernelforge.search.types import summarise
from kernelforge.store.database import SCHEMA, make_engine
from kernelforge.store.models import Base
from kernelforge.store.project import Project
from kernelforge.store.types import StoredDecision
from kernelforge.verify.types import Rejected, RejectReason

FIXTURES = Path(__file__).parent / "fixtures"


def test_migrations_make_what_the_models_say(project: Project) -> None:
    with make_engine(project.path / "nodes.db").connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert context.get_current_revision() == f"{SCHEMA:04d}"
        assert compare_metadata(context, Base.metadata) == []


def _open_kept(project: Project, schema: int) -> Project:
    shutil.copy(FIXTURES / f"nodes_schema_{schema}.db", project.path / "nodes.db")
    return Project.open(project.path)


def test_every_schema_has_a_kept_database() -> None:
    assert {f.name for f in FIXTURES.glob("nodes_schema_*.db")} == {
        f"nodes_schema_{number}.db" for number in range(1, SCHEMA + 1)
    }


@pytest.mark.parametrize("schema", range(1, SCHEMA + 1))
def test_kept_database_opens(project: Project, schema: int) -> None:
    kept = _open_kept(project, schema)
    assert (kept.model, kept.device, kept.created) == ("kept", "cpu", 1750000000.25)
    nodes = kept.nodes("kept-variant")
    assert [n.number for n in nodes] == [1, 2, 3, 4]
    assert nodes[1].parent == nodes[0].id
    build, rejected, failed, scored = (n.outcome for n in nodes)
    assert build == BuildFailure(reason="compile_error", detail="kernel.cpp:3: error: expected ';'")
    assert isinstance(rejected, Rejected) and rejected.reason is RejectReason.WRONG_VALUE
    assert rejected.worst_abs == float("inf")
    assert failed == WorkerFailure(detail="the eager worker died")
    assert isinstance(scored, Scored) and scored.audit.kind is AuditKind.GENERATED
    assert scored.measurement.points[0].eager_us == (3.0, 0.1 + 0.2)
    assert scored.artifact.flags == ("-O3", "-shared")
    candidate = Candidate(variant_id="kept-variant", source="// new\n", backend="cpp", generator="template")
    added = kept.append(Trial(candidate=candidate, outcome=WorkerFailure(detail=""), started=5.0, seconds=1.0))
    assert added.number == 5


def test_database_of_schema_1_is_migrated(project: Project) -> None:
    kept = _open_kept(project, 1)
    assert kept.decisions() == {}
    node = kept.nodes("kept-variant")[3]
    kept.record_decisions({"kept-variant": "eager: slow"}, {"kept-variant": node.id})
    assert Project.open(kept.path).decisions()["kept-variant"].node == node.id
    # The number too, or a kernelforge that knows schema 1 only would take the file for one of its own.
    with sqlite3.connect(kept.path / "nodes.db") as connection:
        assert connection.execute("SELECT schema FROM project").fetchall() == [(SCHEMA,)]
    connection.close()
    with make_engine(kept.path / "nodes.db").connect() as migrated:
        assert compare_metadata(MigrationContext.configure(migrated), Base.metadata) == []


@pytest.mark.parametrize("schema", range(1, SCHEMA + 1))
def test_summaries_of_a_kept_database_are_those_of_its_nodes(project: Project, schema: int) -> None:
    """Older schemas have none: the migration makes them by rules of its own, which must stay the code's."""
    nodes = _open_kept(project, schema).nodes("kept-variant")
    assert [n.summary for n in nodes] == [summarise(n.candidate, n.outcome) for n in nodes]
    assert nodes[3].summary.speedup is not None


@pytest.mark.parametrize("damage", ["{}", "[]", "{", "[" * 100_000])
@pytest.mark.parametrize("column", ["candidate", "outcome"])
@pytest.mark.parametrize("schema", [1, 2])
def test_one_damaged_trial_does_not_keep_a_project_shut(
    project: Project, schema: int, column: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of those that are migrated; one of the newest schema opens because its summaries are made before."""
    shutil.copy(FIXTURES / f"nodes_schema_{schema}.db", project.path / "nodes.db")
    with sqlite3.connect(project.path / "nodes.db") as connection:
        connection.execute("DROP TRIGGER nodes_refuse_update")
        connection.execute(f"UPDATE nodes SET {column} = ? WHERE number = 4", (damage,))
    connection.close()
    nodes = Project.open(project.path).nodes("kept-variant")
    assert [n.kind for n in nodes] == ["build_failure", "rejected", "worker_failure", "worker_failure"]
    assert nodes[3].summary.speedup is None and nodes[1].outcome
    assert nodes[3].id[:12] in caplog.text
    with pytest.raises(ProjectError, match="damaged"):
        _ = nodes[3].outcome


def test_orders_in_a_database_of_schema_3(project: Project) -> None:
    kept = _open_kept(project, 3)
    asked, delivered, done, failed = kept.orders(closed=True)
    assert [o.state for o in kept.orders()] == ["asked", "delivered"]
    assert (asked.parent, asked.owner, asked.expires) == (
        kept.nodes("kept-variant")[3].id,
        "elsewhere:7:1.00",
        1750003610.25,
    )
    assert delivered.candidate is not None and delivered.candidate.source == "// ordered\n"
    assert (done.state, done.node) == ("done", asked.parent)
    assert (failed.state, failed.detail) == ("failed", "no idea")


def test_decision_in_a_database_of_schema_2(project: Project) -> None:
    kept = _open_kept(project, 2)
    decision = StoredDecision(
        text="use: from 64 elements on", node=kept.nodes("kept-variant")[3].id, recorded=1750000005.25
    )
    assert kept.decisions() == {"kept-variant": decision}
