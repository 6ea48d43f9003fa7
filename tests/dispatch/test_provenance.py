"""Observed runs: what would be frozen in a CUDA graph is found, with its line and what it came from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from kernelforge.dispatch.provenance import Observation, observe

MASK = torch.tensor([True, False, True, True])


def observed(function: Callable[..., Any], *args: torch.Tensor, **known: torch.Tensor) -> Observation:
    names = [(f"argument {i}", t) for i, t in enumerate(args)] + list(known.items())
    with torch.no_grad():
        return observe(lambda: function(*args), device="cpu", known=names)


def branch_on_a_value(x: torch.Tensor) -> torch.Tensor:
    mask = x > 0
    if mask.all():
        return x
    return x + 1


def number_of_an_argument(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()


def length_by_values(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].sum()


def nonzero(x: torch.Tensor) -> torch.Tensor:
    return torch.nonzero(x).sum()


def constant(x: torch.Tensor) -> torch.Tensor:
    return x + torch.tensor(2.0)


def dropout(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.dropout(x, 0.5, training=True)


@pytest.mark.parametrize(
    ("function", "what", "line"),
    [
        (branch_on_a_value, "reads a value of argument 0 on the host", "if mask.all():"),
        (number_of_an_argument, "reads a value of argument 0 on the host", "x.sum().item()"),
        (length_by_values, "selects by a mask of argument 0", "x[x > 0].sum()"),
        (nonzero, "size depends on values of argument 0", "torch.nonzero(x)"),
        (constant, "makes a tensor of the host's values", "torch.tensor(2.0)"),
        (dropout, "draws random numbers", "nn.functional.dropout"),
    ],
)
def test_what_a_replay_would_freeze_is_told_with_its_line(function: Callable[..., Any], what: str, line: str) -> None:
    problems = observed(function, torch.randn(4)).problems
    assert problems and what in problems[0].what
    assert line in problems[0].where and f"in {function.__name__}" in problems[0].where


def test_attention_without_dropout_draws_nothing_and_with_it_does() -> None:
    q = torch.randn(1, 2, 4, 8)
    attention = nn.functional.scaled_dot_product_attention
    assert not observed(lambda x: attention(x, x, x), q).problems
    assert "draws random numbers" in observed(lambda x: attention(x, x, x, dropout_p=0.5), q).problems[0].what


def test_a_layer_is_free_of_problems_and_writes_nothing() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    known = dict(layer.named_parameters())
    run = observed(layer, torch.randn(2, 4, 16), **known)
    assert not run.problems and not run.written


def test_tensors_that_are_written_are_listed_once_and_temporaries_are_not() -> None:
    state = torch.zeros(4)

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.mul_(2)
        state[1:].add_(y[1:])
        state.add_(1)
        return y

    run = observed(step, torch.randn(4), state=state)
    assert [t.untyped_storage()._cdata for t in run.written] == [state.untyped_storage()._cdata]


def test_a_tensor_that_nobody_named_is_a_problem() -> None:
    run = observed(lambda x: x + MASK, torch.randn(4))
    assert "cannot be reached from the model" in run.problems[0].what
    assert not observed(lambda x: x + MASK, torch.randn(4), mask=MASK).problems


def test_indices_that_are_numbers_are_no_problem() -> None:
    index = torch.tensor([0, 2])
    assert not observed(lambda x: x[index], torch.randn(4), index=index).problems


def test_the_result_is_the_run_s_own() -> None:
    x = torch.randn(4)
    torch.testing.assert_close(observed(lambda v: v.exp(), x).result, x.exp())
