"""What a build takes and gives. Owns `Artifact`, `BuildFailure`, `Backend`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from kernelforge.cards.types import Variant
from kernelforge.generate.types import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One binary and what made it. The same binary is verified, timed, exported and dispatched.

    Attributes:
        digest: sha256 of the binary's bytes.
        path: the shared object in the cache.
        target: "sm_90" ... or "x86-64-v3" ...: what a machine needs to run it.
        compiler: version line of the compiler; flags: all flags, in order.
        seconds: wall time of the build, 0.0 if it came from the cache.
        log: compiler output (warnings, ptxas statistics).
        source: the candidate's file, from which other forms of the binary are built; "" where it is not at hand.
    """

    digest: str
    path: Path
    backend: str
    target: str
    compiler: str
    flags: tuple[str, ...]
    seconds: float
    log: str
    source: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFailure:
    """The candidate does not build.

    Attributes:
        reason: "compile_error", "missing_launch", "build_timeout"; "wrong_signature" of the torch ABI.
        detail: the compiler's output, trimmed to the first error; lines are those of the candidate's own source.
    """

    reason: str
    detail: str


class Backend(Protocol):
    """One tool chain. Thread-safe; safe with many processes on one cache."""

    name: str

    def brief(self) -> str:
        """Compiler and device as text, for the generator."""
        ...

    def build(self, candidate: Candidate, variant: Variant, *, timeout_s: float = 120.0) -> Artifact | BuildFailure:
        """Build a candidate.

        Raises:
            EnvironmentMissing: no compiler.
        """
        ...
