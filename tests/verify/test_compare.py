"""The pure judge: what passes, what does not, and in which words."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernelforge.verify.compare import Comparison, Match, Mismatch, compare, describe_places
from kernelforge.verify.tolerance import Expected, expect
from kernelforge.verify.types import RejectReason


def softmax_expected(inputs: Tensor, *, eager: Tensor | None = None) -> Expected:
    """Softmax of [rows, columns] with truth and a conditioning measured by one perturbation."""
    wide = inputs.double()
    truth = torch.softmax(wide, 1)
    moved = torch.softmax(wide * (1 + 2.0**-20), 1)
    result = torch.softmax(inputs, 1) if eager is None else eager
    return expect(result, truth, (moved - truth).abs() * 2.0**20, terms=inputs.shape[1])


def plain_expected(values: Tensor, dtype: torch.dtype = torch.float32) -> Expected:
    """An operator that only copies: truth is the values."""
    return expect(values.to(dtype), values.double(), values.double().abs(), terms=1)


def reason_of(verdict: Comparison) -> RejectReason | None:
    return verdict.reason if isinstance(verdict, Mismatch) else None


def test_eager_passes_bitwise() -> None:
    inputs = torch.randn(40, 100)
    verdict = compare(softmax_expected(inputs), torch.softmax(inputs, 1))
    assert isinstance(verdict, Match) and verdict.bitwise


def test_a_sum_in_another_order_passes() -> None:
    inputs = torch.randn(16, 1000) * 10
    shifted = (inputs - inputs.amax(1, keepdim=True)).exp()
    total = torch.zeros(16)
    for column in range(1000):
        total += shifted[:, column]
    verdict = compare(softmax_expected(inputs), shifted / total[:, None])
    assert isinstance(verdict, Match) and not verdict.bitwise


def test_a_plain_loop_over_one_large_and_many_small_terms_passes() -> None:
    """Found by a certificate that refused an honest kernel: each small term costs half a rounding error of the sum."""
    unit = 2.0**-23
    inputs = torch.full((8, 367), math.log(300.45 * unit))
    inputs[:, 0] = 0.0
    powers = (inputs - inputs.amax(1, keepdim=True)).exp()
    total = torch.zeros(8)
    for column in range(367):
        total += powers[:, column]
    assert isinstance(compare(softmax_expected(inputs), powers / total[:, None]), Match)


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_a_lower_precision_is_named(low: torch.dtype) -> None:
    inputs = torch.randn(40, 100)
    got = torch.softmax(inputs.to(low), 1).float()
    emulation = torch.softmax(inputs.to(low).double(), 1).to(low)
    verdict = compare(softmax_expected(inputs), got, emulations=[emulation])
    assert reason_of(verdict) is RejectReason.PRECISION_DOWNGRADE


def test_a_term_left_out_of_a_sum_is_no_rounding() -> None:
    """As small as a lower precision's errors, but all of one sign."""
    inputs = torch.randn(40, 256) / 4
    exponentials = inputs.exp()
    kept = exponentials * (torch.arange(256) != 255)
    emulation = torch.softmax(inputs.bfloat16().double(), 1).bfloat16()
    verdict = compare(softmax_expected(inputs), exponentials / kept.sum(1, keepdim=True), emulations=[emulation])
    assert reason_of(verdict) is RejectReason.WRONG_VALUE


def test_bf16_intermediates_are_rejected_for_a_bf16_output() -> None:
    inputs = torch.randn(200, 300).bfloat16()
    exponentials = (inputs - inputs.amax(1, keepdim=True)).exp()
    got = exponentials / exponentials.sum(1, keepdim=True)
    honest = torch.softmax(inputs.float(), 1).bfloat16()
    expected = softmax_expected(inputs)
    assert isinstance(compare(expected, honest), Match)
    assert isinstance(compare(expected, got), Mismatch)


def test_more_accurate_than_a_sloppy_eager_passes() -> None:
    inputs = torch.randn(40, 100)
    sloppy = torch.softmax(inputs, 1) * (1 + 1e-3)
    verdict = compare(softmax_expected(inputs, eager=sloppy), torch.softmax(inputs.double(), 1).float())
    assert isinstance(verdict, Match)


