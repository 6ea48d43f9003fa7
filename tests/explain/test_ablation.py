"""A candidate with its launch taken away: what it leaves, and what counts as unwritten."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from kernelforge.build.backends import get_backend
from kernelforge.build.types import Artifact, Backend, BuildFailure
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import VariantRecord
from kernelforge.explain.ablation import Ablation, ablate, ablated, untouched
from kernelforge.generate.types import Candidate
from kernelforge.runner.eager import EagerWorker
from kernelforge.runner.protocol import Buffer, BufferSet
from kernelforge.settings import Settings

RELU = """
static float positive(float x) { return x < 0 ? 0.0f : x; }
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) out[i] = positive(input[i]);
  return 0;
}
"""
IN_PLACE = """
extern "C" int launch(float* input, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) if (input[i] < 0) input[i] = 0.0f;
  return 0;
}
"""


def candidate_of(record: VariantRecord, source: str) -> Candidate:
    return Candidate(variant_id=record.variant.id, source=source, backend="cpp", generator="manual")


@pytest.fixture(scope="module")
def eager() -> Iterator[EagerWorker]:
    with EagerWorker("cpu", 1) as worker:
        yield worker


@pytest.fixture
def run(
    backend: Backend, settings: Settings, examples: ExampleStore, eager: EagerWorker
) -> Callable[[VariantRecord, str], Ablation | BuildFailure]:
    def ablation_of(record: VariantRecord, source: str) -> Ablation | BuildFailure:
        candidate = candidate_of(record, source)
        artifact = backend.build(candidate, record.variant)
        assert isinstance(artifact, Artifact)
        return ablate(
            artifact, candidate, record, examples, backend=backend, eager=eager, device="cpu", settings=settings,
            threads=1,
        )  # fmt: skip

    return ablation_of


def test_an_honest_kernel_writes_everything_and_its_stub_nothing(
    run: Callable[[VariantRecord, str], Ablation], relu_record: VariantRecord
) -> None:
    seen = run(relu_record, RELU)
    assert seen.shows_own_work
    assert seen.stub == "wrong_value: the kernel did not write its output"
    assert seen.candidate == "right"
    assert "fixed sizes" in seen.case


def test_an_in_place_kernel_leaves_its_target_without_launch(
    run: Callable[[VariantRecord, str], Ablation], inplace_record: VariantRecord
) -> None:
    seen = run(inplace_record, IN_PLACE)
    assert seen.shows_own_work
    assert seen.stub.startswith("wrong_value: ")


def test_a_wrong_kernel_shows_nothing(
    run: Callable[[VariantRecord, str], Ablation], relu_record: VariantRecord
) -> None:
    seen = run(relu_record, RELU.replace("0.0f : x", "1.0f : x"))
    assert seen.unwritten and not seen.shows_own_work
    assert seen.candidate.startswith("wrong_value: element")


def test_a_source_that_does_not_build_without_its_launch(
    run: Callable[[VariantRecord, str], Ablation | BuildFailure], relu_record: VariantRecord
) -> None:
    assert isinstance(run(relu_record, RELU + "#ifdef launch\n#error never\n#endif\n"), BuildFailure)


def test_the_stub_keeps_the_rest_of_the_source_and_the_build_s_directive(relu_record: VariantRecord) -> None:
    source = "// kforge: arch=a\n" + RELU
    stub = ablated(candidate_of(relu_record, source), relu_record.variant)
    lines = stub.source.splitlines()
    assert lines[0] == "// kforge: arch=a" and lines[1].startswith("#define launch ")
    assert RELU.strip() in stub.source
    assert stub.generator == "ablation" and stub.id != candidate_of(relu_record, source).id
    assert ablated(candidate_of(relu_record, RELU), relu_record.variant).source.startswith("#define launch ")


def work(*buffers: Buffer) -> BufferSet:
    return BufferSet(buffers=buffers)


def test_what_counts_as_untouched() -> None:
    given = Buffer(kind="input", data=b"abcd", size_bytes=4)
    out, both = Buffer(kind="output", data=None, size_bytes=4), Buffer(kind="inout", data=b"wxyz", size_bytes=4)
    poison, other = bytearray(b"\x7f" * 4), bytearray(b"\xff" * 4)
    assert untouched(work(given, out), (poison,)) and untouched(work(given, out), (other,))
    assert not untouched(work(given, out), (bytearray(b"\x7f\x7f\xff\xff"),))
    assert not untouched(work(given, out), (bytearray(4),))
    assert not untouched(work(given, out), ()), "a call that failed shows nothing"
    assert untouched(work(both, out), (bytearray(b"wxyz"), poison))
    assert not untouched(work(both, out), (bytearray(b"wxy!"), poison))


@pytest.mark.gpu
def test_on_a_gpu(settings: Settings, relu_record: VariantRecord, examples: ExampleStore) -> None:
    record = replace(relu_record, variant=replace(relu_record.variant, device="cuda"))
    source = (
        "// kforge: arch=a\n__global__ void k(const float* x, float* y) {\n"
        "  const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  if (i < 4000) y[i] = x[i] < 0 ? 0.0f : x[i];\n}\n"
        'extern "C" int launch(const float* input, float* out, void* workspace, cudaStream_t stream) {\n'
        "  k<<<16, 256, 0, stream>>>(input, out);\n  return 0;\n}\n"
    )
    backend = get_backend("cuda", settings)
    candidate = replace(candidate_of(record, source), backend="cuda")
    made = backend.build(candidate, record.variant)
    assert isinstance(made, Artifact)
    with EagerWorker("cuda", 1) as worker:
        seen = ablate(
            made, candidate, record, examples, backend=backend, eager=worker, device="cuda", settings=settings,
            threads=1,
        )  # fmt: skip
    assert isinstance(seen, Ablation)
    assert seen.shows_own_work, seen
