"""What the library keeps of a kernel. Owns `StoredKernel`, `Origin`, `library_key` and `abi_of`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kernelforge.benchmark.types import Interval
from kernelforge.cards.types import Variant
from kernelforge.digest import Json, digest
from kernelforge.search.duplicates import normalised


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a kernel was certified: its time holds where all of this is the same.

    Attributes:
        device: GPU and architecture ("NVIDIA H200, sm_90"), or the CPU target ("x86-64-v3"); for people.
        toolchain: compiler and device in the backend's own words (`Backend.brief`).
        torch: major and minor version ("2.10") of the torch whose call it was timed against.
    """

    device: str
    toolchain: str
    torch: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKernel:
    """A kernel that got its certificate and was taken into use.

    Attributes:
        variant: as it was captured, also where the package serves only its larger sizes.
        least_elements: from how many elements on it was used; 0: at every size.
        abi: of the prelude that the source was written against (see `abi_of`).
        generator, notes, schedule, language_model: as of the `Candidate` that it first was.
        model: name of the model that it was made for.
        speedup: the judge's, over all captured sizes.
        dispatch: through the dispatch path, at the sizes that it was used for. The best kernels of a key are those
            where this is highest.
        certified: POSIX seconds.
    """

    variant: Variant
    least_elements: int
    source: str
    backend: str
    abi: str
    generator: str
    notes: str
    schedule: str
    language_model: str
    model: str
    origin: Origin
    speedup: Interval
    dispatch: Interval
    certified: float

    @property
    def id(self) -> str:
        """Of what it is, not of how fast it was: certified again it replaces what was known of it."""
        return digest([library_key(self.variant), *self.made_for, normalised(self.source)])

    @property
    def made_for(self) -> tuple[str, str, str, str]:
        """Times of kernels that have this in common, for one `library_key`, can be compared."""
        return (self.backend, self.abi, self.origin.toolchain, self.origin.torch)

    def to_json(self) -> Mapping[str, Json]:
        return {
            "variant": self.variant.to_json(), "least_elements": self.least_elements, "source": self.source,
            "backend": self.backend, "abi": self.abi, "generator": self.generator, "notes": self.notes,
            "schedule": self.schedule, "language_model": self.language_model, "model": self.model,
            "device": self.origin.device, "toolchain": self.origin.toolchain, "torch": self.origin.torch,
            "speedup": _interval_to_json(self.speedup), "dispatch": _interval_to_json(self.dispatch),
            "certified": self.certified,
        }  # fmt: skip


def library_key(variant: Variant) -> str:
    """What is looked up: the id of the variant whatever the GPU's architecture, and at all of its sizes.

    An export may have narrowed the variant to its larger sizes; the searches that follow meet the captured one.
    """
    return digest(replace(variant, capability="", min_elements=0).to_json())


def abi_of(prelude: str) -> str:
    """The digest of a prelude without its comments: the types, constants and signature that a source relies on."""
    return digest(normalised(prelude))


def _interval_to_json(interval: Interval) -> Json:
    return [interval.median, interval.low, interval.high]
