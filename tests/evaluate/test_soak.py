"""The short form of `python -m benchmarks.soak`: most of its kinds, the hostile ones among honest neighbours."""

from __future__ import annotations

from pathlib import Path

import psutil
from benchmarks.soak import HONEST, HOSTILE, WALL_S, WRONG, plan, soak, summary


def test_hostile_candidates_change_no_verdict_and_leave_nothing_behind(tmp_path: Path) -> None:
    names = plan(2 * len(HOSTILE), 0.5, seed=3)
    assert {*HOSTILE} <= {*names} and {*names} & {*HONEST} and {*names} & {*WRONG}
    names.remove("a gigabyte of output")  # takes as long as all the others
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    rows = list(soak(names, tmp_path))
    result = summary(rows)
    assert [r for r in rows if not r.right] == []
    assert result["candidates"] == len(names)
    assert result["slowest_hang_s"] < WALL_S + 5
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
