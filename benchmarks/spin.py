"""Does the judge's clock tell the truth? A kernel that spins for a known time, timed as every candidate is.

    python -m benchmarks.spin --out FILE.json

The kernel reads the GPU's own nanosecond counter and returns when the time that it was asked for is over; it also
writes down for how long it really ran. In a stream a call costs a launch as well, about two microseconds; the truth is
what a call takes when many are made back to back, by the host's clock. A reading is that of two events around the
call, less what the events add (`MachineFacts.clock_us`).
"""

from __future__ import annotations

import argparse
import struct
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness import write_record
from benchmarks.soak import relu_record
from kernelforge.benchmark.machine import machine_facts
from kernelforge.benchmark.statistics import median
from kernelforge.build.backends import get_backend
from kernelforge.build.types import BuildFailure
from kernelforge.errors import HarnessError
from kernelforge.executors.types import Limits
from kernelforge.generate.types import Candidate
from kernelforge.runner.protocol import Buffer, BufferSet, RunnerDeath, TimeReply
from kernelforge.runner.session import RunnerSession
from kernelforge.settings import Settings, load_settings

SOURCE = """
__device__ uint64_t now() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}
// input[0]: how long, microseconds; 0 is an empty kernel. out[0]: how long it was, microseconds.
__global__ void spin(const float* input, float* out) {
  const uint64_t start = now();
  const uint64_t wanted = uint64_t(input[0] * 1000.0f);
  uint64_t passed = 0;
  while (wanted > 0 && passed < wanted) passed = now() - start;
  out[0] = float(passed) / 1000.0f;
}
extern "C" int launch(const float* input, float* out, void* workspace, cudaStream_t stream) {
  (void)workspace;
  spin<<<1, 1, 0, stream>>>(input, out);
  return cudaGetLastError();
}
"""
DURATIONS_US = (0, 5, 10, 20, 50, 100, 1000, 10_000, 50_000)
HOST_US = 5.0
"""A kernel this long or longer is launched faster than it runs."""
TOLERANCE, TOLERANCE_US = 0.02, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One duration, microseconds.

    Attributes:
        spun_us: what the kernel saw itself.
        stream_us: of a call back to back with others, launch included. None for kernels that are shorter than the host
            needs to launch them.
        read_us: the median of what is read for single calls; lowest_us and highest_us: the extremes.
    """

    wanted_us: float
    spun_us: float
    stream_us: float | None
    read_us: float
    lowest_us: float
    highest_us: float

    @property
    def error_us(self) -> float | None:
        return None if self.stream_us is None else self.read_us - self.stream_us

    @property
    def true(self) -> bool:
        """Within 2 % or half a microsecond."""
        error_us = self.error_us
        return error_us is None or abs(error_us) <= max(TOLERANCE * self.read_us, TOLERANCE_US)


def read_durations(settings: Settings) -> tuple[list[Reading], float]:
    """One reading for each of DURATIONS_US, and what the clock was taken to add, microseconds.

    Raises:
        EnvironmentMissing: no GPU or no compiler. HarnessError: the kernel did not build or run.
    """
    variant = relu_record("cuda").variant
    built = get_backend("cuda", settings).build(
        Candidate(variant_id=variant.id, source=SOURCE, backend="cuda", generator="spin"), variant
    )
    if isinstance(built, BuildFailure):
        raise HarnessError(f"the spin kernel does not build: {built.detail}")
    clock_us = machine_facts(settings, device="cuda", threads=1).clock_us
    limits = Limits(wall_s=30.0, memory_bytes=4 << 30)
    with RunnerSession(built.path, device="cuda", limits=limits, threads=1, settings=settings) as session:
        return [_read(session, wanted, clock_us) for wanted in DURATIONS_US], clock_us


def _read(session: RunnerSession, wanted_us: float, clock_us: float) -> Reading:
    data = struct.pack("<f", wanted_us) + bytes(4 * 3999)
    buffers = (Buffer(kind="input", data=data, size_bytes=16_000),
               Buffer(kind="output", data=None, size_bytes=16_000))  # fmt: skip
    sets = [BufferSet(buffers=buffers)] * 2
    single = session.time(sets, iterations=max(5, min(200, int(200_000 / max(wanted_us, 1)))), collect=True)
    many = max(5, min(5000, int(200_000 / max(wanted_us, 1))))
    rows = [session.time(sets, iterations=many, batch=True) for _ in range(3)]
    for reply in (single, *rows):
        if isinstance(reply, RunnerDeath) or reply.error:
            raise HarnessError(f"the spin kernel did not run: {reply}")
    assert isinstance(single, TimeReply)
    samples = [ns / 1e3 - clock_us for ns in single.samples_ns]
    (spun,) = struct.unpack("<f", bytes(single.outputs[0][0][:4]))
    stream = min(row.total_ns for row in rows if isinstance(row, TimeReply)) / many / 1e3
    return Reading(
        wanted_us=wanted_us, spun_us=spun, stream_us=stream if wanted_us >= HOST_US else None,
        read_us=median(samples), lowest_us=min(samples), highest_us=max(samples),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    readings, clock_us = read_durations(load_settings())
    print(f"two events add {clock_us:.2f} us")
    for r in readings:
        truth = "-" if r.stream_us is None else f"{r.stream_us:.2f}"
        print(
            f"{r.spun_us:9.2f} us spun, {truth:>9} in a stream, {r.read_us:9.2f} read "
            f"[{r.lowest_us:.2f}, {r.highest_us:.2f}] {'' if r.true else 'OFF'}"
        )
    record = {"benchmark": "spin", "clock_us": clock_us, "readings": [asdict(r) for r in readings]}
    write_record(options.out, record)


if __name__ == "__main__":
    main()
