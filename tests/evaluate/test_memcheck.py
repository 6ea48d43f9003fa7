"""Memory checking: what is reported, what passes, what cannot be said; CUDA's tools with a stand-in for each."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelforge.build.backends import get_backend
from kernelforge.build.backends.cpp import CppBackend, checked_backend, cpu_target, fills_locals, find_cxx
from kernelforge.build.types import Artifact, Backend
from kernelforge.cards.bind import to_bound
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import SizePoint, Variant, VariantRecord
from kernelforge.evaluate.judge import Judge
from kernelforge.evaluate.memcheck import (
    LOCALS,
    check_instrumented,
    check_memory,
    check_under_tools,
    rejection,
    small_cases,
)
from kernelforge.evaluate.types import Certified, MemoryCheck, MemoryFailed, MemoryPassed, MemoryUnavailable
from kernelforge.generate.types import Candidate
from kernelforge.operators import get_operator
from kernelforge.runner.protocol import BufferSet
from kernelforge.runner.sanitizers import ASAN, CUDA_TOOLS, UBSAN, find_sanitizer
from kernelforge.settings import Settings, load_settings
from kernelforge.verify.cases import CaseMaker, CasePlan
from kernelforge.verify.layout import from_bytes, to_bytes
from kernelforge.verify.prepare import PreparedCase, named_values, prepare
from kernelforge.verify.sizes import SizeChoice
from kernelforge.verify.types import Rejected, RejectReason

FAMILIES = Path(__file__).parents[1] / "generate" / "conftest.py"

HEAD = 'extern "C" int launch(const float* input, float* out, void* workspace) {\n  const int64_t n = 4000;\n'
LOOP = "  for (int64_t i = 0; i < n; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];\n"
PARALLEL = "  #pragma omp parallel for\n" + LOOP
TAIL = "  return 0;\n}\n"
RELU = HEAD + PARALLEL + TAIL
SCRATCH = 'extern "C" size_t workspace_bytes() { return 64; }\n'
VECTOR = "typedef float v8 __attribute__((vector_size(32)));\n"

# Each is right on every input, or wrong only through what it reads where it must not.
ERRORS = {
    "a read past the end": (
        HEAD + LOOP + "  if (input[n] > 1e30f) out[0] = 0;\n" + TAIL,
        ASAN, "heap-buffer-overflow: read of 4 bytes at kernel.cpp:4, 0 bytes after a buffer of 16000 bytes (input or"),
    "a read before the start": (
        HEAD + LOOP + "  if (input[-1] > 1e30f) out[0] = 0;\n" + TAIL,
        ASAN, "heap-buffer-overflow: read of 4 bytes at kernel.cpp:4, 4 bytes before a buffer of 16000 bytes"),
    "a write past the end": (
        HEAD + LOOP + "  out[n] = 1;\n" + TAIL,
        ASAN, "heap-buffer-overflow: write of 4 bytes at kernel.cpp:4"),
    "a read past the end by another thread": (
        HEAD + PARALLEL.replace("input[i] <", "input[i + (i == n - 1)] <") + TAIL,
        ASAN, "heap-buffer-overflow: read of 4 bytes at kernel.cpp:4"),
    "a read beyond the workspace": (
        SCRATCH + HEAD + LOOP + "  if (static_cast<float*>(workspace)[16] > 1e30f) out[0] = 0;\n" + TAIL,
        ASAN, "read of 4 bytes at kernel.cpp:5, 0 bytes after a buffer of 64 bytes (workspace)"),
    "a local array that is too small": (
        HEAD + LOOP + "  float kept[16];\n  float* volatile to = kept;\n"
        "  for (int64_t i = 0; i < 17; ++i) to[i] = input[i];\n  if (kept[3] > 1e30f) out[0] = 0;\n" + TAIL,
        ASAN, "stack-buffer-overflow: write of 4 bytes at kernel.cpp:6, overflows the local variable kept"),
    "an index beyond a local array": (
        HEAD + LOOP + "  float kept[16] = {};\n  volatile int at = 16;\n  if (kept[at] > 1e30f) out[0] = 0;\n" + TAIL,
        UBSAN, "index 16 out of bounds for type 'float [16]' at kernel.cpp:6"),
    "an index that overflows": (
        HEAD + LOOP + "  volatile int rows = 1 << 20;\n  const int at = rows * 4096;\n"
        "  if (at == 7) out[0] = 0;\n" + TAIL,
        UBSAN, "signed integer overflow: 1048576 * 4096 cannot be represented in type 'int' at kernel.cpp:5"),
    "a vector load that is not aligned": (
        VECTOR + HEAD + LOOP + "  const v8 x = *reinterpret_cast<const v8*>(input + 2);\n"
        "  if (x[0] > 1e30f) out[0] = 0;\n" + TAIL,
        UBSAN, "misaligned address"),
}  # fmt: skip


class InProcess:
    """Eager in this process: what is tested here runs the candidate elsewhere anyway."""

    def outputs(self, variant: Variant, work: BufferSet) -> Sequence[memoryview]:
        dims, scalars = named_values(variant, work)
        device = torch.device("cpu")
        given = [b.data for b in work.buffers if b.data is not None]
        specs = [p.spec(dims, "cpu") for p in variant.tensors]
        tensors = [from_bytes(data, spec, device) for data, spec in zip(given, specs, strict=True)]
        result = get_operator(variant.operator).call(to_bound(variant, dims, scalars, tensors))
        if variant.mutates:
            return [to_bytes(tensors[i]) for i in sorted(variant.mutates)]
        return [
            to_bytes(t) for t in (result if isinstance(result, tuple) else (result,)) if isinstance(t, torch.Tensor)
        ]


def cases_of(record: VariantRecord, examples: ExampleStore, *sizes: dict[str, int]) -> tuple[PreparedCase, ...]:
    """A case of normal values for each of the sizes."""
    maker = CaseMaker(record, examples, torch.device("cpu"))
    cases = []
    for dims in sizes:
        choice = SizeChoice(dims=dims, scalars={}, why="observed")
        prepared = prepare(record.variant, maker.draw(CasePlan(choice=choice, distribution="normal")), InProcess())
        assert prepared is not None
        cases.append(prepared)
    return tuple(cases)


def built(backend: Backend | CppBackend, variant: Variant, source: str) -> Artifact:
    name = "cuda" if variant.device == "cuda" else "cpp"
    candidate = Candidate(variant_id=variant.id, source=source, backend=name, generator="manual")
    artifact = backend.build(candidate, variant)
    assert isinstance(artifact, Artifact), artifact
    return artifact


def check_source(
    variant: Variant, source: str, cases: Sequence[PreparedCase], settings: Settings, *, threads: int = 2
) -> MemoryCheck:
    """Check a source of which only the checked form is built."""
    artifact = Artifact(
        digest="", path=Path("none"), backend="cpp", target=cpu_target(), compiler="", flags=(), seconds=0.0, log="",
        source=source,
    )  # fmt: skip
    return check_instrumented(artifact, variant, cases, threads=threads, settings=settings)


@pytest.fixture
def check(settings: Settings, examples: ExampleStore, relu_record: VariantRecord) -> Callable[[str], MemoryCheck]:
    """Check a source for relu of [4, 1000]."""

    def run(source: str) -> MemoryCheck:
        return check_source(relu_record.variant, source, cases_of(relu_record, examples, {}), settings)

    return run


def test_an_honest_kernel_passes(check: Callable[[str], MemoryCheck], settings: Settings) -> None:
    filled = (LOCALS,) if fills_locals(find_cxx(settings)) else ()
    assert check(RELU) == MemoryPassed(tools=(ASAN, UBSAN, *filled))


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_reported_in_one_line(check: Callable[[str], MemoryCheck], name: str) -> None:
    source, tool, words = ERRORS[name]
    result = check(source)
    assert isinstance(result, MemoryFailed), result
    assert result.tool == tool and words in result.error and "\n" not in result.error
    assert "normal values" in result.case
    undefined = tool == UBSAN and "out of bounds" not in words
    assert rejection(result).reason is (RejectReason.UNDEFINED_BEHAVIOUR if undefined else RejectReason.OUT_OF_BOUNDS)


def test_a_result_that_depends_on_an_uninitialised_local(
    check: Callable[[str], MemoryCheck], settings: Settings
) -> None:
    if not fills_locals(find_cxx(settings)):
        pytest.skip("this compiler cannot fill locals")
    result = check(HEAD + "  float bias;\n" + LOOP.replace(": input[i]", ": input[i] + bias") + TAIL)
    assert isinstance(result, MemoryFailed) and result.tool == LOCALS, result
    assert rejection(result).reason is RejectReason.UNINITIALISED


def test_a_result_that_is_only_rounded_otherwise_is_not_charged(check: Callable[[str], MemoryCheck]) -> None:
    """A wrong value that no content of a local changes; the gates judge values, this does not."""
    assert isinstance(check(HEAD + LOOP + "  out[5] += 1;\n" + TAIL), MemoryPassed)


def test_a_kernel_that_dies_without_a_report_is_neither_passed_nor_charged(
    check: Callable[[str], MemoryCheck],
) -> None:
    result = check("#include <unistd.h>\n" + HEAD + LOOP + "  _exit(0);\n" + TAIL)
    assert isinstance(result, MemoryUnavailable) and "status 0" in result.reason and not result.anywhere


@pytest.mark.parametrize(
    "evasion",
    [
        '__attribute__((no_sanitize("address")))\n',
        "#if defined(__SANITIZE_ADDRESS__)\n#endif\n",
        '#define PASTE(a, b) a##b\n__attribute__((PASTE(no_, sanitize)("address")))\n',
    ],
)
def test_a_source_that_names_the_sanitizers_is_no_pass(check: Callable[[str], MemoryCheck], evasion: str) -> None:
    result = check(evasion + RELU)
    assert isinstance(result, MemoryUnavailable) and "names the sanitizers" in result.reason


def test_a_source_that_is_another_one_where_it_is_checked_is_no_pass(check: Callable[[str], MemoryCheck]) -> None:
    paste = "#define PASTE(a, b) a##b\n#define NAME(a, b) PASTE(a, b)\n"
    result = check(f"{paste}#if NAME(__SANITI, ZE_ADDRESS__)\nstatic int checked = 1;\n#endif\n{RELU}")
    assert isinstance(result, MemoryUnavailable) and "another text where it is checked" in result.reason


@pytest.mark.parametrize("name", ["__builtin_constant_p", "PASTE(__builtin_cons, tant_p)"])
def test_a_source_that_asks_the_optimiser_is_no_pass(check: Callable[[str], MemoryCheck], name: str) -> None:
    """Beyond its buffer where it runs; where overflow is checked the sum is no constant."""
    sum_of_few = "  int sum = 0;\n  for (int i = 0; i < 8; ++i) sum += i * i % 7;\n"
    body = HEAD + LOOP + sum_of_few + f"  if ({name}(sum)) out[n] = 0;\n" + TAIL
    result = check("#include <algorithm>\n#define PASTE(a, b) a##b\n" + body)
    assert isinstance(result, MemoryUnavailable) and "asks what the optimiser knows" in result.reason


def test_headers_may_ask_the_optimiser(check: Callable[[str], MemoryCheck]) -> None:
    assert isinstance(check("#include <algorithm>\n#include <string>\n#include <omp.h>\n" + RELU), MemoryPassed)


def test_without_the_source_nothing_can_be_said(
    backend: Backend, settings: Settings, examples: ExampleStore, relu_record: VariantRecord
) -> None:
    artifact = dataclasses.replace(built(backend, relu_record.variant, RELU), source="")
    cases = cases_of(relu_record, examples, {})
    result = check_memory(artifact, relu_record.variant, cases, device="cpu", threads=1, settings=settings)
    assert isinstance(result, MemoryUnavailable) and "source" in result.reason


def test_a_compiler_without_the_run_time_of_sanitizers(
    backend: Backend, examples: ExampleStore, relu_record: VariantRecord, tmp_path: Path
) -> None:
    script = '#!/bin/sh\ncase "$*" in *fsanitize*) echo "ld: cannot find -lasan" >&2; exit 1;; esac\nexec {} "$@"\n'
    for name in ("gcc", "g++"):
        (tmp_path / name).write_text(script.format(f"/usr/bin/env {name}"))
        (tmp_path / name).chmod(0o755)
    settings = load_settings({"KFORGE_CACHE_DIR": str(tmp_path / "cache"), "KFORGE_CXX": str(tmp_path / "g++")})
    artifact, cases = built(backend, relu_record.variant, RELU), cases_of(relu_record, examples, {})
    result = check_memory(artifact, relu_record.variant, cases, device="cpu", threads=1, settings=settings)
    assert isinstance(result, MemoryUnavailable) and result.anywhere
    assert "cannot find -lasan" in result.reason


def test_the_checked_form_has_a_key_of_its_own(
    backend: Backend, settings: Settings, relu_record: VariantRecord
) -> None:
    artifact = built(backend, relu_record.variant, RELU)
    checked = built(checked_backend(settings), relu_record.variant, RELU)
    assert checked.path != artifact.path and checked.path.parent.parent == artifact.path.parent.parent
    assert built(backend, relu_record.variant, RELU).digest == artifact.digest
    assert built(checked_backend(settings), relu_record.variant, RELU).seconds == 0


def test_which_cases_are_taken(softmax_record: VariantRecord, examples: ExampleStore) -> None:
    sizes = [{"n0": n, "n1": 8} for n in (2, 4, 6, 8, 10, 12, 14, 15, 16, 200)] + [{"n0": 2, "n1": 8}]
    cases = cases_of(softmax_record, examples, *sizes)
    chosen = [c.case.dims["n0"] for c in small_cases(cases, cap_bytes=cases[8].size_bytes)]
    assert chosen == [2, 4, 6, 8, 15, 16]
    (only,) = small_cases(cases[9:10], cap_bytes=1)
    assert only is cases[9]
    assert len(small_cases(cases[:1] + cases[10:], cap_bytes=1 << 20)) == 2


def test_the_certificate_carries_the_check(
    judge: Judge, backend: Backend, relu_record: VariantRecord, examples: ExampleStore
) -> None:
    honest = judge.certify(built(backend, relu_record.variant, RELU), relu_record, examples, calls=10)
    assert isinstance(honest, Certified) and isinstance(honest.memory, MemoryPassed), honest
    source, _, words = ERRORS["a read past the end"]
    wrong = judge.certify(built(backend, relu_record.variant, source), relu_record, examples, calls=10)
    assert isinstance(wrong, Rejected) and wrong.reason is RejectReason.OUT_OF_BOUNDS, wrong
    assert f"{ASAN}: {words}" in wrong.detail


# ---- families of generated kernels ----

SAMPLE = (
    "relu_inplace", "mul_strided", "softmax", "softmax_middle", "layer_norm", "batch_norm", "max_pool_ceil",
    "avg_pool_inside", "group_norm", "pad", "bilinear", "long_mean_middle",
)  # fmt: skip


def load_families() -> Any:
    """The module with the variants that generators are tested on."""
    spec = importlib.util.spec_from_file_location("generated_families", FAMILIES)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where its dataclasses look
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("position", range(len(SAMPLE)))
def test_generated_kernels_of_all_families_pass(settings: Settings, examples: ExampleStore, position: int) -> None:
    """A sample; memcheck_all_families.py takes every proposal of every case and dtype."""
    families, name = load_families(), SAMPLE[position]
    dtype = families.DTYPES[position % len(families.DTYPES)]
    variant = families.variant_of(families.CASES[name], dtype, "cpu")
    proposals = families.proposals(variant, "cpp")
    candidate = proposals[position % len(proposals)]
    cases = cases_of(batched(variant), examples, {"n0": 1}, {"n0": 13}, {"n0": 64})
    result = check_source(variant, candidate.source, cases, settings)
    assert isinstance(result, MemoryPassed), f"{dtype} {candidate.notes}: {result}"


def batched(variant: Variant) -> VariantRecord:
    """A record of a variant whose one dim is n0."""
    point = SizePoint(dims={"n0": 4}, scalars={}, calls=1, eager_us=1.0)
    return VariantRecord(variant=variant, points=(point,), share=1.0)


# ---- CUDA's tools, with a script that runs the CPU's runner in their place ----

STAND_IN = """#!/bin/bash
while [ $# -gt 0 ]; do
  case "$1" in --tool) tool=$2; shift 2;; --*) shift 2;; *) break;; esac
