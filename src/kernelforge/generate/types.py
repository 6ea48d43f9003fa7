"""What goes into and comes out of a generator. Owns `Request`, `Feedback`, `Candidate`, `Generator`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from kernelforge.cards.types import SizePoint, Variant
from kernelforge.digest import digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """What an earlier trial of this variant taught: its outcome in words and, if it was timed, its speed-up.

    Attributes:
        number: of its node; 0 while it is not judged.
        reason: which failure it is ("compile_error", "wrong_value", ...), "" of an accepted one.
        us: the kernel's own time, microseconds a call, on that device. disturbed: others used the machine meanwhile.
    """

    candidate: Candidate
    outcome: str
    detail: str
    speedup: float | None
    number: int = 0
    reason: str = ""
    us: float | None = None
    device: str = ""
    disturbed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How a model uses a variant, and what the machine allows for. Times are microseconds a call.

    Attributes:
        points: observed sizes with calls and captured eager time. share: of the model's time, in [0, 1].
        captured_us: eager's time in the model. eager_us: the same as the judge times it. floor_us: the roofline floor.
            The last two are None before the first accepted trial.
        target: facts of the device.
    """

    points: tuple[SizePoint, ...] = ()
    share: float = 0.0
    captured_us: float = 0.0
    eager_us: float | None = None
    floor_us: float | None = None
    target: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One order for a candidate.

    Attributes:
        variant: what to make a kernel for.
        backend: "cuda" or "cpp".
        prelude: the generated head of the source, word for word.
        brief: the backend's description of compiler and device, as text.
        history: earlier trials of this variant, oldest first.
        parent: the candidate to revise, or None to start from scratch. why: of the strategy that chose it.
        weights: observed dims with their share of the variant's time, most important first; schedules are
            picked for these.
        usage: what is known of the variant's use and limits.
        order: id of the work order that this is. beside: orders of this variant that others work on at the same time.
        attempts: what came of this very proposal so far, oldest first; the last of them is to be mended. Empty for a
            new proposal.
    """

    variant: Variant
    backend: str
    prelude: str
    brief: str
    history: tuple[Feedback, ...] = ()
    parent: Candidate | None = None
    why: str = ""
    weights: tuple[tuple[Mapping[str, int], float], ...] = ()
    usage: Usage = field(default_factory=Usage)
    order: str = ""
    beside: int = 0
    attempts: tuple[Feedback, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One source and where it came from. The same source for the same variant has the same id.

    Attributes:
        source: the one source file, without prelude and glue.
        backend: "cuda" or "cpp".
        generator: name of the generator, for example "template".
        notes: what distinguishes it, for people (the schedule, say).
        schedule: canonical JSON of the emitter's schedule, "" for other generators.
        parent: id of the revised candidate, or "".
        repairs: id of the failed candidate that it is the repair of, or "": both are attempts of one proposal.
        model, prompt_digest: of language models.
        tokens_in, tokens_out, cost_usd: what this attempt cost; 0 where no language model was asked, None if unknown.
    """

    variant_id: str
    source: str
    backend: str
    generator: str
    notes: str = ""
    schedule: str = ""
    parent: str = ""
    repairs: str = ""
    model: str = ""
    prompt_digest: str = ""
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost_usd: float | None = None

    @property
    def id(self) -> str:
        return digest([self.variant_id, self.backend, self.source])


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhausted:
    """The generator has nothing more to propose for this variant, and why."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCandidate:
    """This proposal came to nothing, and why; the next one may. tokens_in, tokens_out, cost_usd: as of `Candidate`."""

    reason: str
    tokens_in: int | None = 0
    tokens_out: int | None = 0
    cost_usd: float | None = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfBudget:
    """What the next call might cost is not left; nothing was asked.

    Attributes:
        limit: which budget. reason: in words.
        tokens_in, tokens_out, cost_usd: of calls of this proposal before.
    """

    limit: Literal["usd", "tokens"]
    reason: str
    tokens_in: int | None = 0
    tokens_out: int | None = 0
    cost_usd: float | None = 0.0


Proposal: TypeAlias = "Candidate | Exhausted | NoCandidate | OutOfBudget"


class Generator(Protocol):
    """Proposes candidates. Thread-safe; keeps no state between calls: all it may use is in the request."""

    @property
    def name(self) -> str: ...

    def propose(self, request: Request) -> Proposal:
        """One new candidate, different from all in `request.history`; or the repair of the last of its attempts."""
        ...


class Repairing(Protocol):
    """What a generator is beside `Generator` if it can mend what failed and keeps an account of what it pays."""

    @property
    def name(self) -> str:
        """As its candidates say."""
        ...

    @property
    def most_repairs(self) -> int:
        """Attempts at one proposal after the first."""
        ...

    def left_over(self, orders: Collection[str]) -> Sequence[tuple[str, Candidate]]:
        """Of these orders those whose candidate was received and paid for, with it."""
        ...


class Unforgeable(Exception):
    """This variant is outside what the emitter or a template can make, and why. Never leaves `generate`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
