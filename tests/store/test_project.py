"""Creating, opening, naming and appending in one process."""

from __future__ import annotations

import os
import resource
import shlex
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kernelforge.build.types import BuildFailure
from kernelforge.cards.types import OperatorCard
from kernelforge.errors import NotFound, ProjectError, SchemaTooNew, UsageError
from kernelforge.evaluate.types import Scored, Trial, WorkerFailure
from kernelforge.store.draft import start_draft
from kernelforge.store.project import Project

MakeTrial = Callable[..., Trial]
Cards = tuple[OperatorCard, ...]


def test_what_is_created_is_opened(project: Project, cards: Cards) -> None:
    again = Project.open(project.path)
    assert (again.model, again.device) == ("tiny", "cpu")
    assert [c.operator for c in again.cards()] == ["add", "relu"], "largest share first"
    assert sorted(again.cards(), key=lambda c: c.operator) == sorted(cards, key=lambda c: c.operator)
    assert again.capture_info == {"coverage": 0.9, "warnings": ["one"], "unsupported": {"mm": 2}}


def test_nodes_come_back_as_they_went_in(project: Project, make_trial: MakeTrial, scored: Scored) -> None:
    outcomes = [
        make_trial().outcome, BuildFailure(reason="compile_error", detail="line 3"), WorkerFailure(detail="no GPU"),
        scored,
    ]  # fmt: skip
    trials = [make_trial(i, outcome) for i, outcome in enumerate(outcomes)]
    appended = [project.append(t) for t in trials]
    stored = Project.open(project.path).nodes(trials[0].candidate.variant_id)
    assert list(stored) == appended
    assert [n.number for n in stored] == [1, 2, 3, 4]
    back = [Trial(candidate=n.candidate, outcome=n.outcome, started=n.started, seconds=n.seconds) for n in stored]
    # A binary lies in the project from then on.
    kept = replace(scored, artifact=replace(scored.artifact, path=project.binary(scored.artifact.digest)))
    assert back == [*trials[:3], replace(trials[3], outcome=kept)]


def test_nodes_after_a_number(project: Project, make_trial: MakeTrial) -> None:
    nodes = [project.append(make_trial(i)) for i in range(5)]
    assert list(project.nodes(nodes[0].variant_id, after=3)) == nodes[3:]
    assert project.nodes("unknown") == ()


def test_same_trial_twice_is_one_node(project: Project, make_trial: MakeTrial) -> None:
    first = project.append(make_trial(1))
    assert project.append(make_trial(1)) == first
    assert len(project.nodes(first.variant_id)) == 1
    with pytest.raises(ProjectError, match="node 1"):
        project.append(replace(make_trial(1), outcome=WorkerFailure(detail="something else")))


def test_judged_again_is_another_node(project: Project, make_trial: MakeTrial) -> None:
    first = project.append(make_trial(1))
    second = project.append(replace(make_trial(1), started=2000.0))
    assert second.number == 2 and second.id != first.id and second.candidate.id == first.candidate.id


def test_parent_must_be_a_node_of_the_variant(project: Project, make_trial: MakeTrial) -> None:
    first = project.append(make_trial(1))
    child = project.append(make_trial(2), parent=first.id)
    assert project.nodes(first.variant_id)[1].parent == first.id == child.parent
    with pytest.raises(NotFound, match="no node"):
        project.append(make_trial(3), parent="0" * 64)
    other = make_trial(4)
    other = replace(other, candidate=replace(other.candidate, variant_id="another"))
    with pytest.raises(NotFound, match="no node"):
        project.append(other, parent=first.id)
    assert len(project.nodes(first.variant_id)) == 2


@pytest.mark.parametrize("statement", ["UPDATE nodes SET outcome = '{}'", "DELETE FROM nodes"])
def test_finished_trials_never_change(project: Project, make_trial: MakeTrial, statement: str) -> None:
    node = project.append(make_trial(1))
    connection = sqlite3.connect(project.path / "nodes.db")
    with pytest.raises(sqlite3.IntegrityError, match="never change"):
        connection.execute(statement)
    connection.close()
    assert project.nodes(node.variant_id) == (node,)


def test_decisions_are_kept_until_the_next_export(project: Project, make_trial: MakeTrial) -> None:
    first, second = project.append(make_trial(1)), project.append(make_trial(2))
    variant = first.variant_id
    assert project.decisions() == {}
    before = time.time()
    project.record_decisions({variant: "eager: slow"}, {variant: first.id})
    (stored,) = Project.open(project.path).decisions().values()
    assert (stored.text, stored.node) == ("eager: slow", first.id)
    assert before <= stored.recorded <= time.time()
    project.record_decisions({variant: "use: from 64 elements on"}, {variant: second.id})
    assert [(d.text, d.node) for d in project.decisions().values()] == [("use: from 64 elements on", second.id)]
    project.record_decisions({}, {"another variant": "its node"})
    assert set(project.decisions()) == {variant}
    project.record_decisions({}, {variant: second.id})
    assert project.decisions() == {}, "decided on, and nothing to say against the search"


