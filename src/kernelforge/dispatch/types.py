"""What the run time tells about itself. Owns `StatRow`, `EntryState`, `Kernel`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kernelforge.package.types import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A loaded binary.

    Attributes:
        launch: takes input tensors, outputs, varying floats, workspace address, stream; returns 0 (launched), k > 0
            (refused by the k-th of `Binary.refusals`), or -e (the launch failed with error e).
        address: of the binary's guarded entry, in the form of tvm-ffi's C header.
        workspace_bytes: dims in the variant's order -> bytes of scratch memory.
    """

    launch: Callable[..., int]
    address: int
    workspace_bytes: Callable[[Sequence[int]], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryState:
    """One entry of a loaded package on this machine. `kernel` is None, and `reason` not empty, when it is off."""

    entry: Entry
    kernel: Kernel | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatRow:
    """What one variant of a package has done since it was loaded.

    Attributes:
        state: "on", or why the entry is off.
        hits: calls that its kernel served.
        misses: calls of its operator that no kernel served, by the reason why this one did not.
    """

    operator: str
    variant: str
    state: str
    hits: int
    misses: Mapping[str, int]
