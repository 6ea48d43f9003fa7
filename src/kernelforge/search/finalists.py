"""Which of a variant's fastest candidates are timed again together, and which of them wins then. Pure.

The fastest of many noisy times is partly the luckiest: a search that shipped it would promise more than the kernel
keeps. So what was measured at different moments of a search only says who comes into the final.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kernelforge.benchmark.types import Measurement
from kernelforge.search.types import Node

CLOSE = 1.1
"""A candidate within this factor of the best may be the faster one."""

MOST = 4


def finalists(best: Node, runners_up: Sequence[Node]) -> tuple[Node, ...]:
    """The best node and those that are close to it, at most `MOST` in all."""
    speedup = best.summary.speedup or 0.0
    near = [n for n in runners_up if (n.summary.speedup or 0.0) * CLOSE >= speedup]
    return (best, *near[: MOST - 1])


def by_final_times(nodes: Sequence[Node], times: Mapping[str, Sequence[Measurement]]) -> tuple[Node, ...]:
    """The nodes that have times, the fastest first, by the mean of their log speed-ups; of equals as they came.

    Args:
        times: node id -> its measurements, one a round.
    """
    timed = [n for n in nodes if times.get(n.id)]
    return tuple(sorted(timed, key=lambda n: -final_speedup(times[n.id])))


def final_speedup(times: Sequence[Measurement]) -> float:
    """Geometric mean over the rounds of the median speed-up over eager."""
    return math.exp(sum(math.log(t.speedup.median) for t in times) / len(times))
