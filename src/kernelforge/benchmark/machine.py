"""Facts of the machine that are measured once and kept in the cache folder: bandwidth, peak, overheads of timing.

On the CPU the runner calls a candidate without the Python around it, while eager's time holds torch's own dispatch.
`dispatch_overhead_us` is what a call from Python costs beyond the kernel (asking torch for its state, allocating the
output, one foreign call); it is added to a candidate's CPU times, so that tiny operators are not flattered. On CUDA
both sides are device times between events. Two events around a call make it read longer than it takes in a stream, by
`clock_us`; that is taken off on both sides, and nothing is added.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from kernelforge.benchmark.clock import BUSY_SHARE, ForeignLoad
from kernelforge.benchmark.statistics import median
from kernelforge.digest import digest
from kernelforge.settings import Settings

if TYPE_CHECKING:
    import torch

SCHEMA = 9
_CPU_FOOTPRINTS = (1 << 18, 1 << 21, 1 << 24, 1 << 28)
_CUDA_FOOTPRINTS = (1 << 28, 1 << 31)
_HALVES = ("float16", "bfloat16")
QUEUED = 32
"""Calls that are queued at once to time one of them without the host's pace."""
_CACHED = (1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""Parts of a GPU's L2 at which its bandwidth is measured."""
_BEYOND = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0, 32.0)
"""Multiples of a GPU's L2 for which the bandwidth is computed."""
_CACHE_FACTOR = 4.0
"""How much faster than the smallest footprint that is measured a smaller one may be; a call is too short to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """What was measured.

    Attributes:
        bandwidth: (bytes touched, bytes per second), by growing size: the best of copying, filling and summing. Of a
            GPU the launch is taken off, and beyond its L2 it is computed: see `beyond_cache`.
        cache_bytes: the last-level cache (CPU) or L2 (CUDA).
        dispatch_overhead_us, clock_us: see the module's docstring; the first is 0.0 on CUDA, the second on the CPU.
        launch_us: no call of a kernel takes less time in a stream; 0.0 on the CPU.
        flops: (dtype, floating-point operations per second) of the best matrix product, for float32 with TF32 where
            there is such a thing: three such products make one of float32's precision.
    """

    device: str
    bandwidth: tuple[tuple[int, float], ...]
    cache_bytes: int
    dispatch_overhead_us: float
    clock_us: float = 0.0
    launch_us: float = 0.0
    flops: tuple[tuple[str, float], ...] = ()
    foreign_cpu_share: float = 0.0

    def exceeds(self, other: MachineFacts) -> bool:
        """Whether this machine is clearly faster anywhere than the other was."""
        pairs = [*zip(self.bandwidth, other.bandwidth, strict=True), *zip(self.flops, other.flops, strict=True)]
        return any(mine > 1.1 * theirs for (_, mine), (_, theirs) in pairs)

    def flops_per_second(self, dtype: str) -> float:
        """Peak of matrix products of that dtype, 0.0 if unknown."""
        return dict(self.flops).get(dtype, 0.0)

    def bytes_per_second(self, footprint_bytes: int) -> float:
        """An upper bound on the bandwidth at a footprint: that of the next smaller measured one."""
        smaller = [rate for size, rate in self.bandwidth if size <= footprint_bytes]
        if smaller:
            return smaller[-1]
        return self.bandwidth[0][1] * _CACHE_FACTOR


def machine_facts(settings: Settings, *, device: str, threads: int, again: bool = False) -> MachineFacts:
    """The facts of this machine, measured if the cache has none, and again if others used the machine when it was
    measured. Takes about a second then.

    Args:
        again: measure anew and keep the better of old and new: others may have slowed the first measurement down, and a
            bandwidth that is too low makes honest times look impossible.
    """
    name = device_name(device)
    path = _path(settings, device, name, threads)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        known = _read(path)
        if known is None or again or known.foreign_cpu_share > BUSY_SHARE:
            measured = _measure(settings, device, name, threads)
            known = measured if known is None else _better(known, measured)
            partial = path.with_name(f".{uuid.uuid4().hex}.partial")
            partial.write_text(json.dumps(asdict(known)))
            partial.replace(path)
    return known


def known_facts(settings: Settings, *, device: str, threads: int = 0) -> MachineFacts | None:
    """The facts that the cache has of this machine; None if it was never measured or has no such device.

    Args:
        threads: 0 means torch's own number.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        return None
    return _read(_path(settings, device, device_name(device), threads or torch.get_num_threads()))


def _path(settings: Settings, device: str, name: str, threads: int) -> Path:
    import torch

    key = digest([SCHEMA, device, name, platform.node(), threads, torch.__version__, os.cpu_count() or 0])[:24]
    return settings.cache_dir / "machine" / f"{key}.json"


