"""Keeps copies of captured inputs until the model has finished. Owns `ExampleCollector` and `ExampleSink`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from kernelforge.capture.facts import layout_name
from kernelforge.capture.snapshots import Snapshot, describe, packed_bytes, snapshot
from kernelforge.capture.types import Distribution

if TYPE_CHECKING:
    import torch

    Storable: TypeAlias = "torch.Tensor | Snapshot | Distribution"

_ALWAYS = 4


class ExampleSink(Protocol):
    """Where examples go: `cards.examples.ExampleStore`."""

    def put(self, tensors: Sequence[Storable]) -> str:
        """Store one example; its digest."""
        ...


class ExampleCollector:
    """Copies the inputs of some calls, each distinct content once, within a cap.

    Of the distinct calls that differ only in sizes the first four are kept, then the 8th, 16th, 32nd ...: a growing
    cache would otherwise copy itself at every step.
    """

    def __init__(self, max_bytes: int, max_tensor_bytes: int, *, keep: bool = True) -> None:
        self.max_bytes, self.max_tensor_bytes, self.keep = max_bytes, max_tensor_bytes, keep
        self.total_bytes = 0
        self._groups: Counter[str] = Counter()
        self._examples: list[tuple[Snapshot | Distribution, ...]] = []
        self._contents: dict[str, torch.Tensor] = {}
        self._parameters: dict[object, tuple[torch.Tensor, Snapshot | Distribution]] = {}

    def take(self, group: str, tensors: Sequence[torch.Tensor]) -> int | None:
        """Copy the inputs of a call of this group if another example of it is wanted; a handle, or None."""
        self._groups[group] += 1
        seen = self._groups[group]
        wanted = self.keep and (seen <= _ALWAYS or seen & (seen - 1) == 0)
        if not wanted or any(layout_name(t) != "strided" for t in tensors):
            return None
        self._examples.append(tuple(self._copy(t) for t in tensors))
        return len(self._examples) - 1

    def flush(self, sink: ExampleSink) -> dict[int, str]:
        """Write all examples; their digests by handle."""
        return {handle: sink.put(items) for handle, items in enumerate(self._examples)}

    def _copy(self, tensor: torch.Tensor) -> Snapshot | Distribution:
        """A parameter is recognised without reading it again; holding it keeps its address from being reused."""
        if not (tensor.is_leaf and tensor.requires_grad):
            return self._read(tensor)
        key = (tensor.data_ptr(), tensor._version, tensor.shape, tensor.stride(), tensor.dtype)
        if key not in self._parameters:
            self._parameters[key] = (tensor, self._read(tensor))
        return self._parameters[key][1]

    def _read(self, tensor: torch.Tensor) -> Snapshot | Distribution:
        size = packed_bytes(tensor)
        if size > self.max_tensor_bytes:
            return describe(tensor)
        copy = snapshot(tensor)
        if copy.digest in self._contents:
            return Snapshot(
                values=self._contents[copy.digest], digest=copy.digest, shape=copy.shape, stride=copy.stride,
                dtype=copy.dtype,
            )  # fmt: skip
        if self.total_bytes + size > self.max_bytes:
            return describe(tensor)
        self.total_bytes += size
        self._contents[copy.digest] = copy.values
        return copy
