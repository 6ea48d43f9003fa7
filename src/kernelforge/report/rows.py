"""What the verbs of `kernelforge.forge` return: plain data that a face prints or serialises. Owns every report type
but those of one candidate (`report.judgement`).

Times are microseconds per call (`_us`), milliseconds per run of a model (`_ms`) or seconds (`seconds`); shares are
in [0, 1]; speed-ups are eager over candidate, so more than 1 is faster. None means "not known", never zero. Each report
has `to_json()`, which holds only JSON values (a number that is not finite becomes null).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kernelforge.audit.types import AuditKind
from kernelforge.benchmark.types import Interval
from kernelforge.digest import Json
from kernelforge.report.units import format_duration
from kernelforge.wording import plural, speedup_words

DECISION_USE = "use"
DECISION_PENDING = "pending"
DECISION_EAGER = "eager: "
DECISION_NOT_FORGED = "not forged: "

ENDED: Mapping[str, str] = {
    "trials": "--trials is spent",
    "seconds": "--max-time is spent (the next trial would not fit)",
    "tokens": "--budget-tokens is spent (the next proposal would not fit)",
    "usd": "--budget-usd is spent (the next proposal would not fit)",
    "exhausted": "no variant is left to try",
}
"""Why a search ended, a `search.types.StopReason`, in the words of the command line; "stopped" says it itself."""

_FROM = re.compile(r"from (\d+) elements on")
_DISPATCHED = re.compile(r"through dispatch (?:[a-z ]+: )?<?([\d.]+)x \[<?([\d.]+), <?([\d.]+)\]")


USED_IN: Mapping[str, str] = {
    "eager": "through dispatch", "graphed": "only in CUDA graphs, there", "compiled": "only under torch.compile, there",
}  # fmt: skip
"""Where a kernel is used, by the first mode of dispatch in which it is, in the words of a decision."""


def used_decision(dispatch: Interval, least_elements: int = 0, *, mode: str = "eager") -> str:
    """The decision to use a kernel, with its speed-up in a mode of dispatch and the least size that it serves.

    Args:
        mode: the first in which it is used: what is not used in eager mode says so.
    """
    sizes = f"from {least_elements} elements on; " if least_elements else ""
    return f"{DECISION_USE}: {sizes}{USED_IN[mode]} {speedup_words(dispatch.median, dispatch.low, dispatch.high)}"


def least_elements_of(decision: str) -> int:
    """From how many elements on the package's kernel serves, used or not, as the decision says; 0: every size."""
    found = _FROM.search(decision)
    return int(found[1]) if found else 0


