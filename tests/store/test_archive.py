"""A project that travels: packed, unpacked, merged back; nothing is lost, doubled or half-written."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kernelforge.cards.types import OperatorCard
from kernelforge.errors import NotFound, ProjectError, SchemaTooNew, UsageError
from kernelforge.evaluate.types import Outcome, Scored, Trial
from kernelforge.generate.types import Candidate
from kernelforge.search.types import Node
from kernelforge.store.archive import merge_project, pack_project, unpack_project
from kernelforge.store.project import Project

MakeTrial = Callable[..., Trial]


@pytest.fixture
def forged(project: Project, make_trial: MakeTrial, scored: Scored) -> Project:
    """Four trials, the third of which revises the second, the fourth the third."""
    nodes = [project.append(make_trial(0)), project.append(make_trial(1, scored))]
    nodes.append(project.append(make_trial(2, scored), parent=nodes[1].id))
    project.append(make_trial(3), parent=nodes[2].id)
    return project


def all_nodes(project: Project) -> list[Node]:
    return [n for card in project.cards() for r in card.variants for n in project.nodes(r.variant.id)]


def without_place(nodes: Sequence[Node]) -> list[tuple[Node, Candidate, Outcome]]:
    """Nodes and what they hold, without the folder of the project that they were read from."""
    return [
        (n, n.candidate, replace(n.outcome, artifact=replace(n.outcome.artifact, path=Path("x")))
         if isinstance(n.outcome, Scored) else n.outcome)
        for n in nodes
    ]  # fmt: skip


def test_a_project_moves_whole(forged: Project, tmp_path: Path) -> None:
    file = tmp_path / "tiny.anvil"
    assert pack_project(forged, file) == 4
    moved = unpack_project(file, tmp_path / "elsewhere" / "tiny.kforge")
    assert (moved.model, moved.device, moved.created) == (forged.model, forged.device, forged.created)
    assert moved.cards() == forged.cards() and moved.capture_info["coverage"] == 0.9
    assert without_place(all_nodes(moved)) == without_place(all_nodes(forged))
    accepted = next(n for n in all_nodes(moved) if isinstance(n.outcome, Scored))
    assert isinstance(accepted.outcome, Scored)
    assert moved.binary(accepted.outcome.artifact.digest) == accepted.outcome.artifact.path
    assert accepted.outcome.artifact.path.read_bytes() == b"\x7fELF a binary"


def test_the_header_comes_first_and_nothing_names_a_folder(forged: Project, tmp_path: Path) -> None:
    capture = forged.path / "capture.json"
    capture.write_text(json.dumps({**json.loads(capture.read_text()), "source": str(tmp_path / "model.py")}))
    pack_project(forged, tmp_path / "tiny.anvil")
    with zipfile.ZipFile(tmp_path / "tiny.anvil") as archive:
        assert archive.namelist()[0] == "HEADER.json"
        assert not [n for n in archive.namelist() if str(tmp_path).encode() in archive.read(n)]
        assert json.loads(archive.read("capture.json"))["source"] == "model.py"
        assert not [n for n in archive.namelist() if n.startswith("examples/")]


def test_examples_travel_if_asked(tmp_path: Path, cards: tuple[OperatorCard, ...]) -> None:
    import torch

    from kernelforge.store.draft import start_draft

    with start_draft(tmp_path / "p.kforge") as draft:
        key = draft.examples.put([torch.arange(6.0)])
        draft.publish(model="m", device="cpu", cards=cards, capture_info={})
    pack_project(Project.open(tmp_path / "p.kforge"), tmp_path / "p.anvil", examples=True)
    moved = unpack_project(tmp_path / "p.anvil", tmp_path / "q.kforge")
    assert torch.equal(moved.examples.get(key)[0], torch.arange(6.0))


@pytest.mark.parametrize("packed", [True, False])
def test_merging_two_copies_loses_and_doubles_nothing(
    forged: Project, tmp_path: Path, make_trial: MakeTrial, scored: Scored, packed: bool
) -> None:
    pack_project(forged, tmp_path / "out.anvil")
    away = unpack_project(tmp_path / "out.anvil", tmp_path / "away.kforge")
    here = forged.append(make_trial(10))
    there = away.append(make_trial(11, scored))
    child = away.append(make_trial(12), parent=there.id)
    other = tmp_path / "away.kforge"
    if packed:
        other = tmp_path / "back.anvil"
        pack_project(away, other)
    merged = merge_project(forged, other)
    label = f"relu-{here.variant_id[:8]}"
    assert (merged.trials, merged.known, merged.by_variant) == (2, 4, {label: 2})
    nodes = all_nodes(forged)
    assert [n.number for n in nodes] == [1, 2, 3, 4, 5, 6, 7] and nodes[4].id == here.id
    assert [n.id for n in nodes[5:]] == [there.id, child.id] and nodes[6].parent == there.id
    again = merge_project(forged, other)
    assert (again.trials, again.known) == (0, 6) and all_nodes(forged) == nodes
    back = merge_project(away, forged.path)
    assert back.trials == 1
    assert {n.id for n in all_nodes(away)} == {n.id for n in nodes}


def test_another_capture_is_not_merged(forged: Project, tmp_path: Path, cards: tuple[OperatorCard, ...]) -> None:
    other = Project.create(tmp_path / "o.kforge", model="o", device="cpu", cards=cards[:1], capture_info={})
    with pytest.raises(UsageError, match="another capture"):
        merge_project(other, forged.path)
    assert merge_project(forged, other.path).trials == 0  # all that it has is known


def test_a_binary_that_is_missing_adds_nothing(forged: Project, tmp_path: Path) -> None:
    empty = Project.create(
        tmp_path / "e.kforge", model="tiny", device="cpu", cards=forged.cards(), capture_info={}
    )  # fmt: skip
    with pytest.raises(ProjectError, match="missing or was changed"):
        empty.add_trials(forged.stored_trials(), {})
    assert all_nodes(empty) == []


@pytest.mark.parametrize("damage", ["cut", "edited", "text", "package"])
def test_a_damaged_file_leaves_nothing_behind(forged: Project, tmp_path: Path, damage: str) -> None:
    file, target = tmp_path / "tiny.anvil", tmp_path / "new.kforge"
    pack_project(forged, file)
    data = file.read_bytes()
    if damage == "cut":
        file.write_bytes(data[: len(data) // 2])
    elif damage == "edited":
        with zipfile.ZipFile(file) as archive:
            files = {n: archive.read(n) for n in archive.namelist()}
        files["trials.jsonl"] = files["trials.jsonl"].replace(b"candidate 1", b"candidate 9")
        from kernelforge.package.archive import pack

        file.write_bytes(pack(files))
    else:
        file.write_bytes(b"hello" if damage == "text" else data.replace(b"kernelforge.project", b"kernelforge.package"))
    for attempt in (lambda: unpack_project(file, target), lambda: merge_project(forged, file)):
        with pytest.raises(ProjectError):
            attempt()
    assert not target.exists() and len(all_nodes(forged)) == 4


def test_a_newer_format_is_refused(forged: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VERSION", "WITHOUT_PROFILES"):
        monkeypatch.setattr(f"kernelforge.store.archive.{name}", 3)
    pack_project(forged, tmp_path / "tiny.anvil")
    monkeypatch.undo()
    with pytest.raises(SchemaTooNew, match="version 3"):
        unpack_project(tmp_path / "tiny.anvil", tmp_path / "new.kforge")


def test_what_stands_there_is_not_replaced(forged: Project, tmp_path: Path) -> None:
    pack_project(forged, tmp_path / "tiny.anvil")
    with pytest.raises(UsageError, match="already a project"):
        unpack_project(tmp_path / "tiny.anvil", forged.path)
    with pytest.raises(NotFound):
        unpack_project(tmp_path / "none.anvil", tmp_path / "new.kforge")
    with pytest.raises(ProjectError, match="cannot write"):
        pack_project(forged, tmp_path / "no folder" / "tiny.anvil")
