"""Replaces attributes of torch and puts back the very same objects. Owns the ledger of one activation."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

Function: TypeAlias = "Callable[..., object]"

_MARK = "__kforge_origin__"
"""On a wrapper: the `Origin` that it stands for."""


@dataclass(slots=True)
class Origin:
    """What a wrapper replaced. `active` turns false when the wrapper has become a pass-through for good.

    Attributes:
        own: the owner had the attribute itself; else it inherited it, and restoring means deleting.
    """

    owner: object
    attribute: str
    function: Function
    own: bool
    active: bool = True


def origin_at(owner: object, attribute: str) -> Origin:
    """What is there now.

    Raises:
        AttributeError: nothing is.
    """
    names = vars(owner)
    own = attribute in names
    return Origin(owner, attribute, names[attribute] if own else getattr(owner, attribute), own)


def genuine(function: Function) -> Function:
    """What stands below all wrappers of a function."""
    while isinstance(below := getattr(function, _MARK, None), Origin):
        function = below.function
    return function


class Ledger:
    """The replacements of one activation, in order."""

    def __init__(self) -> None:
        self._wrappers: list[tuple[Origin, Function]] = []

    def replace(self, origin: Origin, wrapper: Function) -> None:
        """Put the wrapper at the place that `origin` describes.

        Raises:
            TypeError: the owner does not allow it.
        """
        setattr(wrapper, _MARK, origin)
        setattr(origin.owner, origin.attribute, wrapper)
        self._wrappers.append((origin, wrapper))

    def restore(self) -> None:
        """Undo every replacement, the last first.

        Where somebody has put another object over a wrapper, that object stays and the wrapper, by now a pass-through,
        lives on below it; a warning says so, unless it is another activation, which will clean up when it ends.
        """
        covered = []
        for origin, wrapper in reversed(self._wrappers):
            origin.active = False
            present = vars(origin.owner).get(origin.attribute)
            if present is wrapper:
                _put_back(origin)
            elif getattr(present, _MARK, None) is None:
                covered.append(f"{getattr(origin.owner, '__name__', origin.owner)}.{origin.attribute}")
        self._wrappers.clear()
        if covered:
            warnings.warn(
                f"replaced by other code during dispatch, left as it is: {', '.join(covered)}",
                RuntimeWarning,
                stacklevel=3,
            )


def _put_back(origin: Origin) -> None:
    # An activation that began earlier may have ended earlier too: its wrapper must not come back to life here.
    while True:
        below = getattr(origin.function, _MARK, None)
        if not isinstance(below, Origin) or below.active:
            break
        origin = below
    if origin.own:
        setattr(origin.owner, origin.attribute, origin.function)
    else:
        delattr(origin.owner, origin.attribute)
