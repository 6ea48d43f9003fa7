"""How far an accepted candidate is from what the machine could do, and what likely holds it back. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelforge.audit.types import TORCH_TIER, AuditKind
from kernelforge.benchmark.roofline import flops, traffic_bytes
from kernelforge.benchmark.statistics import median
from kernelforge.benchmark.types import Interval, Measurement, PointTiming
from kernelforge.cards.types import DimValues, ScalarValues, Variant, VariantRecord
from kernelforge.evaluate.types import Scored
from kernelforge.explain.ptxas import explain_kernels
from kernelforge.wording import plural, size_text, three_digits, time_text

OVERHEAD_SHARE = 0.5
LAUNCH_US = 1.5
"""What an empty kernel takes in a row of such on an H200; used where a measurement does not say it of its machine."""
AT_LAUNCH = 1.15
"""Times the launch: a kernel of torch.compile's gets there, so only up to here nothing but fewer launches gains."""
LATENCY = 3.0
"""Times the launch: kernels of some kilobytes lie between, whose bytes and arithmetic take nearly no time."""
FEW_PASSES = 3.0
"""Times the floor of bytes: what reads its inputs twice, or keeps too few bytes in flight, ends between."""
TINY_US = 5.0
"""Below this a CPU kernel is mostly fixed costs: starting an OpenMP region alone takes some microseconds."""
NEAR_FLOOR = 1.6
COMPUTE_INTENSITY = {"cpu": 8.0, "cuda": 16.0}
"""Flops a byte above which arithmetic counts for more than memory on common machines (float32, no tensor cores)."""
FEW_THREADS = 100_000
"""With work for fewer threads a data-centre GPU (some 200,000 at once) is not full."""
THREAD_BYTES, THREAD_FLOPS = 16, 64
"""Work for one thread: its widest load, or a short chain of multiply-adds. An output element is at least so much."""
WORTH_THREADS_US = 50.0
"""A CPU kernel shorter than this gains little from a second thread."""
MAX_POINTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFacts:
    """What is known of one call.

    Attributes:
        device: "cpu" or "cuda". us: of a call, with `overhead_us` of dispatch in it (0.0 on CUDA).
        floor_us: least time for the bytes and the arithmetic, 0.0 if unknown. launch_us: of any call; 0.0 on the CPU.
        cold: the bytes come from memory, not from a cache.
        threads: that it might use (CPU). parallel: whether the binary starts OpenMP's; None if unknown.
        moved_bytes, flops, elements: of the call; None if unknown. elements: of the outputs.
    """

    device: str
    us: float
    overhead_us: float
    floor_us: float
    cold: bool
    launch_us: float = 0.0
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
    if audit is AuditKind.TORCH:
        lines.append(f"{TORCH_TIER}: write the next one for the C ABI (`kforge op show VARIANT --prelude`)")
    if measurement.speedup.low <= 1.0:
        slower = "slower than eager" if measurement.speedup.high < 1.0 else "not surely faster than eager"
        lines.append(f"it is {slower}")
    lines += _limits(scored, record)
    if len(measurement.points) > 1:
        lines += [_point_line(point, _launch_us(scored)) for point in measurement.points[:MAX_POINTS]]
    return (*lines, *explain_kernels(scored.artifact.log, source))


def _limits(scored: Scored, record: VariantRecord | None) -> list[str]:
    """Distance from the floor and the likely limiter, at the size where most time is lost."""
    points = scored.measurement.points
    if not points:
        return []
    point = costliest(scored)
    facts = facts_of(scored, point, record)
    several = len(points) > 1
    where = f"most time above the floor is spent at {_sizes(point)}: " if several else ""
    if scored.audit.kind is AuditKind.TORCH:
        said = "it is called from Python, which takes some microseconds of that"
    else:
        said = f"likely limiter{' there' if several else ''}: {limiter(facts)}"
    return [where + distance(facts), said]


def costliest(scored: Scored) -> PointTiming:
    """The timed size at which most is left to gain: its calls times what they take beyond their floor."""
    launch_us = _launch_us(scored)
    return max(scored.measurement.points, key=lambda p: p.calls * (_candidate_us(p) - _floor_us(p, launch_us)))


