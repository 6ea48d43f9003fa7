"""Busy seconds of a lane: those in which at least one works."""

from __future__ import annotations

from kernelforge.search.lanes import Lanes


def test_workers_of_one_lane_at_the_same_time_count_once() -> None:
    now = [0.0]
    lanes = Lanes(lambda: now[0])
    with lanes.busy("build"):
        now[0] = 1.0
        with lanes.busy("build"), lanes.busy("judge"):
            now[0] = 3.0
        now[0] = 4.0
    now[0] = 10.0
    with lanes.busy("build"):
        now[0] = 11.0
    assert lanes.busy_s() == {"propose": 0.0, "build": 5.0, "judge": 2.0}
