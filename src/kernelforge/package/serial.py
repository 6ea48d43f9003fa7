"""From a scored trial to a package entry, and its verdict, measurement and audit label to JSON and back.

For the writing side and for whoever shows a package; the reading side needs none of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import version

from kernelforge.audit.types import AuditKind, AuditLabel
from kernelforge.benchmark.types import Interval, Measurement, PointTiming
from kernelforge.build.abi import prelude
from kernelforge.build.glue import refusal_terms
from kernelforge.build.types import Artifact
from kernelforge.cards.types import Variant
from kernelforge.digest import Json, decode_float, digest_bytes, encode_float
from kernelforge.errors import PackageError
from kernelforge.evaluate.types import Certified, MemoryPassed, MemoryUnavailable, Scored
from kernelforge.generate.types import Candidate
from kernelforge.package.types import Binary, Decision, Entry, JsonObject, Tools
from kernelforge.verify.types import Accepted, ErrorStatistics


def make_entry(
    *,
    variant: Variant,
    candidate: Candidate,
    scored: Scored,
    decisions: Mapping[str, Decision],
    share: float = 0.0,
    node: str = "",
) -> Entry:
    """The entry of an accepted candidate.

    Args:
        decisions: one for each dispatch mode.
        share: runtime share of the variant. node: id of the node in the project.

    Raises:
        PackageError: the binary is gone or has changed since it was judged.
    """
    artifact = scored.artifact
    try:
        data = artifact.path.read_bytes()
    except OSError as error:
        raise PackageError(
            f"{variant.label}: the judged binary cannot be read: {error}", hint="evaluate the candidate again"
        ) from error
    if digest_bytes(data) != artifact.digest:
        raise PackageError(
            f"{variant.label}: the binary changed since it was judged", hint="evaluate the candidate again"
        )
    return Entry(
        variant=variant, source=candidate.source, prelude=prelude(variant, candidate.backend),
        binaries=(Binary(data=data, digest=artifact.digest, backend=artifact.backend, target=artifact.target,
                         refusals=refusal_terms(variant), tools=_tools(artifact)),),
        verdict=accepted_to_json(scored.verdict), measurement=measurement_to_json(scored.measurement),
        audit=audit_to_json(scored.audit), decisions=decisions, provenance=_provenance(candidate, scored, node),
        share=share,
    )  # fmt: skip


def _tools(artifact: Artifact) -> Tools:
    # The binary was verified on this machine, so it runs with its C library, wherever it was built.
    name = "CS_GNU_LIBC_VERSION"
    glibc = (os.confstr(name) or "") if name in os.confstr_names else ""
    return Tools(
        compiler=artifact.compiler, flags=artifact.flags, tvm_ffi=version("apache-tvm-ffi"),
        glibc=glibc.removeprefix("glibc "),
    )  # fmt: skip


def _provenance(candidate: Candidate, scored: Scored, node: str) -> JsonObject:
    artifact = scored.artifact
    return {
        "candidate": candidate.id, "node": node, "generator": candidate.generator, "notes": candidate.notes,
        "schedule": json.loads(candidate.schedule) if candidate.schedule else None, "parent": candidate.parent,
        "model": candidate.model, "prompt_digest": candidate.prompt_digest, "tokens_in": candidate.tokens_in,
        "tokens_out": candidate.tokens_out, "cost_usd": candidate.cost_usd, "compiler": artifact.compiler,
        "flags": list(artifact.flags), "source_sha256": digest_bytes(candidate.source.encode()),
    }  # fmt: skip


def accepted_to_json(verdict: Accepted) -> JsonObject:
    """With what memory checking said, if the verdict is a certificate."""
    worst = verdict.worst
    memory = {"memory": _memory_to_json(verdict.memory)} if isinstance(verdict, Certified) else {}
    return {
        "verdict": "accepted", "cases": verdict.cases, "bitwise": verdict.bitwise,
        "repeatable": verdict.repeatable,
        "worst": {"max_abs": encode_float(worst.max_abs), "rms": encode_float(worst.rms),
                  "eager_max_abs": encode_float(worst.eager_max_abs), "eager_rms": encode_float(worst.eager_rms)},
        **memory,
    }  # fmt: skip


def _memory_to_json(memory: MemoryPassed | MemoryUnavailable) -> Json:
    if isinstance(memory, MemoryPassed):
        return {"state": "passed", "tools": list(memory.tools)}
    return {"state": "unavailable", "reason": memory.reason}


def accepted_from_json(data: JsonObject) -> Accepted:
    """Raises PackageError when the JSON does not describe an accepting verdict."""
    try:
        worst = _object(data["worst"])
        statistics = ErrorStatistics(
            max_abs=decode_float(worst["max_abs"]), rms=decode_float(worst["rms"]),
            eager_max_abs=decode_float(worst["eager_max_abs"]), eager_rms=decode_float(worst["eager_rms"]),
        )  # fmt: skip
        return Accepted(
            cases=_int(data["cases"]), worst=statistics, bitwise=bool(data["bitwise"]),
            repeatable=bool(data.get("repeatable", False)),
        )  # fmt: skip
    except (KeyError, ValueError, TypeError) as error:
        raise PackageError(f"a verdict is damaged: {error!r}") from error


def measurement_to_json(measurement: Measurement) -> JsonObject:
    return {
        "speedup": _interval_to_json(measurement.speedup), "eager_us": measurement.eager_us,
        "candidate_us": measurement.candidate_us, "floor_us": measurement.floor_us,
        "environment": dict(measurement.environment), "points": [_point_to_json(p) for p in measurement.points],
    }  # fmt: skip


def measurement_from_json(data: JsonObject) -> Measurement:
    """Raises PackageError when the JSON does not describe a measurement."""
    try:
        return Measurement(
            points=tuple(_point_from_json(_object(p)) for p in _list(data["points"])),
            speedup=_interval_from_json(data["speedup"]), eager_us=decode_float(data["eager_us"]),
            candidate_us=decode_float(data["candidate_us"]), floor_us=decode_float(data["floor_us"]),
            environment={k: str(v) for k, v in _object(data["environment"]).items()},
        )  # fmt: skip
    except (KeyError, ValueError, TypeError) as error:
        raise PackageError(f"a measurement is damaged: {error!r}") from error


def audit_to_json(label: AuditLabel) -> JsonObject:
    return {"kind": label.kind.value, "evidence": list(label.evidence)}


def audit_from_json(data: JsonObject) -> AuditLabel:
    """Raises PackageError when the JSON does not describe an audit label."""
    try:
        return AuditLabel(kind=AuditKind(str(data["kind"])), evidence=tuple(str(e) for e in _list(data["evidence"])))
    except (KeyError, ValueError, TypeError) as error:
        raise PackageError(f"an audit label is damaged: {error!r}") from error


def _interval_to_json(interval: Interval) -> Json:
    return {"median": interval.median, "low": interval.low, "high": interval.high}


def _interval_from_json(data: Json) -> Interval:
    raw = _object(data)
    return Interval(median=decode_float(raw["median"]), low=decode_float(raw["low"]), high=decode_float(raw["high"]))


def _point_to_json(point: PointTiming) -> Json:
    return {
        "dims": dict(point.dims), "calls": point.calls, "eager_us": list(point.eager_us),
        "candidate_us": list(point.candidate_us), "speedup": _interval_to_json(point.speedup),
        "floor_us": point.floor_us, "regime": point.regime,
    }  # fmt: skip


def _point_from_json(data: JsonObject) -> PointTiming:
    return PointTiming(
        dims={name: _int(value) for name, value in _object(data["dims"]).items()}, calls=_int(data["calls"]),
        eager_us=tuple(decode_float(v) for v in _list(data["eager_us"])),
        candidate_us=tuple(decode_float(v) for v in _list(data["candidate_us"])),
        speedup=_interval_from_json(data["speedup"]), floor_us=decode_float(data["floor_us"]),
        regime=str(data["regime"]),
    )  # fmt: skip


def _object(data: Json) -> JsonObject:
    if not isinstance(data, Mapping):
        raise TypeError(f"not an object: {data!r}")
    return data


def _list(data: Json) -> Sequence[Json]:
    if isinstance(data, str) or not isinstance(data, Sequence):
        raise TypeError(f"not a list: {data!r}")
    return data


def _int(data: Json) -> int:
    if isinstance(data, bool) or not isinstance(data, int):
        raise TypeError(f"not an integer: {data!r}")
    return data
