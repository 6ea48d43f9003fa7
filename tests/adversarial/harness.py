"""Runs rows of the suite through the judge: once in the tests, many times as a program.

    python -m tests.adversarial.harness --repeats 100 --log adversarial.jsonl

The log gets one line a judgement and is continued: what it holds for the same source and the same judge is not run
again. The exit status is 1 if a row was ever accepted or got a wrong type, or a control was ever rejected.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Literal, Self
from unittest.mock import patch

from benchmarks.harness import write_record
from tests.adversarial.rows import ACCEPTED, CPU_ROWS, CUDA_ROWS, Row
from tests.adversarial.variants import records

import kernelforge
from kernelforge.audit.types import AuditKind, AuditLabel
from kernelforge.benchmark.protocol import Protocol
from kernelforge.build.abi import _CPP_HEADERS as CPP_HEADERS
from kernelforge.build.backends import get_backend
from kernelforge.build.backends.cpp import CppBackend
from kernelforge.build.types import Artifact, Backend, BuildFailure
from kernelforge.cards.examples import ExampleStore
from kernelforge.digest import digest, digest_bytes
from kernelforge.evaluate.judge import Judge
from kernelforge.evaluate.types import Outcome, Scored, WorkerFailure
from kernelforge.executors.types import Limits
from kernelforge.generate.types import Candidate
from kernelforge.settings import Settings, load_settings
from kernelforge.verify.types import Rejected

START_WALL_S = 3.0
LIMITS = Limits(wall_s=30.0, memory_bytes=256 << 20)
SHORT_LIMITS = replace(LIMITS, wall_s=2.0)
"""Of rows that hang. On a busy machine an honest kernel with threads may need seconds for a block of calls."""
ATTEMPTS = 5
"""How often a row is judged again after a fault of the judge or the machine, which is nobody's verdict."""
PROTOCOL = Protocol(budget_s=0.05, block_s=0.002, min_pairs=2, settle_s=0.0, quiet_timeout_s=0.1, wide=1e9)
LABEL = AuditLabel(kind=AuditKind.GENERATED, evidence=())


def cached_settings(folder: Path) -> Settings:
    """The environment's settings with another cache folder."""
    return replace(load_settings(), cache_dir=folder)


