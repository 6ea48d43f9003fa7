"""How busy the lanes of a search were. Owns `Lane`, `Lanes`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, TypeAlias, get_args

Lane: TypeAlias = Literal["propose", "build", "judge"]
LANES: tuple[Lane, ...] = get_args(Lane)


class Lanes:
    """Measures for each lane the seconds in which at least one of its workers was at work. Thread-safe.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._workers: dict[Lane, int] = dict.fromkeys(LANES, 0)
        self._since: dict[Lane, float] = dict.fromkeys(LANES, 0.0)
        self._busy_s: dict[Lane, float] = dict.fromkeys(LANES, 0.0)

    @contextmanager
    def busy(self, lane: Lane) -> Iterator[None]:
        """One worker of the lane is at work in the body."""
        with self._lock:
            if not self._workers[lane]:
                self._since[lane] = self._clock()
            self._workers[lane] += 1
        try:
            yield
        finally:
            with self._lock:
                self._workers[lane] -= 1
                if not self._workers[lane]:
                    self._busy_s[lane] += self._clock() - self._since[lane]

    def busy_s(self) -> Mapping[Lane, float]:
        """Seconds by lane, of work that has ended."""
        with self._lock:
            return dict(self._busy_s)
