"""Captured input tensors on disk: one safetensors file per distinct content, one small JSON file per example.

A weight that a thousand calls use is one file. A tensor above the cap is kept as a `Distribution` and redrawn on
reading. Layout of the folder: `tensors/<sha256>.safetensors` (values, row-major), `examples/<sha256>.json`.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from kernelforge.capture.snapshots import Snapshot, redraw, snapshot, unpack
from kernelforge.capture.types import Distribution
from kernelforge.digest import Json, canonical_json, digest
from kernelforge.errors import NotFound, ProjectError

if TYPE_CHECKING:
    import torch

    Storable: TypeAlias = "torch.Tensor | Snapshot | Distribution"

EXAMPLE_SCHEMA = 1


class ExampleStore:
    """Content-addressed examples under one folder, which is made on the first write."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, tensors: Sequence[Storable]) -> str:
        """Store one example: the input tensors of a call, in order. Storing the same content twice writes nothing.

        Returns:
            The example's digest.

        Raises:
            ProjectError: the folder cannot be written.
        """
        try:
            items = [t.to_json() if isinstance(t, Distribution) else self._put_tensor(t) for t in tensors]
            record: Json = {"schema": EXAMPLE_SCHEMA, "tensors": items}
            key = digest(record)
            path = self._example_path(key)
            if not path.exists():
                _write_atomically(path, canonical_json(record).encode())
        except OSError as error:
            hint = "check free space and permissions"
            raise ProjectError(f"examples cannot be written to {self.root}: {error}", hint=hint) from error
        return key

    def get(self, example: str, *, seed: int = 0, device: str = "cpu") -> list[torch.Tensor]:
        """Read an example: tensors with the captured shape, stride and dtype.

        Args:
            seed: for tensors that are kept as a distribution; the same seed and device give the same values.
            device: where the tensors are put, and where a distribution is drawn.

        Raises:
            NotFound: no such example.
            ProjectError: a file is missing, damaged or of a newer schema.
        """
        return [self._get_tensor(item, seed + i, device) for i, item in enumerate(self._record(example))]

    def has(self, example: str) -> bool:
        """Whether the example is stored."""
        return bool(example) and self._example_path(example).exists()

    def is_exact(self, example: str) -> bool:
        """Whether every tensor holds the captured values, none a redrawn distribution."""
        return all("values" in item for item in self._record(example))

    def prune(self, keep: Collection[str]) -> None:
        """Delete every example but those, and every tensor that none of those uses."""
        used = {str(item["values"]) for key in keep for item in self._record(key) if "values" in item}
        for path in self.root.glob("examples/*.json"):
            if path.stem not in keep:
                path.unlink()
        for path in self.root.glob("tensors/*.safetensors"):
            if path.stem not in used:
                path.unlink()

    def _record(self, example: str) -> list[dict[str, Json]]:
        try:
            record = json.loads(self._example_path(example).read_text())
        except FileNotFoundError as error:
            raise NotFound(f"no example {example[:12]} in {self.root}", hint="capture the model again") from error
        except ValueError as error:
            raise ProjectError(f"example {example[:12]} in {self.root} is damaged: {error}") from error
        if record["schema"] > EXAMPLE_SCHEMA:
            raise ProjectError(f"example {example[:12]} was written by a newer kernelforge", hint="upgrade kernelforge")
        return list(record["tensors"])

    def _put_tensor(self, tensor: torch.Tensor | Snapshot) -> dict[str, Json]:
        from safetensors.torch import save

        item = tensor if isinstance(tensor, Snapshot) else snapshot(tensor)
        path = self._tensor_path(item.digest)
        if not path.exists():
            _write_atomically(path, save({"values": item.values}))
        return {
            "values": item.digest, "shape": list(item.shape), "stride": list(item.stride), "dtype": item.dtype,
        }  # fmt: skip

    def _get_tensor(self, item: Mapping[str, Json], seed: int, device: str) -> torch.Tensor:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        if "values" not in item:
            return redraw(Distribution.from_json(item), seed, device)
        path = self._tensor_path(str(item["values"]))
        try:
            values = load_file(path)["values"]
        except (OSError, SafetensorError, KeyError) as error:
            raise ProjectError(f"tensor file {path} cannot be read: {error}", hint="capture the model again") from error
        shape, stride = item["shape"], item["stride"]
        assert isinstance(shape, list) and isinstance(stride, list)
        # Moved with its gaps: `.to` alone would make a tensor with gaps dense.
        return unpack(values.to(device), shape, stride, str(item["dtype"]))

    def _example_path(self, key: str) -> Path:
        return self.root / "examples" / f"{key}.json"

    def _tensor_path(self, key: str) -> Path:
        return self.root / "tensors" / f"{key}.safetensors"


def _write_atomically(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{uuid.uuid4().hex}.partial")
    try:
        partial.write_bytes(data)
        os.replace(partial, path)  # noqa: PTH105 - same call, but said to be atomic
    finally:
        partial.unlink(missing_ok=True)
