"""The file of a stored kernel: one JSON object with its format and a checksum. Trusts nothing that it reads."""

from __future__ import annotations

import json
from collections.abc import Mapping

from kernelforge.benchmark.types import Interval
from kernelforge.cards.types import Variant
from kernelforge.digest import Json, canonical_json, digest
from kernelforge.library.types import Origin, StoredKernel

FORMAT = 1

LARGEST_NUMBER = 1e11
"""Above all speed-ups, and above POSIX seconds that a calendar has a date for."""

LARGEST_FILE = 4 << 20
"""No entry is larger, in bytes: a source is some kilobytes."""


def to_bytes(kernel: StoredKernel) -> bytes:
    """The content of a kernel's file."""
    content = kernel.to_json()
    return canonical_json({"format": FORMAT, "sha256": digest(content), "kernel": content}).encode() + b"\n"


def from_bytes(data: bytes) -> StoredKernel:
    """The inverse of `to_bytes`.

    Raises:
        ValueError: damaged, edited, or of a newer format; the message is for people.
    """
    try:
        document = json.loads(data)
        if _integer(document["format"]) > FORMAT:
            raise ValueError(f"it has format {document['format']}, and this kernelforge reads up to {FORMAT}")
        content = document["kernel"]
        if digest(content) != document["sha256"]:
            raise ValueError("its content does not match its checksum")
        return _kernel(content)
    except (KeyError, TypeError, IndexError, AssertionError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is not the file of a kernel: {error!r}") from error


def _kernel(data: Mapping[str, Json]) -> StoredKernel:
    def text(name: str) -> str:
        value = data[name]
        assert isinstance(value, str), name
        return value

    variant = data["variant"]
    assert isinstance(variant, Mapping)
    schedule = text("schedule")
    # What reads a schedule takes it for an object.
    if schedule and not isinstance(json.loads(schedule), dict):
        raise ValueError("its schedule is no JSON object")
    return StoredKernel(
        variant=Variant.from_json(variant), least_elements=_integer(data["least_elements"]), source=text("source"),
        backend=text("backend"), abi=text("abi"), generator=text("generator"), notes=text("notes"),
        schedule=schedule, language_model=text("language_model"), model=text("model"),
        origin=Origin(device=text("device"), toolchain=text("toolchain"), torch=text("torch")),
        speedup=_interval(data["speedup"]), dispatch=_interval(data["dispatch"]),
        certified=_number(data["certified"]),
    )  # fmt: skip


def _integer(value: Json) -> int:
    assert isinstance(value, int) and not isinstance(value, bool)
    return value


def _number(value: Json) -> float:
    assert isinstance(value, int | float) and not isinstance(value, bool)
    if not -LARGEST_NUMBER < value < LARGEST_NUMBER:  # nor is NaN
        raise ValueError("it holds a number that is none of a time or speed-up")
    return float(value)


def _interval(value: Json) -> Interval:
    assert isinstance(value, list)
    median, low, high = value
    return Interval(median=_number(median), low=_number(low), high=_number(high))
