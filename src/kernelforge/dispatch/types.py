"""What the run time tells about itself. Owns `StatRow`, `EntryState`, `Kernel`, and tuples of them that can be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kernelforge.package.types import Entry
from kernelforge.wording import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A loaded binary.

    Attributes:
        launch: takes input tensors, outputs, varying floats, workspace address, stream; returns 0 (launched), k > 0
            (refused by the k-th of `Binary.refusals`), or -e (the launch failed with error e).
        address: of the binary's guarded entry, in the form of tvm-ffi's C header.
        workspace_bytes: dims in the variant's order -> bytes of scratch memory.
        binary: hex sha256 of the binary.
    """

    launch: Callable[..., int]
    address: int
    workspace_bytes: Callable[[Sequence[int]], int]
    binary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryState:
    """One entry of a loaded package on this machine.

    Attributes:
        kernel: None when the entry is off in every mode.
        reasons: why it is off, for each mode of dispatch in which it is.
    """

    entry: Entry
    kernel: Kernel | None
    reasons: Mapping[str, str]

    @property
    def reason(self) -> str:
        """Why eager dispatch leaves it alone; "" if it is on there."""
        return self.reasons.get("eager", "")

    def serves(self, mode: str) -> bool:
        """Whether it is used in this mode of dispatch."""
        return self.kernel is not None and mode not in self.reasons

    def __repr__(self) -> str:
        # Not the fields: an entry holds whole sources.
        return f"<EntryState {self}>"

    def __str__(self) -> str:
        return f"{self.entry.variant.label}: {self.reason or 'on'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowRow:
    """What shadow mode has seen of one entry.

    Attributes:
        compared: calls that were computed by PyTorch too. differing: those whose results differ beyond the tolerance.
        largest: the greatest absolute difference of an element among the compared calls.
    """

    compared: int
    differing: int
    largest: float

    def __str__(self) -> str:
        """ "shadow: 1 of 20 compared calls differs, largest difference 0.25"."""
        verb = "differs" if self.differing == 1 else "differ"
        calls = plural(self.compared, "compared call")
        return f"shadow: {self.differing} of {calls} {verb}, largest difference {self.largest:.3g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatRow:
    """What one variant of a package has done since it was loaded.

    Attributes:
        state: "on", or why the entry is off.
        hits: calls that its kernel served.
        misses: calls of its operator that no kernel served, by the reason why this one did not: a term of the guard,
            or "grad", "autocast", "subclass DTensor", "functorch", "capture" ...: see `LoadedPackage.explain`.
        shadow: what shadow mode has seen; None while it is off.
    """

    operator: str
    variant: str
    state: str
    hits: int
    misses: Mapping[str, int]
    shadow: ShadowRow | None = None

    @property
    def label(self) -> str:
        """The variant's name for people, as in the package."""
        return f"{self.operator}-{self.variant[:8]}"

    def __str__(self) -> str:
        """ "softmax-1a2b3c4d: on, 12 hits, 3 misses (dtype 2, dim 1)"."""
        missed = sum(self.misses.values())
        reasons = ", ".join(f"{reason} {count}" for reason, count in self.misses.items())
        misses = plural(missed, "miss", "misses") + (f" ({reasons})" if reasons else "")
        shadow = f", {self.shadow}" if self.shadow is not None else ""
        return f"{self.label}: {self.state}, {plural(self.hits, 'hit')}, {misses}{shadow}"


class Stats(tuple[StatRow, ...]):
    """The rows of all entries, printed as a table."""

    __slots__ = ()

    def __str__(self) -> str:
        lines = [("kernel", "hits", "misses", "state")]
        for row in self:
            reasons = "".join(f"; {count} by {reason}" for reason, count in row.misses.items())
            shadow = f"; {row.shadow}" if row.shadow is not None and row.shadow.compared else ""
            lines.append((row.label, str(row.hits), str(sum(row.misses.values())), row.state + reasons + shadow))
        name, hits, misses = (max(len(line[column]) for line in lines) for column in range(3))
        return "\n".join(f"{a:<{name}}  {b:>{hits}}  {c:>{misses}}  {d}" for a, b, c, d in lines)


class States(tuple[EntryState, ...]):
    """The entries of a package on this machine, printed one a line."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no entries"
