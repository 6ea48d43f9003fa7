"""How far an accepted candidate is from what the machine could do, and what likely holds it back. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelforge.benchmark.roofline import flops, traffic_bytes
from kernelforge.benchmark.statistics import median
from kernelforge.benchmark.types import Interval, Measurement, PointTiming
from kernelforge.cards.types import ScalarValues, Variant, VariantRecord
from kernelforge.evaluate.types import Scored
from kernelforge.explain.ptxas import explain_kernels
from kernelforge.wording import plural, three_digits

OVERHEAD_SHARE = 0.5
LAUNCH_US = 3.5
"""Below this a CUDA call is mostly launch: an empty kernel takes nearly 2 microseconds in a stream."""
TINY_US = 5.0
"""Below this a CPU kernel is mostly fixed costs: starting an OpenMP region alone takes some microseconds."""
NEAR_FLOOR = 1.6
COMPUTE_INTENSITY = {"cpu": 8.0, "cuda": 16.0}
"""Flops a byte above which arithmetic counts for more than memory on common machines (float32, no tensor cores)."""
FEW_ELEMENTS = 100_000
"""Below so many output elements, one a thread, a data-centre GPU (some 200,000 threads at once) is not full."""
WORTH_THREADS_US = 50.0
"""A CPU kernel shorter than this gains little from a second thread."""
MAX_POINTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFacts:
    """What is known of one call.

    Attributes:
        device: "cpu" or "cuda". us: of a call, with `overhead_us` of dispatch in it (0.0 on CUDA).
        floor_us: least time for the bytes and the arithmetic, 0.0 if unknown.
        cold: the bytes come from memory, not from a cache.
        threads: that it might use (CPU). parallel: whether the binary starts OpenMP's; None if unknown.
        moved_bytes, flops, elements: of the call; None if unknown. elements: of the outputs.
    """

    device: str
    us: float
    overhead_us: float
    floor_us: float
    cold: bool
    threads: int = 1
    parallel: bool | None = None
    moved_bytes: int | None = None
    flops: int | None = None
    elements: int | None = None


def explain_speed(scored: Scored, source: str, record: VariantRecord | None) -> tuple[str, ...]:
    """The speed-up, the distance from the floor, the likely limiter, the sizes apart, and the kernels' resources.

    Args:
        record: what the bytes and flops of a call are computed from; without it only times are compared.
    """
    measurement, audit = scored.measurement, scored.audit.kind
    lines = [
        f"accepted: {_speedup(measurement.speedup)} of eager, {audit}, right on {plural(scored.verdict.cases, 'case')}"
    ]
    if measurement.speedup.low <= 1.0:
        slower = "slower than eager" if measurement.speedup.high < 1.0 else "not surely faster than eager"
        lines.append(f"it is {slower}")
    if measurement.points:
        facts = facts_of(scored, measurement.points[0], record)
        lines += [distance(facts), f"likely limiter: {limiter(facts)}"]
    if len(measurement.points) > 1:
        lines += [_point_line(point) for point in measurement.points[:MAX_POINTS]]
    return (*lines, *explain_kernels(scored.artifact.log, source))


def facts_of(scored: Scored, point: PointTiming, record: VariantRecord | None) -> CallFacts:
    """The facts of one timed size."""
    measurement, artifact = scored.measurement, scored.artifact
    moved = operations = elements = None
    if record is not None:
        scalars = _scalars(record, point)
        moved = traffic_bytes(record.variant, point.dims, scalars)
        operations = flops(record.variant, point.dims, scalars)
        elements = _elements(record.variant, point)
    on_gpu = artifact.backend == "cuda"
    return CallFacts(
        device="cuda" if on_gpu else "cpu", us=_candidate_us(point),
        overhead_us=0.0 if on_gpu else _overhead_us(measurement), floor_us=point.floor_us,
        cold=point.regime == "cold", threads=_integer(measurement.environment.get("threads", "")),
        parallel=None if on_gpu else any("GOMP" in e or "__kmpc" in e for e in scored.audit.evidence),
        moved_bytes=moved, flops=operations, elements=elements,
    )  # fmt: skip


def distance(facts: CallFacts) -> str:
    """How far a call is from the floor, in one sentence."""
    text = f"{_time(facts.us)} a call"
    if facts.floor_us > 0:
        ratio = facts.us / facts.floor_us
        text += f", {ratio:.{0 if ratio >= 100 else 1}f} times the floor of {_time(facts.floor_us)}"
    if facts.moved_bytes is None or facts.us <= 0:
        return text
    text += f"; its {_size(facts.moved_bytes)} move at {_rate(facts.moved_bytes, facts.us)}"
    return text + (f", the floor takes {_rate(facts.moved_bytes, facts.floor_us)}" if facts.floor_us > 0 else "")


def limiter(facts: CallFacts) -> str:
    """What most likely bounds a call, in one sentence."""
    kernel_us = max(facts.us - facts.overhead_us, 0.0)
    if facts.overhead_us >= OVERHEAD_SHARE * facts.us:
        return f"call overhead, {facts.overhead_us:.2g} us of it; a faster kernel gains little here"
    if facts.device == "cuda" and facts.us < LAUNCH_US:
        return "launch overhead: the call is hardly longer than an empty kernel's; only fewer launches gain"
    if facts.floor_us > 0 and kernel_us <= NEAR_FLOOR * facts.floor_us:
        return f"bandwidth of {_level(facts)}; little is left to gain without moving fewer bytes"
    if facts.device == "cpu" and kernel_us < TINY_US:
        return "fixed costs of a tiny call; on one thread without an OpenMP region they are least"
    if facts.flops and facts.moved_bytes and facts.flops / facts.moved_bytes >= COMPUTE_INTENSITY[facts.device]:
        rate = facts.flops / max(kernel_us, 1e-3) / 1e3
        return (
            f"compute: {facts.flops / facts.moved_bytes:.0f} flops for each byte, {rate:.3g} Gflop/s reached; "
            "keep tiles in registers, use vector or matrix instructions"
        )
    if facts.device == "cuda" and facts.elements is not None and facts.elements < FEW_ELEMENTS:
        return (
            f"too little parallelism: {facts.elements} output elements do not fill the GPU; "
            "use more threads for each element or row"
        )
    if facts.device == "cpu" and facts.parallel is False and facts.threads > 1 and kernel_us > WORTH_THREADS_US:
        return f"too little parallelism: one thread works where eager may use {facts.threads}; use OpenMP"
    return (
        "neither bytes nor arithmetic explain it: look for strided or uncoalesced access, inputs that are read more "
        "than once, scalar code, and costly functions (exp, division)"
    )


def _speedup(interval: Interval) -> str:
    return f"{three_digits(interval.median)}x ({three_digits(interval.low)}-{three_digits(interval.high)})"


def _point_line(point: PointTiming) -> str:
    sizes = ", ".join(f"{name}={value}" for name, value in point.dims.items()) or "fixed sizes"
    times = f"{_time(_candidate_us(point))} against {_time(median(point.eager_us))}"
    return f"at {sizes}: {_speedup(point.speedup)}, {times}, {plural(point.calls, 'call')}"


def _candidate_us(point: PointTiming) -> float:
    """As everywhere: eager's median over the median of the paired ratios, in which a slow minute cancels."""
    return median(point.eager_us) / point.speedup.median


