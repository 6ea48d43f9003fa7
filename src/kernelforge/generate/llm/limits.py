"""How many requests may be on their way, and how soon one may follow another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Limits:
    """For the threads of one client.

    Requests per minute are kept by an equal distance between starts, not by counting in windows: providers count in
    windows of their own, some of a second.
    """

    def __init__(
        self,
        *,
        concurrency: int,
        requests_per_minute: float,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._places = threading.BoundedSemaphore(concurrency)
        self._distance_s = 60.0 / requests_per_minute if requests_per_minute else 0.0
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._next_start = clock()

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place among the concurrent requests. Waits until there is one, and until it is time to start."""
        with self._places:
            with self._lock:
                start = max(self._next_start, self._clock())
                self._next_start = start + self._distance_s
            while (wait := start - self._clock()) > 0:
                self._sleep(wait)
            yield

    def hold(self, seconds: float) -> None:
        """Start nothing new for so long: the provider has said that there is too much."""
        with self._lock:
            self._next_start = max(self._next_start, self._clock() + seconds)
