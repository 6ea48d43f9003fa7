"""The process of a run: searches, says how far it is, and does what it is told. Owns `work`."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Protocol

from filelock import Timeout

from kernelforge.errors import ForgeError, UsageError
from kernelforge.search.allowance import added
from kernelforge.search.events import Event, PhaseChanged, SearchProgress, TrialFinished
from kernelforge.search.owners import owner_of_this_process
from kernelforge.search.types import Budget, SearchSummary
from kernelforge.store.project import Project
from kernelforge.supervisor.feed import FeedWriter
from kernelforge.supervisor.folder import HEARTBEAT_S, RunFolder
from kernelforge.supervisor.spending import calls_of, settled
from kernelforge.supervisor.types import Run, Stage, WorkerState

logger = logging.getLogger(__name__)


class Search(Protocol):
    """What a worker does: one call of the search for a run, under a budget."""

    def __call__(
        self,
        run: Run,
        budget: Budget,
        *,
        on_event: Callable[[Event | str], None],
        should_stop: Callable[[], bool],
        should_pause: Callable[[], bool],
    ) -> SearchSummary: ...


def work(folder: RunFolder, number: int, search: Search, *, should_stop: Callable[[], bool]) -> WorkerState:
    """Work on a run until its budget is spent, or it is told to stop; how far it is at the end.

    Args:
        number: of the worker. should_stop: asked beside the run's own wish, for signals.

    Raises:
        UsageError: another process works as this worker. What the search raises is written down and raised again.
    """
    lock = folder.worker_lock(number)
    try:
        lock.acquire()
    except Timeout as error:
        raise UsageError(f"worker {number} of run {folder.id} works already", hint="look: kforge runs ls") from error
    with lock:
        run, former = folder.run(), folder.worker(number)
        board = _Board(folder, number, former)
        with FeedWriter(folder.feed(number), trials=former.trials) as feed, board.beating():

            def on_event(event: Event | str) -> None:
                board.take(event)
                feed(event)

            def should_pause() -> bool:
                paused = folder.wish() == "pause"
                board.pause(paused)
                return paused

            try:
                summary = search(
                    run, board.former.left_of(run.share(number)), on_event=on_event, should_pause=should_pause,
                    should_stop=lambda: folder.wish() == "stop" or should_stop(),
                )  # fmt: skip
            except BaseException as error:
                board.fail(error)
                raise
            return board.end(summary)


class _Board:
    """The worker's file, written at each trial, at each change and every few seconds. Thread-safe."""

    def __init__(self, folder: RunFolder, number: int, former: WorkerState) -> None:
        self._folder, self._number, self.former = folder, number, former
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._active_s, self._since = 0.0, time.monotonic()
        self._state = replace(
            former, stage="running", owner=owner_of_this_process(), expected=None, eta_s=None, reason=None, error="",
            hint="",
        )  # fmt: skip
        self._try_to_settle()
        self.former = replace(former, tokens=self._state.tokens, usd=self._state.usd)
        self._write()

    @cached_property
    def _project(self) -> Project:
        return Project.open(self._folder.project)

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """Write every few seconds in the body."""
        thread = threading.Thread(target=self._beat, name="kforge-heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            try:
                self._write()
            except ForgeError as error:  # a full disk, say: the search itself will meet it, or it passes
                logger.warning("the run's state was not written: %s", error)

    def take(self, event: Event | str) -> None:
        """Count a trial, note a forecast, and what is about to be asked for. Called by the search's own thread."""
        if isinstance(event, PhaseChanged) and event.phase == "generate":
            self._note_orders()
        elif isinstance(event, TrialFinished):
            self._settle()
            self._write(trials=self._state.trials + 1)
        elif isinstance(event, SearchProgress):
            expected = None if event.expected is None else event.expected + self.former.trials
            with self._lock:
                self._state = replace(self._state, expected=expected, eta_s=event.eta_s)

    def _note_orders(self) -> None:
        """Write down what this process asks a generator for, before it does and pays."""
        me = self._state.owner
        asked = [o.id for o in self._project.orders() if (o.state, o.owner) == ("asked", me)]
        self._settle()
        noted = self._state.unsettled
        self._write(unsettled=(*noted, *(i for i in asked if i not in noted)))

    def _settle(self) -> None:
        """Count what the proposals of this worker cost that are there by now."""
        if not self._state.unsettled:
            return
        counted = settled(self._state, self._project.order, calls_of(self._project))
        with self._lock:
            self._state = replace(
                self._state, tokens=counted.tokens, usd=counted.usd, unsettled=counted.unsettled
            )  # fmt: skip

    def _try_to_settle(self) -> None:
        """As far as the store can be read; what it cannot stays unsettled, for the next process."""
        try:
            self._settle()
        except ForgeError as error:
            logger.warning("what was spent is not counted yet: %s", error)

    def pause(self, paused: bool) -> None:
        """The search begins nothing, or goes on."""
        stage: Stage = "paused" if paused else "running"
        if self._state.stage == stage:
            return
        with self._lock:
            if paused:
                self._active_s += time.monotonic() - self._since
            self._since = time.monotonic()
        self._settle()
        self._write(stage=stage)

    def fail(self, error: BaseException) -> None:
        """The search raised."""
        self._try_to_settle()
        if isinstance(error, ForgeError):
            self._write(stage="failed", error=error.message, hint=error.hint)
        elif isinstance(error, Exception):
            self._write(stage="failed", error=f"{type(error).__name__}: {error}", hint="its log has the traceback")
        else:
            self._write(stage="stopped", reason="stopped")

    def end(self, summary: SearchSummary) -> WorkerState:
        """The search ended by itself, or was told to."""
        former, busy_s = self.former, self.former.busy_s
        self._write(
            stage="stopped" if summary.stopped == "stopped" else "finished", reason=summary.stopped,
            # With what was paid for and dropped, of which the store knows nothing.
            tokens=added(former.tokens, summary.tokens), usd=added(former.usd, summary.usd), unsettled=(), eta_s=None,
            busy_s={lane: busy_s.get(lane, 0.0) + seconds for lane, seconds in summary.busy_s.items()},
            measured_s=self.former.measured_s + summary.seconds,
        )  # fmt: skip
        return self._state

    def _write(self, **changes: object) -> None:
        with self._lock:
            if self._state.stage != "paused":
                now = time.monotonic()
                self._active_s, self._since = self._active_s + now - self._since, now
            self._state = replace(
                self._state, heartbeat=time.time(), seconds=self.former.seconds + self._active_s,
                **changes,  # type: ignore[arg-type]
            )  # fmt: skip
            self._folder.write_worker(self._number, self._state)
