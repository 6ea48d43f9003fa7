"""The revision tree of one variant as strategies see it: times and parents, no sources. Owns `TreeView`, `Tree`.

Nothing of it is stored: visits, children and the best time of a subtree follow from the trials, in the order in which
they were made, and from the expansions that are under way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kernelforge.search.lineage import standing
from kernelforge.search.types import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNode:
    """One tried candidate.

    Attributes:
        id: of its node. parent: node id of the revised one, "" for a start from scratch. number: as `Node.number`.
        time_us: microseconds per call, weighted over the variant's sizes; None for a failed candidate.
        speedup: median over eager; None for a failed candidate.
        repairs: id of the node of the attempt before, of the same proposal, or "". It takes that one's place: one
            proposal is one visit, however many attempts it took.
    """

    id: str
    parent: str
    number: int
    repairs: str = ""
    time_us: float | None = None
    speedup: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeView:
    """All that a strategy may look at.

    Attributes:
        nodes: oldest first; a parent comes before its children.
        in_flight: per expansion that is under way the node that it revises, or "".
        seed: for strategies that draw.
        grown: what `tree_of` has made of the nodes, shared with views of more of them. Only a cache.
    """

    nodes: tuple[TreeNode, ...] = ()
    in_flight: tuple[str, ...] = ()
    seed: int = 0
    grown: dict[bool, GrowingTree] = field(default_factory=dict, repr=False, compare=False)

    @property
    def valid(self) -> tuple[TreeNode, ...]:
        return tuple(n for n in self.nodes if n.speedup is not None)


def view_of(nodes: Sequence[Node], in_flight: Sequence[str] = (), *, seed: int = 0) -> TreeView:
    """The view of a variant's stored nodes: one tree node per candidate, by the judgement of it that stands.

    Args:
        in_flight: per expansion under way the id of the node that it revises, or "".
    """
    return GrowingView().view(nodes, in_flight, seed=seed)


class GrowingView:
    """Makes views of one list of nodes that only grows; what was seen before is not looked at again."""

    def __init__(self) -> None:
        self._seen = 0
        self._made: list[TreeNode] = []
        self._standing: dict[str, str] = {}
        self._candidate_of: dict[str, str] = {}
        self._grown: dict[bool, GrowingTree] = {}

    def view(self, nodes: Sequence[Node], in_flight: Sequence[str] = (), *, seed: int = 0) -> TreeView:
        """As `view_of`."""
        for node in nodes[self._seen :]:
            self._candidate_of[node.id] = node.candidate_id
            if node.kind == "worker_failure":
                continue
            if node.candidate_id in self._standing:
                self._make_all(nodes)  # a candidate that was judged again: its children's parent is another node now
                break
            self._add(node)
        self._seen = len(nodes)
        flying = tuple(self._id(node) for node in in_flight)
        return TreeView(nodes=tuple(self._made), in_flight=flying, seed=seed, grown=self._grown)

    def _add(self, node: Node) -> None:
        self._standing[node.candidate_id] = node.id
        self._made.append(self._tree_node(node))

    def _make_all(self, nodes: Sequence[Node]) -> None:
        chosen = standing(nodes)
        self._standing = {n.candidate_id: n.id for n in chosen}
        self._candidate_of = {n.id: n.candidate_id for n in nodes}
        self._made = list(_parents_first([self._tree_node(n) for n in chosen]))
        self._grown = {}  # views that are about still have the old one

    def _tree_node(self, node: Node) -> TreeNode:
        speedup, parent = node.summary.speedup, self._id(node.parent)
        return TreeNode(
            id=node.id, parent=parent if parent != node.id else "", number=node.number, speedup=speedup,
            time_us=node.summary.candidate_us if speedup is not None else None,
            repairs=self._standing.get(node.summary.repairs, ""),
        )  # fmt: skip

    def _id(self, node: str) -> str:
        """The node that stands for the candidate of a node."""
        return self._standing.get(self._candidate_of.get(node, ""), "")


def _parents_first(nodes: Sequence[TreeNode]) -> tuple[TreeNode, ...]:
    """By number, but no child before its parent: a parent that was judged again has a number above its children's.

    A candidate that was delivered again as a revision of its own revision is a start.
    """
    by_id, placed, order = {n.id: n for n in nodes}, set[str](), list[TreeNode]()
    for node in nodes:
        chain: list[TreeNode] = []
        above: TreeNode | None = node
        while above is not None and above.id not in placed:
            if above in chain:
                chain[-1] = replace(chain[-1], parent="")
                break
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
        children: ids of those that are in the tree. expansions: they, and those under way.
        visits: of the node and of all below, those under way included (Liu et al., WU-UCT, arXiv 1810.11755).
        best_us: equation (6) of the paper: the least time in the subtree; None if nothing in it is valid.
        best: the same as the largest speed-up.
    """

    node: TreeNode
    children: Sequence[str] = ()
    expansions: int = 0
    visits: int = 1
    best_us: float | None = None
    best: float | None = None