def _better(old: MachineFacts, new: MachineFacts) -> MachineFacts:
    """The higher bandwidth at each footprint, the lower overhead. Disturbance only ever makes a machine slower."""
    rates = dict(old.bandwidth)
    return MachineFacts(
        device=new.device, bandwidth=tuple((size, max(rate, rates.get(size, 0.0))) for size, rate in new.bandwidth),
        cache_bytes=new.cache_bytes, dispatch_overhead_us=min(old.dispatch_overhead_us, new.dispatch_overhead_us),
        clock_us=min(old.clock_us, new.clock_us), launch_us=min(old.launch_us, new.launch_us),
        flops=tuple((dtype, max(rate, old.flops_per_second(dtype))) for dtype, rate in new.flops),
        foreign_cpu_share=min(old.foreign_cpu_share, new.foreign_cpu_share),
    )  # fmt: skip


def device_name(device: str) -> str:
    """What the device calls itself."""
    if device == "cuda":
        import torch

        return str(torch.cuda.get_device_name())
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _read(path: Path) -> MachineFacts | None:
    try:
        data = json.loads(path.read_text())
        return MachineFacts(
            device=str(data["device"]), bandwidth=tuple((int(s), float(r)) for s, r in data["bandwidth"]),
            cache_bytes=int(data["cache_bytes"]), dispatch_overhead_us=float(data["dispatch_overhead_us"]),
            clock_us=float(data["clock_us"]), launch_us=float(data["launch_us"]),
            flops=tuple((str(d), float(r)) for d, r in data["flops"]),
            foreign_cpu_share=float(data["foreign_cpu_share"]),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _measure(settings: Settings, device: str, name: str, threads: int) -> MachineFacts:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    load = ForeignLoad(())
    try:
        cache_bytes = _cache_bytes(device)
        rates = (
            _cuda_bandwidth(cache_bytes) if device == "cuda" else [(s, _bandwidth(s, _host_s)) for s in _CPU_FOOTPRINTS]
        )
        return MachineFacts(
            device=name, bandwidth=_envelope(rates), cache_bytes=cache_bytes,
            dispatch_overhead_us=0.0 if device == "cuda" else _dispatch_overhead_us(settings),
            clock_us=_clock_us() if device == "cuda" else 0.0, launch_us=_launch_us() if device == "cuda" else 0.0,
            flops=_peaks(device), foreign_cpu_share=load.share(),
        )  # fmt: skip
    finally:
        torch.set_num_threads(before)


def _envelope(measured: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """A smaller footprint is at least as fast as a larger one; if it measured slower, that was call overhead."""
    return tuple((size, max(rate for other, rate in measured if other >= size)) for size, _ in measured)


def _cuda_bandwidth(cache_bytes: int) -> list[tuple[int, float]]:
    """Measured within the L2, computed beyond it from the memory's."""
    import torch

    tiny = torch.zeros(16, device="cuda")
    launch_s = min(_queued_s(lambda: tiny.add_(1.0)) for _ in range(6))

    def without_launch(job: Callable[[], object]) -> float:
        seconds = _queued_s(job)
        return max(seconds - launch_s, seconds / _CACHE_FACTOR)

    memory = max(_bandwidth(size, _device_s, "cuda") for size in _CUDA_FOOTPRINTS)
    sizes = [int(part * cache_bytes) for part in _CACHED]
    cached = [(size, max(memory, _bandwidth(size, without_launch, "cuda"))) for size in sizes]
    beyond = [int(multiple * cache_bytes) for multiple in _BEYOND]
    return [*cached, *((size, beyond_cache(size, cache_bytes, cached[-1][1], memory)) for size in beyond)]


def beyond_cache(footprint_bytes: int, cache_bytes: int, cached: float, memory: float) -> float:
    """The highest bandwidth at a footprint that a cache cannot hold: as much as fits comes from it, the rest does not.

    Args:
        cached, memory: bytes per second of the two.
    """
    hits = min(1.0, cache_bytes / footprint_bytes)
    return 1.0 / (hits / cached + (1.0 - hits) / memory)


def _bandwidth(footprint_bytes: int, seconds: Callable[[Callable[[], object]], float], device: str = "cpu") -> float:
    """Bytes per second of the best of several runs over buffers that together have this size.

    Args:
        seconds: times a job.
    """
    import torch

    half = torch.ones(footprint_bytes // 8, dtype=torch.float32, device=device)
    other = torch.empty_like(half)
    jobs: tuple[tuple[Callable[[], object], int], ...] = (
        (lambda: other.copy_(half), footprint_bytes),
        (lambda: torch.neg(half, out=other), footprint_bytes),
        (lambda: other.fill_(1.0), footprint_bytes // 2),
        (half.sum, footprint_bytes // 2),
    )
    repeats = 6 if device == "cuda" else max(6, min(200, (1 << 26) // footprint_bytes))
    return max(moved / min(seconds(job) for _ in range(repeats)) for job, moved in jobs)


def _peaks(device: str) -> tuple[tuple[str, float], ...]:
    """Of each dtype. On the CPU a 16-bit product may be computed in float32, whatever torch does for it."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        rates = {dtype: _peak(device, getattr(torch, dtype)) for dtype in ("float64", "float32", *_HALVES)}
    finally:
        torch.set_float32_matmul_precision(before)
    if device == "cpu":
        rates |= {dtype: max(rates[dtype], rates["float32"]) for dtype in _HALVES}
    return tuple(rates.items())


def _peak(device: str, dtype: torch.dtype) -> float:
    """Operations per second of the best of some matrix products, of a size that takes milliseconds."""
    import torch

    # Some CPUs have no 16-bit arithmetic at all; then this takes a hundred times as long as in float32.
    size = 8192 if device == "cuda" else 512 if dtype.itemsize > 2 else 192
    a = torch.ones(size, size, dtype=dtype, device=device)
    b, out = torch.ones_like(a), torch.empty_like(a)
    seconds = _device_s if device == "cuda" else _host_s
    return max(2 * size**3 / seconds(lambda: torch.mm(a, b, out=out)) for _ in range(4))


def _host_s(job: Callable[[], object]) -> float:
    started = time.perf_counter()
    job()
    return time.perf_counter() - started


def _device_s(job: Callable[[], object]) -> float:
    """Between two events."""
    import torch

    torch.cuda.synchronize()
    stream = torch.cuda.current_stream()
    begin = stream.record_event(_event())
    job()
    end = stream.record_event(_event())
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def _event() -> torch.cuda.Event:
    import torch

    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own gap


def _cache_bytes(device: str) -> int:
    if device == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(0).L2_cache_size)
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20}.get(text[-1], 1))
    return max(sizes) or (32 << 20)


def _clock_us() -> float:
    """What two events around a call add to it: a tiny kernel timed each by each, less the same back to back.

    The device is kept busy until all is queued, so that the host's pace does not enter.
    """
    import torch

    tiny = torch.zeros(16, device="cuda")

    def job() -> None:
        tiny.add_(1.0)

    def single() -> float:
        events = [(_event(), _event()) for _ in range(QUEUED)]
        _queue_ahead(job)
        for begin, end in events:
            begin.record()
            job()
            end.record()
        torch.cuda.synchronize()
        return median([1e3 * begin.elapsed_time(end) for begin, end in events])

    pairs = [(single(), 1e6 * _queued_s(job)) for _ in range(9)][2:]
    return max(0.0, median([one for one, _ in pairs]) - median([row for _, row in pairs]))


def _launch_us() -> float:
    """What a kernel of a few threads takes in a row of such, less a tenth, for an empty one takes less."""
    import torch

    tiny = torch.zeros(16, device="cuda")
    return 0.9 * 1e6 * min(_queued_s(lambda: tiny.add_(1.0)) for _ in range(9))


def _queued_s(job: Callable[[], object]) -> float:
    """Seconds per call of `QUEUED` calls in a row, while the device never waits for the host."""
    import torch

    begin, end = _event(), _event()
    _queue_ahead(job)
    begin.record()
    for _ in range(QUEUED):
        job()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / QUEUED


def _queue_ahead(job: Callable[[], object]) -> None:
    """Keep the device at work for as long as the host takes to queue `QUEUED` calls; then one call, to warm up."""
    import torch

    torch.cuda.synchronize()
    busy = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    for _ in range(16):
        busy.zero_()
    job()


def _dispatch_overhead_us(settings: Settings) -> float:
    """Time a call from Python to a kernel that does nothing, in the way that the run time makes it.

    Without the compiled call table the half of it is estimated, and the timing through dispatch shows the rest.
    """
    import torch

    from kernelforge.native.extension import dtype_number, extension, new_counter

    tensor = torch.ones(16, 16)
    native = extension(settings)
    if native is not None:
        table, count = native.Table(), new_counter()
        table.active = True
        plan = native.Plan(
            launch=native.NOTHING, order=(0,), like=0, prototype=None, allocate=None, scalars=(), counter=count,
            fail=None, device=-1, by_default_dtype=False, changes=-1, may_overlap=0,
            shape=(), stride=(), dtype=dtype_number(torch.float32), refused=new_counter(), launched=True,
        )  # fmt: skip
        table.remember((tensor,), {}, plan, count, True)
        once = native.stand_in(table, None, "", False)
    else:
        call = ctypes.CDLL(None).getppid

        def once(given: torch.Tensor) -> object:
            call()
            return torch.empty_like(given)

    with torch.inference_mode():
        return _per_call_us(lambda: once(tensor)) - _per_call_us(lambda: None)


def _per_call_us(function: Callable[[], object], *, calls: int = 2000, rounds: int = 7) -> float:
    times: Sequence[float] = [_round_us(function, calls) for _ in range(rounds)]
    return min(times)


def _round_us(function: Callable[[], object], calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - started) / calls * 1e6
