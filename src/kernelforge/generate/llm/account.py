"""The account of calls: an intent is stored before a call, its end after it. Owns `Intent`, `Call`, `CallStore`.

So whoever dies in a call loses at most that one, a reply that was received to its end is never asked for again, and a
limit holds whatever happens: a call without a known end counts at its bound.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias

from kernelforge.generate.llm.types import (
    ChatRequest,
    Completion,
    FailureKind,
    ProviderFailure,
    TokenUsage,
    maybe_billed,
)

Step: TypeAlias = Literal["propose", "repair", "again"]
"""What a call is for: a new candidate, the mending of a failed one, or the same once more after a useless reply."""
Limit: TypeAlias = Literal["usd", "tokens"]

ALMOST_NOTHING = 1e-9
"""US dollars: cents do not add up exactly in binary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """A call that is about to be made.

    Attributes:
        order: id of the work order. parent, repairs: ids of candidates, as of `Candidate`.
        prompt_digest: of the proposal's prompt.
        bound_tokens: the most that it can take, read and written. bound_usd: the same in US dollars, None if the model
            has no known price.
    """

    order: str
    variant_id: str
    model: str
    step: Step
    backend: str
    parent: str
    repairs: str
    prompt_digest: str
    request: ChatRequest
    bound_tokens: int
    bound_usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A call that ended without a reply. See `ProviderFailure`."""

    kind: FailureKind
    detail: str
    seconds: float = 0.0
    attempts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A stored call.

    Attributes:
        run: of the search that made it. started: POSIX seconds.
        end: what came of it; None while it is under way, or if its process died in it.
    """

    id: str
    run: str
    started: float
    intent: Intent
    end: Completion | Failure | None

    @property
    def usage(self) -> TokenUsage | None:
        """What it took; None if that is unknown."""
        match self.end:
            case Completion():
                return self.end.usage
            case Failure():
                return None if maybe_billed(self.end.kind) else TokenUsage()
            case None:
                return None

    @property
    def tokens(self) -> int | None:
        """Read and written; None if unknown."""
        return None if self.usage is None else self.usage.input_tokens + self.usage.output_tokens

    @property
    def usd(self) -> float | None:
        """US dollars; None if unknown."""
        match self.end:
            case Completion():
                return self.end.cost_usd
            case Failure():
                return None if maybe_billed(self.end.kind) else 0.0
            case None:
                return None


def failure_of(error: ProviderFailure) -> Failure:
    """The failure as it is stored."""
    return Failure(kind=error.kind, detail=error.detail, seconds=error.seconds, attempts=error.attempts)


class CallStore(Protocol):
    """Where calls are kept. Safe for several threads and processes."""

    def open_call(self, intent: Intent, *, run: str, usd: float | None, tokens: int | None) -> Call | Limit:
        """Store an intent, unless with it the run would pass a limit; which one, if so. Both in one transaction.

        Args:
            usd, tokens: limits of the run; None for no limit.
        """
        ...

    def close_call(self, call_id: str, end: Completion | Failure) -> None:
        """Store what came of a call."""
        ...

    def calls(self, *, run: str = "", order: str = "") -> Sequence[Call]:
        """All calls, or those of a run or of an order, oldest first."""
        ...


class MemoryCalls:
    """A call store in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[str, Call] = {}

    def open_call(self, intent: Intent, *, run: str, usd: float | None, tokens: int | None) -> Call | Limit:
        """See `CallStore`."""
        with self._lock:
            counted = [call for call in self._calls.values() if call.run == run]
            passed = passed_limit(
                intent, usd=usd, tokens=tokens, counted_usd=sum(map(counted_usd, counted)),
                counted_tokens=sum(map(counted_tokens, counted)),
            )  # fmt: skip
            if passed is not None:
                return passed
            call = Call(id=uuid.uuid4().hex, run=run, started=time.time(), intent=intent, end=None)
            self._calls[call.id] = call
            return call

    def close_call(self, call_id: str, end: Completion | Failure) -> None:
        """See `CallStore`."""
        with self._lock:
            self._calls[call_id] = replace(self._calls[call_id], end=end)

    def calls(self, *, run: str = "", order: str = "") -> Sequence[Call]:
        """See `CallStore`."""
        with self._lock:
            return [c for c in self._calls.values() if run in ("", c.run) and order in ("", c.intent.order)]


def passed_limit(
    intent: Intent, *, usd: float | None, tokens: int | None, counted_usd: float, counted_tokens: int
) -> Limit | None:
    """Which limit of its run a call might pass, if any.

    Args:
        usd, tokens: the limits, None for none. counted_usd, counted_tokens: of all calls of the run so far.
    """
    if usd is not None and (intent.bound_usd is None or counted_usd + intent.bound_usd > usd + ALMOST_NOTHING):
        return "usd"
    return "tokens" if tokens is not None and counted_tokens + intent.bound_tokens > tokens else None


def counted_usd(call: Call) -> float:
    """What a call counts for in a limit: its bound while its cost is unknown."""
    return (call.intent.bound_usd or 0.0) if call.usd is None else call.usd


def counted_tokens(call: Call) -> int:
    """As `counted_usd`, in tokens."""
    return call.intent.bound_tokens if call.tokens is None else call.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What one search may spend, and where that is written down.

    Attributes:
        run: its id. usd, tokens: limits; None for no limit.
        listen: told of each call that has ended, after it is stored.
    """

    store: CallStore
    run: str
    usd: float | None = None
    tokens: int | None = None
    listen: Callable[[Call], None] | None = None

    def begin(self, intent: Intent) -> Call | Limit:
        """See `CallStore.open_call`."""
        return self.store.open_call(intent, run=self.run, usd=self.usd, tokens=self.tokens)

    def end(self, call: Call, end: Completion | ProviderFailure) -> Completion | Failure:
        """Store what came of a call; as it is stored."""
        stored = failure_of(end) if isinstance(end, ProviderFailure) else end
        self.store.close_call(call.id, stored)
        if self.listen is not None:
            self.listen(replace(call, end=stored))
        return stored
