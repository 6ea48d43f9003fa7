"""Paired timing of a candidate against eager, point by point: alternation, adaptive sampling, checks of what was timed.

One *block* is many calls of one side, rotating over buffer sets of different content; its median is one sample (its
10th percentile while others use the machine's CPUs: a disturbed call of a thread pool takes milliseconds, on either
side, and says nothing of the kernels). Blocks alternate eager, candidate, candidate, eager (ABBA), so that drift of the
machine cancels in each pair. Sampling stops when the interval of the ratio is narrow enough, when the candidate is
clearly slow, or when the time is used up. The first and the last block of the candidate are collected, of small outputs
every other one: the outputs that its timed calls left are judged like any other. What the runner reports is bounded by
the judge's own clock: on the CPU over the very same blocks (a busy machine disturbs some of them, a forged report shows
in all), on CUDA, where a block also keeps the device busy for its own purposes, over a batch without events.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from kernelforge.benchmark.clock import BUSY_SHARE, ForeignLoad, wait_until_quiet
from kernelforge.benchmark.machine import MachineFacts
from kernelforge.benchmark.points import TimedPoint
from kernelforge.benchmark.roofline import SUSPECT_FRACTION, floor_us
from kernelforge.benchmark.statistics import (
    Pairs,
    half_width,
    median,
    paired_interval,
    variant_interval,
    widened,
)
from kernelforge.benchmark.types import Measurement, PointTiming
from kernelforge.cards.types import Variant
from kernelforge.errors import HarnessError
from kernelforge.runner.eager import EagerWorker
from kernelforge.runner.protocol import RunnerDeath, Session, TimeReply
from kernelforge.verify.checks.execution import History, death, judge_reply
from kernelforge.verify.prepare import PreparedCase, named_values
from kernelforge.verify.sizes import footprint_bytes
from kernelforge.verify.types import Rejected, RejectReason

ATTEMPTS = 3
"""How often a candidate is timed while others use the machine's CPUs."""
LAUNCH_ALLOWANCE_US = 12.0
"""What a call may take longer by the judge's clock than reported: clocks, launches, the step to the next set."""
TORCH_ALLOWANCE_US = 150.0
"""The same of a candidate that is called from Python, and may make several operators' calls on the host's side."""
RESTORE_BYTES_PER_US = 2000.0
"""A slow memory's copying speed."""
MOST_CALLS = {"cpu": 2000, "cuda": 128}
"""Of a block. On CUDA each 32 calls are preceded by a millisecond of other work, which keeps the device busy until they
are queued; and its clock needs no more of them."""
SMALL_BYTES = 1 << 18
"""Of a set's outputs; up to that they are judged after every other block. A larger one has so many elements that a
kernel which looks at some, to see whether it must compute, misses what was poisoned since."""
BATCH_US = 20_000
LAST_CALLS = 64
"""Of the block that ends a point, if they take no longer than `BATCH_US` together."""
PROCESS_US = {"cpu": 0.1, "cuda": 0.0}
"""By so much two processes that run the same operator differ for as long as they live (where their memory lies, how
their dictionaries fill): it matters for calls of microseconds, and more samples of the same two do not reduce it."""
SHORTEST_US = 0.01
"""No call takes less, whatever the clock is taken to add."""
BLOCK_ALLOWANCE_US = 3000.0
"""The same for a block: the message to the runner and back, and waking its threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How long and how precisely.

    Attributes:
        budget_s: wall time for all points of a candidate; block_s: length of one block.
        half_width: relative half width of the ratio's interval at which sampling stops.
        slow: sampling also stops when the ratio's upper end is below this: no search needs it more precisely.
        settle_s: pause before each block on the CPU: a thread pool of the other side may still be spinning.
        wide: an interval whose ends differ by more than this factor says nothing if others used the machine.
        busy_share: when others used more of the machine's CPUs than this while a candidate seemed to win, it is timed
            again after waiting at most quiet_timeout_s for them, and the quietest measurement counts.
    """

    budget_s: float = 1.5
    block_s: float = 0.008
    half_width: float = 0.02
    min_pairs: int = 6
    slow: float = 0.85
    wide: float = 3.0
    settle_s: float = 0.004
    busy_share: float = BUSY_SHARE
    quiet_timeout_s: float = 2.0


