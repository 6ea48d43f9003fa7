"""What a finished trial must be to be stored, whether it was judged here or comes from another copy of the project.

A row is never changed or deleted, so one that breaks those who read it would break the project for good.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from kernelforge.benchmark.types import Interval, Measurement
from kernelforge.digest import digest
from kernelforge.errors import ProjectError
from kernelforge.evaluate.types import Outcome, Scored, Trial
from kernelforge.generate.types import Candidate
from kernelforge.search.types import Summary, outcome_kind, summarise
from kernelforge.store.serial import (
    candidate_from_json,
    candidate_to_json,
    outcome_from_json,
    outcome_to_json,
    parse_json,
)
from kernelforge.store.types import StoredTrial

_SHA256 = re.compile(r"[0-9a-f]{64}")


def node_id(candidate: Candidate, started: float) -> str:
    """The id of a trial's node, the same on every machine. As a float: that is how the database keeps it."""
    return digest([candidate.id, float(started)])


def check_own(trial: Trial) -> None:
    """Refuse a trial of this process that nobody could use once it is stored.

    Raises:
        UsageError: its candidate cannot be read again. ProjectError: its outcome cannot, or its numbers are none.
    """
    candidate_to_json(trial.candidate)
    try:
        _check_times(trial.started, trial.seconds)
        outcome_from_json(outcome_to_json(trial.outcome))
        _check_outcome(trial.outcome)
    except ValueError as error:
        raise ProjectError(
            f"a trial of variant {trial.candidate.variant_id[:8]} cannot be stored: {error}", hint="run it again"
        ) from error


def check_foreign(
    trials: Sequence[StoredTrial], *, variants: Collection[str], stored: Mapping[str, StoredTrial],
    nodes: Mapping[str, str],
) -> list[tuple[StoredTrial, Summary]]:  # fmt: skip
    """The trials that are not stored yet, with their summaries.

    Args:
        variants: ids of the project's variants. stored: those of the trials that it has, by id.
        nodes: node id -> variant id of all that it has.

    Raises:
        ProjectError: names the first trial that is none of the project, or not what its id says.
    """
    new: list[tuple[StoredTrial, Summary]] = []
    seen, places = set[str](), dict(nodes)
    for trial in trials:
        try:
            if trial.id in seen:
                raise ValueError("it is there twice")
            seen.add(trial.id)
            if trial.id in stored:
                if replace(trial, number=stored[trial.id].number) != stored[trial.id]:
                    raise ValueError(f"it is stored with other contents, as node {stored[trial.id].number}")
                continue
            if trial.variant_id not in variants:
                raise ValueError(f"the project has no variant {trial.variant_id[:8]!a}")
            if trial.parent and places.get(trial.parent) != trial.variant_id:
                raise ValueError(f"it revises {trial.parent[:12]!a}, no earlier trial of its variant")
            new.append((trial, _check_contents(trial)))
            places[trial.id] = trial.variant_id
        except ValueError as error:
            raise ProjectError(
                f"trial {trial.id[:12]!a} is refused: {error}", hint="the copy is damaged or was edited"
            ) from error
    return new


def _check_contents(trial: StoredTrial) -> Summary:
    candidate = candidate_from_json(parse_json(trial.candidate), trial.source)
    outcome = outcome_from_json(parse_json(trial.outcome))
    _check_times(trial.started, trial.seconds)
    if trial.number < 1:
        raise ValueError(f"its number is {trial.number}")
    if candidate.variant_id != trial.variant_id:
        raise ValueError("its candidate is of another variant")
    if trial.id != node_id(candidate, trial.started):
        raise ValueError("its id is not that of its contents")
    if trial.kind != outcome_kind(outcome):
        raise ValueError(f"it is called {trial.kind[:20]!a}, its outcome {outcome_kind(outcome)!r}")
    binary = outcome.artifact.digest if isinstance(outcome, Scored) else ""
    if trial.artifact not in {"", binary}:
        raise ValueError("its binary is not the one that its outcome names")
    _check_outcome(outcome)
    return summarise(candidate, outcome)


def _check_times(started: float, seconds: float) -> None:
    for name, value in (("start", started), ("duration", seconds)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"its {name} is {value}")


def _check_outcome(outcome: Outcome) -> None:
    if not isinstance(outcome, Scored):
        return
    if not _SHA256.fullmatch(outcome.artifact.digest):
        raise ValueError("its outcome names no binary")  # it is part of a path
    _check_measurement(outcome.measurement)


def _check_measurement(measurement: Measurement) -> None:
    _check_interval(measurement.speedup)
    times = [measurement.eager_us, measurement.candidate_us]
    floors = [measurement.floor_us]
    for point in measurement.points:
        _check_interval(point.speedup)
        if len(point.eager_us) != len(point.candidate_us):
            raise ValueError("its samples are not pairs")
        if point.calls < 0:
            raise ValueError(f"a size is called {point.calls} times")
        times += [*point.eager_us, *point.candidate_us]
        floors.append(point.floor_us)
    if not all(math.isfinite(t) and t > 0 for t in times):
        raise ValueError("a time is not finite and above 0")
    if not all(math.isfinite(f) and f >= 0 for f in floors):
        raise ValueError("a floor is not finite and at least 0")


def _check_interval(interval: Interval) -> None:
    if not 0 < interval.low <= interval.median <= interval.high < math.inf:
        raise ValueError(
            f"its speed-up is no interval of positive numbers: {interval.median} [{interval.low}, {interval.high}]"
        )