done
echo "$tool" >>{log}
echo "========= COMPUTE-SANITIZER"
before() {{ :
{before}
}}
after() {{
{after}
}}
before
"$@"
code=$?
after
"""
CLEAN = """
  if [ $tool = racecheck ]; then echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
  else echo "========= ERROR SUMMARY: 0 errors"; fi
  exit $code"""
FINDING = """
  if [ $tool = {tool} ]; then
    echo "========= {head}"
    echo "=========     at relu(const float *, float *)+0x70 in kernel.cu:12"
  fi"""
COUNTED = "\n  if [ $tool = {tool} ]; then echo '========= ERROR SUMMARY: 1 error'; exit 86; fi"


@pytest.fixture
def under_tools(
    backend: Backend, settings: Settings, examples: ExampleStore, softmax_record: VariantRecord, tmp_path: Path
) -> Callable[..., MemoryCheck]:
    """Check a source for softmax under a stand-in; `log` in the folder has a line per process."""
    softmax = (
        'extern "C" int launch(const float* input, int64_t n0, int64_t n1, float* out, void* workspace) {\n'
        "  for (int64_t i = 0; i < n0 * n1; ++i) out[i] = input[i];\n  return 0;\n}\n"
    )

    def run(*, before: str = "", after: str = CLEAN, source: str = softmax) -> MemoryCheck:
        script = tmp_path / "compute-sanitizer"
        script.write_text(STAND_IN.format(log=tmp_path / "log", before=before, after=after))
        script.chmod(0o755)
        artifact = built(backend, softmax_record.variant, source)
        cases = cases_of(softmax_record, examples, {"n0": 1, "n1": 3}, {"n0": 7, "n1": 100})
        return check_under_tools(
            artifact, softmax_record.variant, cases, sanitizer=script, device="cpu", threads=1, settings=settings
        )

    return run


def test_each_tool_has_a_process_and_all_must_be_clean(under_tools: Callable[..., MemoryCheck], tmp_path: Path) -> None:
    assert under_tools() == MemoryPassed(tools=CUDA_TOOLS)
    assert sorted((tmp_path / "log").read_text().split()) == sorted(CUDA_TOOLS)  # beside each other


HEADS = {
    "memcheck": ("Invalid __global__ read of size 4 bytes", RejectReason.OUT_OF_BOUNDS),
    "racecheck": ("Error: Race reported between Write access", RejectReason.NONDETERMINISTIC),
    "initcheck": ("Uninitialized __global__ memory read of size 4 bytes", RejectReason.UNINITIALISED),
    "synccheck": ("Barrier error detected. Divergent thread(s) in block.", RejectReason.NONDETERMINISTIC),
}


@pytest.mark.parametrize("tool", CUDA_TOOLS)
def test_an_error_of_a_tool_is_the_verdict(under_tools: Callable[..., MemoryCheck], tool: str, tmp_path: Path) -> None:
    head, reason = HEADS[tool]
    result = under_tools(after=FINDING.format(tool=tool, head=head) + COUNTED.format(tool=tool) + CLEAN)
    assert isinstance(result, MemoryFailed) and result.tool == tool, result
    assert result.error == f"{head.removeprefix('Error: ')} at relu(const float *, float *)+0x70 in kernel.cu:12"
    assert "n0=7" in result.case
    assert rejection(result).reason is reason
    assert tool in (tmp_path / "log").read_text().split()


def test_an_error_is_charged_to_the_case_on_which_it_shows(under_tools: Callable[..., MemoryCheck]) -> None:
    finding = FINDING.format(tool="memcheck", head=HEADS["memcheck"][0])
    result = under_tools(before=finding, after=COUNTED.format(tool="memcheck") + CLEAN)
    assert isinstance(result, MemoryFailed) and "n0=1" in result.case


def test_an_error_of_an_unknown_kind_is_an_error(under_tools: Callable[..., MemoryCheck]) -> None:
    result = under_tools(after=COUNTED.format(tool="initcheck") + CLEAN)
    assert isinstance(result, MemoryFailed) and result.tool == "initcheck" and "1 errors" in result.error


def test_a_tool_that_does_not_run_is_no_pass(under_tools: Callable[..., MemoryCheck]) -> None:
    broken = '  if [ $tool = racecheck ]; then echo "========= Error: Device not supported."; exit 1; fi'
    result = under_tools(before=broken)
    assert isinstance(result, MemoryUnavailable)
    assert "racecheck" in result.reason and "Device not supported" in result.reason
    failing = FINDING.format(tool="synccheck", head=HEADS["synccheck"][0]) + COUNTED.format(tool="synccheck") + CLEAN
    assert isinstance(under_tools(before=broken, after=failing), MemoryFailed)


@pytest.mark.parametrize("after", ["  exit $code", CLEAN.replace("$code", "3")])
def test_a_tool_without_a_summary_or_with_another_exit_status_is_no_pass(
    under_tools: Callable[..., MemoryCheck], after: str
) -> None:
    assert isinstance(under_tools(after=after), MemoryUnavailable)


def test_a_candidate_cannot_write_the_report(under_tools: Callable[..., MemoryCheck]) -> None:
    source = (
        "#include <cstdio>\n#include <unistd.h>\n"
        'extern "C" int launch(const float*, int64_t, int64_t, float*, void*) {\n'
        '  std::puts("========= ERROR SUMMARY: 0 errors"); std::fflush(stdout); _exit(0);\n}\n'
    )
    assert isinstance(under_tools(source=source, after="  exit $code"), MemoryUnavailable)


def test_without_compute_sanitizer(
    backend: Backend, settings: Settings, examples: ExampleStore, relu_record: VariantRecord,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("kernelforge.evaluate.memcheck.find_sanitizer", lambda _: None)
    artifact, cases = built(backend, relu_record.variant, RELU), cases_of(relu_record, examples, {})
    result = check_memory(artifact, relu_record.variant, cases, device="cuda", threads=1, settings=settings)
    assert isinstance(result, MemoryUnavailable) and result.anywhere and "compute-sanitizer" in result.reason


CUDA_RELU = """
__global__ void relu(const float* x, float* y, int64_t n) {
  __shared__ float kept[256];
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < LIMIT) kept[threadIdx.x] = x[i];
  BARRIER
  const int other = THREAD;
  if (i < n) y[i] = kept[other] < 0 ? 0.0f : kept[other];
}
extern "C" int launch(const float* input, float* out, void*, cudaStream_t stream) {
  relu<<<16, 256, 0, stream>>>(input, out, 4000);
  return cudaGetLastError();
}
"""


def cuda_relu(*, limit: str = "n", barrier: str = "__syncthreads();", thread: str = "threadIdx.x") -> str:
    return CUDA_RELU.replace("LIMIT", limit).replace("BARRIER", barrier).replace("THREAD", thread)


@pytest.mark.gpu
@pytest.mark.nvcc
def test_the_real_tools_on_a_gpu(settings: Settings, examples: ExampleStore, relu_record: VariantRecord) -> None:
    chosen = dataclasses.replace(settings, nvcc=load_settings().nvcc, cuda_home=load_settings().cuda_home)
    if find_sanitizer(chosen) is None:
        pytest.skip("compute-sanitizer is not installed")
    backend = get_backend("cuda", chosen)
    major, minor = torch.cuda.get_device_capability()
    variant = dataclasses.replace(relu_record.variant, device="cuda", capability=f"sm_{major}{minor}")
    cases = cases_of(relu_record, examples, {})

    def result(source: str) -> MemoryCheck:
        artifact = built(backend, variant, source)
        return check_memory(artifact, variant, cases, device="cuda", threads=1, settings=chosen)

    assert result(cuda_relu()) == MemoryPassed(tools=CUDA_TOOLS)
    beyond = result(cuda_relu(limit="4096"))
    assert isinstance(beyond, MemoryFailed) and beyond.tool == "memcheck" and "read of size 4" in beyond.error, beyond
    race = result(cuda_relu(barrier="", thread="threadIdx.x ^ 32"))
    assert isinstance(race, MemoryFailed) and race.tool == "racecheck", race
