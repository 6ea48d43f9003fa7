"""What a profiler measured, in the project's file."""

from __future__ import annotations

import json
import shutil
import sqlite3
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelforge.digest import Json
from kernelforge.evaluate.types import Scored, Trial
from kernelforge.explain.profile import KernelProfile, Profile
from kernelforge.store.archive import merge_project, pack_project, unpack_project
from kernelforge.store.profiles import profile_from_json, profile_to_json
from kernelforge.store.project import Project

FULL = KernelProfile(
    name="k<ü>", grid=132, block=256, duration_us=0.1 + 0.2, registers=40, sms=132, units={"dram": 41.5, "xu": 1e-300},
    occupancy=50.25, waves=1.5, read_bytes=1e9, written_bytes=2.0, l2_bytes=3.0, l2_hit=99.5, cycles=20.5,
    stalls={"barrier": 7.25}, load_sectors=4.0, store_sectors=8.0, load_use=100.0, store_use=50.0, conflicts=0.25,
    local_bytes=0.0, instructions=123.0, lanes=31.5,
)  # fmt: skip
BARE = KernelProfile(name="bare", grid=1, block=32, duration_us=2.0)
PROFILE = Profile(device="NVIDIA H200", dims={"n0": 8}, cold=True, kernels=(FULL, BARE), recorded=1000.25)


def test_what_is_kept_is_read_again(project: Project) -> None:
    assert project.profiles() == {}
    project.keep_profile("a" * 64, PROFILE)
    project.keep_profile("b" * 64, replace(PROFILE, cold=False, dims={}))
    again = Project.open(project.path)
    assert again.profiles() == {"a" * 64: PROFILE, "b" * 64: replace(PROFILE, cold=False, dims={})}


def test_a_new_profile_replaces_the_old_one_and_the_newest_device_counts(project: Project) -> None:
    newer = replace(PROFILE, kernels=(BARE,), recorded=2000.0)
    project.keep_profile("a", PROFILE)
    project.keep_profile("a", newer)
    project.keep_profile("a", PROFILE)
    assert project.profiles() == {"a": newer}, "what is older changes nothing"
    project.keep_profile("a", replace(PROFILE, device="NVIDIA A100"))
    assert project.profiles() == {"a": newer}, "the other device's is older"
    newest = replace(PROFILE, device="NVIDIA A100", recorded=3000.0)
    project.keep_profile("a", newest)
    assert project.profiles() == {"a": newest}


def test_the_profile_of_a_node(project: Project, make_trial: Callable[..., Trial], scored: Scored) -> None:
    accepted, rejected = project.append(make_trial(1, scored)), project.append(make_trial(2))
    assert project.profile_of(accepted) is None
    project.keep_profile(scored.artifact.digest, PROFILE)
    project.keep_profile("", PROFILE)
    assert project.profile_of(accepted) == PROFILE
    assert project.profile_of(rejected) is None, "it has no binary"


@pytest.mark.parametrize("damage", ["{", "{}", "[]", '{"dims":{},"cold":1,"kernels":[]}', '{"dims":{},"cold":true}'])
def test_a_damaged_one_is_as_none(project: Project, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    project.keep_profile("a" * 64, PROFILE)
    project.keep_profile("b" * 64, PROFILE)
    with sqlite3.connect(project.path / "nodes.db") as connection:
        connection.execute("UPDATE profiles SET metrics = ? WHERE binary = ?", (damage, "a" * 64))
    connection.close()
    assert project.profiles() == {"b" * 64: PROFILE} == project.profiles()
    assert caplog.text.count("the profile of binary aaaaaaaaaaaa is damaged") == 1


def test_profiles_travel_with_a_project(project: Project, tmp_path: Path) -> None:
    """A GPU that is reached only now and then measures; the prompts are written elsewhere."""
    there = Project.open(Path(shutil.copytree(project.path, tmp_path / "there.kforge")))
    there.keep_profile("a" * 64, PROFILE)
    project.keep_profile("b" * 64, replace(PROFILE, recorded=5000.0))
    there.keep_profile("b" * 64, PROFILE)
    pack_project(there, tmp_path / "p.anvil")
    assert unpack_project(tmp_path / "p.anvil", tmp_path / "new.kforge").profiles() == there.profiles()
    merge_project(project, tmp_path / "p.anvil")
    both = {"a" * 64: PROFILE, "b" * 64: replace(PROFILE, recorded=5000.0)}
    assert project.profiles() == both
    merge_project(there, project.path)
    assert there.profiles() == both


def test_a_file_without_profiles_is_read_by_older_ones_too(project: Project, tmp_path: Path) -> None:
    def version(name: str) -> int:
        pack_project(project, tmp_path / name)
        with zipfile.ZipFile(tmp_path / name) as packed:
            return int(json.loads(packed.read("HEADER.json"))["version"])

    assert version("without.anvil") == 1
    project.keep_profile("a" * 64, PROFILE)
    assert version("with.anvil") == 2


@pytest.mark.parametrize("change", [{"recorded": "x"}, {"recorded": "nan"}, {"binary": 1}, {"metrics": {}}])
def test_a_damaged_profile_that_travels_is_refused(change: dict[str, Json]) -> None:
    assert profile_from_json(profile_to_json("a", PROFILE)) == ("a", PROFILE)
    with pytest.raises(ValueError, match="field"):
        profile_from_json({**profile_to_json("a", PROFILE), **change})


def test_profile_in_a_database_of_schema_4(project: Project) -> None:
    shutil.copy(Path(__file__).parent / "fixtures" / "nodes_schema_4.db", project.path / "nodes.db")
    kept = Project.open(project.path)
    found = kept.profile_of(kept.nodes("kept-variant")[3])
    assert found == Profile(
        device="NVIDIA Kept", dims={"n0": 8}, cold=True, recorded=1750000300.5,
        kernels=(KernelProfile(
            name="kept_kernel", grid=132, block=256, duration_us=2.5, registers=40, sms=132, units={"dram": 41.5},
            occupancy=50.25, cycles=20.5, stalls={"barrier": 7.25}, lanes=31.5,
        ),),
    )  # fmt: skip