def facts_of(scored: Scored, point: PointTiming, record: VariantRecord | None) -> CallFacts:
    """The facts of one timed size."""
    measurement = scored.measurement
    moved = operations = elements = None
    if record is not None:
        scalars = scalars_at(record, point.dims)
        moved = traffic_bytes(record.variant, point.dims, scalars)
        operations = flops(record.variant, point.dims, scalars)
        elements = _elements(record.variant, point)
    of_torch = scored.audit.kind is AuditKind.TORCH
    on_gpu, launch_us = _is_on_gpu(scored), _launch_us(scored)
    return CallFacts(
        device="cuda" if on_gpu else "cpu", us=_candidate_us(point),
        overhead_us=0.0 if on_gpu else _overhead_us(measurement), launch_us=launch_us,
        floor_us=_floor_us(point, launch_us),
        cold=point.regime == "cold", threads=_integer(measurement.environment.get("threads", "")),
        parallel=None if on_gpu or of_torch else any("GOMP" in e or "__kmpc" in e for e in scored.audit.evidence),
        moved_bytes=moved, flops=operations, elements=elements,
    )  # fmt: skip


def distance(facts: CallFacts) -> str:
    """How far a call is from the floor, in one sentence."""
    text = f"{time_text(facts.us)} a call"
    if facts.floor_us > 0:
        ratio = facts.us / facts.floor_us
        text += f", {ratio:.{0 if ratio >= 100 else 1}f} times the floor of {time_text(facts.floor_us)}"
        text += ", which is a launch" if _is_launch(facts) else ""
    if facts.moved_bytes is None or facts.us <= 0:
        return text
    text += f"; its {size_text(facts.moved_bytes)}{_from(facts)} move at {_rate(facts.moved_bytes, facts.us)}"
    if facts.floor_us <= 0 or _is_launch(facts):
        return text
    return f"{text}, the floor takes {_rate(facts.moved_bytes, facts.floor_us)}"


def limiter(facts: CallFacts) -> str:
    """What most likely bounds a call, in one sentence."""
    kernel_us = max(facts.us - facts.overhead_us, 0.0)
    if facts.overhead_us >= OVERHEAD_SHARE * facts.us:
        return f"call overhead, {facts.overhead_us:.2g} us of it; a faster kernel gains little here"
    if facts.us <= AT_LAUNCH * facts.launch_us:
        return "launch overhead: the call is hardly longer than an empty kernel's; only fewer launches gain"
    if not _is_launch(facts) and kernel_us <= NEAR_FLOOR * facts.floor_us:
        return f"bandwidth of {_level(facts)}; little is left to gain without moving fewer bytes"
    if facts.us <= LATENCY * facts.launch_us:
        return _latency(facts.us, facts.launch_us)
    if facts.device == "cpu" and kernel_us < TINY_US:
        return "fixed costs of a tiny call; on one thread without an OpenMP region they are least"
    if facts.flops and facts.moved_bytes and facts.flops / facts.moved_bytes >= COMPUTE_INTENSITY[facts.device]:
        rate = facts.flops / max(kernel_us, 1e-3) / 1e3
        return (
            f"compute: {facts.flops / facts.moved_bytes:.0f} flops for each byte, {rate:.3g} Gflop/s reached; "
            "keep tiles in registers, use vector or matrix instructions"
        )
    if facts.device == "cuda" and facts.elements is not None and _threads_worth(facts) < FEW_THREADS:
        return (
            f"too little parallelism: {facts.elements} output elements do not fill the GPU; "
            "use more threads for each element or row"
        )
    if facts.device == "cpu" and facts.parallel is False and facts.threads > 1 and kernel_us > WORTH_THREADS_US:
        return (
            f"too little parallelism: one thread works where eager may use {facts.threads}; OpenMP wins at most "
            f"{facts.threads}x, the rest is scalar code: calls of libm such as exp are not vectorised"
        )
    if facts.device == "cuda" and not _is_launch(facts) and kernel_us <= FEW_PASSES * facts.floor_us:
        return (
            f"bytes of {_level(facts)}, but more than the necessary ones or not at its full rate: a second pass over "
            "the inputs takes half a floor or more; else keep more bytes in flight (16-byte loads, several of a thread "
            "before the first is used, more warps)"
        )
    where = "uncoalesced access" if facts.device == "cuda" else "calls of libm such as exp, which are not vectorised"
    return (
        f"neither bytes nor arithmetic explain it: look for strided access, {where}, inputs that are read more than "
        "once, scalar code, and divisions"
    )


