"""What judging costs: the search gate beyond the build, and the certificate, phase by phase.

    python -m benchmarks.judge_cost --device cuda --model resnet50_fp16_b1 --out FILE.json [--proposals 2]

Each variant of the model gets the template generator's first proposals. Counted are variants under a millisecond; the
first judgement of a variant also makes its bench (cases, truths, timing sets), which all later ones share.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import write_record
from benchmarks.main_job import jobs
from kernelforge.benchmark.statistics import median
from kernelforge.build.abi import prelude
from kernelforge.build.backends import get_backend
from kernelforge.build.types import Artifact
from kernelforge.capturing import capture_calls
from kernelforge.cards.types import VariantRecord
from kernelforge.evaluate.judge import Judge
from kernelforge.evaluate.types import Certified, Scored
from kernelforge.generate.generators.template import GENERATOR
from kernelforge.generate.types import Candidate, Exhausted, Feedback, Request
from kernelforge.settings import load_settings
from kernelforge.store.project import Project

SHORT_US = 1000.0


class Phases:
    """Adds up what the judge reports between two calls of `take`."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def __call__(self, name: str, seconds: float) -> None:
        self._seconds[name] += seconds

    def take(self) -> dict[str, float]:
        taken, self._seconds = dict(self._seconds), defaultdict(float)
        return taken


def judgements(project: Project, device: Any, proposals: int) -> Iterator[dict[str, Any]]:
    """One row for each gate and each certificate."""
    settings, phases = load_settings(), Phases()
    backend = get_backend("cuda" if device == "cuda" else "cpp", settings)
    records = [r for card in project.cards() for r in card.variants if not r.forgeable]
    with Judge(settings, device=device, backend=backend, on_phase=phases) as judge:
        for record in records:
            best: Artifact | None = None
            for number, candidate in enumerate(propose(record, backend, proposals)):
                built = backend.build(candidate, record.variant)
                phases.take()
                trial = judge.evaluate(candidate, record, project.examples, built=built)
                yield row(record, "gate", number, trial.outcome, seconds=trial.seconds, phases=phases.take())
                if isinstance(trial.outcome, Scored):
                    best = trial.outcome.artifact
            if best is not None:
                started = time.monotonic()
                certified = judge.certify(best, record, project.examples)
                yield row(record, "certificate", 0, certified, seconds=time.monotonic() - started, phases=phases.take())


def propose(record: VariantRecord, backend: Any, most: int) -> Iterator[Candidate]:
    """The template generator's first candidates of a variant."""
    history: tuple[Feedback, ...] = ()
    for _ in range(most):
        proposal = GENERATOR.propose(
            Request(
                variant=record.variant, backend=backend.name, prelude=prelude(record.variant, backend.name),
                brief=backend.brief(), history=history, parent=None, weights=(),
            )
        )  # fmt: skip
        if isinstance(proposal, Exhausted):
            return
        yield proposal
        history = (*history, Feedback(candidate=proposal, outcome="pending", detail="", speedup=None))


def row(
    record: VariantRecord, what: str, number: int, outcome: object, *, seconds: float, phases: Mapping[str, float]
) -> dict[str, Any]:
    """One judgement for the record."""
    eager_us = sum(p.calls * p.eager_us for p in record.points) / sum(p.calls for p in record.points)
    accepted = isinstance(outcome, Scored | Certified)
    return {
        "variant": record.variant.label, "eager_us": eager_us, "what": what, "number": number,
        "outcome": "accepted" if accepted else str(outcome), "seconds": seconds, "phases": dict(phases),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--model", required=True)
    parser.add_argument("--proposals", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    loaded = jobs(options.device)[options.model]()
    with tempfile.TemporaryDirectory(prefix="kernelforge-bench-") as folder:
        path = Path(folder) / "model.kforge"
        capture_calls(
            loaded.calls, model=loaded.name, device=options.device, project=path, shapes="auto", overwrite=False
        )
        rows = []
        for made in judgements(Project.open(path), options.device, options.proposals):
            rows.append(made)
            print(
                f"{made['variant']:30s} {made['what']:12s} {made['seconds']:6.2f} s  {made['outcome'][:60]:12s} ",
                " ".join(f"{k} {v:.2f}" for k, v in made["phases"].items()),
                flush=True,
            )
    write_record(options.out, {"benchmark": "judge_cost", "model": options.model, "rows": rows})
    short = [r for r in rows if r["eager_us"] < SHORT_US]
    for what, chosen in (
        ("first gate of a variant", [r for r in short if r["what"] == "gate" and r["number"] == 0]),
        ("later gates", [r for r in short if r["what"] == "gate" and r["number"] > 0]),
        ("certificates", [r for r in short if r["what"] == "certificate"]),
    ):
        if chosen:
            names = dict.fromkeys(name for r in chosen for name in r["phases"])
            parts = {n: median([r["phases"].get(n, 0.0) for r in chosen]) for n in names}
            print(f"{what}: median {median([r['seconds'] for r in chosen]):.2f} s of {len(chosen)}:",
                  ", ".join(f"{n} {s:.2f}" for n, s in parts.items()))  # fmt: skip


if __name__ == "__main__":
    main()
