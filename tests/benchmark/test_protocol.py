"""Which points are timed, the roofline floor, and one measurement on the CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelforge.benchmark import protocol
from kernelforge.benchmark.machine import MachineFacts, machine_facts
from kernelforge.benchmark.points import TimedPoint, representative_points, rotating_sets
from kernelforge.benchmark.protocol import Protocol, measure
from kernelforge.benchmark.roofline import floor_us, traffic_bytes
from kernelforge.benchmark.types import Interval, Measurement
from kernelforge.build.backends import get_backend
from kernelforge.build.types import Artifact
from kernelforge.capture.types import TensorRef
from kernelforge.cards.types import Dim, Extent, SizePoint, TensorPattern, Variant, VariantRecord
from kernelforge.errors import HarnessError
from kernelforge.executors.types import Limits
from kernelforge.generate.types import Candidate
from kernelforge.runner.eager import EagerWorker
from kernelforge.runner.protocol import BufferSet
from kernelforge.runner.session import RunnerSession
from kernelforge.settings import load_settings
from kernelforge.verify.cases import Case, CasePlan, output_specs
from kernelforge.verify.draw import draw_inputs
from kernelforge.verify.prepare import EagerBaseline, buffers_of, prepare
from kernelforge.verify.sizes import SizeChoice
from kernelforge.verify.types import Rejected, RejectReason

SIZE = Extent(1, ("n0",))
PATTERN = TensorPattern(shape=(SIZE,), stride=(Extent(1),), dtype="float32")
RELU = Variant(
    operator="relu", arguments=(("input", TensorRef(0)), ("inplace", False)), tensors=(PATTERN,), outputs=(PATTERN,),
    dims=(Dim(name="n0", low=1, high=1 << 20),),
)  # fmt: skip
SOURCE = """
extern "C" int launch(const float* input, int64_t n0, float* out, void* workspace) {
  for (int64_t i = 0; i < n0; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
"""


def facts(bytes_per_second: float) -> MachineFacts:
    return MachineFacts(
        device="test", bandwidth=((1, bytes_per_second),), cache_bytes=1 << 20, dispatch_overhead_us=1.0
    )


def record(calls: dict[int, int]) -> VariantRecord:
    points = tuple(
        SizePoint(dims={"n0": size}, scalars={}, calls=count, eager_us=float(size)) for size, count in calls.items()
    )
    return VariantRecord(variant=RELU, points=points, share=1.0)


def test_few_points_are_all_timed_the_costliest_first() -> None:
    chosen = representative_points(record({10: 1, 20: 5, 30: 1}))
    assert [p.dims["n0"] for p, _, _ in chosen] == [20, 30, 10]
    assert sum(share for _, _, share in chosen) == pytest.approx(1.0)


def test_many_points_are_stood_for_by_groups() -> None:
    chosen = representative_points(record(dict.fromkeys(range(1, 129), 1)))
    assert 2 <= len(chosen) <= 4
    assert sum(calls for _, calls, _ in chosen) == 128
    assert len({p.dims["n0"] for p, _, _ in chosen}) == len(chosen)


def test_traffic_and_floor() -> None:
    assert traffic_bytes(RELU, {"n0": 1000}, {}) == 8000
    assert floor_us(RELU, {"n0": 1000}, {}, bytes_per_second=1e9) == pytest.approx(8.0)


def test_the_arithmetic_of_a_product_counts() -> None:
    square = TensorPattern(shape=(Extent(1000), Extent(1000)), stride=(Extent(1000), Extent(1)), dtype="float32")
    product = Variant(
        operator="matmul", arguments=(("input", TensorRef(0)), ("other", TensorRef(1))), tensors=(square, square),
        outputs=(square,),
    )  # fmt: skip
    by_bytes = floor_us(product, {}, {}, bytes_per_second=1e12)
    assert by_bytes == pytest.approx(12.0)
    assert floor_us(product, {}, {}, bytes_per_second=1e12, flops_per_second=1e12) == pytest.approx(2000 * 7 / 8)
    assert floor_us(product, {}, {}, bytes_per_second=1e6, flops_per_second=1e12) == pytest.approx(12e6)
    # What a relu computes is not what bounds it.
    assert floor_us(RELU, {"n0": 1000}, {}, bytes_per_second=1e9, flops_per_second=1.0) == pytest.approx(8.0)


def test_the_peak_of_this_machine_is_measured(tmp_path: Path) -> None:
    measured = machine_facts(load_settings({"KFORGE_CACHE_DIR": str(tmp_path)}), device="cpu", threads=1)
    assert measured.flops_per_second("float64") > 1e8 and 1e9 < measured.flops_per_second("float32") < 1e13
    assert measured.flops_per_second("bfloat16") >= measured.flops_per_second("float32")
    assert measured.flops_per_second("int64") == 0.0


def test_an_expanded_input_is_read_once() -> None:
    expanded = TensorPattern(shape=(Extent(100), Extent(10)), stride=(Extent(0), Extent(1)), dtype="float32")
    dense = TensorPattern(shape=(Extent(100), Extent(10)), stride=(Extent(10), Extent(1)), dtype="float32")
    variant = Variant(operator="relu", arguments=RELU.arguments, tensors=(expanded,), outputs=(dense,))
    assert traffic_bytes(variant, {}, {}) == 4000 + 40


def test_sets_exceed_the_cache_within_the_caps() -> None:
    assert rotating_sets(RELU, {"n0": 1 << 16}, facts(1e9), cap_bytes=1 << 30) == 3
    assert rotating_sets(RELU, {"n0": 8}, facts(1e9), cap_bytes=1 << 30) == 8
    assert rotating_sets(RELU, {"n0": 1 << 20}, facts(1e9), cap_bytes=1) == 2


def test_bandwidth_is_that_of_the_next_smaller_footprint() -> None:
    machine = MachineFacts(device="x", bandwidth=((100, 9.0), (1000, 3.0)), cache_bytes=1, dispatch_overhead_us=0.0)
    assert machine.bytes_per_second(500) == 9.0 and machine.bytes_per_second(1000) == 3.0
    assert machine.bytes_per_second(10) > 9.0


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[tuple[EagerWorker, RunnerSession, TimedPoint]]:
    """An honest relu of 4096 elements, loaded beside eager, on one thread."""
    settings = load_settings({"KFORGE_CACHE_DIR": str(tmp_path)})
    candidate = Candidate(variant_id=RELU.id, source=SOURCE, backend="cpp", generator="manual")
    artifact = get_backend("cpp", settings).build(candidate, RELU)
    assert isinstance(artifact, Artifact)
    limits = Limits(wall_s=10.0)
    with (
        EagerWorker("cpu", 1) as eager,
        RunnerSession(artifact.path, device="cpu", limits=limits, threads=1, settings=settings) as session,
    ):
        yield eager, session, point(eager)


def point(eager: EagerWorker) -> TimedPoint:
    choice = SizeChoice(dims={"n0": 4096}, scalars={}, why="observed")
    sets: list[BufferSet] = []
    checked = {}
    for seed in range(2):
        specs = [PATTERN.spec(choice.dims, "cpu")]
        inputs = draw_inputs(RELU, specs, "normal", pools=[None], seed=seed, device=torch.device("cpu"))
        plan = CasePlan(choice=choice, distribution="normal")
        case = Case(plan=plan, inputs=inputs, outputs=output_specs(RELU, choice.dims))
        sets.append(buffers_of(RELU, case, alignment=64))
        prepared = prepare(RELU, case, EagerBaseline(eager))
        assert prepared is not None
        checked[seed] = prepared
    return TimedPoint(dims=choice.dims, scalars={}, calls=3, share=1.0, sets=tuple(sets), checked=checked)


def test_a_measurement_and_a_time_below_the_floor(bench: tuple[EagerWorker, RunnerSession, TimedPoint]) -> None:
    eager, session, timed = bench
    quick = Protocol(budget_s=0.3, quiet_timeout_s=0.0, wide=math.inf)
    result = measure(eager, session, RELU, [timed], facts(1e12), protocol=quick, environment={"device": "test"})
    assert isinstance(result, Measurement), result
    (only,) = result.points
    assert len(only.eager_us) == len(only.candidate_us) >= 2 and only.regime == "warm"
    assert min(only.candidate_us) > 1.0, "the dispatch overhead is charged"
    assert result.speedup.low <= result.speedup.median <= result.speedup.high
    assert result.floor_us == pytest.approx(2 * 4 * 4096 / 1e12 * 1e6)
    suspect = measure(eager, session, RELU, [timed], facts(1e6), protocol=quick, environment={})
    assert isinstance(suspect, Rejected) and suspect.reason is RejectReason.TIMING_SUSPECT


def test_one_mismatch_of_clocks_is_no_forgery_and_three_are(
    bench: tuple[EagerWorker, RunnerSession, TimedPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    eager, session, timed = bench
    quick = Protocol(budget_s=0.1, quiet_timeout_s=0.0, wide=math.inf)
    honest = measure(eager, session, RELU, [timed], facts(1e12), protocol=quick, environment={})
    assert isinstance(honest, Measurement)
    rejected = Rejected(reason=RejectReason.TIMING_SUSPECT, case="here", detail="the clocks differ")
    mismatch = protocol._ClockMismatch(rejected=rejected)
    monkeypatch.setattr(protocol, "ForeignLoad", lambda pids: SimpleNamespace(share=lambda: 0.0))

    def judged(*results: object) -> object:
        queue = iter(results)
        monkeypatch.setattr(protocol, "_measure_once", lambda *a, **k: next(queue))
        return measure(eager, session, RELU, [timed], facts(1e12), protocol=quick, environment={})

    assert isinstance(judged(mismatch, honest), Measurement)
    assert judged(mismatch, mismatch, mismatch) is rejected
    assert judged(rejected) is rejected, "what is wrong otherwise is final"


def test_a_wide_interval_on_a_busy_machine_is_no_measurement(
    bench: tuple[EagerWorker, RunnerSession, TimedPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A good kernel once got 0.008x (0.006-0.65) while others used the cores, and kept it."""
    eager, session, timed = bench
    honest = measure(
        eager, session, RELU, [timed], facts(1e12), protocol=Protocol(budget_s=0.1, wide=math.inf), environment={}
    )
    assert isinstance(honest, Measurement)

    def times(low: float, high: float) -> Measurement:
        return replace(honest, speedup=Interval(median=low, low=low, high=high))

    def judged(share: float, *results: Measurement) -> tuple[object, int]:
        queue = iter(results)
        monkeypatch.setattr(protocol, "ForeignLoad", lambda pids: SimpleNamespace(share=lambda: share))
        monkeypatch.setattr(protocol, "_measure_once", lambda *a, **k: next(queue))
        quick = Protocol(quiet_timeout_s=0.0)
        return measure(eager, session, RELU, [timed], facts(1e12), protocol=quick, environment={}), len(list(queue))

    wide, narrow = times(0.006, 0.65), times(0.5, 0.6)
    with pytest.raises(HarnessError, match="too busy"):
        judged(0.9, wide, wide, wide)
    kept, left = judged(0.9, wide, narrow, narrow)
    assert isinstance(kept, Measurement) and left == 1
    kept, left = judged(0.1, wide, narrow)
    assert isinstance(kept, Measurement) and kept.speedup == wide.speedup and left == 1, "others had no part in it"
    assert judged(0.9, narrow, narrow)[1] == 1, "surely slow: no second look"


def test_a_disturbed_first_block_does_not_keep_the_others_short() -> None:
    block_type = protocol._Block

    class Clock:
        """Calls of 1 us, but for the first block of each side: somebody took the core for 5 ms."""

        protocol, collects_often = Protocol(budget_s=0.05), False

        def __init__(self) -> None:
            self.sizes: list[int] = []

        def candidate_block(self, iterations: int, *, collect: bool = False, prepare: bool = False) -> Any:
            self.sizes.append(iterations)
            return block_type(*[5000.0 if len(self.sizes) <= 2 else 1.0] * 3)

        eager_block = candidate_block

        def calls_like(self, block: Any) -> int:
            return max(1, int(2000 / block.median_us))

    clock = Clock()
    stand_in: Any = clock
    protocol._sample(stand_in, 2, clock.protocol, 0.05)
    assert clock.sizes[:6] == [2, 2, 1, 1, 1, 1] and {*clock.sizes[6:-1]} == {2000}
