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
"""A candidate within this factor of the best, by its speed-up or by its own time, may be the faster one."""

MOST = 4


def finalists(best: Node, runners_up: Sequence[Node]) -> tuple[Node, ...]:
    """The best node and those that are close to it, the closest first, at most `MOST` in all."""
    near = sorted((n for n in runners_up if _behind(n, best) <= CLOSE), key=lambda n: _behind(n, best))
    return (best, *near[: MOST - 1])


def _behind(node: Node, best: Node) -> float:
    """How much slower than the best, by whichever of the two is kinder."""
    ratios = [
        a / b
        for a, b in (
            (best.summary.speedup, node.summary.speedup), (node.summary.candidate_us, best.summary.candidate_us),
        )
        if a and b
    ]  # fmt: skip
    return min(ratios, default=math.inf)


def by_final_times(
    nodes: Sequence[Node], times: Mapping[str, Sequence[Measurement]], *, device: str
) -> tuple[Node, ...]:
    """The nodes that have times, the fastest first; of equals as they came.

    On the CPU by their speed-ups over eager, timed beside each: clock and neighbours change from moment to moment. On
    CUDA by their own times, which are steadier than those of eager's launches, by which they would be divided.

    Args:
        times: node id -> its measurements, one a round.
    """
    timed = [n for n in nodes if times.get(n.id)]
    if device == "cuda":
        return tuple(sorted(timed, key=lambda n: _mean([t.candidate_us for t in times[n.id]])))
    return tuple(sorted(timed, key=lambda n: -final_speedup(times[n.id])))


def final_speedup(times: Sequence[Measurement]) -> float:
    """Geometric mean over the rounds of the median speed-up over eager."""
    return _mean([t.speedup.median for t in times])


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
