"""Raw bytes between processes, through memfds. Owns how buffers are put into one and read back."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Sequence

from kernelforge.runner.protocol import Buffer, Layout

_SEAL_SHRINK, _SEAL_GROW, _SEAL_FUTURE_WRITE = 0x2, 0x4, 0x10


def input_arena(buffers: Sequence[Buffer], layout: Layout) -> int:
    """A memfd with the inputs' bytes, sealed: whoever gets it can map it read-only only. The caller closes it."""
    fd = os.memfd_create("kforge-inputs", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, layout.in_bytes)
    for buffer, offset in zip(buffers, layout.in_offsets, strict=True):
        if buffer.data is not None and offset >= 0:
            view = memoryview(buffer.data).cast("B") if buffer.size_bytes else memoryview(b"")
            _write_all(fd, view, offset)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEAL_SHRINK | _SEAL_GROW | _SEAL_FUTURE_WRITE)
    return fd


def blank_arena(size_bytes: int) -> int:
    """A memfd of zeros of fixed size that the other side may write. The caller closes it."""
    fd = os.memfd_create("kforge-outputs", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size_bytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEAL_SHRINK | _SEAL_GROW)
    return fd


def read_bytes(fd: int, offset: int, size_bytes: int) -> bytearray:
    """A copy of part of an arena; the other side cannot change it afterwards."""
    data = bytearray(size_bytes)
    view, done = memoryview(data), 0
    while done < size_bytes:
        done += os.preadv(fd, [view[done:]], offset + done)
    return data


def read_outputs(fd: int, layout: Layout) -> tuple[bytearray, ...]:
    """The bytes of every "inout" and "output" buffer, in order."""
    pairs = zip(layout.out_offsets, layout.sizes, strict=True)
    return tuple(read_bytes(fd, offset, size) for offset, size in pairs if offset >= 0)


def read_samples(fd: int, count: int) -> tuple[int, ...]:
    """The first `count` little-endian 64-bit numbers of an arena."""
    return struct.unpack(f"<{count}Q", read_bytes(fd, 0, 8 * count))


def _write_all(fd: int, view: memoryview, offset: int) -> None:
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done:], offset + done)
