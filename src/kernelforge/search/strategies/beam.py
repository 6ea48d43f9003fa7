"""Keep the WIDTH fastest nodes and revise them in turn; first of all make as many from scratch."""

from __future__ import annotations

from heapq import nlargest

from kernelforge.search.tree import TreeView, tree_of
from kernelforge.search.types import Selection

WIDTH = 4


class Beam:
    """See the module's docstring."""

    name = "beam"

    def select(self, view: TreeView) -> Selection:
        """The node of the beam with the fewest children, or "" until there are WIDTH starts."""
        tree = tree_of(view, failures=True)
        fastest = nlargest(WIDTH, view.valid, key=lambda n: n.speedup or 0.0)  # the older of equals
        if tree.expansions < WIDTH or not fastest:
            return Selection(parent="", reason=f"start {tree.expansions + 1} of {WIDTH}")
        chosen = min(fastest, key=lambda n: (tree.branches[n.id].expansions, n.number))
        return Selection(parent=chosen.id, reason=f"of the {len(fastest)} fastest the one with the fewest children")


STRATEGY = Beam()