def test_one_wrong_element_is_found_and_named() -> None:
    inputs = torch.randn(8, 9)
    got = torch.softmax(inputs, 1)
    got[7, 8] *= 1.001
    verdict = compare(softmax_expected(inputs), got)
    assert isinstance(verdict, Mismatch) and verdict.reason is RejectReason.WRONG_VALUE
    assert "element [7, 8]" in verdict.detail and "1 of 72 elements" in verdict.detail


@pytest.mark.parametrize("name", ["zeros", "scaled", "shifted"])
def test_null_outputs_of_tiny_values_are_rejected(name: str) -> None:
    """Softmax over many columns is near zero everywhere; an absolute tolerance would let zeros pass."""
    inputs = torch.randn(2, 50_000)
    right = torch.softmax(inputs, 1)
    got = {"zeros": torch.zeros_like(right), "scaled": right * 1.09, "shifted": right.roll(1, 1)}[name]
    assert reason_of(compare(softmax_expected(inputs), got)) is RejectReason.WRONG_VALUE


def test_classes_must_agree() -> None:
    values = torch.tensor([1.0, float("nan"), float("inf"), float("-inf")])
    expected = plain_expected(values)
    assert isinstance(compare(expected, values.clone()), Match)
    for index, wrong in ((0, "nan"), (1, "0"), (2, "-inf"), (3, "nan"), (0, "inf")):
        got = values.clone()
        got[index] = float(wrong)
        verdict = compare(expected, got)
        assert isinstance(verdict, Mismatch) and f"element [{index}]" in verdict.detail


def test_an_overflow_is_allowed_where_eager_or_the_truth_overflows() -> None:
    truth = torch.tensor([7.0e4, 1.0], dtype=torch.float64)
    eager = torch.tensor([65504.0, 1.0], dtype=torch.float16)
    expected = expect(eager, truth, truth.abs(), terms=1)
    assert isinstance(compare(expected, torch.tensor([float("inf"), 1.0], dtype=torch.float16)), Match)
    assert isinstance(compare(expected, torch.tensor([float("inf"), float("inf")], dtype=torch.float16)), Mismatch)


def test_metadata_first() -> None:
    expected = plain_expected(torch.ones(4, 4))
    assert reason_of(compare(expected, torch.ones(4))) is RejectReason.WRONG_META
    assert reason_of(compare(expected, torch.ones(4, 4, dtype=torch.float16))) is RejectReason.WRONG_META


def test_integers_are_exact() -> None:
    values = torch.arange(10)
    expected = expect(values, values, None, terms=1)
    assert isinstance(compare(expected, values.clone()), Match)
    got = values.clone()
    got[3] = 4
    verdict = compare(expected, got)
    assert isinstance(verdict, Mismatch) and "[3] is 4, it must be exactly 3" in verdict.detail


def test_zero_sensitivity_demands_exact_zeros() -> None:
    truth = torch.zeros(64, dtype=torch.float64)
    expected = expect(truth.float(), truth, truth, terms=1)
    assert isinstance(compare(expected, torch.full((64,), 1e-6)), Mismatch)
    assert isinstance(compare(expected, torch.full((64,), 1e-40)), Match)


def test_empty_and_scalar_outputs() -> None:
    assert isinstance(compare(plain_expected(torch.ones(0, 3)), torch.ones(0, 3)), Match)
    assert isinstance(compare(plain_expected(torch.tensor(2.0)), torch.tensor(2.5)), Mismatch)


@pytest.mark.parametrize(
    ("indices", "words"),
    [
        ((slice(None), slice(6, 8)), "indices 6..7 of 8 along axis 1: the tail"),
        ((slice(2, 3), slice(None)), "index 2 of axis 0"),
        ((slice(None), slice(None)), "(all)"),
    ],
)
def test_places_in_words(indices: tuple[slice, slice], words: str) -> None:
    bad = torch.zeros(5, 8, dtype=torch.bool)
    bad[indices] = True
    assert words in describe_places(bad)


def test_every_kth_element_in_words() -> None:
    bad = torch.zeros(8, 8, dtype=torch.bool)
    bad.view(-1)[::7] = True
    assert "every 7th element" in describe_places(bad)
