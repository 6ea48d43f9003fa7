"""Statistics that grow with the nodes are those that are made of all nodes at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import pytest

from kernelforge.audit.types import AuditKind
from kernelforge.cards.types import VariantRecord
from kernelforge.evaluate.types import Outcome, Scored, WorkerFailure
from kernelforge.search.lineage import Standing, best_node, standing
from kernelforge.search.scheduler import GrowingState, state_of
from kernelforge.search.strategies import get_strategy, strategy_names
from kernelforge.search.tree import GrowingView, TreeNode, TreeView, tree_of, view_of
from kernelforge.search.types import Node
from kernelforge.verify.types import Rejected, RejectReason

MakeNode: TypeAlias = Callable[..., Node]
MakeScored: TypeAlias = Callable[..., Scored]
MakeRecord: TypeAlias = Callable[..., VariantRecord]
REJECTED = Rejected(reason=RejectReason.WRONG_VALUE, case="n0=8", detail="out[0]", worst_abs=1.0)


def grown(make_node: MakeNode, make_scored: MakeScored, draw: random.Random, count: int) -> list[Node]:
    """Nodes of a search with failures of every kind, borrowed work, and candidates that are judged again."""
    nodes: list[Node] = []
    for number in range(1, count + 1):
        kind = draw.random()
        parent = draw.choice(nodes[-6:]).id if nodes and draw.random() < 0.8 else ""
        again = draw.randrange(1, number) if number > 3 and draw.random() < 0.15 else 0
        audit = AuditKind.BACKEND if kind < 0.1 else AuditKind.GENERATED
        outcome: Outcome = make_scored(round(draw.lognormvariate(0.0, 0.4), 2), audit=audit)
        if kind > 0.85:
            outcome = WorkerFailure(detail="died") if kind > 0.93 else REJECTED
        nodes.append(replace(make_node(number, outcome, f"// {again or number}"), parent=parent))
    return nodes


def whole(nodes: Sequence[TreeNode], in_flight: Sequence[str], *, failures: bool) -> dict[str, tuple[object, ...]]:
    """By definition, of every branch: children, expansions, visits, best time and best speed-up."""
    kept = {n.id: n for n in nodes if failures or n.speedup is not None}

    def inside(node: str, root: str) -> bool:
        while node in kept and node != root:
            node = kept[node].parent
        return node == root

    stated: dict[str, tuple[object, ...]] = {}
    for node in kept.values():
        subtree = [n for n in kept.values() if inside(n.id, node.id)]
        flying = sum(inside(parent, node.id) for parent in in_flight)
        children = tuple(n.id for n in kept.values() if n.parent == node.id)
        times = [n.time_us for n in subtree if n.time_us is not None]
        speedups = [n.speedup for n in subtree if n.speedup is not None]
        stated[node.id] = (
            children, len(children) + list(in_flight).count(node.id), len(subtree) + flying,
            min(times, default=None), max(speedups, default=None),
        )  # fmt: skip
    return stated


@pytest.mark.parametrize("seed", range(6))
def test_a_tree_that_grew_is_the_tree_by_definition(
    make_node: MakeNode, make_scored: MakeScored, make_record: MakeRecord, seed: int
) -> None:
    draw = random.Random(seed)
    nodes = grown(make_node, make_scored, draw, 40)
    growing, state, known = GrowingView(), GrowingState(make_record(), since=20), Standing()
    kept: list[TreeView] = []
    for count in range(1, len(nodes) + 1):
        known.add(nodes[count - 1])
        if draw.random() < 0.3:
            continue
        seen = nodes[:count]
        in_flight = [draw.choice(["", *(n.id for n in seen)]) for _ in range(draw.randrange(4))]
        view = growing.view(seen, in_flight, seed=seed)
        assert view == view_of(seen, in_flight, seed=seed)
        for failures in (True, False):
            tree = tree_of(view, failures=failures)
            told = {i: (tuple(b.children), b.expansions, b.visits, b.best_us, b.best) for i, b in tree.branches.items()}
            assert told == whole(view.nodes, view.in_flight, failures=failures)
            starts = sum(parent not in tree.branches for parent in view.in_flight)
            assert tree.visits == len(tree.branches) + len(view.in_flight)
            assert tree.expansions == len(tree.roots) + starts
        assert state.state(seen) == state_of(make_record(), seen, since=20)
        assert known.best == best_node(seen)
        assert known.best == max(
            (n for n in standing(seen) if n.summary.speedup is not None),
            key=lambda n: ((n.summary.low or 0.0) > 1.0, n.summary.speedup, -n.number), default=None,
        )  # fmt: skip
        kept.append(view)
    for name in strategy_names():  # what was asked before is answered the same, whatever was added since
        strategy = get_strategy(name)
        assert [strategy.select(view) for view in kept] == [
            strategy.select(TreeView(nodes=v.nodes, in_flight=v.in_flight, seed=v.seed)) for v in kept
        ]
