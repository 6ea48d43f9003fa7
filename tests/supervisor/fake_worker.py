"""The process of a run with a generator, a compiler and a judge that do nothing, fast: `fake_worker.py FOLDER WORKER`.

Everything else is real: the project, its orders, the loop, the run's folder. `FAKE_JUDGE_S` is what a trial takes,
`FAKE_CHILD=1` lets the judge start a process of another group, `FAKE_ERROR` lets the search fail, `FAKE_BROKEN_AT` the
generator at that number. `FAKE_USD` is what a proposal costs, with a hundred tokens for each dollar; "unknown" untold.
`FAKE_MODEL` is a language model to ask in place of the generator, as "PROVIDER/MODEL" of the environment's settings.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernelforge.audit.types import AuditKind, AuditLabel
from kernelforge.benchmark.types import Interval, Measurement
from kernelforge.build.types import Artifact, BuildFailure
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import Variant, VariantRecord
from kernelforge.digest import digest_bytes
from kernelforge.errors import EnvironmentMissing
from kernelforge.evaluate.types import Outcome, Scored, Trial
from kernelforge.generate.types import Candidate, Exhausted, Generator, Repairing, Request
from kernelforge.proposing import open_generator
from kernelforge.search.events import Event
from kernelforge.search.loop import SearchOptions, run_search
from kernelforge.search.scheduler import Policy
from kernelforge.search.types import Budget, SearchSummary
from kernelforge.settings import load_settings
from kernelforge.store.project import Project
from kernelforge.supervisor.folder import RunFolder
from kernelforge.supervisor.types import Run
from kernelforge.supervisor.worker import work
from kernelforge.verify.types import Accepted, ErrorStatistics, Rejected, RejectReason

JUDGE_S = float(os.environ.get("FAKE_JUDGE_S", "0.02"))


class CountingGenerator:
    """The sources k_ 0, k_ 1, ... of a variant."""

    name = "counting"

    def propose(self, request: Request) -> Candidate | Exhausted:
        tried = {f.candidate.source for f in request.history}
        number = next(i for i in range(1_000_000) if f"k_ {i}" not in tried)
        if os.environ.get("FAKE_BROKEN_AT") == str(number):
            raise EnvironmentMissing("the model is away", hint="wait")
        told = os.environ.get("FAKE_USD", "0")
        usd = None if told == "unknown" else float(told)
        tokens = None if usd is None else int(100 * usd)
        return Candidate(
            variant_id=request.variant.id, source=f"k_ {number}", backend="cpp", generator=self.name,
            parent=request.parent.id if request.parent else "", tokens_in=tokens, tokens_out=0,
            cost_usd=usd,
        )  # fmt: skip


@dataclass
class FakeBackend:
    """Makes a binary of the source's own text."""

    folder: Path
    name: str = "cpp"

    def brief(self) -> str:
        return "a compiler"

    def build(self, candidate: Candidate, variant: Variant, *, timeout_s: float = 120.0) -> Artifact | BuildFailure:
        text = f"{variant.id} {candidate.source}".encode()
        path = self.folder / f"{candidate.id}.so"
        path.write_bytes(text)
        return Artifact(
            digest=digest_bytes(text), path=path, backend="cpp", target="t", compiler="c", flags=(), seconds=0.0, log=""
        )  # fmt: skip


@dataclass(frozen=True)
class FakeJudge:
    """Accepts every second source; writes down what it was given."""

    project: Path

    def evaluate(
        self, candidate: Candidate, record: VariantRecord, examples: ExampleStore,
        *, built: Artifact | BuildFailure | None = None,
    ) -> Trial:  # fmt: skip
        with (self.project / "judged.txt").open("a") as file:
            file.write(f"{record.variant.id} {candidate.source}\n")
        if os.environ.get("FAKE_CHILD"):
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            (self.project / "child.txt").write_text(str(child.pid))
        started = time.time()
        time.sleep(JUDGE_S)
        (number,) = map(int, re.findall(r"k_ (\d+)", candidate.source))
        assert isinstance(built, Artifact)
        return Trial(candidate=candidate, outcome=outcome(number, built), started=started, seconds=JUDGE_S)


def outcome(number: int, artifact: Artifact) -> Outcome:
    if number % 2:
        return Rejected(reason=RejectReason.WRONG_VALUE, case="c", detail="out[0]", worst_abs=1.0)
    speedup = Interval(median=1.5, low=1.4, high=1.6)
    return Scored(
        verdict=Accepted(
            cases=1, worst=ErrorStatistics(max_abs=0.0, rms=0.0, eager_max_abs=0.0, eager_rms=0.0), bitwise=True
        ),
        measurement=Measurement(
            points=(), speedup=speedup, eager_us=10.0, candidate_us=6.7, floor_us=0.0, environment={}
        ),
        audit=AuditLabel(kind=AuditKind.GENERATED, evidence=()), artifact=artifact,
    )  # fmt: skip


def generator_of(project: Project, run: Run, worker: int) -> tuple[Generator, Repairing | None]:
    """As the real worker's."""
    model = os.environ.get("FAKE_MODEL")
    if not model:
        return CountingGenerator(), None
    share, name = run.share(worker), f"{run.id}/{worker}"
    return open_generator(f"llm:{model}", project, share, run=name, settings=load_settings())


def main() -> None:
    sys.stdin.buffer.read()
    folder = RunFolder(Path(sys.argv[1]))
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))

    def search(
        run: Run, budget: Budget, *, on_event: Callable[[Event | str], None], should_stop: Callable[[], bool],
        should_pause: Callable[[], bool],
    ) -> SearchSummary:  # fmt: skip
        if error := os.environ.get("FAKE_ERROR"):
            raise EnvironmentMissing(error, hint="install it")
        project = Project.open(folder.project)
        generator, repairing = generator_of(project, run, int(sys.argv[2]))
        with tempfile.TemporaryDirectory() as scratch:
            return run_search(
                project, generator, FakeBackend(Path(scratch)), FakeJudge(folder.project), budget,
                variants=[r for card in project.cards() for r in card.variants], prelude=lambda _: "",
                on_event=on_event, should_stop=should_stop,
                options=SearchOptions(
                    policy=Policy(patience=None, min_gain=0.0), build_threads=1, should_pause=should_pause,
                    repairing=repairing, propose_threads=3 if repairing else 0,
                ),
            )  # fmt: skip

    work(folder, int(sys.argv[2]), search, should_stop=lambda: bool(asked))


if __name__ == "__main__":
    main()
