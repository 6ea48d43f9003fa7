"""The judge end to end on the CPU: handwritten candidates, honest and not, each with the verdict that it must get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import pytest

from kernelforge.audit.types import AuditKind
from kernelforge.benchmark.points import TimedPoint
from kernelforge.build.types import Artifact, Backend, BuildFailure
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import VariantRecord
from kernelforge.evaluate.judge import Judge
from kernelforge.evaluate.types import Outcome, Scored, WorkerFailure
from kernelforge.generate.types import Candidate
from kernelforge.runner.session import RunnerSession
from kernelforge.verify.types import Accepted, Rejected, RejectReason

Evaluate: TypeAlias = "Callable[[VariantRecord, str], Outcome]"

SOFTMAX = """
extern "C" int launch(const float* input, int64_t n0, int64_t n1, float* out, void* workspace) {
  for (int64_t r = 0; r < n0; ++r) {
    const float* x = input + r * n1;
    float* y = out + r * n1;
    float top = -INFINITY, total = 0;
    for (int64_t c = 0; c < n1; ++c) top = std::fmax(top, x[c]);
    for (int64_t c = 0; c < n1; ++c) { y[c] = std::exp(x[c] - top); total += y[c]; }
    for (int64_t c = 0; c < n1; ++c) y[c] /= total;
  }
  return 0;
}
"""

RELU_HEAD = 'extern "C" int launch(const float* input, float* out, void* workspace) {\n  const int64_t n = 4000;\n'
RELU_LOOP = "  for (int64_t i = 0; i < n; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];\n"
RELU = RELU_HEAD + RELU_LOOP + "  return 0;\n}\n"

POOL = """
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t c = 0; c < 8; ++c)
    for (int64_t i = 0; i < 14; ++i)
      for (int64_t j = 0; j < 14; ++j) {
        float best = -INFINITY;
        for (int64_t y = 2 * i - 1; y <= 2 * i + 1; ++y)
          for (int64_t x = 2 * j - 1; x <= 2 * j + 1; ++x) {
            if (y < 0 || x < 0 || y >= 28 || x >= 28) continue;
            const float v = input[(c * 28 + y) * 28 + x];
            if (v > best || v != v) best = v;
          }
        out[(c * 14 + i) * 14 + j] = best;
      }
  return 0;
}
"""


def relu(body: str, *, before: str = "") -> str:
    """A relu whose loop is replaced or followed."""
    return before + RELU_HEAD + body + "  return 0;\n}\n"


def test_a_copy_of_one_buffers_canary_into_anothers_is_seen(evaluate: Evaluate, relu_record: VariantRecord) -> None:
    """One element too many: what it reads past the input is nan, and relu writes that nan past the output."""
    outcome = evaluate(relu_record, relu(RELU_LOOP.replace("i < n", "i <= n")))
    assert isinstance(outcome, Rejected), outcome
    assert outcome.reason is RejectReason.OUT_OF_BOUNDS


def rejected(outcome: Outcome) -> RejectReason:
    assert isinstance(outcome, Rejected), outcome
    return outcome.reason


def test_honest_kernels_are_scored(
    evaluate: Evaluate, relu_record: VariantRecord, softmax_record: VariantRecord, pool_record: VariantRecord
) -> None:
    for record, source in ((relu_record, RELU), (softmax_record, SOFTMAX), (pool_record, POOL)):
        outcome = evaluate(record, source)
        assert isinstance(outcome, Scored), outcome
        assert outcome.audit.kind is AuditKind.GENERATED
        assert outcome.verdict.cases >= 8
        assert outcome.measurement.eager_us > 0 and outcome.measurement.candidate_us > 0
        assert outcome.measurement.floor_us > 0 and "dispatch_overhead_us" in outcome.measurement.environment


def test_whether_a_kernel_repeats_itself_is_told(evaluate: Evaluate, softmax_record: VariantRecord) -> None:
    """Other bits at every second call, far within the tolerance: right, and yet nothing for deterministic mode."""
    honest = evaluate(softmax_record, SOFTMAX)
    assert isinstance(honest, Scored) and honest.verdict.repeatable
    scale = "  const float more = ++calls % 2 ? 1.0f : 1.0000002f;\n"
    source = "static int calls = 0;\n" + SOFTMAX.replace("  for (int64_t r", scale + "  for (int64_t r")
    unsteady = evaluate(softmax_record, source.replace("/= total", "/= total * more"))
    assert isinstance(unsteady, Scored), unsteady
    assert not unsteady.verdict.repeatable and not unsteady.verdict.bitwise


def test_an_in_place_kernel_is_judged_by_its_target(evaluate: Evaluate, inplace_relu_record: VariantRecord) -> None:
    head = 'extern "C" int launch(float* input, void* workspace) {\n'
    loop = "  for (int64_t i = 0; i < 4000; ++i) if (input[i] < 0) input[i] = 0.0f;\n"
    assert isinstance(evaluate(inplace_relu_record, head + loop + "  return 0;\n}\n"), Scored)
    assert rejected(evaluate(inplace_relu_record, head + "  return 0;\n}\n")) is RejectReason.WRONG_VALUE


SOFTMAX_LIES = {
    "a tail that no vector covers": (SOFTMAX.replace("c < n1; ++c) y[c] /=", "c < n1 / 8 * 8; ++c) y[c] /="),
                                     RejectReason.WRONG_VALUE),
    "no maximum subtracted": (SOFTMAX.replace("x[c] - top", "x[c]"), RejectReason.WRONG_VALUE),
    "zeros": ('extern "C" int launch(const float* input, int64_t n0, int64_t n1, float* out, void* workspace) {'
              "std::memset(out, 0, n0 * n1 * 4); return 0; }", RejectReason.WRONG_VALUE),
    "a copy of the input": (
        'extern "C" int launch(const float* input, int64_t n0, int64_t n1, float* out, void* workspace) {'
        "std::memcpy(out, input, n0 * n1 * 4); return 0; }", RejectReason.WRONG_VALUE),
    "half precision": (SOFTMAX.replace("std::exp(x[c] - top)", "half(std::exp(half(x[c]) - top))")
                       .replace("extern", "static float half(float v) { return kf::half_to_float("
                                "kf::float_to_half(v)); }\nextern", 1), RejectReason.PRECISION_DOWNGRADE),
    "most of the sum": (SOFTMAX.replace("total += y[c]", "if (c % 64 != 63) total += y[c]"), RejectReason.WRONG_VALUE),
    "right at observed sizes only": (SOFTMAX.replace("y[c] /= total;", "y[c] /= total;\n    if (n1 != 100) y[0] = 0;"),
                                     RejectReason.WRONG_VALUE),
}  # fmt: skip


@pytest.mark.parametrize("name", SOFTMAX_LIES)
def test_wrong_softmax(evaluate: Evaluate, softmax_record: VariantRecord, name: str) -> None:
    source, reason = SOFTMAX_LIES[name]
    assert rejected(evaluate(softmax_record, source)) is reason


RELU_LIES = {
    "its input changed": (relu(RELU_LOOP + "  const_cast<float*>(input)[0] = 0;\n"), RejectReason.MUTATED_INPUT),
    "a write past the end": (relu(RELU_LOOP + "  out[n] = 1.0f;\n"), RejectReason.OUT_OF_BOUNDS),
    "a write before the start": (relu(RELU_LOOP + "  out[-1] = 1.0f;\n"), RejectReason.OUT_OF_BOUNDS),
    "the previous input's result": (
        relu("  if (!calls) { " + RELU_LOOP.strip() + " std::memcpy(kept, out, 4 * n); calls = 1; }\n"
             "  std::memcpy(out, kept, 4 * n);\n", before="static float kept[4000]; static int calls = 0;\n"),
        RejectReason.FORBIDDEN),
    "only the first call": (relu("  if (calls++) return 0;\n" + RELU_LOOP, before="static int calls = 0;\n"),
                            RejectReason.STALE_OUTPUT),
    "every third call another value": (
        relu(RELU_LOOP + "  if (++calls % 3 == 0) out[17] += 1.0f;\n", before="static int calls = 0;\n"),
        RejectReason.NONDETERMINISTIC),
    "nothing": (relu(""), RejectReason.WRONG_VALUE),
    "nan dropped": (relu(RELU_LOOP.replace("input[i] < 0 ? 0.0f : input[i]", "input[i] > 0 ? input[i] : 0.0f")),
                    RejectReason.WRONG_VALUE),
    "a crash": (relu("  *reinterpret_cast<volatile int*>(8) = 1;\n"), RejectReason.CRASH),
    "an error code": (relu(RELU_LOOP + "  return 7;\n"), RejectReason.LAUNCH_ERROR),
    "code from elsewhere": (relu('  dlopen("libm.so.6", 1);\n' + RELU_LOOP, before="#include <dlfcn.h>\n"),
                            RejectReason.DELEGATED),
    "another program": (relu('  (void)!system("true");\n' + RELU_LOOP, before="#include <cstdlib>\n"),
                        RejectReason.TAMPER),
}  # fmt: skip


@pytest.mark.parametrize("name", RELU_LIES)
def test_wrong_relu(evaluate: Evaluate, relu_record: VariantRecord, name: str) -> None:
    source, reason = RELU_LIES[name]
    assert rejected(evaluate(relu_record, source)) is reason


def test_large_inputs_are_shared_and_nothing_else_changes(
    evaluate: Evaluate, softmax_record: VariantRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelforge.verify.prepare.SHARED_FROM_BYTES", 1)
    # Another variant than that of the other tests, so that its cases are made here.
    record = replace(softmax_record, variant=replace(softmax_record.variant, min_elements=2))
    assert isinstance(evaluate(record, SOFTMAX), Scored)
    source, reason = SOFTMAX_LIES["a copy of the input"]
    assert rejected(evaluate(record, source)) is reason
    changed = SOFTMAX.replace("y[c] /= total;", "y[c] /= total;\n    const_cast<float*>(x)[0] = 0;")
    assert rejected(evaluate(record, changed)) is RejectReason.MUTATED_INPUT


def test_a_hang_is_ended(evaluate: Evaluate, relu_record: VariantRecord) -> None:
    source = relu("  volatile int forever = 1; while (forever) {}\n")
    assert rejected(evaluate(relu_record, source)) is RejectReason.TIMEOUT


def test_a_hostile_neighbour_changes_no_verdict(evaluate: Evaluate, relu_record: VariantRecord) -> None:
    assert isinstance(evaluate(relu_record, relu("  __builtin_trap();\n")), Rejected)
    assert isinstance(evaluate(relu_record, RELU + "// again\n"), Scored)


def test_what_does_not_build(evaluate: Evaluate, relu_record: VariantRecord) -> None:
    outcome = evaluate(relu_record, "this is no C++")
    assert isinstance(outcome, BuildFailure)


def test_the_detail_helps(evaluate: Evaluate, softmax_record: VariantRecord) -> None:
    outcome = evaluate(softmax_record, SOFTMAX_LIES["a tail that no vector covers"][0])
    assert isinstance(outcome, Rejected)
    assert "n0=" in outcome.case and "seed" not in outcome.case
    assert "must be" in outcome.detail and "elements are wrong" in outcome.detail


def test_a_certificate(judge: Judge, backend: Backend, softmax_record: VariantRecord, examples: ExampleStore) -> None:
    def artifact_of(source: str) -> Artifact:
        made = backend.build(
            Candidate(variant_id=softmax_record.variant.id, source=source, backend="cpp", generator="manual"),
            softmax_record.variant,
        )
        assert isinstance(made, Artifact)
        return made

    verdict = judge.certify(artifact_of(SOFTMAX), softmax_record, examples)
    assert isinstance(verdict, Accepted) and verdict.cases >= 20
    late = SOFTMAX.replace("  return 0;", "  if (++calls > 500) out[0] += 1;\n  return 0;")
    worn = judge.certify(artifact_of("static int calls = 0;\n" + late), softmax_record, examples)
    assert isinstance(worn, Rejected)
    fixed = SOFTMAX.replace("  return 0;", "  if (omp_get_max_threads() != 1) out[0] += 1;\n  return 0;")
    bound = judge.certify(artifact_of("#include <omp.h>\n" + fixed), softmax_record, examples)
    assert isinstance(bound, Rejected) and bound.detail.startswith("on 2 threads: ")


def test_a_fault_of_the_harness_is_not_charged(
    evaluate: Evaluate, judge: Judge, relu_record: VariantRecord, examples: ExampleStore
) -> None:
    """A card whose operator cannot run at its captured sizes."""
    import dataclasses

    arguments = tuple((n, 7 if n == "inplace" else v) for n, v in relu_record.variant.arguments)
    outputs = (dataclasses.replace(relu_record.variant.outputs[0], dtype="int64"),)
    broken = dataclasses.replace(relu_record.variant, arguments=arguments, outputs=outputs)
    record = dataclasses.replace(relu_record, variant=broken)
    source = RELU.replace("float* out", "int64_t* out")
    assert isinstance(evaluate(record, source), WorkerFailure)
    assert isinstance(evaluate(relu_record, RELU + "// after\n"), Scored)


def test_a_bug_of_the_judge_is_no_verdict_and_no_end(
    evaluate: Evaluate, relu_record: VariantRecord, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(Judge, "_judge", broken)
    outcome = evaluate(relu_record, RELU)
    assert isinstance(outcome, WorkerFailure)
    assert "a fault of the judge itself: KeyError" in outcome.detail
    assert "Traceback" in caplog.text


def test_what_shows_once_while_timed_is_not_forgiven_by_a_second_timing(
    evaluate: Evaluate, relu_record: VariantRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rounding mode is changed once, in the timed calls; afterwards nothing changes any more."""
    monkeypatch.setattr(Judge, "_faster_than_known", lambda judge: True)
    late = "  if (++calls == 40) std::fesetround(FE_UPWARD);\n"
    source = "#include <cfenv>\nstatic int calls = 0;\n" + RELU_HEAD + RELU_LOOP + late + "  return 0;\n}\n"
    outcome = evaluate(relu_record, source)
    assert isinstance(outcome, Rejected) and outcome.reason is RejectReason.LAUNCH_ERROR, outcome


