"""Audit labels. Owns `AuditKind`, `AuditLabel`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class AuditKind(StrEnum):
    """Who does the work."""

    GENERATED = "generated"
    BACKEND = "backend"
    FALLBACK = "fallback"
    TORCH = "torch"
    """Of the torch ABI: judged in a process that has torch in it, so that nobody can tell who does the work."""


TORCH_TIER = "torch ABI: judged in a torch process; it may be revised, and is not exported"
"""What every face says of a trial with the label `torch`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLabel:
    """The label and what it was computed from: symbols of the binary and libraries it links, never claims."""

    kind: AuditKind
    evidence: tuple[str, ...]