def test_decision_needs_a_node_of_its_variant(project: Project, make_trial: MakeTrial) -> None:
    node = project.append(make_trial(1))
    project.record_decisions({node.variant_id: "eager: slow"}, {node.variant_id: node.id})
    for nodes in ({}, {node.variant_id: "0" * 64}):
        with pytest.raises(NotFound, match="no node"):
            project.record_decisions({node.variant_id: "use"}, nodes)
    with pytest.raises(NotFound, match="no node"):
        project.record_decisions({"another": "use"}, {"another": node.id})
    assert [d.text for d in project.decisions().values()] == ["eager: slow"], "all or nothing"


def test_hint_can_be_pasted(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as error:
        Project.open(tmp_path / "my model.kforge")
    assert shlex.split(error.value.hint)[-2:] == ["-o", str(tmp_path / "my model.kforge")]


def test_binary_of_an_accepted_trial_is_kept(project: Project, make_trial: MakeTrial, scored: Scored) -> None:
    project.append(make_trial(1, scored))
    content = scored.artifact.path.read_bytes()
    scored.artifact.path.unlink()
    assert project.binary(scored.artifact.digest).read_bytes() == content


def test_binary_that_is_not_the_judged_one_is_refused(project: Project, make_trial: MakeTrial, scored: Scored) -> None:
    scored.artifact.path.write_bytes(b"another")
    with pytest.raises(ProjectError, match="not the binary that was judged"):
        project.append(make_trial(1, scored))
    scored.artifact.path.unlink()
    with pytest.raises(NotFound, match="no binary"):
        project.append(make_trial(1, scored))
    assert project.nodes(make_trial().candidate.variant_id) == ()


def test_changed_blob_is_noticed(project: Project, scored: Scored) -> None:
    digest = project.put_binary(scored.artifact.path)
    project.binary(digest).write_bytes(b"changed")
    with pytest.raises(ProjectError, match="changed after"):
        project.binary(digest)
    assert project.put_binary(scored.artifact.path) == digest
    assert project.binary(digest).read_bytes() == scored.artifact.path.read_bytes()
    with pytest.raises(NotFound, match="holds no binary"):
        project.binary("0" * 64)


def test_names_of_variants(project: Project, cards: Cards) -> None:
    relu, add = cards[0].variants[1], cards[1].variants[0]
    for name in (relu.variant.id, relu.variant.id[:12], relu.variant.label, relu.variant.label.upper(),
                 f"relu-{relu.variant.id[:16]}"):  # fmt: skip
        assert project.record(name) == relu
    assert project.record("add") == add
    with pytest.raises(NotFound, match="names 2 variants") as ambiguous:
        project.record("relu")
    assert relu.variant.label in str(ambiguous.value)
    for name in ("", "softmax", "relu-", f"add-{relu.variant.id[:8]}"):
        with pytest.raises(NotFound, match="no variant is called"):
            project.record(name)


def test_existing_project_is_replaced_only_on_demand(project: Project, cards: Cards, make_trial: MakeTrial) -> None:
    node = project.append(make_trial(1))
    with pytest.raises(UsageError, match="already a project"):
        Project.create(project.path, model="b", device="cpu", cards=cards, capture_info={})
    assert Project.open(project.path).nodes(node.variant_id) == (node,)
    new = Project.create(project.path, model="b", device="cpu", cards=cards, capture_info={}, overwrite=True)
    assert new.model == "b" and new.nodes(node.variant_id) == ()
    assert [p.name for p in project.path.parent.iterdir()] == [project.path.name], "no drafts left"


@pytest.mark.parametrize("overwrite", [False, True])
def test_other_files_are_never_replaced(tmp_path: Path, overwrite: bool) -> None:
    folder, file = tmp_path / "thesis", tmp_path / "notes.txt"
    folder.mkdir()
    (folder / "chapter.txt").write_text("years of work")
    file.write_text("a note")
    for target in (folder, file):
        with pytest.raises(UsageError):
            Project.create(target, model="m", device="cpu", cards=(), capture_info={}, overwrite=overwrite)
    assert (folder / "chapter.txt").read_text() == "years of work" and file.read_text() == "a note"


def test_exception_in_a_draft_leaves_nothing(project: Project) -> None:
    with pytest.raises(RuntimeError, match="the model raised"), start_draft(project.path, overwrite=True) as draft:
        (draft.folder / "half").write_text("half")
        raise RuntimeError("the model raised")
    assert [p.name for p in project.path.parent.iterdir()] == [project.path.name]
    assert Project.open(project.path).model == "tiny"


def test_examples_move_into_the_project(tmp_path: Path, cards: Cards) -> None:
    import torch

    with start_draft(tmp_path / "p.kforge") as draft:
        key = draft.examples.put([torch.arange(6.0).reshape(2, 3).t()])
        draft.publish(model="m", device="cpu", cards=cards, capture_info={})
    (tensor,) = Project.open(tmp_path / "p.kforge").examples.get(key)
    assert tensor.shape == (3, 2) and tensor.stride() == (1, 3)
    copied = Project.create(
        tmp_path / "q.kforge", model="m", device="cpu", cards=cards, capture_info={},
        examples=tmp_path / "p.kforge" / "examples",
    )  # fmt: skip
    assert copied.examples.has(key)


def test_missing_projects(tmp_path: Path) -> None:
    for path in (tmp_path / "none.kforge", tmp_path):
        with pytest.raises(NotFound, match="no project") as error:
            Project.open(path)
        assert "kforge capture" in error.value.hint


def test_newer_schema_is_refused_and_left_alone(project: Project) -> None:
    file = project.path / "nodes.db"
    connection = sqlite3.connect(file)
    connection.execute("UPDATE project SET schema = 99")
    connection.commit()
    connection.close()
    before = file.read_bytes()
    with pytest.raises(SchemaTooNew, match="schema 99") as error:
        Project.open(project.path)
    assert "upgrade" in error.value.hint and file.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"not a database" * 100, "half"], ids=["empty", "garbage", "truncated"])
