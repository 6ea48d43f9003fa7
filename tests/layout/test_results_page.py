"""Figures in the documentation come from records, and from nowhere else."""

from __future__ import annotations

from benchmarks.tables import PAGE, page


def test_the_results_page_is_what_the_records_say() -> None:
    assert PAGE.read_text() == page(), "run: python -m benchmarks.tables"
