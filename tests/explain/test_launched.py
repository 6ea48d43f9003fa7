"""The kernels that a call runs, told by a stand-in for the profiler, and on a GPU by the real one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernelforge.build.backends import get_backend
from kernelforge.build.types import Artifact, Backend
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import VariantRecord
from kernelforge.explain.ablation import smallest_case
from kernelforge.explain.contents import read_contents
from kernelforge.explain.launched import Launched, find_profiler, kernels_of, launched_kernels
from kernelforge.generate.types import Candidate
from kernelforge.runner.eager import EagerWorker
from kernelforge.settings import Settings, load_settings
from kernelforge.verify.prepare import EagerBaseline

HEAD = '"ID","Process ID","Kernel Name","Block Size","Grid Size","Metric Name","Metric Unit","Metric Value"'
OUTPUT = f"""==PROF== Connected to process 7
==PROF== Profiling "_Z4reluPKfPf": 0%....50%....100% - 1 pass
something that the program printed, "with, commas"
==PROF== Disconnected from process 7
{HEAD}
"0","7","_Z4reluPKfPf","(256, 1, 1)","(16, 1, 1)","launch__grid_size","","16"
"1","7","_Z3addPKfS0_Pf","(256, 1, 1)","(16, 1, 1)","launch__grid_size","","16"
"1","7","_Z3addPKfS0_Pf","(256, 1, 1)","(16, 1, 1)","another metric","","1"
"2","7","_Z4reluPKfPf","(256, 1, 1)","(16, 1, 1)","launch__grid_size","","16"
"""
RELU = (
    'extern "C" int launch(const float* input, float* out, void* workspace) {\n'
    "  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];\n  return 0;\n}\n"
)
STAND_IN = """#!/bin/bash
while [ "$1" != --artifact ]; do last=$1; shift; done
"$last" "$@"
code=$?
cat <<'END'
{output}
END
exit $code
"""


def candidate_of(record: VariantRecord, source: str, backend: str) -> Candidate:
    return Candidate(variant_id=record.variant.id, source=source, backend=backend, generator="manual")


@pytest.fixture
def profile(
    backend: Backend, settings: Settings, examples: ExampleStore, relu_record: VariantRecord, tmp_path: Path
) -> Callable[[str], Launched]:
    """Run a relu of the CPU under a profiler that prints what it is told to."""

    def run(output: str) -> Launched:
        script = tmp_path / "ncu"
        script.write_text(STAND_IN.format(output=output))
        script.chmod(0o755)
        made = backend.build(candidate_of(relu_record, RELU, "cpp"), relu_record.variant)
        assert isinstance(made, Artifact)
        with EagerWorker("cpu", 1) as eager:
            case = smallest_case(relu_record, examples, EagerBaseline(eager), torch.device("cpu"))
        return launched_kernels(
            made, relu_record.variant, case, profiler=script, device="cpu", threads=1, settings=settings
        )

    return run


def test_launches_are_counted_between_whatever_else_is_printed() -> None:
    assert [*kernels_of(OUTPUT)] == ["_Z4reluPKfPf", "_Z3addPKfS0_Pf", "_Z4reluPKfPf"]
    assert [*kernels_of("nothing of the kind\n")] == []


def test_kernels_of_a_run(profile: Callable[[str], Launched]) -> None:
    assert profile(OUTPUT) == Launched(kernels=(("_Z4reluPKfPf", 2), ("_Z3addPKfS0_Pf", 1)))


def test_a_profiler_that_may_not_profile(profile: Callable[[str], Launched]) -> None:
    said = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"
    launched = profile(said)
    assert launched.kernels == () and "ERR_NVGPUCTRPERM" in launched.unavailable


@pytest.mark.gpu
@pytest.mark.nvcc
def test_the_real_profiler_on_a_gpu(settings: Settings, relu_record: VariantRecord, examples: ExampleStore) -> None:
    profiler = find_profiler(load_settings())
    if profiler is None:
        pytest.skip("ncu is not installed")
    record = replace(relu_record, variant=replace(relu_record.variant, device="cuda"))
    source = (
        "__global__ void piece(const float* x, float* y, int from) {\n"
        "  const int i = from + blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  if (i < 4000) y[i] = x[i] < 0 ? 0.0f : x[i];\n}\n"
        'extern "C" int launch(const float* input, float* out, void* workspace, cudaStream_t stream) {\n'
        "  piece<<<8, 256, 0, stream>>>(input, out, 0);\n  piece<<<8, 256, 0, stream>>>(input, out, 2048);\n"
        "  return cudaGetLastError();\n}\n"
    )
    made = get_backend("cuda", settings).build(candidate_of(record, source, "cuda"), record.variant)
    assert isinstance(made, Artifact)
    with EagerWorker("cuda", 1) as eager:
        case = smallest_case(record, examples, EagerBaseline(eager), torch.device("cuda"))
    launched = launched_kernels(
        made, record.variant, case, profiler=profiler, device="cuda", threads=1, settings=settings
    )  # fmt: skip
    assert [count for _, count in launched.kernels] == [2], launched
    assert {name for name, _ in launched.kernels} <= {*read_contents(made.path, device="cuda").kernels}