@dataclass(frozen=True, slots=True)
class _Block:
    """One block in microseconds per call: its median, what a tenth of its calls were faster than, its fastest call."""

    median_us: float
    low_us: float
    fastest_us: float

    @staticmethod
    def of(samples_ns: Sequence[int], clock_us: float) -> _Block:
        """Of samples that read `clock_us` too much."""
        ordered = sorted(samples_ns)
        seen = (median(ordered) / 1e3, ordered[len(ordered) // 10] / 1e3, ordered[0] / 1e3)
        return _Block(*(max(us - clock_us, SHORTEST_US) for us in seen))


@dataclass(slots=True)
class _Samples:
    eager: list[_Block] = field(default_factory=list)
    candidate: list[_Block] = field(default_factory=list)

    def pairs_us(self, *, busy: bool) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Eager's and the candidate's samples, microseconds per call."""
        sides = (self.eager, self.candidate)
        eager, candidate = (tuple(b.low_us if busy else b.median_us for b in side) for side in sides)
        return eager, candidate

    def disturbed(self, floor_us: float) -> bool:
        """Whether even eager's faster calls were those of a machine that others use.

        A pool of two threads on cores of which another process holds one waits a scheduler's quantum, milliseconds, at
        every barrier, in nearly all calls: against that any kernel on one thread seems to win a hundredfold.
        """
        typical_us = median([b.low_us for b in self.eager])
        fastest_us = min(b.fastest_us for b in self.eager)
        return typical_us > 4 * fastest_us + 20 or typical_us > 100 * floor_us + 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClockMismatch:
    """Times that cannot be believed: forged if the machine was quiet, else perhaps disturbed by others."""

    rejected: Rejected


MeasurementResult: TypeAlias = "Measurement | Rejected"


def measure(
    eager: EagerWorker, session: Session, variant: Variant, points: Sequence[TimedPoint], facts: MachineFacts,
    *, protocol: Protocol, environment: Mapping[str, str],
) -> MeasurementResult:  # fmt: skip
    """Time a candidate that has passed its cases.

    Returns:
        The measurement, or Rejected: wrong outputs of timed calls, a death, or a time that cannot be.

    Raises:
        HarnessError: eager or the runner failed on its own account, or others kept the machine too busy to tell a
            forged time from a disturbed one.
    """
    pids = (eager.pid, session.pid)
    best: Measurement | None = None
    forged: Rejected | None = None
    quietest = 1.0
    for attempt in range(ATTEMPTS):
        load = ForeignLoad(pids)
        result = _measure_once(eager, session, variant, points, facts, protocol=protocol)
        share = load.share()
        if isinstance(result, Rejected):
            return result
        if isinstance(result, _ClockMismatch):
            # A forged report shows every time; once a neighbour of a few milliseconds may have caused it.
            forged = result.rejected if share <= protocol.busy_share else forged
        else:
            wide = _is_wide(result, protocol)
            if best is None or (wide, share) < (_is_wide(best, protocol), quietest):
                noted = {**environment, "foreign_cpu_share": f"{share:.4f}"}
                best, quietest = replace(result, environment=noted), share
            if share <= protocol.busy_share:
                break
            # A second look at a busy machine, not a third: what is left then is noted beside the result.
            if not wide and (attempt > 0 or result.speedup.high < protocol.slow):
                break
        wait_until_quiet(pids, share=protocol.busy_share, timeout_s=protocol.quiet_timeout_s)
    if best is not None and not (quietest > protocol.busy_share and _is_wide(best, protocol)):
        return best
    if forged is not None:
        return forged
    raise HarnessError(f"others kept the machine too busy to time anything ({share:.0%} of its CPUs)")


def _is_wide(measurement: Measurement, protocol: Protocol) -> bool:
    return measurement.speedup.high > protocol.wide * measurement.speedup.low


def _measure_once(
    eager: EagerWorker, session: Session, variant: Variant, points: Sequence[TimedPoint], facts: MachineFacts,
    *, protocol: Protocol,
) -> MeasurementResult | _ClockMismatch:  # fmt: skip
    timings = []
    total_share = sum(p.share for p in points) or 1.0
    for point in points:
        share = max(point.share / total_share, 0.5 / len(points))
        clock = _PointClock(eager, session, variant, point, protocol, clock_us=facts.clock_us)
        timing = _measure_point(clock, variant, point, facts, protocol.budget_s * share)
        if not isinstance(timing, PointTiming):
            return timing
        timings.append(timing)
    pairs = [Pairs(calls=t.calls, eager_us=t.eager_us, candidate_us=t.candidate_us) for t in timings]
    speedup, eager_us, candidate_us = variant_interval(pairs)
    calls = sum(t.calls for t in timings)
    speedup = widened(
        speedup, eager_us=eager_us, candidate_us=candidate_us, either_us=PROCESS_US[variant.device]
    )  # fmt: skip
    return Measurement(
        points=tuple(timings), speedup=speedup, eager_us=eager_us, candidate_us=candidate_us,
        floor_us=sum(t.calls * t.floor_us for t in timings) / calls, environment={},
    )  # fmt: skip


class _PointClock:
    """Blocks of both sides at one point, on the CPU with the calling threads of both on one core at a time.

    Cores of one machine differ by a half for microseconds on end, if others use it: two processes on two cores would
    compare the cores.
    """

    def __init__(
        self, eager: EagerWorker, session: Session, variant: Variant, point: TimedPoint, protocol: Protocol,
        *, clock_us: float,
    ) -> None:  # fmt: skip
        self._eager, self._session, self._variant = eager, session, variant
        self._point, self.protocol, self._clock_us = point, protocol, clock_us
        self._history = History(passed=1)
        self._core: int | None = None
        self._excess = math.inf
        # What a kernel changes in place is put back before each call, outside of the timed window.
        restored = sum(b.size_bytes for b in point.sets[0].buffers if b.kind == "inout")
        self._launch_us = TORCH_ALLOWANCE_US if session.in_torch else LAUNCH_ALLOWANCE_US
        self._allowance_us = self._launch_us + restored / RESTORE_BYTES_PER_US
        outputs = sum(b.size_bytes for b in point.sets[0].buffers if b.kind != "input")
        self.collects_often = outputs <= SMALL_BYTES
        self.where = f"timing at {', '.join(f'{n}={v}' for n, v in point.dims.items()) or 'the fixed sizes'}"

    def load(self) -> Rejected | None:
        variant_json = self._variant.to_json()
        for slot, work in enumerate(self._point.sets):
            dims, scalars = named_values(self._variant, work)
            self._eager.load(slot, variant_json, dims, scalars, work.buffers)
            loaded = self._session.load(slot, work)
            if isinstance(loaded, RunnerDeath):
                return death(loaded, self.where)
            if loaded.error:
                raise HarnessError(f"the runner could not load the buffers: {loaded.message}")
        return None

    def unload(self) -> None:
        for slot in range(len(self._point.sets)):
            self._eager.unload(slot)
            if self._session.death is None:
                self._session.unload(slot)

    @property
    def pids(self) -> tuple[int, int]:
        return self._eager.pid, self._session.pid

    def eager_block(self, iterations: int) -> _Block:
        """One block of eager calls."""
        self._settle()
        reply = self._eager.time_slots(0, len(self._point.sets), iterations=iterations, core=self._core)
        if self._variant.device == "cpu":
            self._core = reply.core
        return _Block.of(reply.samples_ns, self._clock_us)

    def candidate_block(self, iterations: int, *, collect: bool = False, prepare: bool = False) -> _Block | Rejected:
        """The same of the candidate; with `collect` the outputs that the timed calls left are judged."""
        self._settle()
        reply = self._session.time_slots(
            0, len(self._point.sets), iterations=iterations, collect=collect, prepare=prepare,
            read=self._point.checked, core=self._core,
        )  # fmt: skip
        rejected = self._judge(reply, collect=collect)
        if rejected is not None:
            return rejected
        assert isinstance(reply, TimeReply)
        total_us, wall_us = sum(reply.samples_ns) / 1e3, reply.wall_s * 1e6
        if not collect:
            # One call of warm-up is in the judge's time and not in the reported one.
            expected_us = total_us * (iterations + 1) / iterations + iterations * self._allowance_us
            self._excess = min(self._excess, (wall_us - BLOCK_ALLOWANCE_US) / expected_us)
        if min(reply.samples_ns) <= 0 or total_us > wall_us + 50:
            detail = f"{iterations} calls report {total_us:.0f} us in all, the judge's clock saw {wall_us:.0f} us"
            return Rejected(reason=RejectReason.TIMING_SUSPECT, case=self.where, detail=detail)
        return _Block.of(reply.samples_ns, self._clock_us)

    def calls_like(self, block: _Block) -> int:
        """Calls that fill a block, if they are like those of this one."""
        most = MOST_CALLS[self._variant.device]
        return max(1, min(int(self.protocol.block_s * 1e6 / max(block.median_us, 0.1)), most))

    def _settle(self) -> None:
        if self._variant.device == "cpu":
            time.sleep(self.protocol.settle_s)

    def bounded(self, candidate_us: float) -> Rejected | _ClockMismatch | None:
        """Whether the judge's own clock agrees with the reported times.

        Args:
            candidate_us: the reported median of a call, less what the clock adds.
        """
        if self._variant.device == "cuda":
            return self._bounded_by_batch(candidate_us)
        if self._excess <= 2 or math.isinf(self._excess):
            return None
        detail = f"by the judge's clock even the best block took {self._excess:.1f} times as long as its calls reported"
        return self.mismatch(detail)

    def _bounded_by_batch(self, candidate_us: float) -> Rejected | _ClockMismatch | None:
        """At least 20 ms of calls without events in between; the best of three, for the host may be busy.

        The batch grows until it is that long by our own clock: a candidate that reports a thousandth of its time would
        else be called for a thousand times as long.
        """
        most = max(len(self._point.sets), min(int(BATCH_US / max(candidate_us, 0.5)), 20_000))
        iterations = min(most, max(len(self._point.sets), 64))
        seen: list[float] = []
        while len(seen) < 3:
            reply = self._session.time_slots(0, len(self._point.sets), iterations=iterations, batch=True)
            rejected = self._judge(reply, collect=False)
            if rejected is not None:
                return rejected
            assert isinstance(reply, TimeReply)
            wall_us = reply.wall_s * 1e6
            if iterations < most and wall_us < BATCH_US:
                iterations = min(most, 8 * iterations)
                continue
            seen.append(wall_us / iterations)
            if seen[-1] <= 1.5 * candidate_us + self._launch_us:
                return None
        return self.mismatch(f"a call takes {min(seen):.1f} us by the judge's clock, {candidate_us:.1f} us reported")

    def mismatch(self, detail: str) -> _ClockMismatch:
        rejected = Rejected(reason=RejectReason.TIMING_SUSPECT, case=self.where, detail=detail)
        return _ClockMismatch(rejected=rejected)

    def _right_alone(self, position: int, prepared: PreparedCase) -> bool:
        reply = self._session.run_slot(position)
        if isinstance(reply, RunnerDeath):
            return False
        return not isinstance(judge_reply(self._variant, prepared, reply, History()), Rejected)

    def _judge(self, reply: TimeReply | RunnerDeath, *, collect: bool) -> Rejected | None:
        if isinstance(reply, RunnerDeath):
            return death(reply, self.where)
        if not collect and not reply.error:
            return None
        for position, prepared in self._point.checked.items():
            outputs = reply.outputs[position] if not reply.error else ()
            judged = judge_reply(self._variant, prepared, reply, self._history, outputs)
            if isinstance(judged, Rejected):
                # Right on its own, and wrong among timed calls: such calls were skipped.
                skipped = judged.reason is RejectReason.WRONG_VALUE and self._right_alone(position, prepared)
                reason = RejectReason.STALE_OUTPUT if skipped else judged.reason
                detail = f"not computed in full when called in a row; {judged.detail}" if skipped else judged.detail
                return Rejected(
                    reason=reason, case=f"{judged.case}, while timed", detail=detail, worst_abs=judged.worst_abs
                )
        return None


def _measure_point(
    clock: _PointClock, variant: Variant, point: TimedPoint, facts: MachineFacts, budget_s: float
) -> PointTiming | Rejected | _ClockMismatch:
    rejected = clock.load()
    if rejected is not None:
        return rejected
    try:
        load = ForeignLoad(clock.pids)
        samples = _sample(clock, len(point.sets), clock.protocol, budget_s)
        if isinstance(samples, Rejected):
            return samples
        busy = load.share() > clock.protocol.busy_share
        eager_us, own_us = samples.pairs_us(busy=busy)
        candidate_us = median(own_us)
        mismatch = clock.bounded(candidate_us)
    finally:
        clock.unload()
    # What is changed in place was put back, and so is in the nearest cache, however many sets rotate.
    footprint = footprint_bytes(variant, point.dims) * (1 if variant.mutates else len(point.sets))
    floor = floor_us(
        variant, point.dims, point.scalars, bytes_per_second=facts.bytes_per_second(footprint),
        flops_per_second=facts.flops_per_second(variant.tensors[0].dtype), launch_us=facts.launch_us,
    )  # fmt: skip
    # Eager is honest: what it takes can be no less than the floor. Then the machine was busy when it was measured.
    floor = min(floor, median(eager_us))
    if candidate_us < SUSPECT_FRACTION * floor:
        detail = (
            f"{candidate_us:.2f} us per call, but bytes and arithmetic take at least {floor:.2f} us: work is missing"
        )
        return Rejected(reason=RejectReason.TIMING_SUSPECT, case=clock.where, detail=detail)
    if mismatch is None and busy and samples.disturbed(floor):
        mismatch = clock.mismatch("others kept eager from running at its own speed")
    if mismatch is not None:
        return mismatch
    charged = tuple(us + facts.dispatch_overhead_us for us in own_us)
    speedup = widened(
        paired_interval(eager_us, charged), eager_us=median(eager_us), candidate_us=median(charged),
        either_us=PROCESS_US[variant.device],
    )  # fmt: skip
    return PointTiming(
        dims=dict(point.dims), calls=point.calls, eager_us=eager_us, candidate_us=charged, speedup=speedup,
        floor_us=floor, regime="cold" if footprint > facts.cache_bytes else "warm",
    )  # fmt: skip


def _sample(clock: _PointClock, sets: int, protocol: Protocol, budget_s: float) -> _Samples | Rejected:
    """Alternate blocks until precise enough, clearly slow, or out of time."""
    deadline = time.monotonic() + budget_s
    first = clock.candidate_block(sets, collect=True, prepare=True)
    if isinstance(first, Rejected):
        return first
    eager_calls = clock.calls_like(clock.eager_block(sets))
    candidate_calls = clock.calls_like(first)
    samples = _Samples()
    while True:
        for side in "ecCe":
            if side == "e":
                samples.eager.append(clock.eager_block(eager_calls))
                continue
            block = clock.candidate_block(candidate_calls, collect=side == "C" and clock.collects_often)
            if isinstance(block, Rejected):
                return block
            samples.candidate.append(block)
        late = time.monotonic() - deadline
        # On a busy machine a block may take all the time there is; two pairs prove nothing, so take a few more.
        if (late >= 0 and len(samples.eager) >= 4) or late >= 2 * budget_s or _settled(samples, protocol):
            break
        # Up as well as down: a first block that somebody disturbed must not keep all the others short.
        eager_calls = max(clock.calls_like(samples.eager[-1]), min(eager_calls, 10))
        candidate_calls = max(clock.calls_like(samples.candidate[-1]), min(candidate_calls, 10))
    # On a busy machine blocks may have been short; what begins after some calls is given as many all the same.
    fastest_us = min(b.fastest_us for b in samples.candidate)
    calls = max(candidate_calls // 2, sets, min(LAST_CALLS, int(BATCH_US / fastest_us)))
    last = clock.candidate_block(calls, collect=True)
    return last if isinstance(last, Rejected) else samples


def _settled(samples: _Samples, protocol: Protocol) -> bool:
    if len(samples.eager) < 4:
        return False
    interval = paired_interval(*samples.pairs_us(busy=False), resamples=200)
    if interval.high < protocol.slow:
        return True
    return len(samples.eager) >= protocol.min_pairs and half_width(interval) <= protocol.half_width
