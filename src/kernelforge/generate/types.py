"""What goes into and comes out of a generator. Owns `Request`, `Feedback`, `Candidate`, `Generator`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from kernelforge.cards.types import Variant
from kernelforge.digest import digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """What an earlier trial of this variant taught: its outcome in words and, if it was timed, its speed-up."""

    candidate: Candidate
    outcome: str
    detail: str
    speedup: float | None


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
    """

    variant: Variant
    backend: str
    prelude: str
    brief: str
    history: tuple[Feedback, ...] = ()
    parent: Candidate | None = None
    why: str = ""
    weights: tuple[tuple[Mapping[str, int], float], ...] = ()


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
        model, prompt_digest: of language models.
        tokens_in, tokens_out, cost_usd: what the proposal cost; 0 where no language model was asked, None if unknown.
    """

    variant_id: str
    source: str
    backend: str
    generator: str
    notes: str = ""
    schedule: str = ""
    parent: str = ""
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


class Generator(Protocol):
    """Proposes candidates. Thread-safe; keeps no state between calls: all it may use is in the request."""

    name: str

    def propose(self, request: Request) -> Candidate | Exhausted:
        """One new candidate, different from all in `request.history`."""
        ...


class Unforgeable(Exception):
    """This variant is outside what the emitter or a template can make, and why. Never leaves `generate`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
