"""The one slot in which times are taken on a device, across processes. Owns `timing_slot`, `physical_gpu`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from kernelforge.errors import DeviceBusy, EnvironmentMissing
from kernelforge.settings import Settings

TIMEOUT_S = 600.0


@contextmanager
def timing_slot(settings: Settings, device: str) -> Iterator[None]:
    """Hold the slot of a device in the body: that of the CPU, or of the first GPU that this process sees.

    Raises:
        DeviceBusy: another process holds it for too long. EnvironmentMissing: the cache folder cannot be written to.
    """
    name = f"cuda-{physical_gpu(0)}" if device == "cuda" else device
    path = settings.cache_dir / "slots" / f"{name}.lock"
    lock = FileLock(path, timeout=TIMEOUT_S)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        message = f"the timing slot of {device} was busy for {TIMEOUT_S:.0f} s (pid {os.getpid()} waits)"
        raise DeviceBusy(message, hint="wait for the other run, or stop it") from error
    except OSError as error:
        raise EnvironmentMissing(f"cannot write to the cache folder {path.parent}: {error}") from error
    try:
        yield
    finally:
        lock.release()


def physical_gpu(index: int) -> str:
    """The UUID of a GPU: unlike its index the same under every CUDA_VISIBLE_DEVICES, which also takes it.

    Raises:
        AssertionError, RuntimeError: torch sees no such GPU.
    """
    import torch

    return f"GPU-{torch.cuda.get_device_properties(index).uuid}"
