"""Several processes on one project, and processes that die in the middle."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from kernelforge.digest import canonical_json
from kernelforge.evaluate.types import Scored, Trial
from kernelforge.store.project import Project
from kernelforge.store.serial import candidate_to_json, outcome_to_json

WRITER = """
import json, sys
from dataclasses import replace
from pathlib import Path
from kernelforge.evaluate.types import Trial
from kernelforge.store.project import Project
from kernelforge.store.serial import candidate_from_json, outcome_from_json

job = json.loads(sys.argv[1])
project = Project.open(Path(job["project"]))
candidate = candidate_from_json(job["candidate"], "// source\\n")
outcome = outcome_from_json(job["outcome"])
outcome = replace(outcome, artifact=replace(outcome.artifact, path=Path(job["binary"])))
for i in range(job["count"]):
    started = job["start"] + i
    node = project.append(Trial(candidate=candidate, outcome=outcome, started=started, seconds=0.0))
    print(node.number, flush=True)
"""


def _writer(project: Project, trial: Trial, *, start: float, count: int) -> subprocess.Popen[str]:
    assert isinstance(trial.outcome, Scored)
    job = canonical_json({
        "binary": str(trial.outcome.artifact.path),
        "project": str(project.path), "candidate": candidate_to_json(trial.candidate),
        "outcome": outcome_to_json(trial.outcome), "start": start, "count": count,
    })  # fmt: skip
    assert json.loads(job)
    return subprocess.Popen([sys.executable, "-c", WRITER, job], stdout=subprocess.PIPE, text=True)


def test_two_processes_append_at_once(project: Project, make_trial: Callable[..., Trial], scored: Scored) -> None:
    trial = make_trial(1, scored)
    writers = [_writer(project, trial, start=1000.0 * (i + 1), count=50) for i in range(2)]
    numbers = [[int(line) for line in w.communicate(timeout=60)[0].split()] for w in writers]
    assert [w.returncode for w in writers] == [0, 0]
    assert sorted(numbers[0] + numbers[1]) == list(range(1, 101))
    nodes = project.nodes(trial.candidate.variant_id)
    assert [n.number for n in nodes] == list(range(1, 101))
    assert {n.started for n in nodes} == {1000.0 * (i + 1) + k for i in range(2) for k in range(50)}


def test_kill_loses_at_most_the_trial_in_flight(
    project: Project, make_trial: Callable[..., Trial], scored: Scored
) -> None:
    trial, generator = make_trial(1, scored), random.Random(7)
    variant_id, acknowledged = trial.candidate.variant_id, 0
    for attempt in range(5):
        before = len(project.nodes(variant_id))
        writer = _writer(project, trial, start=1e6 * (attempt + 1), count=100_000)
        assert writer.stdout is not None
        assert writer.stdout.readline()
        time.sleep(generator.uniform(0.0, 0.1))
        writer.kill()
        acknowledged = before + 1 + len(writer.stdout.readlines())
        writer.stdout.close()
        writer.wait()
        nodes = Project.open(project.path).nodes(variant_id)
        assert [n.number for n in nodes] == list(range(1, len(nodes) + 1))
        assert acknowledged <= len(nodes) <= acknowledged + 1
    assert project.binary(scored.artifact.digest)
    assert project.append(make_trial(2)).number == len(project.nodes(variant_id))


def test_leftover_of_a_killed_blob_write_does_no_harm(project: Project, scored: Scored, tmp_path: Path) -> None:
    digest = scored.artifact.digest
    (project.path / "blobs" / f".{digest[:16]}-half").write_bytes(b"half")
    (project.path / "blobs" / digest).write_bytes(b"half")
    assert project.put_binary(scored.artifact.path) == digest
    assert project.binary(digest).read_bytes() == scored.artifact.path.read_bytes()
