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
    assert by_final_times(nodes, rounds, device="cpu") == (nodes[1], nodes[0])


def test_on_a_gpu_their_own_times_decide_because_eager_s_launches_jump(
    make_node: MakeNode, make_scored: MakeScored
) -> None:
    quick, lucky = make_node(1, make_scored(2.0)), make_node(2, make_scored(2.5))
    base = make_scored(2.0).measurement
    times = {
        quick.id: [replace(base, candidate_us=9.0, speedup=Interval(median=2.0, low=2.0, high=2.0))],
        lucky.id: [replace(base, candidate_us=10.0, speedup=Interval(median=2.5, low=2.5, high=2.5))],
    }
    assert by_final_times([lucky, quick], times, device="cuda") == (quick, lucky)
    assert by_final_times([lucky, quick], times, device="cpu") == (lucky, quick)


def test_who_is_close_by_its_own_time_alone_comes_into_the_final(make_node: MakeNode, make_scored: MakeScored) -> None:
    best = make_node(1, make_scored(2.0))
    slow_eager = make_scored(1.5)
    slow_eager = replace(slow_eager, measurement=replace(slow_eager.measurement, candidate_us=5.1))
    assert finalists(best, [other := make_node(2, slow_eager)]) == (best, other)
