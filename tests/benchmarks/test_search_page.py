"""The page of the ablation and its figures come from the record, and from nowhere else."""

from __future__ import annotations

from xml.dom.minidom import parseString

from benchmarks.search import RECORD
from benchmarks.search_page import FIGURES, PAGE, Record, figures, page


def test_the_page_and_its_figures_are_what_the_record_says() -> None:
    record = Record(RECORD)
    assert PAGE.read_text() == page(record), "run: python -m benchmarks.search --page"
    for name, text in figures(record).items():
        assert (FIGURES / name).read_text() == text, "run: python -m benchmarks.search --page"
        parseString(text)


def test_the_record_is_no_burden() -> None:
    assert RECORD.stat().st_size < 2_000_000