def dispatch_of(decision: str) -> Interval | None:
    """The speed-up through dispatch that a decision was based on, if it says one."""
    found = _DISPATCHED.search(decision)
    return None if found is None else Interval(median=float(found[1]), low=float(found[2]), high=float(found[3]))


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureReport:
    """What a capture recorded, and what it does not cover.

    Attributes:
        project: path of the project folder. model: the model's name. device: "cpu" or "cuda".
        variants: how many. calls: operator calls that they cover.
        coverage_wall: captured share of the model's wall time, in [0, 1].
        coverage_device: the same of device time; None on the CPU.
        unsupported: operators seen without a file in `operators/`, with their calls, most calls first.
        repeats: over how many runs more the times are medians; 0: they are of one run.
        disturbed: others used more of the CPUs meanwhile (`foreign_cpu_share`, in [0, 1]) than the judge takes for
            quiet, so the shares are less certain.
    """

    project: str
    model: str
    device: str
    variants: int
    calls: int
    coverage_wall: float
    coverage_device: float | None
    unsupported: tuple[tuple[str, int], ...] = ()
    warnings: tuple[str, ...] = ()
    repeats: int = 0
    disturbed: bool = False
    foreign_cpu_share: float = 0.0

    def to_json(self) -> dict[str, Json]:
        return {
            "project": self.project, "model": self.model, "device": self.device, "variants": self.variants,
            "calls": self.calls, "coverage_wall": finite(self.coverage_wall),
            "coverage_device": finite(self.coverage_device),
            "unsupported": [{"operator": name, "calls": calls} for name, calls in self.unsupported],
            "warnings": list(self.warnings), "repeats": self.repeats, "disturbed": self.disturbed,
            "foreign_cpu_share": finite(self.foreign_cpu_share),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRow:
    """One variant in the operator table.

    Attributes:
        variant: the variant's full id. label: its short name for people. operator: canonical operator name.
        calls: calls in the capture. share: of the model's captured time, in [0, 1].
        eager_us: eager time of a call in the model, as captured.
        judged_eager_us, best_us, speedup, speedup_low, speedup_high: of the trial of the best accepted candidate: eager
            and kernel, timed in pairs.
        dispatch: the speed-up when called from Python through the dispatch path, if an export has timed it.
        floor_us: roofline floor of a call.
        decision: "use", "use: <details>", "eager: <reason>", "not forged: <reason>" or "pending" (no trial).
        packaged: the label of the entry in the package if that serves only some sizes and so has another, else "".
        trials: how many candidates were judged. describe: tensors, arguments and outputs in one line.
        disturbed: others used the machine while the best candidate was timed.
    """

    variant: str
    label: str
    operator: str
    calls: int
    share: float
    eager_us: float
    judged_eager_us: float | None = None
    best_us: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    dispatch: Interval | None = None
    floor_us: float | None = None
    decision: str = DECISION_PENDING
    trials: int = 0
    describe: str = ""
    disturbed: bool = False
    packaged: str = ""

    def to_json(self) -> dict[str, Json]:
        return {
            "variant": self.variant, "label": self.label, "operator": self.operator, "calls": self.calls,
            "share": finite(self.share), "eager_us": finite(self.eager_us),
            "judged_eager_us": finite(self.judged_eager_us), "best_us": finite(self.best_us),
            "speedup": finite(self.speedup), "speedup_low": finite(self.speedup_low),
            "speedup_high": finite(self.speedup_high), "dispatch": interval_json(self.dispatch),
            "floor_us": finite(self.floor_us), "decision": self.decision, "trials": self.trials,
            "describe": self.describe, "disturbed": self.disturbed, "packaged": self.packaged,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DimRow:
    """A named dim (or varying float) of a variant: its rule in the guard and what was seen.

    Attributes:
        observed: (value, calls), by value.
    """

    name: str
    low: float
    high: float
    multiple_of: int = 1
    observed: tuple[tuple[float, int], ...] = ()

    def to_json(self) -> dict[str, Json]:
        return {
            "name": self.name, "low": finite(self.low), "high": finite(self.high), "multiple_of": self.multiple_of,
            "observed": [{"value": finite(value), "calls": calls} for value, calls in self.observed],
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """One judged candidate.

    Attributes:
        node: the node's full id. number: 1, 2, ... within the variant. parent: node id, or "".
        outcome: "accepted", "rejected", "build_failure" or "worker_failure". reason: typed, "" if accepted.
        notes: what distinguishes the candidate (the schedule, say). seconds: wall time of building and judging.
        disturbed: others used the machine while it was timed. audit: the label of an accepted one.
    """

    node: str
    number: int
    outcome: str
    reason: str = ""
    detail: str = ""
    speedup: Interval | None = None
    candidate_us: float | None = None
    generator: str = ""
    notes: str = ""
    parent: str = ""
    seconds: float = 0.0
    disturbed: bool = False
    audit: str = ""

    @property
    def words(self) -> str:
        """What came of it, in few words: why it failed, or that it is of the weaker tier."""
        return f"{self.outcome}, torch ABI" if self.audit == AuditKind.TORCH else self.reason or self.outcome

    def to_json(self) -> dict[str, Json]:
        return {
            "node": self.node, "number": self.number, "outcome": self.outcome, "reason": self.reason,
            "detail": self.detail, "speedup": interval_json(self.speedup), "candidate_us": finite(self.candidate_us),
            "generator": self.generator, "notes": self.notes, "parent": self.parent, "seconds": finite(self.seconds),
            "disturbed": self.disturbed, "audit": self.audit,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantReport:
    """One variant in full: its row, its named dims with the observed sizes, its trials (oldest first).

    Attributes:
        backend: what kernels for its device are written in, "cpp" or "cuda".
        preludes: backend -> the C declarations that a candidate is compiled with; empty if none can be made.
        has_template: whether the template generator makes the operator; else only a kernel by hand can.
    """

    row: OperatorRow
    dims: tuple[DimRow, ...] = ()
    trials: tuple[TrialRow, ...] = ()
    backend: str = "cpp"
    preludes: Mapping[str, str] = field(default_factory=dict)
    has_template: bool = True

    def to_json(self) -> dict[str, Json]:
        return {
            **self.row.to_json(),
            "dims": [d.to_json() for d in self.dims],
            "trial_list": [t.to_json() for t in self.trials],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgeReport:
    """What a search did.

    Attributes:
        stopped: why it ended, a `search.types.StopReason`.
        tokens, usd: what its proposals cost, None if the generator does not say.
        busy_s: seconds in which each lane was at work (`search.lanes`), the mean over its workers.
        measured_s: of how many seconds `busy_s` is known, the same mean; None: of all.
    """

    rows: tuple[OperatorRow, ...]
    trials: int
    seconds: float
    stopped: str
    tokens: int | None = None
    usd: float | None = None
    busy_s: Mapping[str, float] = field(default_factory=dict)
    measured_s: float | None = None

    @property
    def shares(self) -> dict[str, float]:
        """The part of the time in which each lane was at work."""
        whole_s = self.seconds if self.measured_s is None else self.measured_s
        return {lane: busy_s / whole_s for lane, busy_s in self.busy_s.items()} if whole_s > 0 else {}

    @property
    def lines(self) -> list[str]:
        """How many trials it made, at what cost, why it ended, and how busy its lanes were."""
        cost = f", {self.tokens:,} tokens" if self.tokens else ""
        cost += f", ${self.usd:.2f}" if self.usd else ", cost unknown" if self.usd is None and self.tokens else ""
        ended = ENDED.get(self.stopped, self.stopped)
        lines = [f"{plural(self.trials, 'trial')} in {format_duration(self.seconds)}{cost}; ended by: {ended}"]
        if self.trials and self.shares:
            lines.append("busy: " + ", ".join(f"{lane} {share:.0%}" for lane, share in self.shares.items()))
        return lines

    def to_json(self) -> dict[str, Json]:
        return {
            "rows": [r.to_json() for r in self.rows], "trials": self.trials, "seconds": finite(self.seconds),
            "stopped": self.stopped, "tokens": self.tokens, "usd": finite(self.usd),
            "lanes": {
                lane: {"busy_s": finite(self.busy_s[lane]), "share": finite(share)}
                for lane, share in self.shares.items()
            },
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedKernel:
    """A kernel that a package uses.

    Attributes:
        label: of its entry. origin: label of the captured variant; another one if only some sizes are served.
        share: of the origin in the model's captured time. least_elements: of the largest tensor; 0: every size.
        dispatch: the speed-up when called from Python through the dispatch path, or in the first of the other modes of
            dispatch in which it is used, if it is not used there.
        modes: the modes in which it is used, each with the speed-up over the mode's own path.
    """

    label: str
    origin: str
    share: float
    least_elements: int
    dispatch: Interval
    modes: Mapping[str, Interval] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        return {
            "label": self.label, "origin": self.origin, "share": finite(self.share),
            "least_elements": self.least_elements, "dispatch": interval_json(self.dispatch),
            "modes": {mode: interval_json(interval) for mode, interval in self.modes.items()},
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """A written package.

    Attributes:
        entries: how many of its kernels are used. held: how many are in it, those that are off too.
        skipped: (variant label, why it is left out, or off). used: the kernels in use, largest share first.
    """

    path: str
    entries: int
    held: int = 0
    skipped: tuple[tuple[str, str], ...] = ()
    size_bytes: int = 0
    used: tuple[UsedKernel, ...] = ()

    def to_json(self) -> dict[str, Json]:
        return {
            "path": self.path, "entries": self.entries, "held": self.held, "size_bytes": self.size_bytes,
            "used": [u.to_json() for u in self.used],
            "skipped": [{"variant": label, "reason": reason} for label, reason in self.skipped],
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRow:
    """One kernel of a package.

    Attributes:
        target: what a machine needs to run the binary, for example "sm_90" or "x86-64-v3".
        origin: label of the captured variant, if the entry serves only some of its sizes and so has another, else "".
        least_elements: those with so many elements in the largest tensor; 0: all.
        decisions: dispatch mode -> "use" or "eager: <reason>".
        made_by: the generator, and the language model behind it if there was one.
    """

    variant: str
    label: str
    operator: str
    describe: str
    backend: str
    target: str
    speedup: Interval | None = None
    audit: str = ""
    decisions: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""
    least_elements: int = 0
    made_by: str = ""

    @property
    def in_use(self) -> bool:
        """The package wants it dispatched in some mode."""
        return any(decision.startswith(DECISION_USE) for decision in self.decisions.values())

    def to_json(self) -> dict[str, Json]:
        return {
            "variant": self.variant, "label": self.label, "operator": self.operator, "describe": self.describe,
            "backend": self.backend, "target": self.target, "speedup": interval_json(self.speedup),
            "audit": self.audit, "decisions": dict(self.decisions), "origin": self.origin,
            "least_elements": self.least_elements, "made_by": self.made_by,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """One check of a package: what was checked, whether it holds, and if not, why."""

    name: str
    ok: bool
    detail: str = ""

    def to_json(self) -> dict[str, Json]:
        return {"name": self.name, "ok": self.ok, "detail": self.detail}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageReport:
    """What is in a package, and (from `verify_package`) whether it holds.

    Attributes:
        format: the package format's version. environment: what it was made with (device, torch, compiler ...).
        checks: empty from `inspect_package`.
        digest: hex sha256 of the file. signer: public key of whoever signed it, "" if nobody did.
        trusted, trust: whether it may be loaded here, and why or why not, in words.
    """

    path: str
    model: str
    device: str
    format: int
    size_bytes: int
    entries: tuple[EntryRow, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    checks: tuple[CheckRow, ...] = ()
    digest: str = ""
    signer: str = ""
    trusted: bool = False
    trust: str = ""

    @property
    def valid(self) -> bool:
        """No check failed."""
        return all(c.ok for c in self.checks)

    def to_json(self) -> dict[str, Json]:
        return {
            "path": self.path, "model": self.model, "device": self.device, "format": self.format,
            "size_bytes": self.size_bytes, "environment": dict(self.environment),
            "entries": [e.to_json() for e in self.entries], "checks": [c.to_json() for c in self.checks],
            "valid": self.valid, "sha256": self.digest, "signer": self.signer, "trusted": self.trusted,
            "trust": self.trust,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeModel:
    """The paired A/B of a whole model, with and without the package.

    Attributes:
        speedup: eager over fast, with its interval. eager_ms, fast_ms: median time of one run.
        output_max_abs: largest absolute difference of the outputs. output_rel: the same over eager's largest magnitude.
        outputs_match: within the tolerance that the verb states.
        hits, misses: dispatched and refused calls in one run; both 0 if no kernel is in use.
        pairs: how many runs of each; the speed-up is the median of their ratios.
        tokens_equal: greedy decoding gave the same tokens; None for models that decode nothing.
    """

    name: str
    speedup: Interval
    eager_ms: float
    fast_ms: float
    output_max_abs: float
    output_rel: float
    outputs_match: bool
    hits: int
    misses: int
    tokens_equal: bool | None = None
    pairs: int = 0

    def to_json(self) -> dict[str, Json]:
        return {
            "name": self.name, "speedup": interval_json(self.speedup), "eager_ms": finite(self.eager_ms),
            "fast_ms": finite(self.fast_ms), "output_max_abs": finite(self.output_max_abs),
            "output_rel": finite(self.output_rel), "outputs_match": self.outputs_match, "hits": self.hits,
            "misses": self.misses, "tokens_equal": self.tokens_equal, "pairs": self.pairs,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """What `run` made of one model.

    Attributes:
        package: path of the package, "" if no kernel of it is in use.
        unused: path of a package that was written, and whose kernels made the whole model slower, so that all are off.
    """

    rows: tuple[OperatorRow, ...]
    whole_model: WholeModel | None
    package: str
    project: str = ""
    seconds: float = 0.0
    stopped: str = ""
    unused: str = ""

    def to_json(self) -> dict[str, Json]:
        return {
            "rows": [r.to_json() for r in self.rows],
            "whole_model": None if self.whole_model is None else self.whole_model.to_json(),
            "package": self.package, "project": self.project, "seconds": finite(self.seconds),
            "stopped": self.stopped, "unused": self.unused,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorLine:
    """One thing that `doctor` looked at. fix: one thing to do, "" if all is well."""

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    fix: str = ""

    def to_json(self) -> dict[str, Json]:
        return {"name": self.name, "status": self.status, "detail": self.detail, "fix": self.fix}


def finite(value: float | None) -> float | None:
    """`value`, or None if it is NaN or infinite: JSON has no word for those."""
    return value if value is not None and math.isfinite(value) else None


def interval_json(interval: Interval | None) -> Json:
    """{"median", "low", "high"}, or None."""
    if interval is None:
        return None
    return {"median": finite(interval.median), "low": finite(interval.low), "high": finite(interval.high)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferReport:
    """A project that was packed, unpacked or merged.

    Attributes:
        path: what was written. trials: how many it got. known: how many of them it had. by_variant: label -> new ones.
        calls: of language models, whose prompts, replies and costs do not come along.
    """

    path: str
    trials: int
    calls: int = 0
    known: int = 0
    by_variant: Mapping[str, int] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        new = ", ".join(f"{label} {count}" for label, count in sorted(self.by_variant.items()))
        had = f"; {self.known} {'was' if self.known == 1 else 'were'} there already" if self.known else ""
        return f"{self.path}: {plural(self.trials, 'trial')}{f' ({new})' if new else ''}{had}{self._left}"

    @property
    def _left(self) -> str:
        return f"; {plural(self.calls, 'call')} of language models left out (kforge cost)" if self.calls else ""

    def to_json(self) -> dict[str, Json]:
        return {
            "path": self.path, "trials": self.trials, "known": self.known, "by_variant": dict(self.by_variant),
            "calls": self.calls,
        }  # fmt: skip
