"""Judges and times a package's kernels again on this machine, without a search: behind `kforge cast recertify`.

What is judged are the package's own binaries, as they would be loaded; nothing is built in their place. A package holds
no captured inputs, so all inputs are drawn, at the sizes that were timed when it was made and at others that its guards
admit, as for every candidate. An entry gets what an export gives: the audit of its binary, the certificate with the
memory check where this machine can make one, and times in each mode of dispatch in which it was timed before. Where
memory cannot be checked, that of the export stands: it is a property of the binary and its sizes, not of the machine.

The result is a signed record of this user (`dispatch.records`), written after each entry: whoever stops half way keeps
what is finished, and goes on there. The entries that promise most come first.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from kernelforge.audit.symbols import audit_binary
from kernelforge.build.types import Artifact, BuildFailure
from kernelforge.capturing import present_device
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import Variant, VariantRecord
from kernelforge.digest import Json
from kernelforge.dispatch.inactive import expected_gain
from kernelforge.dispatch.machine import binary_for, cannot_run
from kernelforge.dispatch.records import CertifiedAgain, LocalRecord, write_record
from kernelforge.errors import EnvironmentMissing, HarnessError
from kernelforge.evaluate.judge import Judge
from kernelforge.evaluate.memcheck import build_ahead
from kernelforge.evaluate.types import WorkerFailure
from kernelforge.generate.types import Candidate
from kernelforge.mode_timing import Budgets, ModeTimings, chosen_modes, time_in_modes
from kernelforge.pace import Pace
from kernelforge.package.reader import extract_binary
from kernelforge.package.serial import accepted_to_json, audit_to_json
from kernelforge.package.signing import local_signer
from kernelforge.package.types import MODES, Binary, Decision, Entry, Header, JsonObject, Off, Use
from kernelforge.package.writer import write_package
from kernelforge.packed_variants import record_of
from kernelforge.report.certified import EntryOutcome, RecertifyReport
from kernelforge.settings import Settings
from kernelforge.standing import Standing, open_standing, plain_outcome
from kernelforge.verify.types import Rejected
from kernelforge.wording import plural

BUDGETS = Budgets(eager_s=0.5, graphed_s=0.3, compiled_s=0.5, patience_s=0.0)
"""Less than an export takes, and once: twenty entries are to take three minutes. Whoever was disturbed is told."""


def recertify(
    path: Path,
    *,
    settings: Settings,
    trust: str | Collection[str] = (),
    modes: Sequence[str] | None = None,
    again: bool = False,
    max_time_s: float | None = None,
    say: Callable[[str], None],
    should_stop: Callable[[], bool] = lambda: False,
) -> RecertifyReport:
    """Judge and time every entry that has no verdict for this machine yet, and keep the result for `load`.

    Args:
        modes: of dispatch, to time; by default those in which an entry was timed when it was exported.
        again: also entries that are certified here; their former results are replaced one by one.
        max_time_s: no entry is begun after so long.
        should_stop: asked before each entry.

    Raises:
        UntrustedPackage: nobody has said to trust it. PackageError: it is damaged. EnvironmentMissing: no GPU, or no
        compiler for the judge's own runner. DeviceBusy: another process times for too long. ForgeError: the record
        cannot be written.
    """
    started = time.monotonic()
    opened = open_standing(path, settings=settings, trust=trust)
    todo = [e for e in opened.package.entries if not cannot_run(e, opened.machine) and (again or opened.is_due(e))]
    todo.sort(key=expected_gain, reverse=True)
    done: dict[str, EntryOutcome] = {}
    stopped, pace = "", Pace(len(todo))
    if todo:
        _require_first_device(opened)
        _build_ahead(opened, todo, say)
        with open_judge(opened) as judge, tempfile.TemporaryDirectory(prefix="kforge-recertify-") as folder:
            for entry in todo:
                stopped = _why_stop(should_stop, started, max_time_s)
                if stopped:
                    break
                pace.next()
                clock = time.monotonic()
                worker = _Worker(opened=opened, judge=judge, folder=Path(folder), modes=modes, say=_paced(say, pace))
                found = worker.certify(entry)
                if isinstance(found, CertifiedAgain):
                    opened = replace(opened, record=_with(opened, entry, found))
                    outcome = opened.outcome_of(entry)
                else:
                    outcome = plain_outcome(entry, "not judged", found.detail)
                done[entry.variant.id] = replace(outcome, seconds=time.monotonic() - clock)
                say(f"{pace}{entry.variant.label}: {outcome.in_words()}")
    return opened.report(done, seconds=time.monotonic() - started, stopped=stopped)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worker:
    """Judges and times one entry at a time. folder: a private one, for packages of a single entry."""

    opened: Standing
    judge: Judge
    folder: Path
    modes: Sequence[str] | None
    say: Callable[[str], None]

    def certify(self, entry: Entry) -> CertifiedAgain | WorkerFailure:
        """The verdict and the times of an entry; a failure if there is none, which says nothing of the kernel."""
        binary, record = binary_for(entry, self.opened.machine), record_of(entry)
        assert binary is not None, "an entry that cannot run is not judged"
        if record is None:
            return WorkerFailure(detail="the package names no sizes at which it could be judged")
        self.say(f"judging {entry.variant.label}")
        artifact = artifact_of(entry, binary, self.opened.settings)
        label = audit_binary(artifact.path, device=self.opened.environment.device)
        if isinstance(label, Rejected):
            return _rejected(binary, label)
        verdict = self.judge.certify(artifact, record, self._examples)
        if isinstance(verdict, WorkerFailure):
            return verdict
        if isinstance(verdict, Rejected):
            return _rejected(binary, verdict)
        timings = self._time(entry, binary, record)
        summary: JsonObject = {**accepted_to_json(verdict), "audit": audit_to_json(label)}
        return self._certified(binary, summary, timings)

    def _certified(self, binary: Binary, summary: JsonObject, timings: ModeTimings) -> CertifiedAgain:
        if timings.wrong:
            detail = f"right in the judge's runner, wrong through dispatch: {timings.wrong}"
            return _off(binary, detail, {"verdict": "rejected", "reason": "wrong_value", "detail": detail})
        first = next((t for m in MODES if (t := timings.timed.get(m)) is not None and not t.wrong), None)
        overall = {} if first is None else {"speedup": first.speedup_json()}
        environment: dict[str, Json] = dict(self.judge.conditions())
        measurement: JsonObject = {**overall, "modes": timings.to_json(), "environment": environment}
        return CertifiedAgain(
            binary=binary.digest, decisions=timings.decisions(), measurement=measurement, verdict=summary
        )

    def _time(self, entry: Entry, binary: Binary, record: VariantRecord) -> ModeTimings:
        """Through a package of this entry alone that is made for this machine, and is on in all modes."""
        modes = chosen_modes(self.modes or _modes_of(entry), self.opened.environment.device)
        alone = replace(entry, binaries=(binary,), decisions=dict.fromkeys(modes, Use()))
        path = self.folder / f"{entry.variant.id[:16]}.cast"
        settings = self.opened.settings
        write_package(path, [alone], header=self._header(), signer=local_signer(settings.config_dir))
        (timings,) = time_in_modes(
            path, [record], self._examples, settings, modes=modes, say=self.say, budgets=BUDGETS
        )  # fmt: skip
        return timings

    def _header(self) -> Header:
        here = self.opened.environment
        return replace(
            self.opened.package.header, torch=here.torch, driver=here.driver,
            device_name=here.device_name if here.device == "cuda" else "",
        )  # fmt: skip

    @property
    def _examples(self) -> ExampleStore:
        """None: a package holds no captured inputs."""
        return ExampleStore(self.folder / "none")


def artifact_of(entry: Entry, binary: Binary, settings: Settings) -> Artifact:
    """A packed binary as the judge takes one."""
    return Artifact(
        digest=binary.digest, path=extract_binary(binary, settings.cache_dir), backend=binary.backend,
        target=binary.target, compiler=binary.tools.compiler, flags=binary.tools.flags, seconds=0.0, log="",
        source=entry.source,
    )  # fmt: skip


class BuildsNothing:
    """The judge's backend here: the package's own binaries are judged."""

    name = "packed"

    def brief(self) -> str:
        return "binaries of a package"

    def build(
        self, candidate: Candidate, variant: Variant, *, timeout_s: float = 120.0
    ) -> Artifact | BuildFailure:  # fmt: skip
        del candidate, timeout_s
        raise HarnessError(f"{variant.label}: nothing is built when a package is certified again")


def open_judge(opened: Standing) -> Judge:
    """The judge of a package's device, which builds nothing."""
    return Judge(opened.settings, device=present_device(opened.environment.device), backend=BuildsNothing())


