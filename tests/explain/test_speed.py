"""How far from the floor, and what likely holds a candidate back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kernelforge.benchmark.types import Interval
from kernelforge.cards.types import VariantRecord
from kernelforge.evaluate.types import Scored
from kernelforge.explain.outcome import explain
from kernelforge.explain.speed import LAUNCH_US, CallFacts, distance, facts_of, limiter

CPU = CallFacts(device="cpu", us=100.0, overhead_us=0.5, floor_us=10.0, cold=True, threads=8, parallel=True)
GPU = CallFacts(device="cuda", us=100.0, overhead_us=0.0, floor_us=10.0, cold=True, launch_us=1.5)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (replace(CPU, us=1.0, overhead_us=0.6), "call overhead, 0.6 us"),
        (replace(CPU, us=4.0, floor_us=0.1), "fixed costs"),
        (replace(CPU, us=15.0), "bandwidth of main memory"),
        (replace(CPU, us=15.0, cold=False), "bandwidth of the caches"),
        (replace(CPU, flops=10**9, moved_bytes=10**6), "compute: 1000 flops for each byte, 1.01e+04 Gflop/s"),
        (replace(CPU, parallel=False), "one thread works where eager may use 8"),
        (replace(CPU, parallel=False, threads=1), "neither bytes nor arithmetic"),
        (replace(CPU, parallel=None), "neither bytes nor arithmetic"),
        (replace(CPU, flops=10**6, moved_bytes=10**6), "neither bytes nor arithmetic"),
        (replace(GPU, us=1.7, floor_us=1.49, launch_us=1.49), "launch overhead"),
        (replace(GPU, us=1.7), "launch overhead"),
        (replace(GPU, us=2.09, floor_us=1.49, launch_us=1.49), "latency: 1.4 times an empty kernel's 1.49 us"),
        (replace(GPU, us=4.4, floor_us=1.49, launch_us=1.49), "64-bit division and modulo"),
        (replace(GPU, us=4.4, floor_us=3.5, launch_us=1.49), "bandwidth of the GPU's memory"),
        (replace(GPU, us=28.0), "bytes of the GPU's memory, but more than the necessary ones or not at its full rate"),
        (replace(GPU, us=28.0, cold=False, moved_bytes=10**6, flops=10**8), "compute"),
        (replace(GPU, us=4.6, floor_us=1.49, launch_us=1.49), "neither bytes nor arithmetic"),
        (replace(GPU, elements=768, moved_bytes=3 << 20), "neither bytes nor arithmetic"),
        (replace(GPU, elements=768, moved_bytes=1 << 20), "768 output elements do not fill"),
        (replace(GPU, elements=768, moved_bytes=1 << 20, flops=8 << 20), "neither bytes nor arithmetic"),
        (replace(GPU, us=12.0), "bandwidth of the GPU's memory"),
        (replace(GPU, us=12.0, cold=False), "bandwidth of the L2 cache"),
        (replace(GPU, elements=4096), "4096 output elements do not fill the GPU"),
        (replace(GPU, elements=4 << 20), "neither bytes nor arithmetic"),
        (replace(GPU, flops=10**7, moved_bytes=10**6, elements=1 << 20), "neither bytes nor arithmetic"),
        (replace(GPU, flops=10**8, moved_bytes=10**6, elements=4), "compute"),
        (replace(GPU, floor_us=0.0), "neither bytes nor arithmetic"),
    ],
)  # fmt: skip
def test_the_likely_limiter(facts: CallFacts, words: str) -> None:
    assert words in limiter(facts)


def test_the_distance_from_the_floor_in_words() -> None:
    assert distance(replace(CPU, moved_bytes=2_000_000)) == (
        "100 us a call, 10.0 times the floor of 10 us; its 2 MB move at 20 GB/s, the floor takes 200 GB/s"
    )
    assert distance(CPU) == "100 us a call, 10.0 times the floor of 10 us"
    assert distance(replace(CPU, floor_us=0.0)) == "100 us a call"
    assert "move at 2557 GB/s" in distance(replace(CPU, us=210.0, floor_us=0.0, moved_bytes=536_871_424))
    assert "move at 1 GB/s" in distance(replace(CPU, floor_us=0.0, moved_bytes=100_000))


def test_facts_come_from_the_measurement_and_the_card(
    make_scored: Callable[..., Scored], relu_record: VariantRecord
) -> None:
    scored = make_scored(50.0, overhead_us=1.25, regime="cold", evidence=("needs x", "imports GOMP_parallel"))
    facts = facts_of(scored, scored.measurement.points[0], relu_record)
    assert (facts.us, facts.overhead_us, facts.floor_us, facts.cold, facts.threads) == (50.0, 1.25, 1.0, True, 2)
    assert (facts.moved_bytes, facts.elements, facts.parallel) == (32_000, 4_000, True)
    bare = facts_of(scored, scored.measurement.points[0], None)
    assert (bare.moved_bytes, bare.flops, bare.elements) == (None, None, None)
    serial = make_scored(50.0)
    assert facts_of(serial, serial.measurement.points[0], None).parallel is False
    assert facts.launch_us == 0.0
    gpu = make_scored(50.0, overhead_us=1.25, backend="cuda")
    assert facts_of(gpu, gpu.measurement.points[0], None).overhead_us == 0.0


def test_an_in_place_variant_counts_what_it_changes(
    make_scored: Callable[..., Scored], inplace_record: VariantRecord
) -> None:
    scored = make_scored(50.0)
    assert facts_of(scored, scored.measurement.points[0], inplace_record).elements == 4_000


def test_accepted_in_words(make_scored: Callable[..., Scored], relu_record: VariantRecord) -> None:
    lines = explain(make_scored(50.0), record=relu_record)
    assert lines[0] == "accepted: 2.00x (1.90-2.10) of eager, generated, right on 12 cases"
    assert lines[1].startswith("50 us a call, 50.0 times the floor of 1 us; its 32 kB move at 0.64 GB/s")
    assert lines[2].startswith("likely limiter: ")
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(0.8, 0.9, "it is slower than eager"), (0.9, 1.1, "it is not surely faster than eager")],
)
def test_slower_is_said_first(make_scored: Callable[..., Scored], low: float, high: float, words: str) -> None:
    assert explain(make_scored(50.0, low=low, high=high))[1] == words


def test_sizes_apart_and_kernels_last(make_scored: Callable[..., Scored]) -> None:
    log = "Compiling entry function 'k' for 'sm_90'\nUsed 40 registers\n"
    lines = explain(make_scored(50.0, points=6, backend="cuda", log=log))
    assert [line.startswith("at fixed sizes: 2.00x") for line in lines[3:]] == [True] * 4 + [False]
    assert lines[-1].startswith("k: 40 registers")


def test_of_several_sizes_the_limiter_is_that_of_the_one_that_loses_most(make_scored: Callable[..., Scored]) -> None:
    scored = make_scored(50.0, backend="cuda")
    (point,) = scored.measurement.points
    slow = Interval(median=0.5, low=0.4, high=0.6)
    # 2 calls lose 97 us, 100 calls at their floor nothing, 40 calls 140 us.
    floor = replace(point, dims={"n0": 2}, calls=100, floor_us=50.0)
    worst = replace(point, dims={"n0": 3}, calls=40, eager_us=(2.5,), candidate_us=(5.0,), speedup=slow)
    sizes = (replace(point, dims={"n0": 1}, calls=2), floor, worst)
    lines = explain(replace(scored, measurement=replace(scored.measurement, points=sizes)))
    assert lines[1] == (
        "most time above the floor is spent at n0=3: 5 us a call, 3.3 times the floor of 1.5 us, which is a launch"
    )
    assert lines[2].startswith("likely limiter there: ")
    assert lines[3].endswith("2 calls, 33.3 times its floor")
    assert lines[4].endswith("100 calls, 1.00 times its floor")
    assert (
        lines[5] == "at n0=3: 0.50x (0.40-0.60), 5 us against 2.5 us, 40 calls, 3.33 times its floor, SLOWER than eager"
    )


@pytest.mark.parametrize(
    ("environment", "launch_us"),
    [({"launch_us": "2.44 (least time of any call)"}, 2.44), ({}, LAUNCH_US), ({"launch_us": "unknown"}, LAUNCH_US)],
)
def test_the_launch_is_the_machine_s_and_no_floor_is_below_it(
    make_scored: Callable[..., Scored], environment: dict[str, str], launch_us: float
) -> None:
    scored = make_scored(5.0, 0.001, backend="cuda")
    scored = replace(scored, measurement=replace(scored.measurement, environment=environment))
    facts = facts_of(scored, scored.measurement.points[0], None)
    assert (facts.launch_us, facts.floor_us) == (launch_us, launch_us)
    assert facts_of(make_scored(5.0, 0.001), scored.measurement.points[0], None).floor_us == 0.001, "none on the CPU"


def test_it_is_said_where_a_gpu_s_bytes_come_from() -> None:
    assert "its 2 MB (out of the GPU's memory: inputs rotate beyond L2) move" in distance(
        replace(GPU, moved_bytes=2_000_000)
    )
    assert "its 2 MB (they stay in L2 between calls) move" in distance(replace(GPU, moved_bytes=2_000_000, cold=False))


def test_no_limiter_is_cut(make_scored: Callable[..., Scored], relu_record: VariantRecord) -> None:
    lines = explain(make_scored(2.5, 1.49, points=2, backend="cuda"), record=relu_record)
    assert "latency" in lines[2] and lines[2].endswith("the number of blocks")
