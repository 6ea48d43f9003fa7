"""The emitter's schedules in its own order of promise, then the neighbours of the fastest. Needs no language model.

The first `first` proposals are starts, which the template generator answers by its best guesses; from then on every
`every`-th is one, the others revise the fastest: a revision is the untried schedule that differs least.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelforge.search.tree import TreeView
from kernelforge.search.types import Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class Autotune:
    """See the module's docstring.

    Attributes:
        every: 0 never starts anew.
    """

    name = "autotune"
    first: int = 4
    every: int = 2

    def select(self, view: TreeView) -> Selection:
        """The fastest node or "", in turn."""
        count = len(view.nodes) + len(view.in_flight)
        fastest = max(view.valid, key=lambda n: (n.speedup or 0.0, -n.number), default=None)
        again = self.every and (count - self.first) % self.every == self.every - 1
        if fastest is None or count < self.first or again:
            return Selection(parent="", reason="the next guess of the emitter")
        return Selection(parent=fastest.id, reason="a neighbour of the fastest")


STRATEGY = Autotune()