def _level(facts: CallFacts) -> str:
    if facts.cold:
        return "the GPU's memory" if facts.device == "cuda" else "main memory"
    return "the L2 cache" if facts.device == "cuda" else "the caches"


def _scalars(record: VariantRecord, point: PointTiming) -> ScalarValues:
    same = [p.scalars for p in record.points if dict(p.dims) == dict(point.dims)]
    return (same or [p.scalars for p in record.points])[0]


def _elements(variant: Variant, point: PointTiming) -> int:
    patterns = variant.outputs or tuple(variant.tensors[i] for i in variant.mutates)
    return max((_product(p.spec(point.dims, variant.device).shape) for p in patterns), default=0)


def _product(values: Sequence[int]) -> int:
    result = 1
    for value in values:
        result *= value
    return result


def _overhead_us(measurement: Measurement) -> float:
    """What was added to each CPU time for the call itself."""
    words = measurement.environment.get("dispatch_overhead_us", "").split()
    try:
        return float(words[0]) if words else 0.0
    except ValueError:
        return 0.0


def _integer(text: str) -> int:
    return int(text) if text.isdigit() else 1


def _time(us: float) -> str:
    return f"{us / 1e3:.3g} ms" if us >= 1000 else f"{us:.3g} us"


def _size(count: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} bytes"


def _rate(count: int, us: float) -> str:
    rate = count / us / 1e3
    return f"{rate:.0f} GB/s" if rate >= 100 else f"{rate:.3g} GB/s"
