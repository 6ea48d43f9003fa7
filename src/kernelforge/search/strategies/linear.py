"""Refine the newest valid candidate, whatever it is worth: one chain, as a conversation makes it."""

from __future__ import annotations

from kernelforge.search.tree import TreeView
from kernelforge.search.types import Selection


class Linear:
    """See the module's docstring."""

    name = "linear"

    def select(self, view: TreeView) -> Selection:
        """The newest valid node, "" while there is none."""
        newest = max(view.valid, key=lambda n: n.number, default=None)
        if newest is None:
            return Selection(parent="", reason="no valid candidate yet")
        return Selection(parent=newest.id, reason="the newest valid candidate")


STRATEGY = Linear()
