"""Candidates and outcomes as JSON and back, exactly: raw samples keep every bit, a union is told by its tag.

Owns the format of the columns `candidate` and `outcome` of `nodes.db`. A change here needs a migration.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import assert_never

from kernelforge.audit.types import AuditKind, AuditLabel
from kernelforge.benchmark.types import Interval, Measurement, PointTiming
from kernelforge.build.types import Artifact, BuildFailure
from kernelforge.digest import Json, decode_float, encode_float
from kernelforge.errors import UsageError
from kernelforge.evaluate.types import Outcome, Scored, WorkerFailure
from kernelforge.generate.types import Candidate
from kernelforge.search.types import outcome_kind
from kernelforge.verify.types import Accepted, ErrorStatistics, Rejected, RejectReason

_INTEGER_LIMIT = 1 << 63


def parse_json(text: str | bytes) -> Json:
    """As `json.loads`.

    Raises:
        ValueError: no JSON, or nested too deeply to be read.
    """
    try:
        value: Json = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


def checked_text(value: object, name: str) -> str:
    """A text that can be stored.

    Raises:
        ValueError: it is none, or holds half of a surrogate pair, which no UTF-8 has; names the field.
    """
    if not isinstance(value, str):
        raise ValueError(f"field {name!r} is not a text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"field {name!r} is no UTF-8 text: {error.reason} at character {error.start}") from error
    return value


def read_number(value: Json, name: str) -> float:
    """A float that `encode_float` wrote.

    Raises:
        ValueError: it is none; names the field.
    """
    try:
        return _number(value)
    except ValueError as error:
        raise ValueError(f"field {name!r} is {error}") from error


def candidate_to_json(candidate: Candidate) -> Json:
    """All but the source, which has a column of its own.

    Raises:
        UsageError: it would be refused when it is read again; names the field.
    """
    cost = candidate.cost_usd
    data: Json = {
        "variant_id": candidate.variant_id, "backend": candidate.backend, "generator": candidate.generator,
        "notes": candidate.notes, "schedule": candidate.schedule, "parent": candidate.parent,
        "repairs": candidate.repairs, "model": candidate.model,
        "prompt_digest": candidate.prompt_digest, "tokens_in": candidate.tokens_in,
        "tokens_out": candidate.tokens_out, "cost_usd": encode_float(cost) if isinstance(cost, float) else cost,
    }  # fmt: skip
    try:
        # Generators are plug-ins: whatever they put in here must not make a project that cannot be read.
        candidate_from_json(data, candidate.source)
    except ValueError as error:
        raise UsageError(
            f"a candidate of the generator {candidate.generator!a} cannot be stored: {error}",
            hint="whoever delivers it must put that right",
        ) from error
    return data


def candidate_from_json(data: Json, source: str) -> Candidate:
    """The inverse of `candidate_to_json`.

    Raises:
        ValueError: not the JSON of a candidate.
    """
    fields = Fields(data)
    return Candidate(
        variant_id=fields.text("variant_id"), source=checked_text(source, "source"), backend=fields.text("backend"),
        generator=fields.text("generator"), notes=fields.text("notes"), schedule=fields.text("schedule"),
        parent=fields.text("parent"), repairs=fields.text("repairs", default=""),
        model=fields.text("model"), prompt_digest=fields.text("prompt_digest"),
        tokens_in=fields.integer_or_none("tokens_in"), tokens_out=fields.integer_or_none("tokens_out"),
        cost_usd=fields.number_or_none("cost_usd"),
    )  # fmt: skip


def outcome_to_json(outcome: Outcome) -> Json:
    """An object with the tag "kind" (see `search.types.outcome_kind`) and the fields of that member of the union."""
    tag: dict[str, Json] = {"kind": outcome_kind(outcome)}
    match outcome:
        case BuildFailure():
            return {**tag, "reason": outcome.reason, "detail": outcome.detail}
        case WorkerFailure():
            return {**tag, "detail": outcome.detail}
        case Rejected():
            worst = None if outcome.worst_abs is None else encode_float(outcome.worst_abs)
            return {
                **tag, "reason": outcome.reason.value, "case": outcome.case, "detail": outcome.detail,
                "worst_abs": worst,
            }  # fmt: skip
        case Scored():
            return {
                **tag, "verdict": _accepted_to_json(outcome.verdict),
                "measurement": _measurement_to_json(outcome.measurement),
                "audit": {"kind": outcome.audit.kind.value, "evidence": list(outcome.audit.evidence)},
                "artifact": _artifact_to_json(outcome.artifact),
            }  # fmt: skip
        case _:
            assert_never(outcome)


def outcome_from_json(data: Json) -> Outcome:
    """The inverse of `outcome_to_json`.

    Raises:
        ValueError: not the JSON of an outcome.
    """
    fields = Fields(data)
    match fields.text("kind"):
        case "build_failure":
            return BuildFailure(reason=fields.text("reason"), detail=fields.text("detail"))
        case "worker_failure":
            return WorkerFailure(detail=fields.text("detail"))
        case "rejected":
            return Rejected(
                reason=RejectReason(fields.text("reason")), case=fields.text("case"), detail=fields.text("detail"),
                worst_abs=fields.number_or_none("worst_abs"),
            )  # fmt: skip
        case "accepted":
            audit = fields.object("audit")
            return Scored(
                verdict=_accepted_from_json(fields.object("verdict")),
                measurement=_measurement_from_json(fields.object("measurement")),
                audit=AuditLabel(kind=AuditKind(audit.text("kind")), evidence=audit.texts("evidence")),
                artifact=_artifact_from_json(fields.object("artifact")),
            )
        case other:
            raise ValueError(f"no outcome is called {other!r}")


def _accepted_to_json(verdict: Accepted) -> Json:
    worst = verdict.worst
    return {
        "cases": verdict.cases, "bitwise": verdict.bitwise, "max_abs": encode_float(worst.max_abs),
        "rms": encode_float(worst.rms), "eager_max_abs": encode_float(worst.eager_max_abs),
        "eager_rms": encode_float(worst.eager_rms), **({"repeatable": True} if verdict.repeatable else {}),
    }  # fmt: skip


def _accepted_from_json(fields: Fields) -> Accepted:
    worst = ErrorStatistics(
        max_abs=fields.number("max_abs"), rms=fields.number("rms"), eager_max_abs=fields.number("eager_max_abs"),
        eager_rms=fields.number("eager_rms"),
    )  # fmt: skip
    return Accepted(
        cases=fields.integer("cases"), worst=worst, bitwise=fields.flag("bitwise"),
        repeatable="repeatable" in fields.names() and fields.flag("repeatable"),
    )  # fmt: skip


def _measurement_to_json(measurement: Measurement) -> Json:
    return {
        "points": [_point_to_json(p) for p in measurement.points], "speedup": _interval_to_json(measurement.speedup),
        "eager_us": encode_float(measurement.eager_us), "candidate_us": encode_float(measurement.candidate_us),
        "floor_us": encode_float(measurement.floor_us), "environment": dict(measurement.environment),
    }  # fmt: skip


def _measurement_from_json(fields: Fields) -> Measurement:
    environment = fields.object("environment")
    return Measurement(
        points=tuple(_point_from_json(p) for p in fields.objects("points")),
        speedup=_interval_from_json(fields.value("speedup")), eager_us=fields.number("eager_us"),
        candidate_us=fields.number("candidate_us"), floor_us=fields.number("floor_us"),
        environment={name: environment.text(name) for name in environment.names()},
    )  # fmt: skip


def _point_to_json(point: PointTiming) -> Json:
    return {
        "dims": dict(point.dims), "calls": point.calls, "eager_us": [encode_float(x) for x in point.eager_us],
        "candidate_us": [encode_float(x) for x in point.candidate_us], "speedup": _interval_to_json(point.speedup),
        "floor_us": encode_float(point.floor_us), "regime": point.regime,
    }  # fmt: skip


def _point_from_json(fields: Fields) -> PointTiming:
    dims = fields.object("dims")
    return PointTiming(
        dims={name: dims.integer(name) for name in dims.names()}, calls=fields.integer("calls"),
        eager_us=fields.numbers("eager_us"), candidate_us=fields.numbers("candidate_us"),
        speedup=_interval_from_json(fields.value("speedup")), floor_us=fields.number("floor_us"),
        regime=fields.text("regime"),
    )  # fmt: skip


def _interval_to_json(interval: Interval) -> Json:
    return [encode_float(x) for x in (interval.median, interval.low, interval.high)]


def _interval_from_json(data: Json) -> Interval:
    median, low, high = (_number(x) for x in _sequence(data))
    return Interval(median=median, low=low, high=high)


def _artifact_to_json(artifact: Artifact) -> Json:
    return {
        "digest": artifact.digest, "backend": artifact.backend,
        "target": artifact.target, "compiler": artifact.compiler, "flags": list(artifact.flags),
        "seconds": encode_float(artifact.seconds), "log": artifact.log,
    }  # fmt: skip


def _artifact_from_json(fields: Fields) -> Artifact:
    return Artifact(
        digest=fields.text("digest"), path=Path(fields.text("digest")), backend=fields.text("backend"),
        target=fields.text("target"), compiler=fields.text("compiler"), flags=fields.texts("flags"),
        seconds=fields.number("seconds"), log=fields.text("log"),
    )  # fmt: skip


class Fields:
    """Typed access to a JSON object; every mismatch is a ValueError that names the field."""

    def __init__(self, data: Json) -> None:
        if not isinstance(data, Mapping):
            raise ValueError(f"expected an object, got {type(data).__name__}")
        self._data = data

    def names(self) -> Sequence[str]:
        return [checked_text(name, "name") for name in self._data]

    def value(self, name: str) -> Json:
        if name not in self._data:
            raise ValueError(f"field {name!r} is missing")
        return self._data[name]

    def text(self, name: str, *, default: str | None = None) -> str:
        if default is not None and name not in self._data:
            return default
        return checked_text(self.value(name), name)

    def flag(self, name: str) -> bool:
        value = self.value(name)
        if not isinstance(value, bool):
            raise ValueError(f"field {name!r} is not a boolean")
        return value

    def integer(self, name: str) -> int:
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"field {name!r} is not an integer")
        if abs(value) >= _INTEGER_LIMIT:
            raise ValueError(f"field {name!r} does not fit 64 bits")
        return value

    def integer_or_none(self, name: str) -> int | None:
        return None if self.value(name) is None else self.integer(name)

    def number(self, name: str) -> float:
        return read_number(self.value(name), name)

    def number_or_none(self, name: str) -> float | None:
        return None if self.value(name) is None else self.number(name)

    def numbers(self, name: str) -> tuple[float, ...]:
        return tuple(_number(x) for x in _sequence(self.value(name)))

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(checked_text(str(x), name) for x in _sequence(self.value(name)))

    def object(self, name: str) -> Fields:
        return Fields(self.value(name))

    def objects(self, name: str) -> tuple[Fields, ...]:
        return tuple(Fields(x) for x in _sequence(self.value(name)))


def _sequence(data: Json) -> Sequence[Json]:
    if isinstance(data, str) or not isinstance(data, Sequence):
        raise ValueError(f"expected a list, got {type(data).__name__}")
    return data


def _number(data: Json) -> float:
    try:
        return decode_float(data)
    except (KeyError, OverflowError) as error:
        raise ValueError(f"not a float: {str(data)[:40]}") from error
