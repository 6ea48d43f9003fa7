"""What a detached run is. Owns `Run`, `WorkerState`, `RunStatus`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, TypeVar

from kernelforge.search.lanes import Lane
from kernelforge.search.types import Budget, StopReason

Number = TypeVar("Number", int, float)

Wish: TypeAlias = Literal["run", "pause", "stop"]
"""What a run was told last."""

Stage: TypeAlias = Literal["starting", "running", "paused", "stopped", "cancelled", "finished", "failed", "unknown"]
"""What a worker says of itself. The first three are those of a live process, if it did not die.

unknown: its file cannot be read; never stored.
"""

LIVE: tuple[Stage, ...] = ("starting", "running", "paused")

State: TypeAlias = Literal[
    "starting", "running", "pausing", "paused", "stopping", "stopped", "cancelled", "finished", "failed", "died",
    "unknown",
]  # fmt: skip
"""Of a run. pausing, stopping: a trial is still under way. died: a process ended without a word.

unknown: no worker is known to live, and of one nothing is known.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What was asked for; never changes.

    Attributes:
        id: six random hexadecimal digits. created: POSIX seconds.
        operators, generator, strategy, policy, library: as in `forge.forge_project`.
        budget: of all workers and of all their processes together.
        devices: one worker for each; "" is the project's own device, else a value for CUDA_VISIBLE_DEVICES.
    """

    id: str
    created: float
    budget: Budget
    operators: tuple[str, ...] = ()
    generator: str = "template"
    strategy: str = ""
    policy: str = "gain"
    library: bool = True
    devices: tuple[str, ...] = ("",)

    def share(self, worker: int) -> Budget:
        """The part of the budget that a worker gets: all of the time, and of the rest as much as the others."""
        count = len(self.devices)
        budget = self.budget
        return replace(
            budget, trials=_part(budget.trials, worker, count), tokens=_part(budget.tokens, worker, count),
            usd=None if budget.usd is None else budget.usd / count,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """How far one worker of a run is, over all processes that worked as it.

    Attributes:
        owner: the process (`search.owners`), "" if there is none. heartbeat: POSIX seconds of the last word.
        trials, tokens, usd: made and spent, None if unknown. seconds: of work, without pauses.
        unsettled: orders asked for whose cost is not among tokens and usd yet (`supervisor.spending`).
        expected, eta_s: as the search forecast them.
        busy_s: of the processes that ended by themselves (`search.lanes`). measured_s: how long those worked.
        reason: why the search ended. error, hint: why the worker failed, or is unknown.
    """

    stage: Stage = "starting"
    owner: str = ""
    heartbeat: float = 0.0
    trials: int = 0
    seconds: float = 0.0
    tokens: int | None = 0
    usd: float | None = 0.0
    unsettled: tuple[str, ...] = ()
    expected: int | None = None
    eta_s: float | None = None
    reason: StopReason | None = None
    error: str = ""
    hint: str = ""
    busy_s: Mapping[Lane, float] = field(default_factory=dict)
    measured_s: float = 0.0

    def left_of(self, budget: Budget) -> Budget:
        """What is left of a worker's budget: nothing of a limit if it is unknown what was spent of it."""
        return replace(
            budget,
            trials=None if budget.trials is None else max(0, budget.trials - self.trials),
            seconds=None if budget.seconds is None else max(0.0, budget.seconds - self.seconds),
            tokens=_left(budget.tokens, self.tokens),
            usd=_left(budget.usd, self.usd),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """A run as it stands.

    Attributes:
        project: its folder. state: of all workers together. live: those whose process lives, by their number.
    """

    run: Run
    project: str
    state: State
    workers: tuple[WorkerState, ...]
    live: tuple[int, ...]


def state_of(workers: tuple[WorkerState, ...], live: tuple[int, ...], wish: Wish) -> State:
    """The state of a run. What lives counts before what has ended, and what ended badly before what did not."""
    if live:
        stages = {workers[i].stage for i in live}
        if wish == "stop":
            return "stopping"
        if stages == {"paused"}:
            return "paused" if wish == "pause" else "running"
        if wish == "pause":
            return "pausing"
        return "starting" if stages == {"starting"} else "running"
    if any(w.stage in LIVE for w in workers):
        return "died"
    if any(w.stage == "unknown" for w in workers):
        return "unknown"
    stages = {w.stage for w in workers}
    order: tuple[State, ...] = ("failed", "cancelled", "stopped")
    return next((s for s in order if s in stages), "finished")


def _left(limit: Number | None, spent: Number | None) -> Number | None:
    if limit is None:
        return None
    zero = limit - limit
    return zero if spent is None else max(zero, limit - spent)


def _part(whole: int | None, worker: int, count: int) -> int | None:
    return None if whole is None else whole // count + (worker < whole % count)
