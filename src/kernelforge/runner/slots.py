"""What sessions of the judge with a candidate's process have in common: the process, and the buffers it holds."""

from __future__ import annotations

import os
from types import TracebackType

from kernelforge.errors import HarnessError
from kernelforge.executors.kinds.process import ProcessWorker
from kernelforge.runner.protocol import Layout, RunnerDeath


class SlotSession:
    """A process with loaded sets of buffers, by slot. Entering, and what is said to the process, is the subclass's."""

    def __init__(self) -> None:
        self._worker: ProcessWorker | None = None
        self._slots: dict[int, tuple[Layout, int, int]] = {}
        """Of each loaded set its layout, the descriptor of its outputs' arena, and the bytes granted for it."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._live.pid

    @property
    def death(self) -> RunnerDeath | None:
        """How the process died, or None while it lives."""
        return self._live.death

    def close(self) -> None:
        """End the process and all that it started. Idempotent."""
        for _, out_fd, _ in self._slots.values():
            os.close(out_fd)
        self._slots.clear()
        if self._worker is not None:
            self._worker.close()

    @property
    def _live(self) -> ProcessWorker:
        if self._worker is None:
            raise HarnessError("the session has not been entered", hint="use it in a `with` statement")
        return self._worker

    def _slot(self, slot: int) -> tuple[Layout, int, int]:
        if slot not in self._slots:
            raise HarnessError(f"nothing is loaded in slot {slot}")
        return self._slots[slot]

    def _forget(self, slot: int) -> None:
        if slot in self._slots:
            _, out_fd, granted = self._slots.pop(slot)
            os.close(out_fd)
            self._live.grant(-granted)
