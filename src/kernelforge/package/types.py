"""What a `.cast` package holds. Owns `Package`, `Header`, `Entry`, `Binary`, `Tools` and the decisions per mode.

Verdict, measurement and audit label are plain JSON here, so that reading a package needs none of the stages that made
them; `package.serial` turns them into their own types and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from kernelforge.cards.types import Variant
from kernelforge.digest import Json

FORMAT = "kernelforge.cast"
FORMAT_VERSION = 2
UNSIGNED_VERSION = 1
"""The version of packages from before there were signatures; they are still read."""

ABI, ABI_VERSION = "kforge-c", 1
"""How a kernel's binary is called; see docs/abi.md."""

MODES = ("eager", "graphed", "compiled")

JsonObject: TypeAlias = "Mapping[str, Json]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The kernel is used in this dispatch mode, where the guard admits the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Off:
    """The kernel is not used in this dispatch mode, and why."""

    reason: str


Decision: TypeAlias = "Use | Off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first thing in the file: what it is and where its figures hold.

    Attributes:
        name: the model's name. device: "cpu" or "cuda".
        torch: torch version under which it was judged, for example "2.13.0"; entries are off under another minor.
        device_name: name of the GPU on which it was judged, "" for the CPU; entries are off on another GPU.
        driver: version of the GPU's driver there, "580.65.06", or "" if it is not known; entries are off under another
            branch of it (the first number).
        unchecked: labels of the variants whose kernels' memory could not be checked; the writer fills it in.
        created_by: name and version of the writer.
    """

    name: str
    device: str
    torch: str
    created_by: str
    device_name: str = ""
    driver: str = ""
    unchecked: tuple[str, ...] = ()
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What a binary was made with, each "" where it is not known.

    Attributes:
        compiler: its version line. flags: all flags, in order.
        tvm_ffi: version of apache-tvm-ffi, whose C header is in the binary.
        glibc: of the machine on which the binary was packed.
    """

    compiler: str = ""
    flags: tuple[str, ...] = ()
    tvm_ffi: str = ""
    glibc: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """A shared object that was verified and timed.

    Attributes:
        data: its bytes. digest: their hex sha256. backend: "cpp" or "cuda".
        target: what a machine needs to run it: "sm_90", "x86-64-v3" ...
        refusals: what the guard in the binary means by the return codes 1, 2, ...
        abi, abi_version: how it is called.
    """

    data: bytes = field(repr=False)
    digest: str
    backend: str
    target: str
    refusals: tuple[str, ...]
    abi: str = ABI
    abi_version: int = ABI_VERSION
    tools: Tools = field(default_factory=Tools)

    @property
    def callable(self) -> bool:
        """Whether this version knows how it is called."""
        return (self.abi, self.abi_version) == (ABI, ABI_VERSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One kernel for one variant. Its guard derives from the variant alone.

    Attributes:
        source: the generator's file. prelude: the generated head that stood before it.
        binaries: of this source, at least one, each for another target; the first is the one that was timed.
        verdict, measurement, audit: as `package.serial` writes them. What was measured in a mode of dispatch is in
            `measurement["modes"]`, by the mode's name.
        decisions: one for each of `MODES`.
        provenance: origin of the source (generator, candidate, schedule ...) and of the binary (compiler, flags).
        share: runtime share of the variant in the captured model, in [0, 1].
    """

    variant: Variant
    source: str
    prelude: str
    binaries: tuple[Binary, ...]
    verdict: JsonObject
    measurement: JsonObject
    audit: JsonObject
    decisions: Mapping[str, Decision]
    provenance: JsonObject
    share: float = 0.0

    @property
    def binary(self) -> Binary:
        """The first of the binaries."""
        return self.binaries[0]

    def measured(self, mode: str) -> JsonObject:
        """What was measured in a mode of dispatch; empty if nothing was."""
        modes = self.measurement.get("modes")
        found = modes.get(mode) if isinstance(modes, Mapping) else None
        if found is None and mode == "eager":
            found = self.measurement.get("dispatch")  # where it was when eager was the only mode
        return found if isinstance(found, Mapping) else {}

    def decision(self, mode: str) -> Decision:
        """The decision for a mode; a mode that the package does not mention is off."""
        return self.decisions.get(mode, Off(reason="not measured"))

    @property
    def memory(self) -> JsonObject:
        """What memory checking said: its `state`, "passed" with `tools` or "unavailable" with `reason`.

        Empty for a kernel that was exported before there was such a check.
        """
        memory = self.verdict.get("memory")
        return memory if isinstance(memory, Mapping) else {}

    @property
    def speedup(self) -> float:
        """Median speed-up over eager, as measured when the package was made; 1.0 if it is not recorded."""
        summary = self.measurement.get("speedup")
        median = summary.get("median") if isinstance(summary, Mapping) else None
        return float(median) if isinstance(median, int | float) else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package in memory, whose every byte is accounted for. Whether to trust it is another question: `package.trust`.

    Attributes:
        digest: hex sha256 of the whole file.
        signer: public key of whoever signed it, hex; the signature is valid. "" for a package without one.
    """

    header: Header
    entries: tuple[Entry, ...]
    path: Path
    digest: str
    signer: str = ""
