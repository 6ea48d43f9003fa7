"""Build through the `kforge-c` ABI: signature, guard in C, cache, time limit, failures."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import tvm_ffi

from kernelforge.build.abi import prelude
from kernelforge.build.backends import get_backend
from kernelforge.build.backends.cpp import cpu_target
from kernelforge.build.glue import refusal_terms
from kernelforge.build.types import Artifact, BuildFailure
from kernelforge.capture.types import TensorRef
from kernelforge.cards.types import Dim, Extent, TensorPattern, Variant
from kernelforge.errors import EnvironmentMissing
from kernelforge.generate.types import Candidate
from kernelforge.settings import load_settings

ROWS = Extent(1, ("n0",))
PATTERN = TensorPattern(shape=(ROWS, Extent(8)), stride=(Extent(8), Extent(1)), dtype="float32", alignment=4)
VARIANT = Variant(
    operator="softmax",
    arguments=(("input", TensorRef(0)), ("dim", 1), ("dtype", None)),
    tensors=(PATTERN,),
    outputs=(PATTERN,),
    dims=(Dim(name="n0", low=1, high=64),),
    max_elements=256,
)
DOUBLE = """
extern "C" int launch(const float* input, int64_t n0, float* out, void* workspace) {
  (void)workspace;
  #pragma omp parallel for
  for (int64_t i = 0; i < n0 * v::input_shape[1]; ++i) out[i] = 2 * input[i];
  return 0;
}
"""


def candidate(source: str, variant: Variant = VARIANT, backend: str = "cpp") -> Candidate:
    return Candidate(variant_id=variant.id, source=source, backend=backend, generator="test")


def build(source: str, cache: Path, **options: float) -> Artifact | BuildFailure:
    backend = get_backend("cpp", load_settings({"KFORGE_CACHE_DIR": str(cache)}))
    return backend.build(candidate(source), VARIANT, **options)


def test_prelude_states_signature_and_constants() -> None:
    text = prelude(VARIANT, "cpp")
    assert "constexpr int64_t input_shape[2] = {-1, 8};" in text
    assert "constexpr int64_t dim = 1;" in text
    signature = text[text.index("int launch(") : text.index(");  // returns")]
    assert [part.strip() for part in signature.removeprefix("int launch(").split(",")] == [
        "const float* input", "int64_t n0", "float* out", "void* workspace",
    ]  # fmt: skip


def test_binary_launches_under_its_guard_and_refuses_with_the_failing_term(tmp_path: Path) -> None:
    artifact = build(DOUBLE, tmp_path)
    assert isinstance(artifact, Artifact)
    launch = tvm_ffi.load_module(str(artifact.path))["launch"]
    terms = refusal_terms(VARIANT)

    def call(x: torch.Tensor, out: torch.Tensor, *rest: int) -> str:
        code = launch(x, out, *(rest or (0, 0)))
        return "launched" if code == 0 else terms[code - 1]

    x = torch.randn(5, 8)
    out = torch.empty(5, 8)
    assert call(x, out) == "launched"
    assert torch.equal(out, 2 * x)
    assert call(x, out, 0) == "number of arguments"
    assert call(x.double(), out) == "dtype of input"
    assert call(x[0], out) == "rank of input"
    assert call(torch.randn(5, 9), out) == "shape of input"
    assert call(torch.randn(8, 5).t(), out) == "stride of input"
    assert call(x, torch.empty(6, 8)) == "shape of out"
    assert call(torch.randn(65, 8), torch.empty(65, 8)) == "a dim is outside of its range"
    assert call(torch.randn(40, 8), torch.empty(40, 8)) == "number of elements is outside of its range"
    aligned16 = dataclasses.replace(VARIANT, tensors=(dataclasses.replace(PATTERN, alignment=16),), outputs=(PATTERN,))
    backend = get_backend("cpp", load_settings({"KFORGE_CACHE_DIR": str(tmp_path)}))
    strict = backend.build(candidate(DOUBLE, aligned16), aligned16)
    assert isinstance(strict, Artifact)
    shifted = torch.randn(41)[1:].view(5, 8)
    code = tvm_ffi.load_module(str(strict.path))["launch"](shifted, out, 0, 0)
    assert refusal_terms(aligned16)[code - 1] == "alignment of input"


def test_binary_has_no_second_openmp_and_no_torch(tmp_path: Path) -> None:
    artifact = build(DOUBLE, tmp_path)
    assert isinstance(artifact, Artifact)
    needed = subprocess.run(["readelf", "-d", artifact.path], capture_output=True, text=True, check=True).stdout
    assert "NEEDED" not in needed or not any(word in needed for word in ("gomp", "iomp", "torch", "python"))
    symbols = subprocess.run(["nm", "-D", artifact.path], capture_output=True, text=True, check=True).stdout
    assert "U GOMP_parallel" in symbols


def test_cache_returns_the_same_binary_and_survives_damage(tmp_path: Path) -> None:
    first = build(DOUBLE, tmp_path)
    second = build(DOUBLE, tmp_path)
    assert isinstance(first, Artifact) and isinstance(second, Artifact)
    assert first.seconds > 0 and second.seconds == 0 and first.digest == second.digest
    first.path.write_bytes(b"garbage")
    third = build(DOUBLE, tmp_path)
    assert isinstance(third, Artifact) and third.seconds > 0 and third.path.read_bytes() != b"garbage"


def test_compile_error_refers_to_the_candidates_own_lines(tmp_path: Path) -> None:
    failure = build(DOUBLE.replace("return 0;", "return nothing;"), tmp_path)
    assert isinstance(failure, BuildFailure)
    assert failure.reason == "compile_error"
    assert "kernel.cpp:6" in failure.detail and "return nothing;" in failure.detail
    assert not list((tmp_path / "builds").glob("*"))


def test_missing_launch_and_wrong_signature_are_told_apart(tmp_path: Path) -> None:
    missing = build("int other() { return 0; }", tmp_path)
    assert isinstance(missing, BuildFailure) and missing.reason == "missing_launch"
    said = build("// launch(...) is to follow\n/* int launch(\n) */ int other() { return 0; }", tmp_path)
    assert isinstance(said, BuildFailure) and said.reason == "missing_launch"
    wrong = build('extern "C" int launch(const double* input) { return 0; }', tmp_path)
    assert isinstance(wrong, BuildFailure) and wrong.reason == "compile_error"


def test_a_build_beyond_its_time_limit_is_killed(tmp_path: Path) -> None:
    slow = "#include <regex>\n#include <map>\n#include <functional>\n#include <random>\n" + DOUBLE
    failure = build(slow, tmp_path, timeout_s=0.05)
    assert isinstance(failure, BuildFailure) and failure.reason == "build_timeout"
    assert not list((tmp_path / "builds").glob(".build-*"))


def test_no_compiler_is_a_clear_error() -> None:
    with pytest.raises(EnvironmentMissing, match="no-such-compiler") as caught:
        get_backend("cpp", load_settings({"KFORGE_CXX": "no-such-compiler"}))
    assert caught.value.exit_code == 6 and "KFORGE_CXX" in str(caught.value)


def test_cpu_target_follows_the_flags() -> None:
    v3 = "flags : avx2 bmi1 bmi2 f16c fma movbe sse4_2"
    assert cpu_target(v3) == "x86-64-v3"
    assert cpu_target(v3 + " avx512f avx512bw avx512cd avx512dq avx512vl") == "x86-64-v4"


@pytest.mark.nvcc
def test_cuda_glue_compiles_with_machine_code_and_ptx(tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    variant = dataclasses.replace(VARIANT, device="cuda", capability="sm_90")
    source = """
