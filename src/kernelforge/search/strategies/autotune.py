"""The emitter's schedules in its own order of promise, then the neighbours of the fastest. Needs no language model.

The first FIRST proposals are starts, which the template generator answers by its best guesses; from then on starts and
revisions of the fastest alternate: a revision is the untried schedule that differs least.
"""

from __future__ import annotations

from kernelforge.search.tree import TreeView
from kernelforge.search.types import Selection

FIRST = 4


class Autotune:
    """See the module's docstring."""

    name = "autotune"

    def select(self, view: TreeView) -> Selection:
        """The fastest node or "", in turn."""
        count = len(view.nodes) + len(view.in_flight)
        fastest = max(view.valid, key=lambda n: (n.speedup or 0.0, -n.number), default=None)
        if fastest is None or count < FIRST or count % 2:
            return Selection(parent="", reason="the next guess of the emitter")
        return Selection(parent=fastest.id, reason="a neighbour of the fastest")


STRATEGY = Autotune()
