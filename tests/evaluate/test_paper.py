"""The paper's protocol: looser than ours, on captured inputs only, and never an exception of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from kernelforge.build.backends import get_backend
from kernelforge.build.types import Artifact, Backend
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import VariantRecord
from kernelforge.evaluate.paper import FOR_COMPARISON, PaperResult, close_as_in_paper, paper_protocol
from kernelforge.executors.types import Limits
from kernelforge.generate.types import Candidate
from kernelforge.runner.eager import EagerWorker
from kernelforge.settings import Settings

HEAD = 'extern "C" int launch(const float* input, float* out, void* workspace) {\n'
LOOP = "  for (int64_t i = 0; i < 4000; ++i) out[i] = {value};\n  return 0;\n}}\n"
RELU = "input[i] < 0 ? 0.0f : input[i]"


@pytest.fixture
def captured(relu_record: VariantRecord, examples: ExampleStore) -> VariantRecord:
    """The relu variant with one captured input, half of it negative."""
    example = examples.put([torch.linspace(-2, 2, 4000).reshape(4, 1000)])
    return replace(relu_record, points=(replace(relu_record.points[0], example=example),))


@pytest.fixture(scope="module")
def eager() -> Iterator[EagerWorker]:
    with EagerWorker("cpu", 1) as worker:
        yield worker


@pytest.fixture
def paper(
    backend: Backend, settings: Settings, examples: ExampleStore, eager: EagerWorker
) -> Callable[[VariantRecord, str], PaperResult]:
    def run(record: VariantRecord, source: str) -> PaperResult:
        made = backend.build(
            Candidate(variant_id=record.variant.id, source=source, backend="cpp", generator="manual"), record.variant
        )
        assert isinstance(made, Artifact)
        result = paper_protocol(
            made, record, examples, eager=eager, device="cpu", settings=settings, threads=1,
            limits=Limits(wall_s=3.0, memory_bytes=1 << 30),
        )  # fmt: skip
        assert result.note.endswith(FOR_COMPARISON), "whatever it says, it must say that it decides nothing"
        return result

    return run


@pytest.mark.parametrize("value", [RELU, f"1.05f * ({RELU})"])
def test_a_tenth_off_is_right_for_the_paper(
    paper: Callable[..., PaperResult], captured: VariantRecord, value: str
) -> None:
    result = paper(captured, HEAD + LOOP.format(value=value))
    assert result.correct is True
    assert result.speedup is not None and result.speedup > 0
    assert "1 captured input, mean of 100 warm calls" in result.note


def test_wrong_is_wrong_and_has_no_speedup(paper: Callable[..., PaperResult], captured: VariantRecord) -> None:
    result = paper(captured, HEAD + LOOP.format(value=f"1.2f * ({RELU})"))
    assert (result.correct, result.speedup) == (False, None)
    assert "output 0 is not within 0.01 + 0.1" in result.note


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("  __builtin_trap();\n", "crash: "),
        ("  volatile int forever = 1; while (forever) {}\n", "timeout: "),
    ],
)
def test_a_candidate_that_dies_is_wrong(
    paper: Callable[..., PaperResult], captured: VariantRecord, body: str, words: str
) -> None:
    result = paper(captured, HEAD + body + LOOP.format(value=RELU))
    assert (result.correct, result.speedup) == (False, None)
    assert words in result.note


def test_what_the_audit_refuses_is_not_run(paper: Callable[..., PaperResult], captured: VariantRecord) -> None:
    source = "#include <cstdlib>\n" + HEAD + '  (void)!system("true");\n' + LOOP.format(value=RELU)
    result = paper(captured, source)
    assert (result.correct, result.speedup) == (None, None)
    assert result.note.startswith("not run: the binary imports system")


def test_without_captured_inputs_there_is_nothing_to_say(
    paper: Callable[..., PaperResult], relu_record: VariantRecord
) -> None:
    result = paper(relu_record, HEAD + LOOP.format(value=RELU))
    assert (result.correct, result.speedup) == (None, None)
    assert "no captured inputs" in result.note


@pytest.mark.parametrize(
    ("got", "want", "close"),
    [
        ([1.109], [1.0], True), ([1.111], [1.0], False), ([0.01], [0.0], True), ([0.011], [0.0], False),
        ([float("inf")], [float("inf")], True), ([float("inf")], [1.0], False), ([float("nan")], [float("nan")], False),
        ([3], [3], True), ([3], [4], False), ([True], [False], False),
    ],
)  # fmt: skip
def test_the_papers_comparison(got: list[float], want: list[float], close: bool) -> None:
    assert close_as_in_paper(torch.tensor(got), torch.tensor(want)) is close


def test_half_precision_is_compared_as_the_formula_says() -> None:
    want = torch.tensor([100.0], dtype=torch.float16)
    assert close_as_in_paper(torch.tensor([110.0], dtype=torch.float16), want)
    assert not close_as_in_paper(torch.tensor([110.125], dtype=torch.float16), want)


@pytest.mark.gpu
def test_on_a_gpu(settings: Settings, captured: VariantRecord, examples: ExampleStore) -> None:
    record = replace(captured, variant=replace(captured.variant, device="cuda"))
    source = (
        "__global__ void k(const float* x, float* y) {\n"
        "  const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  if (i < 4000) y[i] = x[i] < 0 ? 0.0f : 1.05f * x[i];\n}\n"
        'extern "C" int launch(const float* input, float* out, void* workspace, cudaStream_t stream) {\n'
        "  k<<<16, 256, 0, stream>>>(input, out);\n  return 0;\n}\n"
    )
    made = get_backend("cuda", settings).build(
        Candidate(variant_id=record.variant.id, source=source, backend="cuda", generator="manual"), record.variant
    )
    assert isinstance(made, Artifact)
    with EagerWorker("cuda", 1) as worker:
        result = paper_protocol(made, record, examples, eager=worker, device="cuda", settings=settings, threads=1)
    assert result.correct is True, result.note
    assert result.speedup is not None and result.speedup > 0
