"""A workshop that stays open between judgements: opening a judge takes seconds, a judgement often less.

For a process that is asked for single judgements, by several clients at once. Owns `KeptWorkshop`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kernelforge.errors import Stopped
from kernelforge.settings import Settings
from kernelforge.telling import BUILDING, Opener
from kernelforge.workshop import Workshop, make_workshop

IDLE_S = 300.0
"""After so long without a judgement the judge is closed: its worker holds memory, on a GPU the device's."""
LOOK_S = 0.1
"""How often who waits for a turn looks whether it is still wanted."""

QUEUED, OPENING, PREPARING, VERIFYING, TIMING = (
    "waiting for the judge", "waiting for the device", "preparing cases", "verifying", "timing, if it is right",
)  # fmt: skip
PHASES = (QUEUED, OPENING, BUILDING, PREPARING, VERIFYING, TIMING)
"""What a submission goes through, in this order."""

_NEXT = {"audit": PREPARING, "runner's start": VERIFYING, "verify": TIMING}
"""What follows on a part of a judgement; the names are the judge's."""
_MAY_END_AFTER = frozenset({"build", "audit", "bench", "cases", "verify", "timing", "replay"})
"""The parts after which a judgement may be given up, with nothing left open."""


class KeptWorkshop:
    """Opens workshops, and keeps the last one open. Thread-safe: one user at a time, the others wait for their turn.

    Args:
        idle_s: after so long it is closed.
    """

    def __init__(self, *, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._turn = threading.Lock()
        self._kept: Workshop | None = None
        self._device = ""
        self._used = 0.0
        self._say: Callable[[str], None] = _ignore
        self._should_stop: Callable[[], bool] = _never

    def opener(self, *, say: Callable[[str], None], should_stop: Callable[[], bool]) -> Opener:
        """Like `workshop.open_workshop`, for one user.

        Args:
            say: told which of `PHASES` begins. should_stop: asked between them; the body then raises Stopped.
        """

        @contextmanager
        def use(device: str, settings: Settings) -> Iterator[Workshop]:
            with self._my_turn(say, should_stop):
                try:
                    yield self._opened(device, settings)
                except BaseException:
                    self._close()  # whatever was under way, the next one starts anew
                    raise

        return use

    @contextmanager
    def alone(self, *, say: Callable[[str], None], should_stop: Callable[[], bool]) -> Iterator[None]:
        """Nothing is judged in the body, and no workshop is open: for what times and judges by itself.

        Raises:
            Stopped: while it waited for its turn.
        """
        with self._my_turn(say, should_stop):
            self._close()
            yield

    def close(self, *, wait_s: float = 10.0) -> bool:
        """Close the workshop; False if somebody used it for all of `wait_s`."""
        if not self._turn.acquire(timeout=wait_s):
            return False
        try:
            self._close()
        finally:
            self._turn.release()
        return True

    @contextmanager
    def _my_turn(self, say: Callable[[str], None], should_stop: Callable[[], bool]) -> Iterator[None]:
        say(QUEUED)
        while not self._turn.acquire(timeout=LOOK_S):
            if should_stop():
                raise Stopped("stopped before its turn came", hint="submit it again")
        self._say, self._should_stop = say, should_stop
        try:
            yield
        finally:
            self._say, self._should_stop = _ignore, _never
            self._used = time.monotonic()
            self._turn.release()

    def _opened(self, device: str, settings: Settings) -> Workshop:
        """The kept one, if it is of that device and those settings."""
        if self._kept is not None and (self._device != device or self._kept.settings != settings):
            self._close()
        if self._kept is None:
            self._say(OPENING)
            self._kept, self._device = make_workshop(device, settings, on_phase=self._on_phase), device
            threading.Thread(target=self._close_when_idle, args=(self._kept,), daemon=True).start()
        return self._kept

    def _on_phase(self, name: str, _seconds: float) -> None:
        if name in _MAY_END_AFTER and self._should_stop():
            raise Stopped("stopped before it had its verdict", hint="submit it again")
        if name in _NEXT:
            self._say(_NEXT[name])

    def _close_when_idle(self, workshop: Workshop) -> None:
        while self._kept is workshop:
            time.sleep(min(self._idle_s, 1.0) / 2)
            if time.monotonic() - self._used < self._idle_s or not self._turn.acquire(blocking=False):
                continue
            try:
                if self._kept is workshop and time.monotonic() - self._used >= self._idle_s:
                    self._close()
            finally:
                self._turn.release()

    def _close(self) -> None:
        if self._kept is not None:
            self._kept.judge.close()
            self._kept = None


def _ignore(_text: str) -> None:
    """The default listener."""


def _never() -> bool:
    return False
