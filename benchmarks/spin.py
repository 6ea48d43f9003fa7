"""Does the runner's clock tell the truth? A kernel that spins for a known time, timed as every candidate is.

    python -m benchmarks.spin --out FILE.json

The kernel reads the GPU's own nanosecond counter and returns when the time that it was asked for is over; it also
writes down for how long it really ran. What the runner reports is compared with that, and so is the judge's own clock
over a batch. A launch takes time itself, on the device: an empty kernel's reading is recorded beside the others.
"""

from __future__ import annotations

import argparse
import struct
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness import write_record
from benchmarks.soak import relu_record
from kernelforge.benchmark.statistics import median
from kernelforge.build.backends import get_backend
from kernelforge.build.types import BuildFailure
from kernelforge.errors import HarnessError
from kernelforge.executors.types import Limits
from kernelforge.generate.types import Candidate
from kernelforge.runner.protocol import Buffer, BufferSet, RunnerDeath
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
TOLERANCE, TOLERANCE_US = 0.02, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One duration, microseconds: asked for, what the kernel itself saw, the runner's median and extremes, and what a
    call of a batch without events took by the judge's clock."""

    wanted_us: float
    own_us: float
    read_us: float
    lowest_us: float
    highest_us: float
    batch_us: float

    @property
    def error_us(self) -> float:
        return self.read_us - self.own_us

    @property
    def true(self) -> bool:
        """Within 2 % or half a microsecond."""
        return abs(self.error_us) <= max(TOLERANCE * self.own_us, TOLERANCE_US)


def read_durations(settings: Settings) -> list[Reading]:
    """One reading for each of DURATIONS_US.

    Raises:
        EnvironmentMissing: no GPU or no compiler. HarnessError: the kernel did not build or run.
    """
    variant = relu_record("cuda").variant
    backend = get_backend("cuda", settings)
    built = backend.build(
        Candidate(variant_id=variant.id, source=SOURCE, backend="cuda", generator="spin"), variant
    )  # fmt: skip
    if isinstance(built, BuildFailure):
        raise HarnessError(f"the spin kernel does not build: {built.detail}")
    limits = Limits(wall_s=30.0, memory_bytes=4 << 30)
    readings = []
    with RunnerSession(built.path, device="cuda", limits=limits, threads=1, settings=settings) as session:
        for wanted in DURATIONS_US:
            data = struct.pack("<f", wanted) + bytes(4 * 3999)
            buffers = (Buffer(kind="input", data=data, size_bytes=16_000),
                       Buffer(kind="output", data=None, size_bytes=16_000))  # fmt: skip
            calls = max(5, min(200, int(200_000 / max(wanted, 1))))
            work = BufferSet(buffers=buffers)
            reply = session.time([work, work], iterations=calls, collect=True)
            batch = session.time([work, work], iterations=max(calls, int(20_000 / max(wanted, 1))), batch=True)
            if isinstance(reply, RunnerDeath) or isinstance(batch, RunnerDeath) or reply.error or batch.error:
                raise HarnessError(f"the spin kernel did not run: {reply} {batch}")
            samples = [ns / 1e3 for ns in reply.samples_ns]
            (own,) = struct.unpack("<f", bytes(reply.outputs[0][0][:4]))
            readings.append(
                Reading(
                    wanted_us=wanted, own_us=own, read_us=median(samples), lowest_us=min(samples),
                    highest_us=max(samples), batch_us=batch.wall_s * 1e6 / max(calls, int(20_000 / max(wanted, 1))),
                )
            )  # fmt: skip
    return readings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    readings = read_durations(load_settings())
    for r in readings:
        print(
            f"{r.wanted_us:8.0f} us asked, {r.own_us:10.2f} spun, {r.read_us:10.2f} read "
            f"[{r.lowest_us:.2f}, {r.highest_us:.2f}], {r.batch_us:10.2f} in a batch, "
            f"{r.error_us:+.2f} us {'' if r.true else 'OFF'}"
        )
    write_record(options.out, {"benchmark": "spin", "readings": [asdict(r) for r in readings]})


if __name__ == "__main__":
    main()
