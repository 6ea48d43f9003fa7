"""Trials of other copies: whatever breaks those who read it is refused before anything is stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from kernelforge.benchmark.types import Interval
from kernelforge.digest import canonical_json, digest
from kernelforge.errors import ForgeError, ProjectError, UsageError
from kernelforge.evaluate.types import Scored, Trial
from kernelforge.package.archive import pack, unpack
from kernelforge.package.layout import CHECKSUMS, checksums
from kernelforge.search.orders import Order
from kernelforge.store.archive import HEADER, TRIALS, merge_project, pack_project, unpack_project
from kernelforge.store.project import Project
from kernelforge.store.types import StoredTrial
from kernelforge.verify.types import Rejected

MakeTrial = Callable[..., Trial]
Change = Callable[[StoredTrial], StoredTrial]


@pytest.fixture
def there(project: Project, make_trial: MakeTrial, scored: Scored) -> Project:
    """A project with an accepted trial and a rejected one that revises it."""
    first = project.append(make_trial(1, scored))
    project.append(make_trial(2), parent=first.id)
    return project


@pytest.fixture
def here(there: Project, tmp_path: Path) -> Project:
    """A copy of it without trials."""
    return Project.create(tmp_path / "here.kforge", model="tiny", device="cpu", cards=there.cards(), capture_info={})


def packed(project: Project, tmp_path: Path) -> dict[str, bytes]:
    pack_project(project, tmp_path / "good.anvil")
    return unpack((tmp_path / "good.anvil").read_bytes(), first=HEADER)


def written(files: Mapping[str, bytes], tmp_path: Path) -> Path:
    """A file with right checksums: made by somebody who knows the format."""
    files = {name: data for name, data in files.items() if name != CHECKSUMS}
    (tmp_path / "evil.anvil").write_bytes(pack({**files, CHECKSUMS: checksums(files)}))
    return tmp_path / "evil.anvil"


def lines(*trials: StoredTrial) -> bytes:
    return "".join(json.dumps(t.to_json()) + "\n" for t in trials).encode()


def refuse(file: Path, project: Project, tmp_path: Path, match: str) -> None:
    """Neither merged nor unpacked; nothing is stored and nothing left behind."""
    before, blobs = project.stored_trials(), sorted((project.path / "blobs").iterdir())
    with pytest.raises(ProjectError, match=match):
        merge_project(project, file)
    with pytest.raises(ProjectError, match=match):
        unpack_project(file, tmp_path / "unpacked.kforge")
    assert project.stored_trials() == before and sorted((project.path / "blobs").iterdir()) == blobs
    assert not (tmp_path / "unpacked.kforge").exists()


def measured(**values: object) -> Change:
    """Another measurement under the same id, which does not cover the outcome."""

    def change(trial: StoredTrial) -> StoredTrial:
        outcome = json.loads(trial.outcome)
        outcome["measurement"] |= values
        return replace(trial, outcome=json.dumps(outcome))

    return change


def sampled(**values: object) -> Change:
    def change(trial: StoredTrial) -> StoredTrial:
        outcome = json.loads(trial.outcome)
        outcome["measurement"]["points"][0] |= values
        return replace(trial, outcome=json.dumps(outcome))

    return change


def named(*path: str, value: object) -> Change:
    def change(trial: StoredTrial) -> StoredTrial:
        outcome = json.loads(trial.outcome)
        part = outcome
        for name in path[:-1]:
            part = part[name]
        part[path[-1]] = value
        return replace(trial, outcome=json.dumps(outcome))

    return change


def started(value: float) -> Change:
    """At another time, with the id that fits."""

    def change(trial: StoredTrial) -> StoredTrial:
        candidate = digest([trial.variant_id, "cpp", trial.source])
        return replace(trial, started=value, id=digest([candidate, value]))

    return change


def fields(**values: object) -> Change:
    return lambda trial: StoredTrial(**{**trial.to_json(), **values})  # type: ignore[arg-type]


NAN, INFINITE = {"float": "nan"}, {"float": "inf"}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (measured(speedup=[2, NAN, 3]), "speed-up"),
        (measured(speedup=[0, 0, 0]), "speed-up"),
        (measured(speedup=[-1, -2, 3]), "speed-up"),
        (measured(speedup=[2, 3, 4]), "speed-up"),
        (measured(speedup=[INFINITE, INFINITE, INFINITE]), "speed-up"),
        (measured(candidate_us=NAN), "time"),
        (measured(eager_us=0.0), "time"),
        (measured(candidate_us={}), "candidate_us"),
        (measured(candidate_us=10**400), "candidate_us"),
        (measured(floor_us=-1.0), "floor"),
        (sampled(candidate_us=[1.0, NAN]), "time"),
        (sampled(candidate_us=[1.0]), "pairs"),
        (sampled(calls=10**30), "calls"),
        (sampled(speedup=[1, 2, 3]), "speed-up"),
        (named("artifact", "digest", value="../../../etc/passwd"), "binary"),
        (named("artifact", "log", value="\ud800"), "log"),
        (named("verdict", "cases", value=None), "cases"),
        (fields(id=""), "id"),
        (fields(id="a" * 64), "id"),
        (fields(source="// another\n"), "id"),
        (fields(started=7.0), "id"),
        (started(-1.0), "start"),
        (fields(seconds=float("nan")), "duration"),
        (fields(seconds=-1.0), "duration"),
        (fields(seconds=10**400), "seconds"),
        (fields(number=0), "number"),
        (fields(number=True), "number"),
        (fields(variant_id="f" * 64), "no variant 'ffffffff'"),
        (fields(parent="0" * 64), "revises"),
        (fields(kind="rejected"), "called 'rejected'"),
        (fields(artifact="../blobs"), "binary"),
        (fields(artifact=""), "binary"),
        (fields(outcome="[" * 100_000), "nested too deeply"),
        (fields(candidate="{}"), "missing"),
        (fields(id=7), "'id' is not a text"),
        (fields(source=None), "'source' is not a text"),
        (fields(source="\ud800"), "'source' is no UTF-8"),
    ],
)
def test_a_trial_that_nobody_could_read(
    there: Project, here: Project, tmp_path: Path, change: Change, match: str
) -> None:
    first, second = there.stored_trials()
    files = {**packed(there, tmp_path), TRIALS: lines(change(first))}
    refuse(written(files, tmp_path), here, tmp_path, match)
    # All or nothing: what comes before it is not stored either.
    good = replace(second, parent="")
    refuse(written({**files, TRIALS: lines(good, change(first))}, tmp_path), here, tmp_path, match)


def test_a_parent_is_an_earlier_trial_of_the_same_variant(there: Project, here: Project, tmp_path: Path) -> None:
    first, second = there.stored_trials()
    files = packed(there, tmp_path)
    other = next(r.variant.id for c in there.cards() for r in c.variants if r.variant.id != first.variant_id)
    candidate = canonical_json({**json.loads(second.candidate), "variant_id": other})
    moved = replace(
        second,
        variant_id=other,
        candidate=candidate,
        id=digest([digest([other, "cpp", second.source]), second.started]),
    )
    for trials in ((second, first), (first, replace(second, parent=second.id)), (first, moved)):
        refuse(written({**files, TRIALS: lines(*trials)}, tmp_path), here, tmp_path, "revises")
    refuse(written({**files, TRIALS: lines(first, first)}, tmp_path), here, tmp_path, "twice")
    mixed = replace(moved, parent="", candidate=second.candidate)
    refuse(written({**files, TRIALS: lines(mixed)}, tmp_path), here, tmp_path, "another variant")


def test_a_real_trial_cannot_be_shadowed(there: Project, here: Project, tmp_path: Path) -> None:
    first, second = there.stored_trials()
    files = packed(there, tmp_path)
    refuse(written({**files, TRIALS: lines(replace(second, id=first.id, parent=""))}, tmp_path), here, tmp_path, "id")
    # The same candidate and start with another outcome has the same id: noticed when both are there.
    outcome = '{"detail":"","kind":"worker_failure"}'
    fake = replace(first, kind="worker_failure", outcome=outcome, artifact="")
    merge_project(here, written({**files, TRIALS: lines(fake)}, tmp_path))
    before = here.stored_trials()
    for other in (there.path, tmp_path / "good.anvil"):
        with pytest.raises(ProjectError, match="stored with other contents, as node 1"):
            merge_project(here, other)
    assert here.stored_trials() == before


def test_a_folder_is_checked_like_a_file(there: Project, here: Project) -> None:
    first, second = there.stored_trials()
    with pytest.raises(ProjectError, match=f"trial '{second.id[:12]}' is refused: it revises"):
        here.add_trials([second, first], {first.artifact: b""})
    assert here.stored_trials() == ()


@pytest.mark.parametrize(
    "speedup", [(float("nan"), 1.0, 2.0), (0.0, 0.0, 0.0), (2.0, 3.0, 4.0), (1.0, 0.5, float("inf"))]
)
def test_own_nonsense_is_not_stored_either(
    project: Project, make_trial: MakeTrial, scored: Scored, speedup: tuple[float, float, float]
) -> None:
    median, low, high = speedup
    interval = Interval(median=median, low=low, high=high)
    wrong = replace(scored, measurement=replace(scored.measurement, speedup=interval))
    trial = make_trial(1, wrong)
    project.change_orders(lambda _: [Order(id="order", variant_id=trial.candidate.variant_id, state="judging")])
    with pytest.raises(ProjectError, match="speed-up"):
        project.append(trial)
    with pytest.raises(ProjectError, match="speed-up"):
        project.finish("order", trial)
    assert project.stored_trials() == () and project.orders()[0].state == "judging"


def test_own_texts_are_read_again_or_not_stored(project: Project, make_trial: MakeTrial) -> None:
    trial = make_trial(1)
    assert isinstance(trial.outcome, Rejected)
    with pytest.raises(ProjectError, match="'detail' is no UTF-8"):
        project.append(replace(trial, outcome=replace(trial.outcome, detail="\ud800")))
    with pytest.raises(UsageError, match="'notes' is not a text"):
        project.append(replace(trial, candidate=replace(trial.candidate, notes=None)))  # type: ignore[arg-type]
    with pytest.raises(ProjectError, match="start"):
        project.append(replace(trial, started=float("nan")))
    assert project.stored_trials() == ()


def test_a_whole_number_as_start_travels(project: Project, make_trial: MakeTrial, tmp_path: Path) -> None:
    """The database keeps floats: the id must be made of one."""
    project.append(replace(make_trial(1), started=5))
    assert pack_project(project, tmp_path / "p.anvil") == 1


@pytest.mark.parametrize("ending", ["\u2028", "\u2029", "\x85", "\r", "\x0b", "\x1c"])
def test_ends_of_lines_that_json_does_not_know(
    project: Project, make_trial: MakeTrial, tmp_path: Path, ending: str
) -> None:
    trial = make_trial(1)
    project.append(replace(trial, candidate=replace(trial.candidate, source=f"// naive{ending}loop\n", notes=ending)))
    pack_project(project, tmp_path / "p.anvil")
    assert unpack_project(tmp_path / "p.anvil", tmp_path / "q.kforge").stored_trials() == project.stored_trials()
    assert merge_project(project, tmp_path / "p.anvil").known == 1


def test_what_could_not_be_read_again_is_not_packed(
    there: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = there.stored_trials()
    monkeypatch.setattr(there, "stored_trials", lambda: (measured(speedup=[0, 0, 0])(first),))
    with pytest.raises(ProjectError, match=f"{first.id[:12]}.*speed-up"):
        pack_project(there, tmp_path / "p.anvil")
    assert not (tmp_path / "p.anvil").exists()


def header(**values: object) -> Callable[[dict[str, bytes]], dict[str, bytes]]:
    def change(files: dict[str, bytes]) -> dict[str, bytes]:
        content = {k: v for k, v in {**json.loads(files[HEADER]), **values}.items() if v != "gone"}
        return {**files, HEADER: json.dumps(content).encode()}

    return change


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (header(model="gone"), "names no model"),
        (header(device=["cpu"]), "no device"),
        (header(created="gone"), "created"),
        (header(created=10**400), "created"),
        (header(version=True), "version"),
        (lambda files: {**files, HEADER: b"[" * 100_000}, "HEADER"),
        (lambda files: {**files, TRIALS: b"[" * 100_000}, "nested too deeply"),
        (lambda files: {**files, TRIALS: b"[]\n"}, "does not have the fields"),
        (lambda files: {**files, "cards/add.json": b"[" * 100_000}, "card"),
        (lambda files: {**files, "cards/add.json": b'{"schema": 1, "card": []}'}, "card"),
        (lambda files: {**files, "cards/add.json": files["cards/relu.json"]}, "not of the operator"),
        (lambda files: {**files, "cards/sub/relu.json": b"{}"}, "does not belong"),
        (lambda files: {**files, "examples/a": b"1", "examples/a/b": b"2"}, "folder that is a file"),
        (lambda files: {**files, "blobs/x": b"1"}, "does not belong"),
    ],
)
def test_a_damaged_part(
    there: Project, here: Project, tmp_path: Path,
    change: Callable[[dict[str, bytes]], dict[str, bytes]], match: str,
) -> None:  # fmt: skip
    refuse(written(change(packed(there, tmp_path)), tmp_path), here, tmp_path, match)


def test_a_card_names_no_file_elsewhere(there: Project, here: Project, tmp_path: Path) -> None:
    files = packed(there, tmp_path)
    card = json.loads(files["cards/relu.json"])
    card["card"]["operator"] = "../../elsewhere"
    refuse(
        written({**files, "cards/relu.json": json.dumps(card).encode()}, tmp_path), here, tmp_path,
        "not of the operator",
    )  # fmt: skip
    assert not list(tmp_path.rglob("elsewhere*"))


def test_a_name_that_the_disk_refuses(there: Project, tmp_path: Path) -> None:
    file = written({**packed(there, tmp_path), f"examples/{'a' * 300}": b"1"}, tmp_path)
    with pytest.raises(ForgeError, match="cannot write"):
        unpack_project(file, tmp_path / "unpacked.kforge")
    assert not (tmp_path / "unpacked.kforge").exists()


@pytest.mark.parametrize("info", [b'{"source": "\\ud800"}', b'{"coverage": NaN}', b'{"coverage": 1e999}'])
def test_what_a_capture_says_must_be_storable(there: Project, tmp_path: Path, info: bytes) -> None:
    with pytest.raises(ProjectError, match="cannot be stored"):
        unpack_project(written({**packed(there, tmp_path), "capture.json": info}, tmp_path), tmp_path / "new.kforge")
    (there.path / "capture.json").write_bytes(info)
    with pytest.raises(ProjectError, match=r"capture\.json cannot be packed"):
        pack_project(there, tmp_path / "p.anvil")
    assert not (tmp_path / "new.kforge").exists() and not (tmp_path / "p.anvil").exists()


def test_a_table_of_zeros_is_packed(project: Project, make_trial: MakeTrial, tmp_path: Path) -> None:
    trial = make_trial(1)
    source = "static const float table[] = {" + "0.0f, " * 400_000 + "};"
    project.append(replace(trial, candidate=replace(trial.candidate, source=source)))
    pack_project(project, tmp_path / "p.anvil")
    assert unpack_project(tmp_path / "p.anvil", tmp_path / "q.kforge").stored_trials()[0].source == source
