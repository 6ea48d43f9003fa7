"""Sections, functions and kernels of real binaries; damaged ones are errors of their own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kernelforge.audit.elf import ElfError
from kernelforge.build.backends import get_backend
from kernelforge.build.types import Artifact, Backend
from kernelforge.cards.types import VariantRecord
from kernelforge.explain.contents import find_cuobjdump, read_contents
from kernelforge.generate.types import Candidate
from kernelforge.settings import Settings

SOURCE = """
__attribute__((noinline)) static float twice(float x) { return 2 * x; }
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) out[i] = twice(input[i]);
  return 0;
}
"""
KERNELS = """
template <typename T> __global__ void scale(const T* x, T* y) { y[threadIdx.x] = T(2) * x[threadIdx.x]; }
extern "C" __global__ void plain(float* y) { y[threadIdx.x] += 1; }
namespace { __global__ void hidden(float* y) { y[threadIdx.x] *= 3; } }
extern "C" int launch(const float* input, float* out, void* workspace, cudaStream_t stream) {
  scale<float><<<1, 32, 0, stream>>>(input, out);
  plain<<<1, 32, 0, stream>>>(out);
  hidden<<<1, 32, 0, stream>>>(out);
  return 0;
}
"""


@pytest.fixture
def binary(backend: Backend, relu_record: VariantRecord) -> Path:
    made = backend.build(
        Candidate(variant_id=relu_record.variant.id, source=SOURCE, backend="cpp", generator="manual"),
        relu_record.variant,
    )
    assert isinstance(made, Artifact)
    return made.path


def test_sections_and_own_functions(binary: Path) -> None:
    contents = read_contents(binary, device="cpu")
    names = [f.name for f in contents.functions]
    assert "launch" in names and any("twice" in name for name in names)
    assert not [n for n in names if n.startswith(("kforge_", "__tvm", "_init", "frame_dummy"))]
    sizes = {s.name: s.size_bytes for s in contents.sections}
    assert sizes[".text"] > 0 and ".symtab" in sizes
    assert (contents.kernels, contents.kernel_source) == ((), "not a GPU binary")


@pytest.mark.parametrize("keep", [0, 3, 60, 4096, -1000, -200])
def test_a_truncated_binary_is_an_error_of_its_own(binary: Path, tmp_path: Path, keep: int) -> None:
    damaged = tmp_path / "k.so"
    damaged.write_bytes(binary.read_bytes()[:keep])
    with pytest.raises(ElfError, match=r"k\.so"):
        read_contents(damaged, device="cpu")


def test_forged_section_headers_never_crash(binary: Path, tmp_path: Path) -> None:
    data = bytearray(binary.read_bytes())
    damaged = tmp_path / "k.so"
    for at in range(40, 64):
        forged = bytearray(data)
        forged[at] ^= 0xFF
        damaged.write_bytes(forged)
        try:
            read_contents(damaged, device="cuda")
        except ElfError:
            continue


def test_a_tool_that_fails_is_as_good_as_none(binary: Path) -> None:
    false = shutil.which("false")
    assert false is not None
    contents = read_contents(binary, device="cuda", cuobjdump=Path(false))
    assert contents.kernel_source.startswith("unavailable: ")


def test_cuobjdump_is_looked_for_beside_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert find_cuobjdump(None) is None
    assert find_cuobjdump(tmp_path / "nvcc") is None
    (tmp_path / "cuobjdump").touch()
    assert find_cuobjdump(tmp_path / "nvcc") == tmp_path / "cuobjdump"


@pytest.mark.nvcc
def test_kernels_of_a_cuda_binary(settings: Settings, relu_record: VariantRecord, tmp_path: Path) -> None:
    made = get_backend("cuda", settings, arch="sm_90").build(
        Candidate(variant_id=relu_record.variant.id, source=KERNELS, backend="cuda", generator="manual"),
        relu_record.variant,
    )
    assert isinstance(made, Artifact)
    contents = read_contents(made.path, device="cuda")
    plain_ones = {"_Z5scaleIfEvPKT_PS0_", "plain"}
    assert plain_ones < set(contents.kernels) and len(contents.kernels) == 3
    assert any("hidden" in name for name in contents.kernels)
    assert contents.kernel_source.startswith("host stubs")
    assert {f.name for f in contents.functions} >= {"launch"}
    assert not [f.name for f in contents.functions if "cudart" in f.name or f.name.startswith("cuda")]
    # What the tool prints is read as it prints it.
    tool = tmp_path / "cuobjdump"
    tool.write_text(
        "#!/bin/sh\nprintf 'Resource usage:\\n Common:\\n  GLOBAL:0\\n Function _Z1kPf:\\n  REG:12 STACK:0\\n'\n"
    )
    tool.chmod(0o755)
    told = read_contents(made.path, device="cuda", cuobjdump=tool)
    assert (told.kernels, told.kernel_source) == (("_Z1kPf",), "device code, by cuobjdump")
