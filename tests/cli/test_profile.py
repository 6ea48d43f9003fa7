"""`kforge profile`: sentences on stdout, all metrics in the JSON, and what it could not do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelforge.explain.profile import KernelProfile, Profile
from kernelforge.report.profiles import ProfiledRow, ProfileReport

KERNEL = KernelProfile(name="k", grid=132, block=256, duration_us=2.5, units={"dram": float("inf"), "l2": 12.5})
DONE = ProfiledRow(
    node="a" * 64, number=3, lines=("profiled: 1 kernel a call", "k: bound by latency"),
    profile=Profile(device="H200", dims={"n0": 8}, cold=True, kernels=(KERNEL,), recorded=1.0),
)  # fmt: skip
FAILED = ProfiledRow(node="b" * 64, number=4, why="ncu was not found", fix="install it")


@pytest.fixture
def asked(fake_verbs: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the verb was asked; its rows are to be put into it."""
    seen: dict[str, Any] = {}

    def profile_trials(project: Path, prefix: str, trials: object, **options: Any) -> ProfileReport:
        seen.update(project=project, prefix=prefix, trials=trials, again=options["again"])
        return ProfileReport(label="relu-0a0a", variant="0a0a", rows=seen["rows"])

    fake_verbs(profile_trials=profile_trials)
    (tmp_path / "p.kforge").mkdir()
    (tmp_path / "p.kforge" / "nodes.db").touch()
    monkeypatch.chdir(tmp_path)
    return seen


def test_the_diagnosis_is_printed(kforge: Any, asked: dict[str, Any]) -> None:
    asked["rows"] = (DONE, FAILED)
    ran = kforge("profile", "relu", "3", "4", "--again")
    assert (ran.code, asked["prefix"], asked["trials"], asked["again"]) == (0, "relu", ["3", "4"], True)
    assert ran.stdout.splitlines() == [
        "relu-0a0a", "#3  profiled: 1 kernel a call", "    k: bound by latency",
        "#4  not available: ncu was not found", "    install it",
    ]  # fmt: skip
    assert "132" not in ran.stdout, "no raw numbers"


def test_all_metrics_are_in_the_json(kforge: Any, asked: dict[str, Any]) -> None:
    asked["rows"] = (DONE,)
    (trial,) = json.loads(kforge("profile", "relu", "--json").stdout)["trials"]
    assert asked["trials"] == () and not asked["again"]
    assert trial["lines"] == [*DONE.lines] and trial["profile"]["dims"] == {"n0": 8}
    (kernel,) = trial["profile"]["kernels"]
    assert (kernel["grid"], kernel["units"], kernel["lanes"]) == (132, {"dram": None, "l2": 12.5}, None)


def test_none_at_all_is_a_status_of_its_own(kforge: Any, asked: dict[str, Any]) -> None:
    asked["rows"] = (FAILED,)
    ran = kforge("profile", "relu")
    assert ran.code == 6 and "not available: ncu was not found" in ran.stdout