def _speedup(interval: Interval) -> str:
    return f"{three_digits(interval.median)}x ({three_digits(interval.low)}-{three_digits(interval.high)})"


def _latency(us: float, launch_us: float) -> str:
    return (
        f"latency: {us / launch_us:.1f} times an empty kernel's {time_text(launch_us)}. What counts is the chain from "
        "launch to the last store: what a thread does before its first load (64-bit division and modulo, dependent "
        "loads), loops whose loads wait for one another, steps of reductions and barriers, the number of blocks"
    )


def _threads_worth(facts: CallFacts) -> int:
    """For how many threads a call has work: a long row or a dot product is work for many, though for one element."""
    by_bytes, by_flops = (facts.moved_bytes or 0) // THREAD_BYTES, (facts.flops or 0) // THREAD_FLOPS
    return max(facts.elements or 0, by_bytes, by_flops)


def _from(facts: CallFacts) -> str:
    """Where the bytes of a GPU's call come from as it was timed."""
    if facts.device != "cuda":
        return ""
    return " (out of the GPU's memory: inputs rotate beyond L2)" if facts.cold else " (they stay in L2 between calls)"


def _sizes(point: PointTiming) -> str:
    return ", ".join(f"{name}={value}" for name, value in point.dims.items()) or "fixed sizes"


def _point_line(point: PointTiming, launch_us: float) -> str:
    us, floor_us = _candidate_us(point), _floor_us(point, launch_us)
    times = f"{time_text(us)} against {time_text(median(point.eager_us))}"
    text = f"at {_sizes(point)}: {_speedup(point.speedup)}, {times}, {plural(point.calls, 'call')}"
    if floor_us > 0:
        text += f", {three_digits(us / floor_us)} times its floor"
    return text + (", SLOWER than eager" if point.speedup.median < 1.0 else "")


def _is_on_gpu(scored: Scored) -> bool:
    """The backend of the torch ABI is the same on both devices, and its target tells them apart."""
    artifact, of_torch = scored.artifact, scored.audit.kind is AuditKind.TORCH
    return artifact.backend == "cuda" or (of_torch and artifact.target.startswith("sm_"))


def _launch_us(scored: Scored) -> float:
    """Least time of any call of a kernel, as it was measured beside this one if that is there; 0.0 on the CPU."""
    if not _is_on_gpu(scored):
        return 0.0
    words = scored.measurement.environment.get("launch_us", "").split()
    return (_number(words[0]) if words else 0.0) or LAUNCH_US


def _floor_us(point: PointTiming, launch_us: float) -> float:
    """Measurements of older versions have floors below a launch."""
    return max(point.floor_us, launch_us) if point.floor_us > 0 else 0.0


def _is_launch(facts: CallFacts) -> bool:
    """Whether the floor is that of any call, and not one of bytes or arithmetic."""
    return facts.floor_us <= AT_LAUNCH * facts.launch_us


def _candidate_us(point: PointTiming) -> float:
    """As everywhere: eager's median over the median of the paired ratios, in which a slow minute cancels."""
    return median(point.eager_us) / point.speedup.median


def _level(facts: CallFacts) -> str:
    if facts.cold:
        return "the GPU's memory" if facts.device == "cuda" else "main memory"
    return "the L2 cache" if facts.device == "cuda" else "the caches"


def scalars_at(record: VariantRecord, dims: DimValues) -> ScalarValues:
    """The float arguments that were observed at a size, or at any."""
    same = [p.scalars for p in record.points if dict(p.dims) == dict(dims)]
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
    return _number(next(iter(measurement.environment.get("dispatch_overhead_us", "").split()), ""))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _integer(text: str) -> int:
    return int(text) if text.isdigit() else 1


def _rate(count: int, us: float) -> str:
    rate = count / us / 1e3
    return f"{rate:.0f} GB/s" if rate >= 100 else f"{rate:.3g} GB/s"
