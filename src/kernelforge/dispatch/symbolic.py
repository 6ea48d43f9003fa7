"""Sizes that vary within one compiled graph, as a guard may look at them. Owns `Known`, `known`.

A guard compares integers. A symbolic size would answer each comparison, and make the compiler hold it to the answer:
one graph for each size. `Known` answers "yes" only to what holds for every size that the graph admits.
"""

from __future__ import annotations

from typing import cast

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true


class Known:
    """A size or stride of which something is known, but not its value.

    A comparison is true only if it is known to be; `!=` is true unless equality is known. Arithmetic gives another
    such number. It is no `int`: what it does not offer raises TypeError.
    """

    __slots__ = ("_size",)

    def __init__(self, size: torch.SymInt) -> None:
        self._size = size

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int | Known):
            return False
        return statically_known_true(self._size == _plain(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __le__(self, other: int | Known) -> bool:
        return statically_known_true(self._size <= _plain(other))

    def __lt__(self, other: int | Known) -> bool:
        return statically_known_true(self._size < _plain(other))

    def __ge__(self, other: int | Known) -> bool:
        return statically_known_true(self._size >= _plain(other))

    def __gt__(self, other: int | Known) -> bool:
        return statically_known_true(self._size > _plain(other))

    def __add__(self, other: int | Known) -> int:
        return known(self._size + _plain(other))

    def __sub__(self, other: int | Known) -> int:
        return known(self._size - _plain(other))

    def __mul__(self, other: int | Known) -> int:
        return known(self._size * _plain(other))

    def __mod__(self, other: int | Known) -> int:
        return known(self._size % _plain(other))

    def __floordiv__(self, other: int | Known) -> int:
        return known(self._size // _plain(other))

    def __divmod__(self, other: int | Known) -> tuple[int, int]:
        return self // other, self % other

    __radd__, __rmul__ = __add__, __mul__
    __hash__ = None  # type: ignore[assignment]  # equal ones are not known to be equal

    def __repr__(self) -> str:
        return str(self._size)

    __str__ = __repr__


def known(size: int | torch.SymInt) -> int:
    """A size as a guard may look at it: itself if it is one number, else `Known`, which acts as one."""
    return cast("int", Known(size)) if isinstance(size, torch.SymInt) else size


def _plain(value: int | Known) -> int | torch.SymInt:
    return value._size if isinstance(value, Known) else value