__global__ void twice(const float* x, float* y, int64_t n) {
  int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}
extern "C" int launch(const float* input, int64_t n0, float* out, void*, cudaStream_t stream) {
  twice<<<(n0 * 8 + 255) / 256, 256, 0, stream>>>(input, out, n0 * 8);
  return cudaGetLastError();
}
"""
    backend = get_backend("cuda", load_settings({"KFORGE_CACHE_DIR": str(tmp_path)}), arch="sm_90")
    artifact = backend.build(candidate(source, variant, "cuda"), variant)
    assert isinstance(artifact, Artifact), artifact
    assert "registers" in artifact.log
    print(f"nvcc build: {artifact.seconds:.2f} s")


def test_a_dim_that_is_seen_only_as_a_multiple_is_derived_and_a_remainder_refused(tmp_path: Path) -> None:
    twice = TensorPattern(shape=(Extent(2, ("n0",)),), stride=(Extent(1),), dtype="float32", alignment=4)
    variant = dataclasses.replace(VARIANT, tensors=(twice,), outputs=(twice,))
    source = 'extern "C" int launch(const float*, int64_t n0, float* out, void*) { out[0] = float(n0); return 0; }'
    backend = get_backend("cpp", load_settings({"KFORGE_CACHE_DIR": str(tmp_path)}))
    artifact = backend.build(candidate(source, variant), variant)
    assert isinstance(artifact, Artifact), artifact
    launch = tvm_ffi.load_module(str(artifact.path))["launch"]
    out = torch.empty(10)
    assert launch(torch.empty(10), out, 0, 0) == 0 and out[0] == 5
    code = launch(torch.empty(11), torch.empty(11), 0, 0)
    assert refusal_terms(variant)[code - 1] == "shape of input"


@pytest.mark.parametrize("backend", ["cpp", pytest.param("cuda", marks=pytest.mark.nvcc)])
@pytest.mark.parametrize("form", ['#include "{}"\n', "/* */ %: include <{}>\n", '#define HERE "{}"\n#include HERE\n'])
def test_a_file_of_this_machine_is_no_part_of_a_kernel(tmp_path: Path, backend: str, form: str) -> None:
    """The cache's key would not know what it holds, and no other machine has it."""
    (tmp_path / "mine.h").write_text("static const int mine = 1;\n")
    settings = load_settings({"KFORGE_CACHE_DIR": str(tmp_path / "cache")})
    made = get_backend(backend, settings, arch="sm_90" if backend == "cuda" else "")
    standard = "#include <algorithm>\n" + ("#include <cuda_fp16.h>\n" if backend == "cuda" else "#include <omp.h>\n")
    body = DOUBLE if backend == "cpp" else DOUBLE.replace("void* workspace", "void* workspace, cudaStream_t stream")
    assert isinstance(made.build(candidate(standard + body, backend=backend), VARIANT), Artifact)
    source = form.format(tmp_path / "mine.h") + standard + body
    failed = made.build(candidate(source, backend=backend), VARIANT)
    assert isinstance(failed, BuildFailure) and failed.reason == "compile_error"
    assert "mine.h, a file of this machine" in failed.detail


