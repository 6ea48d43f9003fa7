"""What to do for one signature of a call: which kernel, which outputs, which workspace. Made once, run often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from kernelforge.capture.facts import tensor_spec
from kernelforge.cards.types import TensorPattern, Variant
from kernelforge.dispatch.decide import Admitted
from kernelforge.dispatch.types import Kernel
from kernelforge.native.extension import Counter
from kernelforge.operators import get_operator
from kernelforge.package.types import Entry

_WORKSPACE_ALIGNMENT = 256
Output: TypeAlias = "tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]"
"""The input that it is like in shape, strides and dtype or -1; its shape; its strides; its dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """Calls of this signature go to the original. `counter` counts them."""

    counter: Counter


@dataclass(slots=True, kw_only=True)
class Hit:
    """Calls of this signature go to a kernel, if their memory allows it.

    Attributes:
        order: for each input of the variant its position among the call's tensors.
        spans: for each input the bytes from its first to its last element.
        outputs: how to allocate them. scalars: in the variant's order.
        device: CUDA device index, or -1.
        portable: the plan holds for every call of the variant with the same arguments beside the tensors: its one
            output is like an input, it needs no workspace, and no argument depends on a size.
        variant_id: of the entry's variant, whose own property costs a digest.
        launched: it has been, outside of a stream capture.
    """

    entry: Entry
    launch: Callable[..., int]
    address: int
    counter: Counter
    order: tuple[int, ...]
    spans: tuple[int, ...]
    outputs: tuple[Output, ...]
    scalars: tuple[float, ...]
    workspace_bytes: int
    device: int
    portable: bool
    variant_id: str
    launched: bool = False

    def memory_problem(self, tensors: Sequence[torch.Tensor]) -> str:
        """The term of the guard that the call's memory fails, or "". Only operators that write an input can fail."""
        variant = self.entry.variant
        inputs = [tensors[i] for i in self.order]
        starts = [tensor.data_ptr() for tensor in inputs]
        for target in variant.mutates:
            first, last = starts[target], starts[target] + self.spans[target]
            for other, start in enumerate(starts):
                overlap = other != target and start < last and first < start + self.spans[other]
                if overlap and (min(other, target), max(other, target)) not in variant.aliases:
                    return "alias"
        inference = torch.is_inference_mode_enabled()
        if any(inputs[i].is_inference() and not inference for i in variant.mutates):
            return "inference tensor"
        return ""

    def run(self, tensors: Sequence[torch.Tensor]) -> tuple[int, object]:
        """Allocate, launch; returns the launch's status and what the call returns if that is 0."""
        inputs = [tensors[i] for i in self.order]
        first = inputs[0]
        outputs = [
            torch.empty_like(inputs[like])
            if like >= 0
            else torch.empty_strided(shape, stride, dtype=dtype, device=first.device)
            for like, shape, stride, dtype in self.outputs
        ]
        stream = torch._C._cuda_getCurrentRawStream(self.device) if self.device >= 0 else 0
        address, workspace = 0, None
        if self.workspace_bytes:
            workspace = torch.empty(self.workspace_bytes + _WORKSPACE_ALIGNMENT, dtype=torch.uint8, device=first.device)
            address = -(-workspace.data_ptr() // _WORKSPACE_ALIGNMENT) * _WORKSPACE_ALIGNMENT
        status = self.launch(*inputs, *outputs, *self.scalars, address, stream)
        # On CUDA the kernel may still run: the allocator keeps the memory for this stream's later work only.
        del workspace
        if status:
            return status, None
        for index in self.entry.variant.mutates:
            if not inputs[index].is_inference():
                torch.autograd.graph.increment_version(inputs[index])
        return 0, outputs[0] if outputs else inputs[self.entry.variant.mutates[0]]


def hit_plan(admitted: Admitted, kernel: Kernel, tensors: Sequence[torch.Tensor], order: tuple[int, ...],
             counter: Counter) -> Hit:  # fmt: skip
    """The plan of an admitted signature.

    Args:
        tensors: the tensors of one call of the signature. order: positions of the variant's inputs among them.
    """
    variant = admitted.entry.variant
    inputs = [tensors[i] for i in order]
    outputs = tuple(_output(p, variant, admitted, inputs) for p in variant.outputs)
    workspace = kernel.workspace_bytes([admitted.dims[d.name] for d in variant.dims])
    scalars = tuple(admitted.scalars[s.name] for s in variant.scalars)
    portable = len(outputs) == 1 and not variant.mutates and not workspace and _like_an_input(variant, outputs[0][0])
    return Hit(
        entry=admitted.entry, launch=kernel.launch, address=kernel.address, counter=counter, order=order,
        outputs=outputs,
        spans=tuple(tensor_spec(t).storage_bytes for t in inputs), scalars=scalars,
        workspace_bytes=workspace, device=inputs[0].get_device(), portable=portable,
        variant_id=variant.id,
    )  # fmt: skip


def _like_an_input(variant: Variant, like: int) -> bool:
    """Whether the output has the pattern of that input whatever the dims, and no argument follows a size."""
    if like < 0 or get_operator(variant.operator).varying_ints:
        return False
    given, made = variant.tensors[like], variant.outputs[0]
    return (given.shape, given.stride, given.dtype) == (made.shape, made.stride, made.dtype)


def _output(pattern: TensorPattern, variant: Variant, admitted: Admitted, inputs: Sequence[torch.Tensor]) -> Output:
    spec = pattern.spec(admitted.dims, variant.device)
    dtype = getattr(torch, spec.dtype)
    assert isinstance(dtype, torch.dtype)
    for index, tensor in enumerate(inputs):
        # empty_like is the cheapest way to allocate, where it gives eager's own layout.
        if (tuple(tensor.shape), tensor.dtype) == (spec.shape, dtype):
            like = torch.empty_like(tensor)
            if like.stride() == spec.stride:
                return index, spec.shape, spec.stride, dtype
    return -1, spec.shape, spec.stride, dtype
