"""docs/abi.md: its example is a candidate of the variant that it shows, and the flags are those of the backends."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
import torch

from kernelforge.build.abi import prelude
from kernelforge.build.backends import get_backend
from kernelforge.build.backends.cpp import CppBackend
from kernelforge.build.backends.cuda import CudaBackend
from kernelforge.build.cache import BuildCache
from kernelforge.build.types import Artifact
from kernelforge.capture.types import TensorRef
from kernelforge.cards.types import Dim, Extent, TensorPattern, Variant
from kernelforge.generate.types import Candidate
from kernelforge.settings import load_settings

DOCUMENT = (Path(__file__).parents[2] / "docs" / "abi.md").read_text()
_N0 = Extent(1, ("n0",))
_PATTERN = TensorPattern(
    shape=(Extent(1), Extent(16), Extent(1), _N0), stride=(Extent(16, ("n0",)), _N0, _N0, Extent(1)), dtype="float32"
)
SOFTMAX = Variant(
    operator="softmax", arguments=(("input", TensorRef(0)), ("dim", 3), ("dtype", None)), tensors=(_PATTERN,),
    outputs=(_PATTERN,), dims=(Dim(name="n0", low=1, high=512),),
)  # fmt: skip


def block(start: str) -> str:
    """The only fenced block of C++ that starts so."""
    (found,) = [b for b in re.findall(r"```c\+\+\n(.*?)```", DOCUMENT, re.S) if b.startswith(start)]
    return str(found)


def test_the_prelude_is_that_of_the_variant() -> None:
    lines = prelude(SOFTMAX, "cpp").splitlines()
    without_headers = [*lines[:2], *lines[lines.index("namespace v {") :]]
    assert block("// softmax-").splitlines() == without_headers


def test_the_example_builds_and_is_right(tmp_path: Path) -> None:
    backend = get_backend("cpp", load_settings({"KFORGE_CACHE_DIR": str(tmp_path)}))
    source = block('extern "C" int launch(const float* input, int64_t n0')
    candidate = Candidate(variant_id=SOFTMAX.id, source=source, backend="cpp", generator="manual")
    built = backend.build(candidate, SOFTMAX)
    assert isinstance(built, Artifact), built
    launch = ctypes.CDLL(str(built.path)).launch
    launch.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
    for size in (1, 17, 512):
        x = torch.randn(1, 16, 1, size)
        out = torch.full_like(x, torch.nan)
        assert launch(x.data_ptr(), size, out.data_ptr(), None) == 0
        torch.testing.assert_close(out, x.softmax(3))


@pytest.mark.parametrize("file", [".cpp", ".cu"])
def test_the_flags_are_those_of_the_backend(file: str, tmp_path: Path) -> None:
    (row,) = [line for line in DOCUMENT.splitlines() if line.startswith(f"| `{file}` | `")]
    shown = [word for quoted in re.findall(r"`([^`]*)`", row)[1:] for word in quoted.split()]
    if file == ".cpp":
        backend = get_backend("cpp", load_settings({"KFORGE_CACHE_DIR": str(tmp_path)}))
        assert isinstance(backend, CppBackend)
        commands = backend.toolchain.commands
        shown = [word for word in shown if word not in {"g++", "clang++"}]
    else:
        cuda = CudaBackend(
            compiler=Path("nvcc"), version="", arch="sm_90", device="", cache=BuildCache(folder=tmp_path)
        )
        commands = cuda._toolchain("sm_90", with_ptx=True).commands
        shown = shown[1:]
    assert flags(shown) == flags([word for command in commands for word in command])


def flags(words: list[str]) -> list[str]:
    """Without names of files, the list of what was included, the folder of headers and the level of x86-64."""
    names = {"-isystem", "-MMD", "-MF", "unit.d", "-o", "unit.cpp", "unit.cu", "kernel.o", "kernel.so"}
    return [w for w in words if w not in names and "/" not in w and not w.startswith("-march=")]
