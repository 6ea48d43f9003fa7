"""What all tools of a server share: its project, its judge, and the way from a request to a verb and back.

A verb runs in a thread of its own, so that the server goes on answering. It says how far it is, and it is stopped
between two phases when the client cancels the request or goes away.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio.from_thread
import anyio.to_thread
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent
from pydantic import BaseModel

from kernelforge.errors import ForgeError, UsageError
from kernelforge.mcp.wire import legible

if TYPE_CHECKING:
    from kernelforge.keeping import KeptWorkshop

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Job:
    """One verb under way.

    Attributes:
        steps: the phases that are known before, in their order; another text is told without a number of its own.
    """

    context: Context[Desk]
    steps: Sequence[str] = ()
    stopped: threading.Event = field(default_factory=threading.Event)
    _done: int = 0

    def say(self, text: str) -> None:
        """Tell the client what begins now. Only from the thread in which the verb runs."""
        self._done = self.steps.index(text) + 1 if text in self.steps else self._done
        total = float(len(self.steps)) if self.steps else None
        if not self.stopped.is_set():
            # A client that is gone, or wants it no more, is noticed by `should_stop`.
            with suppress(RuntimeError, CancelledError):
                anyio.from_thread.run(self.context.report_progress, float(self._done), total, legible(text))

    def should_stop(self) -> bool:
        return self.stopped.is_set()


@dataclass(slots=True, kw_only=True)
class Desk:
    """The state of one server.

    Attributes:
        project: what is meant where a client names none.
    """

    project: Path | None = None
    _kept: KeptWorkshop | None = None
    _making: threading.Lock = field(default_factory=threading.Lock)
    _stops: list[threading.Event] = field(default_factory=list)

    @property
    def kept(self) -> KeptWorkshop:
        """The judge of this server, made at the first use. Thread-safe."""
        from kernelforge.keeping import KeptWorkshop

        with self._making:
            if self._kept is None:
                self._kept = KeptWorkshop()
            return self._kept

    def folder(self, named: str) -> Path:
        """The project that a client means.

        Raises:
            UsageError: it names none, and the server has no default.
        """
        if named:
            return Path(named)
        if self.project is None:
            raise UsageError("which project?", hint="give `project`, or start the server with --project")
        return self.project

    @contextmanager
    def job(self, job: Job) -> Iterator[Job]:
        """A job while its verb is under way."""
        self._stops.append(job.stopped)
        try:
            yield job
        finally:
            self._stops.remove(job.stopped)

    def stop_all(self) -> None:
        """Stop every job at the end of its phase."""
        for stopped in tuple(self._stops):
            stopped.set()

    def close(self, *, wait_s: float) -> None:
        """Stop every job, and close the judge if that takes no longer than `wait_s`."""
        self.stop_all()
        if self._kept is not None:
            self._kept.close(wait_s=wait_s)


async def work(context: Context[Desk], verb: Callable[[Desk, Job], T]) -> T:
    """Run a verb in a thread.

    Args:
        verb: given the desk, and the job for its progress.

    Raises:
        ToolError: an error of ours, with its message and hint.
    """
    desk = context.request_context.lifespan_context
    job = Job(context=context)
    try:
        # Abandoned, the thread goes on to the end of its phase; the request ends now.
        return await anyio.to_thread.run_sync(partial(_run, desk, job, verb), abandon_on_cancel=True)
    except ForgeError as error:
        raise ToolError(words(error)) from error
    finally:
        job.stopped.set()


def _run(desk: Desk, job: Job, verb: Callable[[Desk, Job], T]) -> T:
    with desk.job(job):
        return verb(desk, job)


def words(error: ForgeError) -> str:
    """An error for a client: the options of the command line are arguments here."""
    hint = error.hint
    if "kforge " not in hint:
        hint = re.sub(r"--([a-z]+(?:-[a-z]+)*)", lambda found: found[1].replace("-", "_"), hint)
    said = f"{error.message}\nhint: {hint}" if hint else error.message
    return str(legible(said))


def reply(text: str, output: BaseModel) -> CallToolResult:
    """A result to read and to compute with."""
    structured: dict[str, Any] = legible(output.model_dump(mode="json"))
    return CallToolResult(content=[TextContent(type="text", text=legible(text))], structured_content=structured)
