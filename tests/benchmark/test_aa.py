"""The short form of `python -m benchmarks.aa`: eager against eager, through the judge's protocol and the export's."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from benchmarks.aa import exported, judged, variants

from kernelforge.search.lineage import MIN_SPEEDUP_LOW


def test_eager_is_compared_with_itself_and_not_declared_faster(tmp_path: Path) -> None:
    records = variants("cpu")
    rows = [*islice(judged(records, "cpu", tmp_path), 2)]
    # Timed, or the machine was busy; two processes of a busy machine may differ, so no more is asked of them here.
    assert all("speedup" in row or "busy" in row for row in rows), rows
    for row in islice(exported(records, tmp_path), len(records)):
        low, median, high = row["speedup"]
        assert 0 < low <= median <= high
        assert low <= MIN_SPEEDUP_LOW, row