@dataclass(frozen=True, slots=True)
class Tree:
    """Branches by node id; `roots` are ids, oldest first; `visits` and `expansions` are those of all roots together."""

    branches: Mapping[str, Branch]
    roots: Sequence[str]
    visits: int
    expansions: int

    def below(self, branch: Branch | None) -> list[Branch]:
        """The children of a branch, oldest first; without one the roots."""
        return [self.branches[node] for node in (self.roots if branch is None else branch.children)]


def tree_of(view: TreeView, *, failures: bool) -> Tree:
    """Statistics of a view. Valid until a view of more nodes is asked for its own.

    Args:
        failures: whether failed candidates are visits and children; else they are nothing at all.
    """
    grown = view.grown.setdefault(failures, GrowingTree(failures=failures))
    if grown.seen > len(view.nodes):
        grown = GrowingTree(failures=failures)
    grown.extend(view.nodes)
    return grown.tree(view.in_flight)


class GrowingTree:
    """The statistics of nodes that only grow: a new one changes those above it, and no others are looked at.

    Attributes:
        seen: how many nodes were taken in.
    """

    def __init__(self, *, failures: bool) -> None:
        """See `tree_of`."""
        self.seen = 0
        self._failures = failures
        self._branches: dict[str, Branch] = {}
        self._roots: list[str] = []

    def extend(self, nodes: Sequence[TreeNode]) -> None:
        """Take in what of all nodes is new."""
        for node in nodes[self.seen :]:
            if self._failures or node.speedup is not None:
                self._add(node)
        self.seen = len(nodes)

    def _add(self, node: TreeNode) -> None:
        self._branches[node.id] = Branch(node, (), 0, 1, node.time_us, node.speedup)
        visits = 0 if self._replace_attempt(node) else 1
        above = self._branches.get(node.parent)
        if above is None:
            self._roots.append(node.id)
            return
        above.children = (*above.children, node.id)
        above.expansions += visits
        while above is not None:
            above.visits += visits
            if node.time_us is not None and (above.best_us is None or node.time_us < above.best_us):
                above.best_us = node.time_us
            if node.speedup is not None and (above.best is None or node.speedup > above.best):
                above.best = node.speedup
            above = self._branches.get(above.node.parent)

    def _replace_attempt(self, node: TreeNode) -> bool:
        """Take the failed attempt before out of the tree; its visits stay where they are, for its repair."""
        before = self._branches.get(node.repairs)
        if before is None or before.children or before.node.speedup is not None or before.node.parent != node.parent:
            return False
        del self._branches[node.repairs]
        above = self._branches.get(node.parent)
        if above is None:
            self._roots.remove(node.repairs)
        else:
            above.children = tuple(child for child in above.children if child != node.repairs)
        return True

    def tree(self, in_flight: Sequence[str]) -> Tree:
        """The statistics with expansions under way, per expansion the id of the node that it revises, or ""."""
        branches = dict(self._branches)
        starts = 0
        for parent in in_flight:
            if parent not in branches:
                starts += 1
                continue
            branches[parent] = replace(branches[parent], expansions=branches[parent].expansions + 1)
            above: Branch | None = branches[parent]
            while above is not None:
                branches[above.node.id] = replace(above, visits=above.visits + 1)
                above = branches.get(above.node.parent)
        return Tree(
            branches=branches, roots=tuple(self._roots), visits=sum(branches[r].visits for r in self._roots) + starts,
            expansions=len(self._roots) + starts,
        )  # fmt: skip


def stalled(view: TreeView, *, progress: float) -> int:
    """Proposals since the last one that beat the best before it by the factor `progress`."""
    best, count = 0.0, 0
    for node in sorted(view.nodes, key=lambda n: n.number):
        if node.speedup is not None and node.speedup > progress * best:
            best, count = node.speedup, 0
        elif not node.repairs:
            count += 1
    return count
