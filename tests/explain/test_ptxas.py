"""Registers, spills and shared memory from `ptxas -v`, and the occupancy that they allow."""

from __future__ import annotations

import pytest

from kernelforge.build.backends import get_backend
from kernelforge.build.types import Artifact
from kernelforge.cards.types import VariantRecord
from kernelforge.explain.occupancy import occupancy
from kernelforge.explain.ptxas import explain_kernels, parse_ptxas, plain_name, threads_of
from kernelforge.generate.types import Candidate
from kernelforge.settings import Settings

LOG = """unit.cu(14): warning #177-D: variable "v::input_shape" was declared but never referenced
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z11relu_kernelIfEvPKT_PS0_l' for 'sm_90'
ptxas info    : Function properties for _Z11relu_kernelIfEvPKT_PS0_l
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers, 1024 bytes smem
ptxas info    : Compile time = 33.418 ms
ptxas info    : Compiling entry function 'plain' for 'sm_90a'
ptxas info    : Function properties for plain
    48 bytes stack frame, 44 bytes spill stores, 52 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 400 bytes cmem[0]
ptxas info    : Compiling entry function 'cut' for 'sm_90'
"""


def test_what_ptxas_says_of_each_kernel() -> None:
    first, second = parse_ptxas(LOG)
    assert (first.registers, first.spill_bytes, first.shared_bytes, first.capability) == (12, (0, 0), 1024, 90)
    assert (second.name, second.registers, second.spill_bytes, second.shared_bytes) == ("plain", 255, (44, 52), 0)
    assert parse_ptxas("a log of g++") == ()


def test_kernels_in_words_the_hungriest_first() -> None:
    source = "constexpr int T = 512;\n__global__ void __launch_bounds__(T, 2)\nrelu_kernel(const float* x) {}\n"
    plain, relu = explain_kernels(LOG, source)
    assert plain == (
        "plain: 255 registers, SPILLS 44 bytes stored and 52 loaded a thread, 0 bytes of static shared memory; "
        "occupancy at most 12% at 256 threads a block (assumed), limited by registers"
    )
    assert relu.startswith("relu_kernel: 12 registers, no spills, 1024 bytes of static shared memory; ")
    assert relu.endswith("occupancy at most 100% at 512 threads a block")


def test_many_kernels_are_counted() -> None:
    entry = "Compiling entry function 'k{}' for 'sm_90'\nUsed {} registers\n"
    lines = explain_kernels("".join(entry.format(i, i + 1) for i in range(9)), "")
    assert len(lines) == 6 and lines[0].startswith("k8: 9 ") and lines[-1] == "and 4 kernels with fewer registers"


@pytest.mark.parametrize(
    ("source", "threads"),
    [
        ("__global__ void __launch_bounds__(128) k(int x)", 128),
        ("#define N 64\n__launch_bounds__(N, 4) __global__ void k(int x)", None),
        ("constexpr int N = 64, M = 2;\n__global__ __launch_bounds__(N) void k(int x)", 64),
        ("enum { N = 96 };\n__global__ void __launch_bounds__( N ) k (int x)", 96),
        ("__global__ void __launch_bounds__(N) k(int x)", None),
        ("__global__ void __launch_bounds__(4096) k(int x)", None),
        ("__global__ void __launch_bounds__(128) other(int x)", None),
    ],
)  # fmt: skip
def test_threads_of_a_block(source: str, threads: int | None) -> None:
    assert threads_of(source, "k") == threads


@pytest.mark.parametrize(
    ("mangled", "plain"),
    [
        ("_Z11relu_kernelIfEvPKT_PS0_l", "relu_kernel"), ("_ZL3addPf", "add"), ("plain", "plain"),
        ("_ZN2kf4gemm3runIfEEvPT_", "kf::gemm::run"), ("_ZN12_GLOBAL__N_13addEPf", "add"), ("_Z", "_Z"),
    ],
)  # fmt: skip
def test_plain_names(mangled: str, plain: str) -> None:
    assert plain_name(mangled) == plain


@pytest.mark.parametrize(
    ("capability", "block", "blocks", "limit"),
    [
        (90, (32, 0, 256), 8, "threads"), (90, (33, 0, 256), 6, "registers"), (90, (255, 0, 256), 1, "registers"),
        (90, (255, 0, 512), 0, "registers"), (90, (16, 0, 32), 32, "blocks"),
        (90, (32, 48 << 10, 256), 4, "shared memory"),
        (80, (32, 48 << 10, 256), 3, "shared memory"), (100, (64, 0, 128), 8, "registers"),
        (90, (32, 227 << 10, 1024), 1, "shared memory"), (90, (40, 0, 96), 16, "registers"),
    ],
)  # fmt: skip
def test_occupancy_by_the_rules_of_the_programming_guide(
    capability: int, block: tuple[int, int, int], blocks: int, limit: str
) -> None:
    registers, shared_bytes, threads = block
    found = occupancy(capability, registers=registers, shared_bytes=shared_bytes, threads=threads)
    assert found is not None
    assert (found.blocks, found.limit) == (blocks, limit)
    assert found.share == blocks * threads / 2048


def test_no_occupancy_of_a_device_that_is_not_in_the_table() -> None:
    assert occupancy(75, registers=32, shared_bytes=0, threads=256) is None
    assert "occupancy" not in explain_kernels(LOG.replace("sm_90'", "sm_75'"), "")[1]


@pytest.mark.nvcc
def test_the_build_log_of_the_backend_holds_it(settings: Settings, relu_record: VariantRecord) -> None:
    source = (
        "__global__ void __launch_bounds__(128) k(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }\n"
        'extern "C" int launch(const float* input, float* out, void* workspace, cudaStream_t stream) {\n'
        "  k<<<1, 128, 0, stream>>>(input, out);\n  return 0;\n}\n"
    )
    for arch, text in (("sm_80", source), ("sm_90", "// kforge: arch=a\n" + source)):
        candidate = Candidate(variant_id=relu_record.variant.id, source=text, backend="cuda", generator="manual")
        made = get_backend("cuda", settings, arch=arch).build(candidate, relu_record.variant)
        assert isinstance(made, Artifact)
        (line,) = explain_kernels(made.log, text)
        assert line.startswith("k: ") and "no spills" in line
        assert line.endswith("occupancy at most 100% at 128 threads a block")
