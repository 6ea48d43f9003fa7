"""Ctrl-C: once stops cleanly, twice kills. Owns `Interrupt`."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self

from kernelforge.cli.output import Output


class Interrupt:
    """Turns the first SIGINT or SIGTERM into a flag for `should_stop`; the second one raises KeyboardInterrupt.

    A context manager; restores the former handlers on exit. For the main thread only. For commands that go on where
    they ended when they are given again: a killed one says so here, one that stopped cleanly when it has shown its
    results.
    """

    def __init__(
        self, out: Output, *, note: str = "stopping after the trial that is running (once more to kill it)"
    ) -> None:
        self._out = out
        self._note = note
        self._signal = 0
        self._former: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._former[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        if isinstance(error, KeyboardInterrupt):
            self._out.resume()

    def should_stop(self) -> bool:
        """Whether someone asked to stop."""
        return self._signal != 0

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 143 after SIGTERM, 0 if nobody asked to stop."""
        return 128 + self._signal if self._signal else 0

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._signal:
            raise KeyboardInterrupt
        self._signal = number
        self._out.note(self._note)
