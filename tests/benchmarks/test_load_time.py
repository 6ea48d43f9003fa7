"""The benchmark of loading: its phases, and that a load takes a fraction of a second beside torch's own import."""

from __future__ import annotations

import pytest
from benchmarks.load_time import PHASES, import_times, load_times


@pytest.mark.slow
def test_a_load_takes_a_fraction_of_a_second() -> None:
    loads = load_times(1, variants=2)
    assert loads.keys() == {"cold", "warm"}
    for found in loads.values():
        assert tuple(found.wall_s) == tuple(found.cpu_s) == PHASES
    # CPU time: others may use the machine. The bar of the record is half of it, and on wall time.
    assert loads["warm"].cpu_s["load"][0] < 1.0, loads


def test_the_import_is_timed_without_torch() -> None:
    wall, cpu = import_times(2)
    assert len(wall) == len(cpu) == 2 and 0 < min(cpu) < 0.3
