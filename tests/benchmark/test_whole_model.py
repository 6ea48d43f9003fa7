"""A paired A/B of a whole model: what is in a time, and what is not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from kernelforge.benchmark.whole_model import compare_runs

SWITCH_S = 0.02


def test_each_fast_run_is_inside_and_the_switch_is_in_no_time() -> None:
    inside, seen = [False], []

    @contextmanager
    def switched() -> Iterator[None]:
        time.sleep(SWITCH_S)
        inside[0] = True
        yield
        inside[0] = False
        time.sleep(SWITCH_S)

    def run() -> None:
        seen.append(inside[0])

    runs = compare_runs(run, run, synchronize=lambda: None, around_fast=switched, budget_s=0.0, min_pairs=6)
    # Two warm-up runs of each, then ABBA.
    assert seen[4:12] == [False, True, True, False, False, True, True, False]
    assert sum(seen) == len(seen) / 2
    assert sorted(runs.fast_ms)[3] < 1e3 * SWITCH_S / 2