def test_a_binary_that_would_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelforge.build.compile.LARGEST_FILE", 1 << 20)
    made = build("int big[1 << 20] = {1};\n" + DOUBLE, tmp_path)
    assert isinstance(made, BuildFailure) and made.reason == "compile_error"
    assert "1 MiB" in made.detail


@pytest.mark.parametrize("backend", ["cpp", pytest.param("cuda", marks=pytest.mark.nvcc)])
def test_assembly_may_compute_and_reads_no_files(tmp_path: Path, backend: str) -> None:
    settings = load_settings({"KFORGE_CACHE_DIR": str(tmp_path / "cache")})
    made = get_backend(backend, settings, arch="sm_90" if backend == "cuda" else "")
    body, honest = DOUBLE, 'static inline void nothing() { asm volatile("" ::: "memory"); }\n'
    if backend == "cuda":
        body = DOUBLE.replace("void* workspace", "void* workspace, cudaStream_t stream")
        honest = '__device__ inline unsigned lane() { unsigned l; asm("mov.u32 %0, %%laneid;" : "=r"(l)); return l; }\n'
    assert isinstance(made.build(candidate(honest + body, backend=backend), VARIANT), Artifact)
    (tmp_path / "secret").write_text("a secret")
    for word in (".incbin", '.inc" "bin', ".inc\\x62in", ".in\\143bin"):
        reads = f'asm(".pushsection .rodata\\n{word} \\"{tmp_path}/secret\\"\\n.popsection");\n'
        failed = made.build(candidate(reads + body, backend=backend), VARIANT)
        assert isinstance(failed, BuildFailure) and "directives of the assembler" in failed.detail, word
    pasted = f'#define PASTE(a, b) #a #b\nasm(PASTE(.inc, bin) " \\"{tmp_path}/secret\\"");\n'
    failed = made.build(candidate(pasted + body, backend=backend), VARIANT)
    assert isinstance(failed, BuildFailure) and "directives of the assembler" in failed.detail
