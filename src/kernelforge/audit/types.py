"""Audit labels. Owns `AuditKind`, `AuditLabel`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class AuditKind(StrEnum):
    """Who does the work."""

    GENERATED = "generated"
    BACKEND = "backend"
    FALLBACK = "fallback"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLabel:
    """The label and what it was computed from: symbols of the binary and libraries it links, never claims."""

    kind: AuditKind
    evidence: tuple[str, ...]
