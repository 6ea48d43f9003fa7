"""Theoretical occupancy of a CUDA kernel from what the compiler says of it. Pure.

The numbers are those of NVIDIA's programming guide:

| | sm_80 | sm_90 | sm_100 |
| --- | --- | --- | --- |
| warps of a multiprocessor | 64 | 64 | 64 |
| blocks of a multiprocessor | 32 | 32 | 32 |
| registers of a multiprocessor, given out by 256 to a warp | 65536 | 65536 | 65536 |
| shared memory of a multiprocessor, KiB | 164 | 228 | 228 |

Shared memory is given out in units of 128 bytes, and each block takes 1 KiB more for the system.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

WARP = 32
_WARPS_ALLOCATED_TOGETHER = 4
_REGISTER_UNIT = 256
_SHARED_UNIT = 128
_SYSTEM_SHARED_BYTES = 1024

Limit = Literal["threads", "blocks", "registers", "shared memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiprocessor:
    """What the blocks of one streaming multiprocessor share."""

    warps: int
    blocks: int
    registers: int
    shared_bytes: int


MULTIPROCESSORS: Mapping[int, Multiprocessor] = {
    80: Multiprocessor(warps=64, blocks=32, registers=65536, shared_bytes=164 << 10),
    90: Multiprocessor(warps=64, blocks=32, registers=65536, shared_bytes=228 << 10),
    100: Multiprocessor(warps=64, blocks=32, registers=65536, shared_bytes=228 << 10),
}
"""By compute capability, 10 * major + minor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """blocks: resident at once on a multiprocessor. share: of its warps, in [0, 1]. limit: what admits no more."""

    blocks: int
    share: float
    limit: Limit


def occupancy(capability: int, *, registers: int, shared_bytes: int, threads: int) -> Occupancy | None:
    """The theoretical occupancy, or None for a device that is not in the table.

    Args:
        registers: of a thread. shared_bytes: static and dynamic, of a block. threads: of a block, in [1, 1024].
    """
    sm = MULTIPROCESSORS.get(capability)
    if sm is None:
        return None
    warps = -(-threads // WARP)
    blocks: dict[Limit, int] = {
        "threads": sm.warps // warps,
        "blocks": sm.blocks,
        "registers": _warps_by_registers(sm, registers) // warps,
        "shared memory": sm.shared_bytes // (_rounded(shared_bytes, _SHARED_UNIT) + _SYSTEM_SHARED_BYTES),
    }
    limit = min(blocks, key=lambda name: blocks[name])
    return Occupancy(blocks=blocks[limit], share=blocks[limit] * warps / sm.warps, limit=limit)


def _warps_by_registers(sm: Multiprocessor, registers: int) -> int:
    of_a_warp = _rounded(max(registers, 1) * WARP, _REGISTER_UNIT)
    return sm.registers // of_a_warp // _WARPS_ALLOCATED_TOGETHER * _WARPS_ALLOCATED_TOGETHER


def _rounded(value: int, unit: int) -> int:
    return -(-value // unit) * unit
