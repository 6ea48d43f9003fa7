"""A soak of the judge: many candidates in a row, some of them hostile. None may be lost, and no verdict change.

    python -m benchmarks.soak --candidates 1000 --out FILE.json [--hostile 0.2] [--seed N]

The audit of the binary, which would turn the hostile ones away before they run, is left out: what is tried is the fence
around a running candidate. Stops and resumes: rows are
appended to FILE.json.log, and a run with the same arguments goes on where the last one ended.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil

from benchmarks.harness import write_record
from kernelforge.audit.types import AuditKind, AuditLabel
from kernelforge.benchmark.protocol import Protocol
from kernelforge.build.backends import get_backend
from kernelforge.capture.types import TensorRef
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import Extent, SizePoint, TensorPattern, Variant, VariantRecord
from kernelforge.evaluate.judge import Judge
from kernelforge.evaluate.types import Scored
from kernelforge.executors.types import Limits
from kernelforge.generate.types import Candidate
from kernelforge.settings import load_settings
from kernelforge.verify.types import Rejected

WALL_S = 2.0
"""Limit of one request to a candidate; a hang must be over within 5 s of it."""
MEMORY_BYTES = 512 << 20

HEAD = """
static inline long call(long n, long a, long b, long c, long d = 0, long e = 0, long f = 0) {
  long r;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  __asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return r;
}
extern "C" int launch(const float* input, float* out, void* workspace) {
  (void)workspace;
"""
LOOP = "  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];\n"
END = "  return 0;\n}\n"

HONEST: Mapping[str, str] = {
    "plain": LOOP,
    "backwards": "  for (int64_t i = 3999; i >= 0; --i) out[i] = input[i] < 0 ? 0.0f : input[i];\n",
    "by rows": "  for (int64_t r = 0; r < 4; ++r) for (int64_t i = 0; i < 1000; ++i) {\n"
    "    const float x = input[r * 1000 + i]; out[r * 1000 + i] = x < 0 ? 0.0f : x; }\n",
}
WRONG: Mapping[str, tuple[str, set[str]]] = {
    "half of it": (LOOP.replace("4000", "2000"), {"wrong_value"}),
    "absolute": (LOOP.replace("0.0f : input[i]", "-input[i] : input[i]"), {"wrong_value"}),
}
HOSTILE: Mapping[str, tuple[str, set[str]]] = {
    "hang": ("  for (volatile long i = 0;; ++i) {}\n", {"timeout"}),
    "segfault": ("  *reinterpret_cast<volatile int*>(8) = 1;\n", {"crash"}),
    "exit(0)": ("  call(231, 0, 0, 0);\n", {"crash"}),
    "fork": ("  for (int i = 0; i < 4; ++i) if (call(57, 0, 0, 0) == 0) for (;;) call(34, 0, 0, 0);\n" + LOOP,
             {"accepted", "tamper"}),
    "a gigabyte of output": (
        "  static const char text[4096] = {'x'};\n  for (int i = 0; i < 262144; ++i) call(1, 1, (long)text, 4096);\n"
        + LOOP, {"accepted", "timeout"}),
    "out of memory": (
        "  for (long n = 0;; ++n) {\n    char* p = (char*)call(9, 0, 64 << 20, 3, 0x22, -1, 0);\n"
        "    if ((long)p < 0 && (long)p > -4096) break;\n"
        "    for (long i = 0; i < 64 << 20; i += 4096) p[i] = 1;\n  }\n",
        {"oom", "timeout"}),  # whichever limit it meets first on a busy machine
    "an illegal write": ("  out[1 << 26] = 1.0f;\n" + LOOP, {"crash", "oob"}),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One judgement: which source, what came out, how long it took, and the judge's resident memory after it."""

    name: str
    got: str
    right: bool
    seconds: float
    rss_bytes: int


def source_of(name: str) -> tuple[str, set[str]]:
    """A source by its name, and the outcomes that are right for it."""
    if name in HONEST:
        return HEAD + HONEST[name] + END, {"accepted"}
    body, outcomes = {**WRONG, **HOSTILE}[name]
    return HEAD + body + END, outcomes


def plan(candidates: int, hostile: float, seed: int) -> list[str]:
    """The names in the order in which they are judged; the same arguments give the same order."""
    generator = random.Random(seed)
    bad = round(candidates * hostile)
    names = [list(HOSTILE)[i % len(HOSTILE)] for i in range(bad)]
    good = [*HONEST, *HONEST, *WRONG]
    names += [good[i % len(good)] for i in range(candidates - bad)]
    generator.shuffle(names)
    return names


def relu_record() -> VariantRecord:
    """relu of [4, 1000]."""
    pattern = TensorPattern(shape=(Extent(4), Extent(1000)), stride=(Extent(1000), Extent(1)), dtype="float32")
    variant = Variant(
        operator="relu", arguments=(("input", TensorRef(0)), ("inplace", False)), tensors=(pattern,), outputs=(pattern,)
    )
    point = SizePoint(dims={}, scalars={}, calls=1, eager_us=10.0)
    return VariantRecord(variant=variant, points=(point,), share=1.0)


def soak(names: list[str], folder: Path) -> Iterator[Row]:
    """Judge the named sources in order, all by one judge."""
    settings = load_settings()
    record, examples, process = relu_record(), ExampleStore(folder), psutil.Process()
    unaudited = AuditLabel(kind=AuditKind.GENERATED, evidence=())
    limits = Limits(wall_s=WALL_S, memory_bytes=MEMORY_BYTES)
    protocol, backend = Protocol(budget_s=0.05, min_pairs=2, busy_share=1.0), get_backend("cpp", settings)
    with (
        patch("kernelforge.evaluate.judge.audit_binary", lambda path, *, device: unaudited),  # noqa: ARG005
        Judge(settings, device="cpu", backend=backend, threads=1, protocol=protocol, limits=limits) as judge,
    ):
        for name in names:
            source, outcomes = source_of(name)
            candidate = Candidate(variant_id=record.variant.id, source=source, backend="cpp", generator="soak")
            started = time.monotonic()
            outcome = judge.evaluate(candidate, record, examples).outcome
            seconds = time.monotonic() - started
            if isinstance(outcome, Scored):
                got = "accepted"
            elif isinstance(outcome, Rejected):
                got = outcome.reason.value
            else:
                got = f"{type(outcome).__name__}: {outcome.detail}"
            rss = process.memory_info().rss
            yield Row(name=name, got=got, right=got in outcomes, seconds=seconds, rss_bytes=rss)


def summary(rows: list[Row]) -> dict[str, Any]:
    """Counts of outcomes by source, what went wrong, the slowest hang, and how the judge's memory moved."""
    by_name: dict[str, Counter[str]] = {}
    for row in rows:
        by_name.setdefault(row.name, Counter())[row.got] += 1
    hangs = [r.seconds for r in rows if r.name == "hang"]
    # The first tenth warms up: caches of torch and of the workbench.
    settled = rows[len(rows) // 10].rss_bytes
    return {
        "candidates": len(rows), "wrong": sum(not r.right for r in rows), "outcomes": by_name,
        "slowest_hang_s": max(hangs, default=0.0), "rss_growth_bytes": rows[-1].rss_bytes - settled,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, default=1000)
    parser.add_argument("--hostile", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    names = plan(options.candidates, options.hostile, options.seed)
    log = options.out.with_suffix(".json.log")
    rows = [Row(**json.loads(line)) for line in log.read_text().splitlines()] if log.exists() else []
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, log.open("a") as stream:
        before = len(rows)
        for row in soak(names[before:], Path(folder)):
            rows.append(row)
            fields = {
                "name": row.name,
                "got": row.got,
                "right": row.right,
                "seconds": row.seconds,
                "rss_bytes": row.rss_bytes,
            }
            stream.write(json.dumps(fields) + "\n")
            stream.flush()
            if len(rows) % 50 == 0:
                left = (time.monotonic() - started) / (len(rows) - before) * (len(names) - len(rows))
                print(
                    f"{len(rows)} of {len(names)}, {left:.0f} s left, {sum(not r.right for r in rows)} wrong",
                    flush=True,
                )
    result = {**summary(rows), "children_left": len(psutil.Process().children(recursive=True))}
    write_record(
        options.out, {"benchmark": "soak", **result, "rows": [[r.name, r.got, round(r.seconds, 3)] for r in rows]}
    )
    log.unlink()
    for name, counts in sorted(result["outcomes"].items()):
        print(f"{name:22s} {dict(counts)}")
    print({k: v for k, v in result.items() if k != "outcomes"})
    return 1 if result["wrong"] or result["children_left"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
