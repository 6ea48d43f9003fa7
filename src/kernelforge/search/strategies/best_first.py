"""Revise the fastest node, less a discount for every child that it already has; start anew when nothing helps.

First a few starts, because designs differ more than revisions of one do. From then on the value of a node is log
speed-up - penalty x its children, failed ones and those under way included. After `restart` trials without progress,
and again after as many more, one proposal is made from scratch. The defaults are those that docs/search-ablation.md
supports.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernelforge.search.tree import TreeView, stalled, tree_of
from kernelforge.search.types import Selection
from kernelforge.wording import three_digits

PROGRESS = 1.01


@dataclass(frozen=True, slots=True, kw_only=True)
class BestFirst:
    """See the module's docstring.

    Attributes:
        starts: proposals from scratch before anything is revised.
        penalty: in log units; at 0.03 a node with ten children must be a third faster than one without.
        restart: 0 never starts anew.
    """

    name = "best-first"
    starts: int = 4
    penalty: float = 0.03
    restart: int = 4

    def select(self, view: TreeView) -> Selection:
        """The node to revise, or "" for a new start."""
        tree = tree_of(view, failures=True)
        branches = [b for b in tree.branches.values() if b.node.speedup is not None]
        if not branches:
            return Selection(parent="", reason="no valid candidate yet")
        if tree.expansions < self.starts:
            return Selection(parent="", reason=f"design {tree.expansions + 1} of {self.starts}")
        stalls = stalled(view, progress=PROGRESS)
        if self.restart and stalls and stalls % self.restart == 0 and "" not in view.in_flight:
            return Selection(parent="", reason=f"no progress in {stalls} trials: another design")
        # Of equals the oldest.
        best = max(branches, key=lambda b: math.log(b.node.speedup or 1.0) - self.penalty * b.expansions)
        return Selection(
            parent=best.node.id, reason=f"{three_digits(best.node.speedup or 0.0)}x, children: {best.expansions}"
        )  # fmt: skip


STRATEGY = BestFirst()
