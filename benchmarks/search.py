"""Which strategy finds fast candidates in few trials? All of them, at equal budgets, on landscapes that are known.

    python -m benchmarks.search --out benchmarks/results/search_ablation.json [--seed 0]
    python -m benchmarks.search --page      # the page and its figures from the record
    python -m benchmarks.search --short     # seconds; prints, writes nothing

The landscapes are of two kinds (`search_landscapes.py`): drawn ones, where a proposal behaves like that of a language
model, and tables of schedules that were measured. The strategies are those of `kernelforge.search.strategies`, asked
through the view that the real search gives them, with a candidate in flight as there. The scheduler is left out: one
variant has the whole budget and is never parked. No kernel runs.
"""

from __future__ import annotations

import argparse
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, write_record
from benchmarks.search_landscapes import FAMILIES, NOISE, SCALES, Drawn, Idea, Landscape, tables
from kernelforge.search.strategies import get_strategy, strategy_names
from kernelforge.search.strategies.autotune import Autotune
from kernelforge.search.strategies.best_first import BestFirst
from kernelforge.search.strategies.mcts import Mcts
from kernelforge.search.tree import TreeNode, TreeView
from kernelforge.search.types import Strategy

RESULTS = ROOT / "benchmarks" / "results"
RECORD = RESULTS / "search_ablation.json"
TABLES = tuple(RESULTS / f"{name}.json" for name in ("h200_landscapes", "h200_wide_landscapes", "cpu_landscapes"))
BUDGETS = (5, 10, 20, 50)
PREPARED = 2
"""Candidates that are prepared or judged at once, as the real search does by default: one is chosen before the outcome
of the one before it is known."""
NEAR = 0.01
"""Within 1% of the best schedule, in log units, is as good as it."""
UNIT = 1000
"""Samples are stored as whole thousandths."""

DRAWN_VARIANTS: Mapping[str, Strategy] = {
    **{
        f"best-first starts={starts} restart={restart} penalty=0.03": BestFirst(starts=starts, restart=restart)
        for starts, restart in product((1, 3, 4, 6), (0, 3, 4, 6))
    },
    **{f"best-first starts=4 restart=4 penalty={penalty}": BestFirst(penalty=penalty) for penalty in (0.0, 0.1)},
    **{
        f"mcts exploration={exploration} exponent={exponent}": Mcts(exploration=exploration, exponent=exponent)
        for exploration, exponent in product((0.05, 0.2, 0.5), (0.35, 0.5))
    },
}
TABLE_VARIANTS: Mapping[str, Strategy] = {
    f"autotune first={first} every={every}": Autotune(first=first, every=every)
    for first, every in product((1, 2, 4, 8), (2, 3, 0))
}
"""Other constants of the strategies, on the kind of landscape that they are meant for."""


def run(strategy: Strategy, landscape: Landscape, *, trials: int, seed: int) -> list[float | None]:
    """One search: the true log speed-up per trial, None where the candidate failed. Shorter if nothing is left."""
    return [idea.true for _, idea in grown(strategy, landscape, trials=trials, seed=seed)]


def grown(strategy: Strategy, landscape: Landscape, *, trials: int, seed: int) -> list[tuple[TreeNode, Idea]]:
    """The tree of one search, in the order of the trials."""
    proposer, eager_us = landscape.proposer(seed), landscape.eager_us(seed)
    ideas: dict[str, Idea] = {}
    nodes: list[TreeNode] = []
    queue: deque[tuple[str, Idea]] = deque()
    while len(nodes) < trials:
        while len(queue) < min(PREPARED, trials - len(nodes)):
            view = TreeView(nodes=tuple(nodes), in_flight=tuple(parent for parent, _ in queue), seed=seed)
            parent = strategy.select(view).parent
            idea = proposer.propose(ideas.get(parent))
            if idea is None:
                break
            queue.append((parent, idea))
        if not queue:
            break
        parent, idea = queue.popleft()
        number = len(nodes) + 1
        ideas[str(number)] = idea
        nodes.append(_node(number, parent, idea, eager_us))
    return [(n, ideas[n.id]) for n in nodes]


def _node(number: int, parent: str, idea: Idea, eager_us: float) -> TreeNode:
    if idea.measured is None:
        return TreeNode(id=str(number), parent=parent, number=number)
    speedup = math.exp(idea.measured)
    return TreeNode(id=str(number), parent=parent, number=number, time_us=eager_us / speedup, speedup=speedup)


