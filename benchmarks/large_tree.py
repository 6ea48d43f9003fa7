"""What a project with a tree of thousands of trials costs: opening it, asking for the next order, memory.

    python -m benchmarks.large_tree --nodes 5000 --out FILE.json

The trials are made up: sources of 4 KiB, 60 pairs of samples each, a tenth of them failures, a parent among the last
hundred. Each strategy is measured in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness import write_record
from kernelforge.audit.types import AuditKind, AuditLabel
from kernelforge.benchmark.statistics import median
from kernelforge.benchmark.types import Interval, Measurement, PointTiming
from kernelforge.build.types import Artifact
from kernelforge.capture.types import TensorRef
from kernelforge.cards.types import Extent, OperatorCard, SizePoint, TensorPattern, Variant, VariantRecord
from kernelforge.digest import canonical_json, digest
from kernelforge.evaluate.types import Outcome, Scored
from kernelforge.generate.types import Candidate
from kernelforge.search.scheduler import Policy
from kernelforge.search.strategies import get_strategy, strategy_names
from kernelforge.search.study import Study
from kernelforge.search.types import outcome_kind
from kernelforge.store.project import Project
from kernelforge.store.serial import candidate_to_json, outcome_to_json
from kernelforge.store.types import StoredTrial
from kernelforge.verify.types import Accepted, ErrorStatistics, Rejected, RejectReason

ASKS = 30


def make_project(path: Path, nodes: int, *, seed: int = 0) -> Project:
    """A project of one variant with so many trials."""
    pattern = TensorPattern(shape=(Extent(4096),), stride=(Extent(1),), dtype="float32")
    variant = Variant(operator="relu", arguments=(("input", TensorRef(0)),), tensors=(pattern,), outputs=(pattern,))
    record = VariantRecord(
        variant=variant, points=(SizePoint(dims={}, scalars={}, calls=1, eager_us=10.0),), share=1.0
    )  # fmt: skip
    card = OperatorCard(operator="relu", model="large", device="cpu", variants=(record,))
    project = Project.create(path, model="large", device="cpu", cards=(card,), capture_info={})
    project.add_trials(list(_trials(variant.id, nodes, random.Random(seed))), {})
    return project


def _trials(variant_id: str, nodes: int, generator: random.Random, *, first: int = 1) -> Iterator[StoredTrial]:
    made: list[tuple[str, str]] = []
    for number in range(first, first + nodes):
        parent, revised = generator.choice(made[-100:]) if made and generator.random() < 0.97 else ("", "")
        source = f"// candidate {number}\n" + "x" * 4096
        candidate = Candidate(variant_id=variant_id, source=source, backend="cpp", generator="manual", parent=revised)
        outcome = _outcome(generator)
        node = digest([candidate.id, float(number)])
        yield StoredTrial(
            id=node, variant_id=variant_id, number=number, parent=parent,
            candidate=canonical_json(candidate_to_json(candidate)), source=source, kind=outcome_kind(outcome),
            outcome=canonical_json(outcome_to_json(outcome)), started=float(number), seconds=1.0, artifact="",
        )  # fmt: skip
        if isinstance(outcome, Scored):
            made.append((node, candidate.id))


def _outcome(generator: random.Random) -> Outcome:
    if generator.random() < 0.1:
        return Rejected(reason=RejectReason.WRONG_VALUE, case="n0=8", detail="out[0]", worst_abs=1.0)
    speedup = generator.lognormvariate(0.3, 0.4)
    interval = Interval(median=speedup, low=speedup * 0.98, high=speedup * 1.02)
    samples = tuple(generator.gauss(10.0, 0.1) for _ in range(60))
    point = PointTiming(
        dims={}, calls=1, eager_us=samples, candidate_us=tuple(s / speedup for s in samples), speedup=interval,
        floor_us=0.5, regime="cold",
    )  # fmt: skip
    return Scored(
        verdict=Accepted(cases=12, worst=ErrorStatistics(max_abs=0.0, rms=0.0, eager_max_abs=0.0, eager_rms=0.0),
                         bitwise=True),
        measurement=Measurement(points=(point,), speedup=interval, eager_us=10.0, candidate_us=10.0 / speedup,
                                floor_us=0.5, environment={}),
        audit=AuditLabel(kind=AuditKind.GENERATED, evidence=()),
        artifact=Artifact(digest=f"{generator.getrandbits(256):064x}", path=Path("k.so"), backend="cpp", target="t",
                          compiler="c", flags=(), seconds=1.0, log=""),
    )  # fmt: skip


def measure(path: Path, strategy: str) -> dict[str, object]:
    """Open the project, read the tree, ask `ASKS` times with a new trial in between each two."""
    started = time.perf_counter()
    project = Project.open(path)
    records = [r for card in project.cards() for r in card.variants]
    study = Study(project, records, strategy=get_strategy(strategy), policy=Policy(patience=None))
    opened_s = time.perf_counter() - started
    study.ask()  # imports, and the first view of the tree
    asks_ms = []
    first = len(study.tracks[records[0].variant.id].nodes) + 1
    for number in range(first, first + ASKS):
        project.add_trials(list(_trials(records[0].variant.id, 1, random.Random(number), first=number)), {})
        started = time.perf_counter()
        (order,) = study.ask()
        asks_ms.append(1e3 * (time.perf_counter() - started))
        study.give_up(order, "only asked for")
    return {
        "strategy": strategy, "nodes": len(study.tracks[records[0].variant.id].nodes), "opened_s": opened_s,
        "asks_ms": asks_ms, "ask_ms": median(asks_ms),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every strategy; write the record."""
    parser = argparse.ArgumentParser(description="what a large tree costs")
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--measure", nargs=2, metavar=("PROJECT", "STRATEGY"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        print(json.dumps(measure(Path(options.measure[0]), options.measure[1])))
        return 0
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.kforge"
        make_project(path, options.nodes)
        for name in strategy_names():
            command = [sys.executable, "-m", "benchmarks.large_tree", "--measure", str(path), name]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append(json.loads(done.stdout))
            print("{strategy:<11} {nodes} nodes: opened in {opened_s:.2f} s, ask {ask_ms:.1f} ms, peak {peak_mb:.0f} MB"
                  .format(**rows[-1]), flush=True)  # fmt: skip
    if options.out:
        write_record(options.out, {"benchmark": "large_tree", "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
