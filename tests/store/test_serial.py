"""Round trips of candidates and outcomes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelforge.audit.types import AuditKind, AuditLabel
from kernelforge.benchmark.types import Interval, Measurement, PointTiming
from kernelforge.build.types import Artifact, BuildFailure
from kernelforge.digest import canonical_json
from kernelforge.evaluate.types import Outcome, Scored, WorkerFailure
from kernelforge.generate.types import Candidate
from kernelforge.store.serial import candidate_from_json, candidate_to_json, outcome_from_json, outcome_to_json
from kernelforge.verify.types import Accepted, ErrorStatistics, Rejected, RejectReason

FLOATS = st.floats(allow_nan=False)
TEXTS = st.text(max_size=20)
INTEGERS = st.integers(min_value=1 - 2**63, max_value=2**63 - 1)
SAMPLES = st.lists(FLOATS, max_size=5).map(tuple)
INTERVALS = st.builds(Interval, median=FLOATS, low=FLOATS, high=FLOATS)
POINTS = st.builds(
    PointTiming, dims=st.dictionaries(TEXTS, INTEGERS), calls=INTEGERS, eager_us=SAMPLES,
    candidate_us=SAMPLES, speedup=INTERVALS, floor_us=FLOATS, regime=TEXTS,
)  # fmt: skip
SCORED = st.builds(
    Scored,
    verdict=st.builds(
        Accepted, cases=INTEGERS, bitwise=st.booleans(), repeatable=st.booleans(),
        worst=st.builds(ErrorStatistics, max_abs=FLOATS, rms=FLOATS, eager_max_abs=FLOATS, eager_rms=FLOATS),
    ),
    measurement=st.builds(
        Measurement, points=st.lists(POINTS, max_size=3).map(tuple), speedup=INTERVALS, eager_us=FLOATS,
        candidate_us=FLOATS, floor_us=FLOATS, environment=st.dictionaries(TEXTS, TEXTS),
    ),
    audit=st.builds(AuditLabel, kind=st.sampled_from(AuditKind), evidence=st.lists(TEXTS, max_size=3).map(tuple)),
    artifact=st.builds(
        Artifact, digest=TEXTS, path=st.just(Path("/cache/a b.so")), backend=TEXTS, target=TEXTS, compiler=TEXTS,
        flags=st.lists(TEXTS, max_size=3).map(tuple), seconds=FLOATS, log=TEXTS,
    ),
)  # fmt: skip
OUTCOMES = st.one_of(
    st.builds(BuildFailure, reason=TEXTS, detail=TEXTS),
    st.builds(WorkerFailure, detail=TEXTS),
    st.builds(
        Rejected, reason=st.sampled_from(RejectReason), case=TEXTS, detail=TEXTS, worst_abs=st.none() | FLOATS
    ),
    SCORED,
)  # fmt: skip
CANDIDATES = st.builds(
    Candidate, variant_id=TEXTS, source=TEXTS, backend=TEXTS, generator=TEXTS, notes=TEXTS, schedule=TEXTS,
    parent=TEXTS, model=TEXTS, prompt_digest=TEXTS, tokens_in=st.none() | INTEGERS,
    tokens_out=st.none() | INTEGERS, cost_usd=st.none() | FLOATS,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(OUTCOMES)
def test_outcome_round_trip(outcome: Outcome) -> None:
    text = canonical_json(outcome_to_json(outcome))
    if isinstance(outcome, Scored):
        # Where the binary lay when it was built says nothing later: its digest names it.
        outcome = replace(outcome, artifact=replace(outcome.artifact, path=Path(outcome.artifact.digest)))
    assert outcome_from_json(json.loads(text)) == outcome


@settings(max_examples=60, deadline=None)
@given(CANDIDATES)
def test_candidate_round_trip(candidate: Candidate) -> None:
    text = canonical_json(candidate_to_json(candidate))
    assert candidate_from_json(json.loads(text), candidate.source) == candidate


def test_nan_survives() -> None:
    rejected = Rejected(reason=RejectReason.WRONG_VALUE, case="", detail="", worst_abs=math.nan)
    back = outcome_from_json(json.loads(canonical_json(outcome_to_json(rejected))))
    assert isinstance(back, Rejected) and back.worst_abs is not None and math.isnan(back.worst_abs)


def test_raw_samples_keep_every_bit(scored: Scored) -> None:
    samples = (0.1 + 0.2, math.nextafter(1.0, 2.0), 5e-324, 1.7976931348623157e308)
    point = replace(scored.measurement.points[0], eager_us=samples)
    outcome = replace(scored, measurement=replace(scored.measurement, points=(point,)))
    back = outcome_from_json(json.loads(canonical_json(outcome_to_json(outcome))))
    assert isinstance(back, Scored)
    assert [x.hex() for x in back.measurement.points[0].eager_us] == [x.hex() for x in samples]


@pytest.mark.parametrize(
    "damaged",
    [
        [], {}, {"kind": "accepted"}, {"kind": "praised"}, {"kind": "worker_failure", "detail": 3},
        {"kind": "rejected", "reason": "ugly", "case": "", "detail": "", "worst_abs": None},
    ],
)  # fmt: skip
def test_damaged_outcome_is_a_value_error(damaged: list[str] | dict[str, str | int | None]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        outcome_from_json(damaged)
