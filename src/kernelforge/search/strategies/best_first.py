"""Revise the fastest node, less a discount for every child that it already has; start anew when nothing helps.

The value of a node is log speed-up - PENALTY x its children, failed ones and those under way included. After RESTART
trials without progress, and again after as many more, one proposal is made from scratch.
"""

from __future__ import annotations

import math

from kernelforge.search.tree import TreeView, stalled, tree_of
from kernelforge.search.types import Selection

PENALTY = 0.03
"""In log units: a node with ten children must be a third faster than one without."""
RESTART = 6
PROGRESS = 1.01


class BestFirst:
    """See the module's docstring."""

    name = "best-first"

    def select(self, view: TreeView) -> Selection:
        """The node to revise, or "" for a new start."""
        branches = [b for b in tree_of(view, failures=True).branches.values() if b.node.speedup is not None]
        if not branches:
            return Selection(parent="", reason="no valid candidate yet")
        stalls = stalled(view, progress=PROGRESS)
        if stalls and stalls % RESTART == 0 and "" not in view.in_flight:
            return Selection(parent="", reason=f"no progress in {stalls} trials: another design")
        best = max(branches, key=lambda b: math.log(b.node.speedup or 1.0) - PENALTY * b.expansions)  # or the oldest
        return Selection(
            parent=best.node.id, reason=f"{best.node.speedup:.2f}x, children: {best.expansions}"
        )  # fmt: skip


STRATEGY = BestFirst()
