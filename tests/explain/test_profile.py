"""What follows from a profiler's metrics, in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kernelforge.cards.types import VariantRecord
from kernelforge.evaluate.types import Scored
from kernelforge.explain.outcome import explain
from kernelforge.explain.profile import (
    MOST_SENTENCES,
    PROFILED,
    UNITS,
    KernelProfile,
    Profile,
    diagnose,
    explain_profile,
)

QUIET = KernelProfile(
    name="norm", grid=264, block=256, duration_us=9.0, registers=40, sms=132, occupancy=80.0, waves=1.0,
    units={"dram": 20.0, "l2": 30.0, "issue": 25.0}, cycles=10.0, stalls={"long_scoreboard": 1.0}, lanes=32.0,
    load_sectors=16.0, load_use=100.0, store_sectors=16.0, store_use=100.0, conflicts=0.0, local_bytes=0.0,
    read_bytes=20_000.0, written_bytes=12_000.0, l2_bytes=32_000.0, instructions=264 * 8 * 500.0,
)  # fmt: skip


def test_bound_by_latency_says_so_and_names_no_other_trouble() -> None:
    assert diagnose(QUIET) == (
        "norm, 264 blocks of 256 threads, 9 us: bound by latency: no unit is above 60% of its peak, the busiest is the "
        "L2 cache at 30%; a warp executes about 500 instructions",
    )  # fmt: skip


@pytest.mark.parametrize("unit", UNITS)
def test_the_nearest_limit(unit: str) -> None:
    near = diagnose(replace(QUIET, units={**QUIET.units, unit: 70.0}))[0]
    assert f"nearest to its limit is {UNITS[unit]}, at 70%" in near and "latency" not in near
    assert f"bound by {UNITS[unit]}, at 91%" in diagnose(replace(QUIET, units={unit: 91.0}))[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stalls": {"long_scoreboard": 6.0, "barrier": 2.0}}, "60% for global loads and 20% for barriers:"),
        ({"stalls": {"short_scoreboard": 3.0}}, "it waits 30% for shared memory or special functions"),
        ({"stalls": {"math_pipe_throttle": 3.0}}, "30% for the math pipe"),
        ({"stalls": {"no_instruction": 3.0}}, "30% for instruction fetch"),
        ({"stalls": {"lg_throttle": 3.0}}, "30% for memory throttle"),
        ({"stalls": {"sleeping": 3.0}}, "30% for other blocks (spinning or sleeping)"),
        ({"grid": 64}, "its 64 blocks leave 68 of 132 SMs idle"),
        ({"waves": 1.2}, "tail: the blocks fill the GPU 1.2 times"),
        ({"occupancy": 12.4}, "only 12% of the warps that an SM can hold were there (40 registers a thread)"),
        ({"load_use": 25.0}, "uncoalesced: global loads use 25% of the bytes"),
        ({"load_use": 25.0, "store_use": 50.0}, "use 25% of the bytes they move and global stores use 50%"),
        ({"store_use": None, "store_sectors": 32.0}, "uncoalesced: global stores touch 32 sectors"),
        ({"stalls": {"long_scoreboard": 6.0}, "load_sectors": 2.0}, "narrow loads: a warp's load brings 64 bytes"),
        ({"local_bytes": 64_000.0}, "64 kB of spilled registers"),
        ({"conflicts": 0.5}, "bank conflicts: 50% of the passes"),
        ({"lanes": 8.0}, "only 8 of a warp's 32 threads"),
        ({"duration_us": 2.1}, "an empty kernel takes half of this time or more"),
    ],
)  # fmt: skip
def test_one_trouble_is_one_sentence_more_at_most(changes: dict[str, object], words: str) -> None:
    lines = diagnose(replace(QUIET, **changes))  # type: ignore[arg-type]
    assert any(words in line for line in lines), lines
    assert len(lines) <= 3


@pytest.mark.parametrize(
    "changes",
    [
        {"stalls": {"selected": 9.0, "not_selected": 9.0}}, {"waves": 1.9}, {"waves": 5.2}, {"waves": 0.4},
        {"load_sectors": 1.0}, {"load_use": 75.0}, {"conflicts": 0.1}, {"load_sectors": 2.0}, {"sms": None, "grid": 3},
        {"occupancy": 20.0, "units": {"l2": 66.0}}, {"conflicts": None, "local_bytes": None, "lanes": None},
    ],
)  # fmt: skip
def test_what_is_no_trouble_is_not_told(changes: dict[str, object]) -> None:
    assert len(diagnose(replace(QUIET, **changes))) == 1  # type: ignore[arg-type]


def test_a_kernel_of_which_nothing_is_known() -> None:
    assert diagnose(KernelProfile(name="k", grid=1, block=32, duration_us=2.0)) == (
        "k, 1 block of 32 threads, 2 us: how busy its units are is not known",
    )


WORST = replace(
    QUIET, grid=8, stalls={"barrier": 5.0}, load_use=10.0, local_bytes=4.0, conflicts=0.9, lanes=4.0,
    read_bytes=90_000.0, l2_bytes=120_000.0,
)  # fmt: skip


def profile(*kernels: KernelProfile, cold: bool = True) -> Profile:
    return Profile(device="NVIDIA H200", dims={}, cold=cold, kernels=kernels)


def test_a_call_s_bytes_against_the_necessary_ones(relu_record: VariantRecord) -> None:
    """The relu reads and writes 16 kB."""
    assert len(explain_profile(profile(QUIET), relu_record)) == 2
    cold = explain_profile(profile(WORST), relu_record)
    assert "102 kB moved to and from the GPU's memory, 32 kB are necessary: 3.2 times as many" in cold[1]
    warm = explain_profile(profile(WORST, cold=False), relu_record)
    assert "inputs in L2" in warm[0] and "120 kB moved between L2 and the SMs" in warm[1]
    assert "necessary" not in "".join(explain_profile(profile(WORST), None))
    unknown = profile(QUIET, replace(WORST, read_bytes=None, written_bytes=None))
    assert "necessary" not in "".join(explain_profile(unknown, relu_record)), "half of the kernels is no sum"


def test_few_sentences_however_bad_it_is(relu_record: VariantRecord) -> None:
    lines = explain_profile(profile(WORST), relu_record)
    assert lines[0] == "profiled: 1 kernel a call on NVIDIA H200, at fixed sizes, caches cold"
    assert len(lines) == 1 + MOST_SENTENCES
    many = explain_profile(profile(QUIET, replace(WORST, name="w", duration_us=20.0), *[WORST] * 3), relu_record)
    assert "5 launches take 56 us" in many[1] and "w 36%" in many[1]
    assert len(many) <= 11 and many[3].startswith("w, 8 blocks"), "the longest first"


def test_the_diagnosis_ends_the_explanation(make_scored: Callable[..., Scored], relu_record: VariantRecord) -> None:
    scored = make_scored(50.0, backend="cuda")
    plain = explain(scored, record=relu_record)
    lines = explain(scored, record=relu_record, profile=profile(QUIET))
    assert lines[: len(plain)] == plain
    assert lines[len(plain)].startswith(PROFILED) and "bound by latency" in lines[-1]
