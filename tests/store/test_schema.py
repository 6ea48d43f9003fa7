"""The schema: migrations against models, and a kept database of every schema number."""

from __future__ import annotations

import shutil
from pathlib import Path

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from kernelforge.audit.types import AuditKind
from kernelforge.build.types import BuildFailure
from kernelforge.cards.types import OperatorCard
from kernelforge.evaluate.types import Scored, Trial, WorkerFailure
from kernelforge.generate.types import Candidate
from kernelforge.store.database import SCHEMA, make_engine
from kernelforge.store.models import Base
from kernelforge.store.project import Project
from kernelforge.verify.types import Rejected, RejectReason

FIXTURES = Path(__file__).parents[1] / "fixtures"


def test_migrations_make_what_the_models_say(project: Project) -> None:
    with make_engine(project.path / "nodes.db").connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert context.get_current_revision() == f"{SCHEMA:04d}"
        assert compare_metadata(context, Base.metadata) == []


def test_every_schema_has_a_kept_database() -> None:
    assert {f.name for f in FIXTURES.glob("nodes_schema_*.db")} == {
        f"nodes_schema_{number}.db" for number in range(1, SCHEMA + 1)
    }


def test_database_of_schema_1_opens(project: Project, cards: tuple[OperatorCard, ...]) -> None:
    shutil.copy(FIXTURES / "nodes_schema_1.db", project.path / "nodes.db")
    kept = Project.open(project.path)
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
