"""Launches an entry once before it serves, so that nothing of it is loaded later. Owns `launch_once`.

The CUDA run time loads a module when one of its kernels is first launched. That must not happen inside of a stream
capture, nor in another thread while one is going on.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import count

import torch

from kernelforge.capture.facts import capability_of
from kernelforge.capture.types import TensorSpec
from kernelforge.cards.types import DimValues, Variant
from kernelforge.dispatch.failures import sticky_code
from kernelforge.dispatch.types import Kernel
from kernelforge.package.types import Entry

_LOG = logging.getLogger(__name__)

MAX_BYTES = 256 << 20
"""Inputs, outputs and workspace together, of one launch."""
_WORKSPACE_ALIGNMENT = 256
_MAX_STEPS = 64


class SickDevice(Exception):
    """The first launch of a kernel broke its device for this process. code: the CUDA error; device: its index."""

    def __init__(self, code: int, device: int) -> None:
        super().__init__(f"error {code} on device {device}")
        self.code, self.device = code, device


def devices_in_use(capability: str) -> list[torch.device]:
    """The GPUs of a capability that this process uses: the current one, and those on which it has something already.

    No others: a process of many on one machine would else take memory of every GPU.
    """
    current, has_context = torch.cuda.current_device(), vars(torch._C).get("_cuda_hasPrimaryContext", bool)
    used = [i for i in range(torch.cuda.device_count()) if i == current or has_context(i)]
    return [torch.device("cuda", i) for i in used if capability_of("cuda", i) == capability]


def launch_once(entry: Entry, kernel: Kernel, devices: Sequence[torch.device]) -> str:
    """Launch a kernel at its least sizes on inputs of zeros, on each of the devices, and wait for its end.

    Returns why the entry cannot be used, or "". A kernel whose least sizes need more than `MAX_BYTES` is not launched:
    the log says so, and it is loaded at its first call.

    Raises:
        SickDevice: it broke the device; nothing that uses it works any more in this process.
    """
    variant = entry.variant
    dims = least_dims(variant)
    if dims is None or _size_bytes(variant, kernel, dims) > MAX_BYTES:
        _LOG.info("%s is not launched at load: it admits no small sizes", variant.label)
        return ""
    for device in devices:
        try:
            status = _launch(variant, kernel, dims, device)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        except RuntimeError as error:
            code = sticky_code(error)
            if code is not None:
                raise SickDevice(code, device.index or 0) from error
            return f"its first launch failed: {str(error).splitlines()[0]}"
        if status < 0:
            return f"its first launch failed with error {-status}"
        if status > 0:
            _LOG.info("%s was not launched at load: its guard refused the inputs (code %d)", variant.label, status)
    return ""


def least_dims(variant: Variant) -> DimValues | None:
    """Small sizes that the guard admits; None if none were found."""
    dims = {d.name: -(-max(d.low, 1) // d.multiple_of) * d.multiple_of for d in variant.dims}
    # Where the largest tensor must have some size, the dims grow in turn until it has.
    for step in count():
        if variant.admits_dims(dims):
            return dims
        growing = [d for d in variant.dims if 2 * dims[d.name] <= d.high]
        if not growing or step >= _MAX_STEPS or variant.largest_elements(dims) > variant.max_elements:
            return None
        dims[growing[step % len(growing)].name] *= 2
    raise AssertionError("never reached")


def _launch(variant: Variant, kernel: Kernel, dims: DimValues, device: torch.device) -> int:
    inputs: list[torch.Tensor] = []
    for index, pattern in enumerate(variant.tensors):
        shared = next((a for a, b in variant.aliases if b == index), None)
        spec = pattern.spec(dims, device.type)
        alike = shared is not None and variant.tensors[shared] == pattern
        inputs.append(inputs[shared] if alike and shared is not None else _zeros(spec, device))
    outputs = [_zeros(pattern.spec(dims, device.type), device) for pattern in variant.outputs]
    workspace_bytes = kernel.workspace_bytes([dims[d.name] for d in variant.dims])
    address, stream = 0, 0
    workspace = torch.empty(workspace_bytes + _WORKSPACE_ALIGNMENT, dtype=torch.uint8, device=device)
    if workspace_bytes:
        address = -(-workspace.data_ptr() // _WORKSPACE_ALIGNMENT) * _WORKSPACE_ALIGNMENT
    if device.type == "cuda":
        stream = torch.cuda.current_stream(device).cuda_stream
    status = kernel.launch(*inputs, *outputs, *(s.low for s in variant.scalars), address, stream)
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # before the memory goes back
    return status


def _zeros(spec: TensorSpec, device: torch.device) -> torch.Tensor:
    made = torch.zeros(max(spec.storage_elements, 1), dtype=getattr(torch, spec.dtype), device=device)
    return made.as_strided(spec.shape, spec.stride)


def _size_bytes(variant: Variant, kernel: Kernel, dims: DimValues) -> int:
    specs = [p.spec(dims, variant.device) for p in (*variant.tensors, *variant.outputs)]
    return sum(s.storage_bytes for s in specs) + kernel.workspace_bytes([dims[d.name] for d in variant.dims])