def curve(found: Sequence[float | None], trials: int) -> list[float]:
    """Best log speed-up after 1, 2, ... trials. Eager's own is 0, and is kept where nothing is faster."""
    best, values = 0.0, []
    for index in range(trials):
        if index < len(found):
            best = max(best, found[index] or 0.0)
        values.append(best)
    return values


def horizon(landscape: Landscape) -> int:
    """Trials after which a landscape has nothing more to tell."""
    return min(max(BUDGETS), landscape.size or max(BUDGETS))


def samples(
    strategy: Strategy, landscape: Landscape, seeds: Iterable[int], *, curves: bool = True
) -> dict[str, list[int]]:
    """Per seed: what was found after each budget, on average over all trials, and when the best was reached.

    For a table, regrets: what the best schedule is above what was found. Budgets that exhaust it are left out.
    """
    trials = horizon(landscape)
    made: dict[str, list[int]] = {str(b): [] for b in BUDGETS if landscape.size is None or b < landscape.size}
    made["mean"] = []
    if landscape.best is not None:
        made["reached"] = []
    total = [0.0] * trials
    for seed in seeds:
        values = curve(run(strategy, landscape, trials=trials, seed=seed), trials)
        if landscape.best is not None:
            values = [landscape.best - v for v in values]
            made["reached"].append(next((i for i, v in enumerate(values, 1) if v <= NEAR), trials + 1))
        for budget in BUDGETS:
            if str(budget) in made:
                made[str(budget)].append(round(UNIT * values[budget - 1]))
        made["mean"].append(round(UNIT * sum(values) / trials))
        total = [t + v for t, v in zip(total, values, strict=True)]
    if curves:
        made["curve"] = [round(UNIT * t / len(made["mean"])) for t in total]
    return made


def compact(numbers: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """A line per list, where JSON would make a line per number."""
    return {name: " ".join(map(str, values)) for name, values in numbers.items()}


def landscapes(paths: Sequence[Path] = TABLES) -> list[Landscape]:
    """Drawn ones first."""
    drawn = [Drawn(family=family, scale=scale) for family in (*FAMILIES, None) for scale in SCALES]
    return [*drawn, *(table for path in paths if path.exists() for table in tables(path))]


def ablation(chosen: Sequence[Landscape], *, seeds: int, first: int = 0) -> dict[str, Any]:
    """All strategies on all landscapes: the part of the record that is not about the machine."""
    numbers = range(first, first + seeds)
    strategies = {name: get_strategy(name) for name in strategy_names()}
    results, variants = {}, {}
    for landscape in chosen:
        kind = landscape.name.rpartition("/")[2]
        # Under "uniform" all strategies are one.
        asked = {"best-of-n": strategies["best-of-n"]} if kind == "uniform" else strategies
        results[landscape.name] = {
            "size": landscape.size, "best": landscape.best,
            "samples": {name: compact(samples(s, landscape, numbers)) for name, s in asked.items()},
        }  # fmt: skip
        # None of these strategies knows the scale of time, so that one scale says all.
        others = {"us": DRAWN_VARIANTS, "emitter": TABLE_VARIANTS, "shuffled": TABLE_VARIANTS}.get(kind, {})
        variants[landscape.name] = {
            name: compact(samples(s, landscape, numbers[: seeds // 2], curves=False)) for name, s in others.items()
        }
        print(f"{landscape.name:60s} {seeds} seeds", flush=True)
    return {
        "benchmark": "search", "first_seed": first, "seeds": seeds, "budgets": BUDGETS, "prepared": PREPARED,
        "noise": NOISE, "unit": 1 / UNIT, "landscapes": results, "variants": {k: v for k, v in variants.items() if v},
    }  # fmt: skip


def short() -> list[Landscape]:
    """A drawn landscape at each scale, and a table."""
    drawn = [Drawn(family=FAMILIES[1], scale=scale) for scale in SCALES]
    return [*drawn, *tables(TABLES[0], orders=("emitter",))[:1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RECORD)
    parser.add_argument("--seed", type=int, default=0, help="the first of the seeds")
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument(
        "--page", action="store_true", help="no run: docs/search-ablation.md and figures from the record"
    )
    parser.add_argument("--short", action="store_true", help="few landscapes and seeds; writes only to a given --out")
    options = parser.parse_args()
    if options.page:
        from benchmarks.search_page import write_page

        write_page(options.out)
        return
    if not options.short:
        write_record(options.out, ablation(landscapes(), seeds=options.seeds, first=options.seed))
        return
    made = ablation(short(), seeds=10, first=options.seed)
    if options.out != RECORD:
        write_record(options.out, made)


if __name__ == "__main__":
    main()
