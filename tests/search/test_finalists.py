"""Who comes into the final, and who wins it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kernelforge.benchmark.types import Interval, Measurement
from kernelforge.evaluate.types import Scored
from kernelforge.search.finalists import MOST, by_final_times, final_speedup, finalists
from kernelforge.search.types import Node

MakeNode = Callable[..., Node]
MakeScored = Callable[..., Scored]


def test_only_those_close_to_the_best_are_timed_again(make_node: MakeNode, make_scored: MakeScored) -> None:
    best, close, far = (make_node(i, make_scored(s)) for i, s in enumerate((2.0, 1.85, 1.7)))
    assert finalists(best, [close, far]) == (best, close)
    assert finalists(best, []) == (best,)
    assert len(finalists(best, [make_node(9 + i, make_scored(1.99)) for i in range(9)])) == MOST


def test_the_rounds_are_averaged_as_logarithms(make_node: MakeNode, make_scored: MakeScored) -> None:
    nodes = [make_node(i, make_scored(2.0)) for i in range(3)]
    base = make_scored(2.0).measurement

    def times(*speedups: float) -> list[Measurement]:
        return [replace(base, speedup=Interval(median=s, low=s, high=s)) for s in speedups]

    rounds = {nodes[0].id: times(1.0, 4.0), nodes[1].id: times(2.5, 2.5), nodes[2].id: []}
    assert final_speedup(rounds[nodes[0].id]) == pytest.approx(2.0)  # not 2.5
    assert by_final_times(nodes, rounds) == (nodes[1], nodes[0])
