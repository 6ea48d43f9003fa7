"""How a nest of loops is carried out. Owns `Schedule`; which ones are tried, and in what order, is in `choose`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Literal, TypeAlias

from kernelforge.digest import canonical_json

Mapping: TypeAlias = Literal["flat", "rows", "straddle", "warp_row", "block_row", "thread_row", "tile"]
Cache: TypeAlias = Literal["registers", "shared", "buffer", "output", "reread"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One way to run a program. Fields that a mapping does not use keep their defaults.

    Attributes:
        mapping: "flat": one index over all points; "rows": a row at a time; "straddle": one index over all points,
            where a vector may reach into the next row (CUDA); "warp_row", "block_row", "thread_row": who works on a
            row (CUDA); "tile": a row per column of a tile of columns (CPU).
        vector: elements per memory access (CUDA), or columns per tile (CPU).
        threads: per block (CUDA).
        lanes: threads that share a row (CUDA, "warp_row": 8, 16 or 32).
        unroll: vectors per thread that are in flight at once (CUDA).
        cache: where a row is kept between its passes.
        streaming: stores that bypass the caches.
        grain: points below which one thread does everything (CPU).
    """

    mapping: Mapping
    vector: int = 1
    threads: int = 256
    lanes: int = 32
    unroll: int = 1
    cache: Cache = "reread"
    streaming: bool = False
    grain: int = 0

    def to_json(self) -> str:
        return canonical_json(asdict(self))

    def describe(self) -> str:
        """What differs from the defaults, for people: "warp_row vector=8 cache=registers"."""
        parts: list[str] = [self.mapping]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "mapping" and value != field.default:
                parts.append(f"{field.name}={value}" if not isinstance(value, bool) else field.name)
        return " ".join(parts)
