"""Shadow mode compares some hits with eager, counts what differs, and changes nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from kernelforge.dispatch.loading import LoadedPackage, load
from kernelforge.dispatch.shadow import compare
from kernelforge.dispatch.types import ShadowRow
from kernelforge.errors import UsageError
from kernelforge.settings import Settings, load_settings

MARK = 1 / 1024  # what each test kernel adds to its result
Shadowed = Callable[..., LoadedPackage]


@pytest.fixture
def shadowed(write: Callable[..., Path], settings: Settings) -> Shadowed:
    """Load kernels with KFORGE_SHADOW set."""
    return lambda share, *names: load(write(*names), settings=replace(settings, shadow=share))


def seen(package: LoadedPackage) -> ShadowRow:
    (row,) = package.stats()
    assert row.shadow is not None
    return row.shadow


def test_every_nth_hit_is_compared_and_nothing_else_changes(
    shadowed: Shadowed, x: torch.Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    package, want = shadowed("1/3", "softmax"), torch.softmax(x, 1) + MARK
    with caplog.at_level(logging.WARNING), package.dispatch():
        for _ in range(10):
            torch.testing.assert_close(torch.softmax(x, 1), want)
            F.softmax(x.double(), 1)
    (row,) = package.stats()
    assert (row.hits, row.misses) == (10, {"dtype": 10})
    assert row.shadow is not None
    assert (row.shadow.compared, row.shadow.differing) == (3, 3)
    assert row.shadow.largest == pytest.approx(MARK, rel=1e-3)
    (told,) = [r.getMessage() for r in caplog.records]
    assert row.label in told and "0.000977" in told
    assert f"{row.label}" in str(package.stats())
    assert "shadow: 3 of 3 compared calls differ, largest difference 0.000977" in str(package.stats())


def test_off_nothing_is_compared(shadowed: Shadowed, x: torch.Tensor) -> None:
    package = shadowed("", "softmax")
    with package.dispatch():
        torch.softmax(x, 1)
    (row,) = package.stats()
    assert (row.hits, row.shadow) == (1, None)
    assert "shadow" not in str(package.stats())


def test_an_operator_in_place_is_compared_on_the_inputs_that_it_got(shadowed: Shadowed, x: torch.Tensor) -> None:
    package = shadowed("1", "relu_")
    want, version = x.relu() + MARK, x._version
    with package.dispatch():
        assert F.relu(x, inplace=True) is x
        torch.testing.assert_close(x, want)
        torch.relu_(x)
    torch.testing.assert_close(x, want + MARK)
    assert (seen(package).compared, seen(package).differing) == (2, 2)
    assert seen(package).largest == pytest.approx(MARK, rel=1e-3)
    assert x._version == version + 2  # eager changed copies


def test_comparing_meets_no_wrapper(shadowed: Shadowed, x: torch.Tensor) -> None:
    """The comparison subtracts, too; kernels of these operators must neither serve it nor count it."""
    package = shadowed("1", "softmax", "add", "mul", "exp", "log")
    with package.dispatch():
        torch.softmax(x, 1)
    assert sum(row.hits for row in package.stats()) == 1
    assert all(row.misses == {} for row in package.stats())


def test_a_right_kernel_does_not_differ() -> None:
    x = torch.randn(64, 64)
    for dtype, unit in ((torch.float32, 1e-6), (torch.float16, 1e-3), (torch.bfloat16, 8e-3), (torch.float64, 1e-14)):
        value = x.to(dtype)
        assert compare(value, value) == (0.0, True)
        assert compare(value * (1 + unit), value)[1]
        assert not compare(value * 1.3, value)[1]
        assert not compare(value + 1.0, value)[1]


def test_special_values() -> None:
    nan, inf = float("nan"), float("inf")
    special = torch.tensor([nan, inf, -inf, 1.0])
    assert compare(special.clone(), special) == (0.0, True)
    assert compare(torch.tensor([0.0, inf, -inf, 1.0]), special) == (inf, False)
    assert compare(torch.tensor([nan, -inf, -inf, 1.0]), special) == (inf, False)
    assert compare(torch.tensor([nan, inf, -inf, nan]), special) == (inf, False)
    assert compare(torch.tensor([1, 2]), torch.tensor([1, 2])) == (0.0, True)
    assert compare(torch.tensor([1, 2]), torch.tensor([1, 4])) == (2.0, False)
    assert compare(torch.tensor([1, 2]), torch.tensor([1.0, 2.0])) == (inf, False)
    assert compare(torch.zeros(2), torch.zeros(3)) == (inf, False)
    assert compare(torch.zeros(0), torch.zeros(0)) == (0.0, True)
    assert compare(None, torch.zeros(2)) == (inf, False)
    zeros = torch.zeros(4)
    assert compare(zeros, zeros) == (0.0, True)
    assert not compare(zeros + 1e-30, zeros)[1]


def test_a_result_without_a_difference_is_not_told(
    shadowed: Shadowed, x: torch.Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    """The mark of the test kernels is lost in numbers this large."""
    package = shadowed("1/1", "add")
    with caplog.at_level(logging.WARNING), package.dispatch():
        torch.add(x * 1e6, x)
    assert seen(package) == ShadowRow(compared=1, differing=0, largest=seen(package).largest)
    assert caplog.records == []


@pytest.mark.parametrize("text", ["2/3", "0/4", "1/0", "yes", "-1", "1/ 3"])
def test_what_is_no_share_is_refused(shadowed: Shadowed, text: str) -> None:
    with pytest.raises(UsageError, match="KFORGE_SHADOW"):
        shadowed(text, "softmax")


def test_the_variable_is_read() -> None:
    assert load_settings({"KFORGE_SHADOW": "1/100"}).shadow == "1/100"
    assert load_settings({}).shadow == ""
