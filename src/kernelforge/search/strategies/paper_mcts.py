"""The search of the paper, exact in its equations and constants, so that it can be reproduced and beaten in one table.

Progressive widening (3) with the annealed exponent (4), minimising UCT (5) on latencies in milliseconds, the best
latency of a subtree (6), and the stagnation rule. A failed proposal is neither node, child nor visit. As in the
authors' code, the first root whose descent ends in a widening is taken; else the best of the leaves that were reached.

Where the paper leaves a choice: the cap of (3) holds after the expansion, R is the visits of the root that is descended
from, and if all children stagnate their parent gets another one.
"""

from __future__ import annotations

import math

from kernelforge.search.tree import Branch, Tree, TreeView, tree_of
from kernelforge.search.types import Selection

EXPLORATION = 1.0
"""C of equation (5), in milliseconds."""
FIRST_EXPONENT, LAST_EXPONENT, ANNEALED_VISITS = 0.5, 0.3, 1000
STAGNATION = 10
"""Visits after which a child whose subtree never beat it is skipped."""


def exponent(root_visits: int) -> float:
    """Equation (4)."""
    return FIRST_EXPONENT - (FIRST_EXPONENT - LAST_EXPONENT) * min(1.0, root_visits / ANNEALED_VISITS)


def most_children(visits: int, root_visits: int) -> int:
    """Equation (3)."""
    return math.floor(math.pow(visits, exponent(root_visits)))


def score(child: Branch, parent_visits: int) -> float:
    """Equation (5), milliseconds; the smaller the better."""
    assert child.best_us is not None
    return child.best_us / 1e3 - EXPLORATION * math.sqrt(math.log(parent_visits) / child.visits)


def stagnates(child: Branch) -> bool:
    return child.visits >= STAGNATION and child.best_us == child.node.time_us


class PaperMcts:
    """See the module's docstring."""

    name = "paper-mcts"

    def select(self, view: TreeView) -> Selection:
        """The node to revise, "" while there is no valid one."""
        tree = tree_of(view, failures=False)
        leaves = []
        for root in tree.below(None):
            end, reason = _descend(tree, root)
            if reason:
                return Selection(parent=end.node.id, reason=reason)
            leaves.append(end)
        if not leaves:
            return Selection(parent="", reason="no valid candidate yet")
        best = min(leaves, key=lambda b: (b.node.time_us, b.node.number))
        return Selection(parent=best.node.id, reason="the leaf that UCT leads to")


def _descend(tree: Tree, root: Branch) -> tuple[Branch, str]:
    """Where the descent from a root ends, and why it widens there; "" at a leaf."""
    here = root
    while here.children:
        cap = most_children(here.visits, root.visits)
        if here.expansions < cap:
            return here, f"{here.expansions} of {cap} children after {here.visits} visits"
        open_children = [c for c in tree.below(here) if not stagnates(c)]
        if not open_children:
            return here, "all children stagnate"
        visits = here.visits
        here = min(open_children, key=lambda c: (score(c, visits), c.node.number))
    return here, ""


STRATEGY = PaperMcts()