def _why_stop(should_stop: Callable[[], bool], started: float, max_time_s: float | None) -> str:
    """Why no further entry is begun, or ""."""
    if should_stop():
        return "stopped"
    spent = max_time_s is not None and time.monotonic() - started > max_time_s
    return "--max-time is spent" if spent else ""


def _build_ahead(opened: Standing, todo: Sequence[Entry], say: Callable[[str], None]) -> None:
    """Build the forms of CPU kernels in which memory is checked, on all cores: nothing is timed yet.

    One for each would otherwise be most of what judging takes. A GPU's binaries are checked as they are.
    """
    if opened.environment.device != "cpu" or len(todo) < 2:
        return
    say(f"building {plural(len(todo), 'checked form')} of kernels")
    with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="kforge-checked") as pool:
        for entry in todo:
            binary = binary_for(entry, opened.machine)
            if binary is not None:
                artifact = artifact_of(entry, binary, opened.settings)
                pool.submit(build_ahead, artifact, entry.variant, settings=opened.settings)


def _require_first_device(opened: Standing) -> None:
    """Only the first GPU is judged and timed on."""
    if opened.record is not None and opened.record.environment.key != opened.environment.key:
        raise EnvironmentMissing(
            f"the record is for {opened.record.environment}, which is not the first GPU",
            hint="choose one with CUDA_VISIBLE_DEVICES",
        )


