"""A short form of the properties; `make adversarial` draws more."""

from __future__ import annotations

from tests.adversarial.properties import SAMPLES, run


def test_eager_and_what_is_more_accurate_pass_and_the_next_lower_precision_does_not() -> None:
    report = run(4 * len(SAMPLES))
    assert report.rejected == []
    assert sum(report.tried.values()) >= 60
    assert report.caught >= 0.95