class Arena:
    """One judge, one build of each source. Builds run ahead in two threads.

    Args:
        folder: of the build cache, kept between runs.
    """

    def __init__(self, folder: Path, rows: Sequence[Row], *, device: Literal["cpu", "cuda"] = "cpu") -> None:
        self._settings = cached_settings(folder)
        self._backend = get_backend("cpp" if device == "cpu" else "cuda", self._settings)
        self._records, self._device = records(device), device
        self._headers = patch.dict(os.environ, _precompiled_headers(self._backend, folder))
        self._headers.start()
        self._pool = ThreadPoolExecutor(2)
        self._builds = {row.name: self._pool.submit(self._build, row) for row in rows}
        self._scratch = TemporaryDirectory()
        self._examples = ExampleStore(Path(self._scratch.name))
        self._judge = Judge(
            self._settings, device=device, backend=self._backend, threads=2, protocol=PROTOCOL, limits=LIMITS
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._headers.stop()
        self._judge.close()
        self._scratch.cleanup()

    def judge(self, row: Row) -> Outcome:
        """Judge a row once; again if the judge could not."""
        outcome = self._judge_once(row)
        for _ in range(ATTEMPTS - 1):
            if not isinstance(outcome, WorkerFailure):
                break
            outcome = self._judge_once(row)
        return outcome

    def _judge_once(self, row: Row) -> Outcome:
        limits = patch.object(self._judge, "_limits", SHORT_LIMITS if row.process else LIMITS)
        built: Future[Artifact | BuildFailure] = self._builds[row.name]
        skip = nullcontext() if row.audited else patch("kernelforge.evaluate.judge.audit_binary", _no_audit)
        with patch("kernelforge.runner.session.START_WALL_S", START_WALL_S), skip, limits:
            return self._judge.evaluate(
                self._candidate(row), self._records[row.variant], self._examples, built=built.result()
            ).outcome

    def certify(self, row: Row) -> object:
        """The certificate of a row that builds."""
        built = self._builds[row.name].result()
        assert isinstance(built, Artifact), built
        return self._judge.certify(built, self._records[row.variant], self._examples, calls=300)

    def _build(self, row: Row) -> Artifact | BuildFailure:
        return self._backend.build(self._candidate(row), self._records[row.variant].variant)

    def _candidate(self, row: Row) -> Candidate:
        variant_id = self._records[row.variant].variant.id
        return Candidate(
            variant_id=variant_id, source=row.path.read_text(), backend=self._backend.name, generator="manual"
        )


def _precompiled_headers(backend: Backend, folder: Path) -> dict[str, str]:
    """Environment in which g++ finds the prelude's headers precompiled: the same binaries in half of the time.

    g++ looks for `<header>.gch` wherever it looks for the first header of a source, and ignores one that was made with
    other flags.
    """
    if not isinstance(backend, CppBackend) or "g++" not in backend.toolchain.compiler.name:
        return {}
    first, *_ = headers = [f"#include <{h}>" for h in (*CPP_HEADERS, "immintrin.h")]
    compile_flags = backend.toolchain.commands[0]
    flags = compile_flags[: compile_flags.index("-isystem")]
    target = folder / "headers" / digest([backend.toolchain.version, *flags])[:16]
    made = target / f"{first.removeprefix('#include <').rstrip('>')}.gch"
    if not made.exists():
        target.mkdir(parents=True, exist_ok=True)
        source, partial = target / "all.hpp", target / f"{os.getpid()}.partial"
        source.write_text("\n".join(headers) + "\n")
        command = [str(backend.toolchain.compiler), *flags, "-x", "c++-header", str(source), "-o", str(partial)]
        subprocess.run(command, check=True, timeout=120)
        partial.replace(made)
    return {"CPLUS_INCLUDE_PATH": str(target)}


def _no_audit(path: Path, *, device: str) -> AuditLabel:
    return LABEL


def verdict_of(outcome: Outcome) -> str:
    """An outcome in one word: "accepted", a `RejectReason`, "build_failure" or "worker_failure"."""
    if isinstance(outcome, Scored):
        return ACCEPTED
    if isinstance(outcome, Rejected):
        return str(outcome.reason)
    return "build_failure" if isinstance(outcome, BuildFailure) else "worker_failure"


def detail_of(outcome: Outcome) -> str:
    """The sentence that goes with a verdict."""
    if isinstance(outcome, Scored):
        return f"{outcome.verdict.cases} cases"
    return f"{outcome.case}: {outcome.detail}" if isinstance(outcome, Rejected) else outcome.detail


DECIDES = ("audit", "benchmark", "build", "capture", "cards", "evaluate", "executors", "operators", "runner", "verify")
"""The parts of the package that the judge is made of: it imports nothing else."""


def judge_digest() -> str:
    """What decides verdicts: every source that the judge is made of."""
    root = Path(kernelforge.__file__).parent
    files = sorted(p for part in DECIDES for p in (root / part).rglob("*") if p.suffix in (".py", ".c"))
    return digest([digest_bytes(p.read_bytes()) for p in files])[:16]


class Log:
    """A JSON-lines file of judgements, one a line."""

    def __init__(self, path: Path) -> None:
        self._path, self.judge = path, judge_digest()
        self.verdicts: dict[str, Counter[str]] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            entry = json.loads(line)
            if entry["judge"] == self.judge:
                self.verdicts.setdefault(entry["key"], Counter())[str(entry["verdict"])] += 1

    def key(self, row: Row) -> str:
        return digest([row.name, row.device, row.variant, row.audited, row.path.read_text()])[:16]

    def of(self, row: Row) -> Counter[str]:
        return self.verdicts.setdefault(self.key(row), Counter())

    def add(self, row: Row, outcome: Outcome, seconds: float) -> None:
        verdict = verdict_of(outcome)
        entry = {
            "row": row.name, "key": self.key(row), "judge": self.judge, "verdict": verdict,
            "seconds": round(seconds, 3), "detail": detail_of(outcome)[:300],
        }  # fmt: skip
        self.of(row)[verdict] += 1
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


MOST_UNJUDGED = 200
"""Judgements that may fail on the judge's own account before one counts as wrong."""


def wrong(row: Row, counts: Mapping[str, int]) -> bool:
    """Whether a row got anything that it must not get; an open row is wrong when it is right."""
    bad = any(verdict not in row.verdicts for verdict in counts)
    return bad if not row.open else bool(counts) and not bad


def table(rows: Iterable[Row], log: Log) -> Iterator[str]:
    """One line a row: what it must get, and how often it got what."""
    for row in rows:
        counts = log.of(row)
        got = ", ".join(f"{v} {n}" for v, n in counts.most_common())
        mark = "WRONG" if wrong(row, counts) else "open " if row.open else "ok   "
        yield f"{mark} {row.name:36} {row.variant:18} {'|'.join(row.verdicts):32} {got}"


@contextmanager
def _arena(folder: Path, rows: Sequence[Row]) -> Iterator[Arena | None]:
    if not rows:
        yield None
        return
    with Arena(folder, rows, device="cuda" if rows[0].device == "cuda" else "cpu") as arena:
        yield arena


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every row until it has as many judgements as asked for; 0 if all are as they must be."""
    parser = argparse.ArgumentParser(description="judge every source of the adversarial suite many times")
    parser.add_argument("--repeats", type=int, default=100, help="of ordinary rows; a tenth of it of slow ones")
    parser.add_argument("--log", type=Path, default=Path("build/adversarial.jsonl"))
    parser.add_argument("--cache", type=Path, default=Path("build/adversarial"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", default="", help="rows whose names begin so")
    parser.add_argument("--record", type=Path, help="also write what each row got as a benchmark's record")
    options = parser.parse_args(arguments)
    every = CPU_ROWS if options.device == "cpu" else CUDA_ROWS
    rows = [r for r in every if r.name.startswith(options.only)]
    options.log.parent.mkdir(parents=True, exist_ok=True)
    log = Log(options.log)
    wanted = {r.name: max(options.repeats // 10, 1) if r.process else options.repeats for r in rows}
    todo = [r for r in rows if sum(log.of(r).values()) < wanted[r.name]]
    unjudged = 0
    with _arena(options.cache, todo) as arena:
        for row in todo:
            while arena is not None and sum(log.of(row).values()) < wanted[row.name]:
                started = time.monotonic()
                outcome = arena.judge(row)
                if verdict_of(outcome) == "worker_failure" and (unjudged := unjudged + 1) <= MOST_UNJUDGED:
                    continue  # no verdict: others kept the machine too busy to time anything
                log.add(row, outcome, time.monotonic() - started)
            print(next(iter(table([row], log))), flush=True)
    print("\n".join(table(rows, log)))
    failed = [r for r in rows if wrong(r, log.of(r))]
    if options.record is not None:
        every_row = [
            {"row": r.name, "variant": r.variant, "must_get": r.verdicts, "open": r.open, "got": log.of(r)}
            for r in rows
        ]  # fmt: skip
        write_record(
            options.record,
            {"benchmark": "adversarial", "device": options.device, "judge": log.judge, "rows": every_row},
        )
    if unjudged:
        print(f"{unjudged} more could not be judged")
    print(f"{len(rows)} rows, {sum(sum(log.of(r).values()) for r in rows)} judgements, {len(failed)} rows wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
