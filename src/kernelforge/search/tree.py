"""The revision tree of one variant as strategies see it: times and parents, no sources. Owns `TreeView`, `Tree`.

Nothing of it is stored: visits, children and the best time of a subtree follow from the trials, in the order in which
they were made, and from the expansions that are under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelforge.evaluate.types import Scored
from kernelforge.search.lineage import parent_node, speedup_of, standing
from kernelforge.search.types import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNode:
    """One tried candidate.

    Attributes:
        id: of its node. parent: node id of the revised one, "" for a start from scratch. number: as `Node.number`.
        time_us: microseconds per call, weighted over the variant's sizes; None for a failed candidate.
        speedup: median over eager; None for a failed candidate.
    """

    id: str
    parent: str
    number: int
    time_us: float | None = None
    speedup: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeView:
    """All that a strategy may look at.

    Attributes:
        nodes: oldest first; a parent comes before its children.
        in_flight: per expansion that is under way the node that it revises, or "".
        seed: for strategies that draw.
    """

    nodes: tuple[TreeNode, ...] = ()
    in_flight: tuple[str, ...] = ()
    seed: int = 0

    @property
    def valid(self) -> tuple[TreeNode, ...]:
        return tuple(n for n in self.nodes if n.speedup is not None)


def view_of(nodes: Sequence[Node], in_flight: Sequence[str] = (), *, seed: int = 0) -> TreeView:
    """The view of a variant's stored nodes: one tree node per candidate, by the judgement of it that stands.

    Args:
        in_flight: per expansion under way the id of the revised *candidate*, or "".
    """
    chosen = standing(nodes)
    standing_id = {n.candidate.id: n.id for n in chosen}
    candidate_of = {n.id: n.candidate.id for n in nodes}
    made = []
    for node in chosen:
        parent = standing_id.get(candidate_of.get(node.parent, ""), "")
        speedup = speedup_of(node)
        time_us = node.outcome.measurement.candidate_us if isinstance(node.outcome, Scored) else None
        made.append(
            TreeNode(
                id=node.id, parent=parent, number=node.number, speedup=speedup,
                time_us=time_us if speedup is not None else None,
            )
        )  # fmt: skip
    return TreeView(nodes=_parents_first(made), in_flight=tuple(parent_node(c, chosen) for c in in_flight), seed=seed)


def _parents_first(nodes: Sequence[TreeNode]) -> tuple[TreeNode, ...]:
    """By number, but no child before its parent: a parent that was judged again has a number above its children's."""
    by_id, placed, order = {n.id: n for n in nodes}, set[str](), list[TreeNode]()
    for node in nodes:
        chain = []
        above: TreeNode | None = node
        while above is not None and above.id not in placed and above not in chain:
            chain.append(above)
            above = by_id.get(above.parent)
        for each in reversed(chain):
            placed.add(each.id)
            order.append(each)
    return tuple(order)


@dataclass(slots=True)
class Branch:
    """A node with what its subtree says.

    Attributes:
        children: those that are in the tree. expansions: they, and those under way.
        visits: of the node and of all below, those under way included (Liu et al., WU-UCT, arXiv 1810.11755).
        best_us: equation (6) of the paper: the least time in the subtree; None if nothing in it is valid.
        best: the same as the largest speed-up.
    """

    node: TreeNode
    children: Sequence[Branch] = ()
    expansions: int = 0
    visits: int = 1
    best_us: float | None = None
    best: float | None = None


@dataclass(frozen=True, slots=True)
class Tree:
    """Branches by node id, roots oldest first; `visits` and `expansions` are those of all roots together."""

    branches: dict[str, Branch]
    roots: list[Branch]
    visits: int
    expansions: int


def tree_of(view: TreeView, *, failures: bool) -> Tree:
    """Statistics of a view, by one pass from the leaves up.

    Args:
        failures: whether failed candidates are visits and children; else they are nothing at all.
    """
    nodes = view.nodes if failures else view.valid
    branches = {n.id: Branch(n, (), 0, 1, n.time_us, n.speedup) for n in nodes}
    roots: list[Branch] = []
    for branch in branches.values():
        above = branches.get(branch.node.parent)
        if above is None:
            roots.append(branch)
        elif isinstance(above.children, list):
            above.children.append(branch)
        else:
            above.children = [branch]
    under_way = 0
    for parent in view.in_flight:
        if parent in branches:
            branches[parent].expansions += 1
            branches[parent].visits += 1
        else:
            under_way += 1
    for branch in reversed(branches.values()):
        if not branch.children:
            continue
        branch.expansions += len(branch.children)
        branch.visits += sum(c.visits for c in branch.children)
        branch.best_us = min((c.best_us for c in (branch, *branch.children) if c.best_us is not None), default=None)
        branch.best = max((c.best for c in (branch, *branch.children) if c.best is not None), default=None)
    return Tree(
        branches=branches, roots=roots, visits=sum(r.visits for r in roots) + under_way,
        expansions=len(roots) + under_way,
    )  # fmt: skip


def stalled(view: TreeView, *, progress: float) -> int:
    """Trials since the last one that beat the best before it by the factor `progress`."""
    best, count = 0.0, 0
    for node in sorted(view.nodes, key=lambda n: n.number):
        if node.speedup is not None and node.speedup > progress * best:
            best, count = node.speedup, 0
        else:
            count += 1
    return count
