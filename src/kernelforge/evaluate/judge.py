"""The judge: build -> audit of the binary -> verify -> benchmark -> label, stopping at the first failure.

One judge serves one device. It owns seeds, truth, limits and the clock; it keeps one eager worker, replaced when it
dies, and starts one runner for each candidate. A fault of its own is a `WorkerFailure`, never a verdict. Loads torch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Literal, Self

import torch

from kernelforge.audit.symbols import audit_binary, audit_torch_module
from kernelforge.audit.types import TORCH_TIER, AuditLabel
from kernelforge.benchmark.clock import environment
from kernelforge.benchmark.machine import machine_facts
from kernelforge.benchmark.points import TimedPoint
from kernelforge.benchmark.protocol import Protocol, measure
from kernelforge.benchmark.slot import timing_slot
from kernelforge.benchmark.types import Measurement
from kernelforge.build.torch_abi import TORCH_ABI, call_of
from kernelforge.build.types import Artifact, Backend, BuildFailure
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import VariantRecord
from kernelforge.errors import DeviceBusy, ForgeError, HarnessError, ProjectError
from kernelforge.evaluate.memcheck import check_memory, rejection, small_cases
from kernelforge.evaluate.types import Certified, MemoryFailed, Outcome, Scored, Trial, WorkerFailure
from kernelforge.evaluate.workbench import Workbench
from kernelforge.executors.types import Limits
from kernelforge.generate.types import Candidate
from kernelforge.runner.eager import EagerWorker
from kernelforge.runner.protocol import Session
from kernelforge.runner.session import RunnerSession
from kernelforge.runner.torch_session import TorchSession
from kernelforge.settings import Settings
from kernelforge.verify.cases import LARGE_BYTES
from kernelforge.verify.gate import recheck, replay, verify
from kernelforge.verify.prepare import EagerBaseline, PreparedCase
from kernelforge.verify.types import Rejected, RejectReason

logger = logging.getLogger(__name__)

CERTIFICATE_CALLS = 1000
GATE_LIMITS = Limits(wall_s=20.0, memory_bytes=4 << 30)
PROTOCOLS: Mapping[str, Protocol] = {"cpu": Protocol(), "cuda": Protocol(budget_s=0.8)}
"""A GPU's clock is steadier than a CPU's: half of the time gives the same interval."""


@contextmanager
def single_threaded() -> Iterator[None]:
    """Let torch use one thread in this process.

    The judge's own arithmetic is small, and its threads would wait for one another at every step while a build or a
    runner has the cores: measured 50 ms instead of 0.5 ms for a pass over 800,000 elements.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Judge:
    """Judges candidates of any variant of one device. Not thread-safe: builds may run beside it, judging may not.

    Args:
        device: "cpu" or "cuda".
        backend: what builds a candidate; the binary that is verified is the one that is timed and exported.
        threads: of eager and of the candidate alike; 0 means torch's own number.
        protocol: how long and how precisely to time.
        limits: of each request to a candidate's runner.
        on_phase: told what each part of a judgement took: its name and wall seconds.
    """

    def __init__(
        self, settings: Settings, *, device: Literal["cpu", "cuda"], backend: Backend, threads: int = 0,
        protocol: Protocol | None = None, limits: Limits = GATE_LIMITS,
        on_phase: Callable[[str, float], None] | None = None,
    ) -> None:  # fmt: skip
        self._settings, self._device, self._backend = settings, device, backend
        self._threads = threads or torch.get_num_threads()
        self._protocol, self._limits = protocol or PROTOCOLS[device], limits
        self._on_phase = on_phase or (lambda name, seconds: logger.debug("%s: %.2f s", name, seconds))
        self._eager = EagerWorker(device, self._threads)
        with timing_slot(self._settings, self._device):
            self._facts = machine_facts(settings, device=device, threads=self._threads)
        self._workbench = Workbench(
            EagerBaseline(self._eager), self._facts, torch.device(device),
            cap_bytes=(24 << 30) if device == "cuda" else (256 << 20),
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the eager worker. Idempotent."""
        self._eager.close()

    def evaluate(
        self, candidate: Candidate, record: VariantRecord, examples: ExampleStore,
        *, built: Artifact | BuildFailure | None = None,
    ) -> Trial:  # fmt: skip
        """Judge one candidate.

        Args:
            built: the outcome of the backend's build of this very candidate, if it was built beside the judge.

        Raises:
            EnvironmentMissing: no compiler, no GPU: nothing can be judged here.
        """
        started, clock = time.time(), time.monotonic()
        with single_threaded():
            outcome = self._outcome(candidate, record, examples, built)
        return Trial(candidate=candidate, outcome=outcome, started=started, seconds=time.monotonic() - clock)

    def retime(
        self, artifacts: Sequence[Artifact], record: VariantRecord, examples: ExampleStore
    ) -> tuple[tuple[Measurement, ...] | Rejected, ...] | WorkerFailure:
        """Time binaries that have passed the gate against each other: the fastest of many noisy times flatters itself.

        All of them are loaded at once and take turns, forwards and then backwards, each paired with eager, on inputs
        that none was timed on before.

        Returns:
            For each binary its measurements, one a round, or why it was turned down now.

        Raises:
            EnvironmentMissing: as `evaluate`.
        """
        try:
            with single_threaded():
                return self._retime(artifacts, record, examples)
        except Exception as error:  # noqa: BLE001 - sorted there
            return self._fault(error, record)

    def _retime(
        self, artifacts: Sequence[Artifact], record: VariantRecord, examples: ExampleStore
    ) -> tuple[tuple[Measurement, ...] | Rejected, ...]:
        points = self._workbench.fresh_points(record, examples)
        times: list[list[Measurement]] = [[] for _ in artifacts]
        rejected: dict[int, Rejected] = {}
        with ExitStack() as stack, timing_slot(self._settings, self._device):
            sessions = [stack.enter_context(self._session(a)) for a in artifacts]
            forwards = list(enumerate(sessions))
            for position, session in (*forwards, *reversed(forwards)):
                if position in rejected:
                    continue
                measured = self._measure(session, record, points)
                if isinstance(measured, Rejected):
                    rejected[position] = measured
                else:
                    times[position].append(measured)
        return tuple(rejected.get(i) or tuple(each) for i, each in enumerate(times))

    def certify(
        self, artifact: Artifact, record: VariantRecord, examples: ExampleStore, *, calls: int = CERTIFICATE_CALLS
    ) -> Certified | Rejected | WorkerFailure:
        """The complete set of cases on a binary that has passed the gate, `calls` calls in a row, memory checking.

        Args:
            artifact: with its `source`, without which memory cannot be checked on the CPU.

        Raises:
            EnvironmentMissing: as `evaluate`.
        """
        try:
            with single_threaded():
                return self._certify(artifact, record, examples, calls)
        except Exception as error:  # noqa: BLE001 - sorted there
            return self._fault(error, record)

    def _certify(
        self, artifact: Artifact, record: VariantRecord, examples: ExampleStore, calls: int
    ) -> Certified | Rejected:
        if artifact.backend == TORCH_ABI:
            raise HarnessError(f"no certificate: {TORCH_TIER}", hint="write it for the C ABI, see docs/abi.md")
        with self._phase("bench"):
            self._workbench.bench(record, examples)
        with self._phase("cases"):
            cases = self._workbench.certificate(record, examples)
        small = sorted(cases, key=lambda c: c.size_bytes)
        small = small[: 4 if small[0].size_bytes <= LARGE_BYTES else 1]
        with self._session(artifact) as session:
            with self._phase("verify"):
                verdict = verify(session, record.variant, cases)
            if isinstance(verdict, Rejected):
                return verdict
            with self._phase("calls in a row"):
                again = recheck(session, record.variant, small, calls=calls)
            if isinstance(again, Rejected):
                return again
            with self._phase("replay"):
                kept = replay(session, record.variant, cases)
        if kept is not None:
            return kept
        with self._phase("other threads"):
            bound = self._with_other_threads(artifact, record, small_cases(cases, cap_bytes=LARGE_BYTES))
        if bound is not None:
            return bound
        with self._phase("memory"):
            memory = check_memory(
                artifact, record.variant, cases, device=self._device, threads=self._threads, settings=self._settings
            )
        if isinstance(memory, MemoryFailed):
            return rejection(memory)
        return Certified(
            cases=verdict.cases, worst=verdict.worst, bitwise=verdict.bitwise, repeatable=verdict.repeatable,
            memory=memory,
        )  # fmt: skip

    def _with_other_threads(
        self, artifact: Artifact, record: VariantRecord, cases: Sequence[PreparedCase]
    ) -> Rejected | None:
        """A few cases on one thread, and on one more than here: a package runs with as many as its user sets."""
        for threads in (1, self._threads + 1) if self._device == "cpu" else ():
            if threads == self._threads:
                continue
            with self._session(artifact, threads=threads) as session:
                verdict = verify(session, record.variant, cases)
            if isinstance(verdict, Rejected):
                number = "1 thread" if threads == 1 else f"{threads} threads"
                return replace(verdict, detail=f"on {number}: {verdict.detail}")
        return None

    def _outcome(
        self, candidate: Candidate, record: VariantRecord, examples: ExampleStore,
        built: Artifact | BuildFailure | None,
    ) -> Outcome:  # fmt: skip
        with self._phase("build"):
            artifact = built if built is not None else self._backend.build(candidate, record.variant)
        if isinstance(artifact, BuildFailure):
            return artifact
        with self._phase("audit"):
            of_torch = artifact.backend == TORCH_ABI
            label = audit_torch_module(artifact.path) if of_torch else audit_binary(artifact.path, device=self._device)
        if isinstance(label, Rejected):
            return label
        try:
            return self._judge(artifact, label, record, examples)
        except Exception as error:  # noqa: BLE001 - sorted there
            return self._fault(error, record)

    def _judge(self, artifact: Artifact, label: AuditLabel, record: VariantRecord, examples: ExampleStore) -> Outcome:
        with self._phase("bench"):
            bench = self._workbench.bench(record, examples)
        with self._phase("cases"):
            cases = (*bench.cases, *self._workbench.fresh(record, examples))
        with self._session_of(artifact, record) as session:
            with self._phase("verify"):
                verdict = verify(session, record.variant, cases)
            if isinstance(verdict, Rejected):
                return verdict
            with timing_slot(self._settings, self._device), self._phase("timing"):
                measurement = self._measure(session, record, bench.points)
                if _is_impossible(measurement) and self._faster_than_known():
                    measurement = self._measure(session, record, bench.points)
            if isinstance(measurement, Rejected):
                return measurement
            # What computes honestly for as many calls as tests make may not do so for as many as timing makes.
            with self._phase("replay"):
                kept = replay(session, record.variant, bench.cases)
        if kept is not None:
            return kept
        return Scored(verdict=verdict, measurement=measurement, audit=label, artifact=artifact)

    def _measure(self, session: Session, record: VariantRecord, points: Sequence[TimedPoint]) -> Measurement | Rejected:
        return measure(
            self._eager, session, record.variant, points, self._facts,
            protocol=self._protocol, environment=self.conditions(),
        )  # fmt: skip

    def conditions(self) -> dict[str, str]:
        """Device, versions, rates, load and clocks at this moment, as they stand beside a measurement."""
        return environment(self._facts, device=self._device, threads=self._threads, torch_version=torch.__version__)

    def _faster_than_known(self) -> bool:
        """Measure the machine again before a time is called impossible; whether it is faster than what was known."""
        before = self._facts
        self._facts = machine_facts(self._settings, device=self._device, threads=self._threads, again=True)
        return self._facts.exceeds(before)

    @contextmanager
    def _session_of(self, artifact: Artifact, record: VariantRecord) -> Iterator[Session]:
        """A session of whichever ABI the binary is."""
        if artifact.backend != TORCH_ABI:
            with self._session(artifact) as session:
                yield session
            return
        call = call_of(artifact.source, record.variant)
        assert not isinstance(call, str), "it was built"
        with TorchSession(
            artifact.path, record.variant, [(p.argument, p.parameter.kind) for p in call], device=self._device,
            limits=self._limits, threads=self._threads,
        ) as in_torch:  # fmt: skip
            yield in_torch

    @contextmanager
    def _session(self, artifact: Artifact, *, threads: int | None = None) -> Iterator[RunnerSession]:
        session = RunnerSession(
            artifact.path, device=self._device, limits=self._limits, threads=threads or self._threads,
            settings=self._settings,
        )  # fmt: skip
        with self._phase("runner's start"):
            session.__enter__()
        try:
            yield session
        finally:
            with self._phase("runner's end"):
                session.close()

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self._on_phase(name, time.monotonic() - started)

    def _fault(self, error: Exception, record: VariantRecord) -> WorkerFailure:
        """What could not be judged, as an outcome: one variant must not end the search of all.

        Raises:
            ForgeError: nothing can be judged here, whatever the variant.
        """
        if isinstance(error, HarnessError | DeviceBusy | ProjectError):
            return self._failure(error)
        if isinstance(error, ForgeError):
            raise error
        logger.error("a fault of the judge itself, on %s", record.variant.label, exc_info=error)
        return self._failure(HarnessError(f"a fault of the judge itself: {type(error).__name__}: {error}"))

    def _failure(self, error: Exception) -> WorkerFailure:
        """Note a fault of our own and start the next judgement with a fresh worker."""
        logger.warning("the judge could not judge: %s", error)
        self._eager.close()
        return WorkerFailure(detail=str(error))


def _is_impossible(measurement: Measurement | Rejected) -> bool:
    """Whether it was turned down for its times alone: whatever else showed while it was timed is no matter of the
    machine, and need not show twice."""
    return isinstance(measurement, Rejected) and measurement.reason is RejectReason.TIMING_SUSPECT