def _with(opened: Standing, entry: Entry, found: CertifiedAgain) -> LocalRecord:
    """The record with one more entry, on disk too."""
    earlier = opened.record.entries if opened.record is not None else {}
    record = LocalRecord(
        package=opened.package.digest, environment=opened.environment, made=time.time(),
        entries={**earlier, entry.variant.id: found},
    )  # fmt: skip
    write_record(record, opened.settings.config_dir)
    return record


def _rejected(binary: Binary, verdict: Rejected) -> CertifiedAgain:
    reason = f"rejected here: {verdict.reason}: {verdict.case}: {verdict.detail}"
    summary: JsonObject = {
        "verdict": "rejected", "reason": str(verdict.reason), "case": verdict.case, "detail": verdict.detail
    }  # fmt: skip
    return _off(binary, reason, summary)


def _off(binary: Binary, reason: str, verdict: JsonObject) -> CertifiedAgain:
    decisions: dict[str, Decision] = dict.fromkeys(MODES, Off(reason=reason))
    return CertifiedAgain(binary=binary.digest, decisions=decisions, measurement={}, verdict=verdict)


def _modes_of(entry: Entry) -> tuple[str, ...]:
    """The modes of dispatch in which an entry was timed, or is used."""
    return tuple(m for m in MODES if entry.measured(m) or isinstance(entry.decision(m), Use))


def _paced(say: Callable[[str], None], pace: Pace) -> Callable[[str], None]:
    return lambda text: say(f"{pace}{text}{pace.left()}")