def test_damaged_database(project: Project, make_trial: MakeTrial, content: bytes | str) -> None:
    for i in range(100):
        project.append(make_trial(i))
    file = project.path / "nodes.db"
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2] if isinstance(content, str) else content)
    with pytest.raises(ProjectError) as error:
        Project.open(project.path).nodes(make_trial().candidate.variant_id)
    assert error.value.hint


def test_damaged_row(project: Project, make_trial: MakeTrial) -> None:
    node = project.append(make_trial(1))
    connection = sqlite3.connect(project.path / "nodes.db")
    connection.execute("DROP TRIGGER nodes_refuse_update")
    connection.execute("UPDATE nodes SET outcome = '{\"kind\":'")
    connection.commit()
    connection.close()
    (damaged,) = project.nodes(node.variant_id)
    assert damaged.kind == "rejected"
    with pytest.raises(ProjectError, match="damaged"):
        _ = damaged.outcome


def test_damaged_capture_info(project: Project) -> None:
    (project.path / "capture.json").write_text("{")
    with pytest.raises(ProjectError, match=r"capture\.json"):
        _ = project.capture_info


@contextmanager
def _without_root() -> Iterator[None]:
    """Rights bind, even if the tests run as root."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def locked(cards: Cards) -> Iterator[Path]:
    """A folder that cannot be written and holds a project that cannot be written, outside of root's private ones."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project = Project.create(folder / "a.kforge", model="m", device="cpu", cards=cards, capture_info={})
        (project.path / "nodes.db").chmod(0o444)
        for path in (project.path, folder):
            path.chmod(0o555)
        yield folder
        for path in (folder, project.path):
            path.chmod(0o755)


def test_unwritable_project(locked: Path, cards: Cards) -> None:
    with _without_root(), pytest.raises(ProjectError) as opening:
        Project.open(locked / "a.kforge")
    assert "writable" in opening.value.hint
    with _without_root(), pytest.raises(ProjectError, match="cannot be written") as creating:
        Project.create(locked / "b.kforge", model="m", device="cpu", cards=cards, capture_info={})
    assert "rights" in creating.value.hint


def test_full_disk_leaves_the_old_project(project: Project, cards: Cards) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, hard))
    try:
        with pytest.raises(ProjectError):
            Project.create(project.path, model="b", device="cpu", cards=cards, capture_info={}, overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [p.name for p in project.path.parent.iterdir()] == [project.path.name]
    assert Project.open(project.path).model == "tiny"


def test_a_node_without_a_summary_is_seen_all_the_same(project: Project, make_trial: MakeTrial) -> None:
    """An older kernelforge that had the project open while a newer one migrated it stores such nodes."""
    node = project.append(make_trial(1))
    connection = sqlite3.connect(project.path / "nodes.db")
    connection.execute("DELETE FROM summaries")
    connection.commit()
    connection.close()
    (found,) = project.nodes(node.variant_id)
    assert found.summary == node.summary
