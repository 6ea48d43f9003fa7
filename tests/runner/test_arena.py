"""Inputs that are written once for all who get them."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from kernelforge.runner.arena import input_arena, read_bytes, shared_inputs
from kernelforge.runner.protocol import Buffer, layout_of

FIRST, SECOND = bytes(range(100)), bytes(range(200, 250))


def buffers_of(*data: bytes | memoryview) -> tuple[Buffer, ...]:
    inputs = tuple(Buffer(kind="input", data=d, size_bytes=len(d)) for d in data)
    return (*inputs, Buffer(kind="output", data=None, size_bytes=64))


def shared() -> tuple[memoryview, ...]:
    pieces = (memoryview(FIRST)[:30], memoryview(FIRST)[30:])
    return shared_inputs([(100, pieces), (50, (memoryview(SECOND),))])


def inode(fd: int) -> int:
    number = os.fstat(fd).st_ino
    os.close(fd)
    return number


def test_they_are_the_bytes_where_the_layout_has_them() -> None:
    views = shared()
    assert [bytes(v) for v in views] == [FIRST, SECOND]
    buffers = buffers_of(*views)
    layout = layout_of(buffers)
    fd = input_arena(buffers, layout)
    got = [bytes(read_bytes(fd, o, len(v))) for o, v in zip(layout.in_offsets, views, strict=False)]
    assert got == [FIRST, SECOND]
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 0)
    os.close(fd)


def test_every_arena_of_them_is_the_same_memory() -> None:
    views = shared()
    buffers = buffers_of(*views)
    layout = layout_of(buffers)
    assert inode(input_arena(buffers, layout)) == inode(input_arena(buffers, layout))


def test_other_sets_get_memory_of_their_own() -> None:
    views = shared()
    whole = inode(input_arena(buffers_of(*views), layout_of(buffers_of(*views))))
    for data in ((views[0],), (views[1], views[0]), (views[0], SECOND), (views[0], views[0][:50])):
        buffers = buffers_of(*data)
        layout = layout_of(buffers)
        fd = input_arena(buffers, layout)
        contents = [bytes(read_bytes(fd, o, len(d))) for o, d in zip(layout.in_offsets, data, strict=False)]
        assert contents == [bytes(d) for d in data]
        assert inode(fd) != whole


def test_it_is_gone_with_its_last_view() -> None:
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    views = shared()
    part = views[1]
    del views
    gc.collect()
    assert bytes(part) == SECOND
    del part
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
