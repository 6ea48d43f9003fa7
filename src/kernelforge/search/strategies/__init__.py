"""Strategies by name, one file each: which node of a variant's tree is revised next. All obey one conformance suite.

A strategy is a pure function of the view, so that resuming, replaying and asking from several processes need no state.
"""

from __future__ import annotations

from typing import cast

from kernelforge.errors import NotFound
from kernelforge.plugins import load_plugin, plugin_names
from kernelforge.search.types import Strategy


def strategy_names() -> tuple[str, ...]:
    """As on the command line: "paper-mcts"."""
    return tuple(name.replace("_", "-") for name in plugin_names(__name__))


def get_strategy(name: str) -> Strategy:
    """The strategy of that name.

    Raises:
        NotFound: there is none.
    """
    if name not in strategy_names():
        raise NotFound(f"no strategy {name!r}", hint=f"known: {', '.join(strategy_names())}")
    return cast(Strategy, load_plugin(__name__, name.replace("-", "_"), "STRATEGY"))
