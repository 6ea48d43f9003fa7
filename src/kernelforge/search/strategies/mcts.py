"""Tree search that does not care about the scale of time: UCT on log speed-ups, normalised over the tree.

What differs from `paper-mcts`: values are log(eager / time), stretched to [0, 1] over the tree (as MuZero does), so
that an operator of microseconds is searched like one of milliseconds; roots are children of one root above them, so
that a new start competes with revisions; failures are visits: a node whose revisions fail is not asked for ever.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernelforge.search.tree import Branch, TreeView, tree_of
from kernelforge.search.types import Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class Mcts:
    """See the module's docstring.

    Attributes:
        exploration: C of UCT, of values in [0, 1].
        exponent: a node has at most visits ** exponent children.
    """

    name = "mcts"
    exploration: float = 0.2
    exponent: float = 0.5

    def select(self, view: TreeView) -> Selection:
        """The node to revise, or "" for a new start."""
        tree = tree_of(view, failures=True)
        values = [math.log(n.speedup) for n in view.valid if n.speedup is not None]
        if not values:
            return Selection(parent="", reason="no valid candidate yet")
        lowest, width = min(values), max(max(values) - min(values), 1e-9)

        def worth(branch: Branch, parent_visits: int) -> float:
            assert branch.best is not None
            value = (math.log(branch.best) - lowest) / width
            return value + self.exploration * math.sqrt(math.log(parent_visits) / branch.visits)

        here: Branch | None = None
        visits, expansions = 1 + tree.visits, tree.expansions
        while True:
            cap = math.floor(visits**self.exponent)
            # A failed candidate cannot be revised; one below which nothing is valid has nothing to offer.
            open_children = [c for c in tree.below(here) if c.best is not None and c.node.speedup is not None]
            if expansions < cap or not open_children:
                parent = here.node.id if here is not None else ""
                return Selection(parent=parent, reason=f"{expansions} of {cap} children after {visits} visits")
            parent_visits = visits
            here = max(open_children, key=lambda c: (worth(c, parent_visits), -c.node.number))
            visits, expansions = here.visits, here.expansions


STRATEGY = Mcts()
