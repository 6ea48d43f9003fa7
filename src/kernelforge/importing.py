"""Finds the kernels of the original system in its own layout of folders, and their operators by the folders' names.

    DIR/individual_op_kernels/torch_nn_functional_softmax/kernel.cu
    DIR/kernels/generated/individual_op_kernels/...     DIR/PROJECT/kernels/generated/individual_op_kernels/...
    DIR/trees/torch_nn_functional_softmax/kernels/kernel_3.cu

DIR may also be one of these folders itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernelforge.operators import get_operator, operator_names

SINGLE = "individual_op_kernels"
_PLACES = (f"{SINGLE}/*", f"kernels/generated/{SINGLE}/*", f"*/kernels/generated/{SINGLE}/*")
_TREES = ("trees/*/kernels", "*/trees/*/kernels")
_SUFFIXES = (".cu", ".cpp")
_PREFIXES = ("torch_nn_functional_", "torch_ops_aten_", "torch_special_", "torch_tensor_", "torch_", "aten_", "at_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A kernel. name: of its operator's folder."""

    name: str
    path: Path


def find_kernels(folder: Path) -> tuple[Found, ...]:
    """The kernels below a folder, by name, those of a tree in the order of their numbers."""
    return tuple(sorted(set(_kernels(folder)), key=lambda f: (f.name, _number(f.path), str(f.path))))


def operator_of(name: str) -> str:
    """The operator that a folder's name means, "" if none.

    For example of `torch_nn_functional_conv2d`, `aten_add_Tensor`, `softmax`.
    """
    plain = name.lower().strip("_")
    for operator in operator_names():
        targets = (entry.target.replace(".", "_").lower() for entry in get_operator(operator).entries)
        if plain == operator or plain in targets:
            return operator
    prefix = next((p for p in _PREFIXES if plain.startswith(p)), "")
    rest = plain.removeprefix(prefix).strip("_")
    # An overload's name may follow.
    parts = rest.split("_")
    candidates = ("_".join(parts[:end]) for end in range(len(parts), 0, -1)) if prefix else ()
    return next((c for c in candidates if c in operator_names()), "")


def _kernels(folder: Path) -> Iterator[Found]:
    # The folder itself, too: that of one operator.
    for pattern in ("", "*", *_PLACES):
        for place in folder.glob(pattern) if pattern else (folder.resolve(),):
            yield from (Found(name=place.name, path=f) for s in _SUFFIXES if (f := place / f"kernel{s}").is_file())
    for pattern in ("*/kernels", *_TREES):
        for place in folder.glob(pattern):
            files = (f for f in place.glob("kernel_*") if f.suffix in _SUFFIXES and f.is_file())
            yield from (Found(name=place.parent.name, path=f) for f in files)


def _number(path: Path) -> int:
    match = re.search(r"_(\d+)$", path.stem)
    return int(match[1]) if match else -1
