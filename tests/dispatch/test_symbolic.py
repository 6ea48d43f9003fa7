"""What a guard learns of a size that varies within one graph: only what holds for all of its values."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from kernelforge.dispatch.symbolic import Known, known


@pytest.fixture
def env() -> Iterator[ShapeEnv]:
    """Its sizes are known to be in [2, 64]; the guard's questions must not add to that."""
    made = ShapeEnv()
    yield made
    assert made.guards == []


def size_of(env: ShapeEnv, *, hint: int = 4, multiple_of: int = 1) -> Any:
    """A size in [2, 64], times a number."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    count = len(env.var_to_range)
    symbol = env.create_unspecified_symbol(hint, ConstantSource(f"s{count}"), DimDynamic.DYNAMIC)
    env.var_to_range[symbol] = type(env.var_to_range[symbol])(2, 64)
    size = env.create_symintnode(symbol, hint=hint, source=ConstantSource(f"s{count}"))
    return known(size * multiple_of)


def test_a_number_is_known_as_itself() -> None:
    assert known(7) == 7
    assert type(known(7)) is int


def test_only_what_holds_for_every_size_is_so(env: ShapeEnv) -> None:
    size, other = size_of(env), size_of(env)
    assert isinstance(size, Known)
    same = size
    assert size == same
    assert [size >= 2, size >= 3, size <= 64, size <= 63] == [True, False, True, False]
    assert [size > 1, size > 2, size < 65, size < 64] == [True, False, True, False]
    assert [1 <= size, size <= 64] == [True, True]  # noqa: SIM300 - as the guard has it
    assert [size == 4, size != 4, size == other, size != other] == [False, True, False, True]
    assert 0 not in (size, other)
    assert size != "4"


def test_arithmetic_keeps_what_is_known(env: ShapeEnv) -> None:
    size, rows = size_of(env), size_of(env, multiple_of=8)
    assert [rows % 8 == 0, size % 8 == 0] == [True, False]
    assert divmod(rows, 8) == (rows // 8, 0)
    assert 8 * size == size * 8
    assert 16 <= rows <= 512
    assert (size + 1) - 1 == size
    assert 1 + size == size + 1
    assert [8 * size <= 512, 8 * size <= 511] == [True, False]


@pytest.mark.parametrize("use", [hash, operator.neg, lambda size: 100 - size, range, int])
def test_what_it_does_not_offer_fails(env: ShapeEnv, use: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError):
        use(size_of(env))


def test_it_is_shown_as_torch_shows_it(env: ShapeEnv) -> None:
    size = size_of(env)
    assert str(size) == repr(size) != ""
    assert not isinstance(size, torch.SymInt)
