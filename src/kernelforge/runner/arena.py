"""Raw bytes between processes, through memfds. Owns how buffers are put into one and read back."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Iterable, Sequence

from kernelforge.runner.protocol import Buffer, Layout, offsets_of

_SEAL_SHRINK, _SEAL_GROW, _SEAL_FUTURE_WRITE = 0x2, 0x4, 0x10


class _Shared(mmap.mmap):
    """A sealed memfd of inputs, mapped read-only. As long as a view of it lives, so does `fd`."""

    fd = -1

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def shared_inputs(parts: Sequence[tuple[int, Iterable[memoryview]]]) -> tuple[memoryview, ...]:
    """The inputs of one set, in order, written once into the memfd that every later `input_arena` of them gives out.

    Args:
        parts: of each input its size and its bytes in pieces.
    """
    sizes = tuple(size for size, _ in parts)
    offsets, total = offsets_of(sizes)
    fd = os.memfd_create("kforge-inputs", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, total)
        for offset, (_, pieces) in zip(offsets, parts, strict=True):
            at = offset
            for piece in pieces:
                _write_all(fd, piece, at)
                at += len(piece)
        _seal(fd)
        shared = _Shared(fd, total, prot=mmap.PROT_READ)
    except BaseException:
        os.close(fd)
        raise
    shared.fd = fd
    view = memoryview(shared)
    return tuple(view[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True))


def input_arena(buffers: Sequence[Buffer], layout: Layout) -> int:
    """A memfd with the inputs' bytes, sealed: whoever gets it can map it read-only only. The caller closes it."""
    shared = _shared_by(buffers, layout)
    if shared is not None:
        return os.dup(shared.fd)
    fd = os.memfd_create("kforge-inputs", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, layout.in_bytes)
    for buffer, offset in zip(buffers, layout.in_offsets, strict=True):
        if buffer.data is not None and offset >= 0:
            view = memoryview(buffer.data).cast("B") if buffer.size_bytes else memoryview(b"")
            _write_all(fd, view, offset)
    _seal(fd)
    return fd


def _shared_by(buffers: Sequence[Buffer], layout: Layout) -> _Shared | None:
    """The memory in which all inputs lie already, where the layout has them."""
    inputs = [(b.data, offset) for b, offset in zip(buffers, layout.in_offsets, strict=True) if b.data is not None]
    shared = inputs[0][0].obj if inputs and isinstance(inputs[0][0], memoryview) else None
    if not isinstance(shared, _Shared) or len(shared) != layout.in_bytes:
        return None
    start = _address(memoryview(shared))
    for data, offset in inputs:
        if not isinstance(data, memoryview) or data.obj is not shared:
            return None
        if data.nbytes and _address(data) - start != offset:
            return None
    return shared


def _address(view: memoryview) -> int:
    import numpy as np

    return int(np.frombuffer(view, dtype=np.uint8).__array_interface__["data"][0])


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


def _seal(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEAL_SHRINK | _SEAL_GROW | _SEAL_FUTURE_WRITE)


def _write_all(fd: int, view: memoryview, offset: int) -> None:
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done:], offset + done)