def test_candidates_are_timed_again_together_on_inputs_of_their_own(
    evaluate: Evaluate, judge: Judge, softmax_record: VariantRecord, examples: ExampleStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """In turns, forwards and backwards; one that is wrong only now has its reason, and the others their times."""
    slow = SOFTMAX.replace("  return 0;", "  for (volatile int i = 0; i < 300000; ++i) {}\n  return 0;")
    sources = (SOFTMAX, slow)
    scored = [evaluate(softmax_record, source) for source in sources]
    assert all(isinstance(s, Scored) for s in scored), scored
    known = judge._workbench.bench(softmax_record, examples).points
    seen: list[tuple[int, object]] = []
    real = Judge._measure

    def noted(self: Judge, session: RunnerSession, record: VariantRecord, points: Sequence[TimedPoint]) -> object:
        seen.append((id(session), points))
        return real(self, session, record, points)

    monkeypatch.setattr(Judge, "_measure", noted)
    artifacts = [s.artifact for s in scored if isinstance(s, Scored)]
    retimed = judge.retime(artifacts, softmax_record, examples)
    assert not isinstance(retimed, WorkerFailure)
    fast_times, slow_times = retimed
    assert not isinstance(fast_times, Rejected) and not isinstance(slow_times, Rejected)
    assert [len(fast_times), len(slow_times)] == [2, 2]
    assert all(f.candidate_us < s.candidate_us for f, s in zip(fast_times, slow_times, strict=True))
    first, second, third, fourth = (session for session, _ in seen)
    assert first == fourth != second == third
    assert all(points is not known for _, points in seen)
