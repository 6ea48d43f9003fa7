"""A soak of the judge: many candidates in a row, some of them hostile. None may be lost, and no verdict change.

    python -m benchmarks.soak --candidates 1000 --out FILE.json [--device cuda] [--hostile 0.2] [--seed N]

The audit of the binary, which would turn the hostile ones away before they run, is left out: what is tried is the fence
around a running candidate. Stops and resumes: rows are appended to FILE.json.log, and a run with the same arguments
goes on where the last one ended.
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
from typing import Any, Literal, TypeAlias
from unittest.mock import patch

import psutil

from benchmarks.harness import write_record
from kernelforge.audit.types import AuditKind, AuditLabel
from kernelforge.benchmark.protocol import Protocol
from kernelforge.build.backends import get_backend
from kernelforge.capture.facts import capability_of
from kernelforge.capture.types import TensorRef
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import Extent, SizePoint, TensorPattern, Variant, VariantRecord
from kernelforge.evaluate.judge import Judge
from kernelforge.evaluate.types import Scored
from kernelforge.executors.types import Limits
from kernelforge.generate.types import Candidate
from kernelforge.settings import load_settings
from kernelforge.verify.types import Rejected

Device: TypeAlias = Literal["cpu", "cuda"]

WALL_S = 2.0
"""Limit of one request to a candidate; a hang must be over within 5 s of it."""
MEMORY_BYTES: Mapping[Device, int] = {"cpu": 512 << 20, "cuda": 2 << 30}

SYSCALL = """
static inline long call(long n, long a, long b, long c, long d = 0, long e = 0, long f = 0) {
  long r;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  __asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return r;
}
"""
HEAD = (
    SYSCALL
    + """
extern "C" int launch(const float* input, float* out, void* workspace) {
  (void)workspace;
"""
)
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

CUDA_KERNELS = """
__global__ void plain(const float* x, float* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < 4000) y[i] = x[i] < 0 ? 0.0f : x[i];
}
__global__ void backwards(const float* x, float* y) {
  const int i = 3999 - int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= 0) y[i] = x[i] < 0 ? 0.0f : x[i];
}
__global__ void row(const float* x, float* y) {
  for (int i = threadIdx.x; i < 1000; i += blockDim.x) {
    const float value = x[blockIdx.x * 1000 + i];
    y[blockIdx.x * 1000 + i] = value < 0 ? 0.0f : value;
  }
}
__global__ void half_of_it(const float* x, float* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < 2000) y[i] = x[i] < 0 ? 0.0f : x[i];
}
__global__ void absolute(const float* x, float* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < 4000) y[i] = x[i] < 0 ? -x[i] : x[i];
}
__global__ void endless(float* y) {
  for (;;) *(volatile float*)y = 1.0f;
}
__global__ void wild(float* y) { y[int64_t{1} << 40] = 1.0f; }
"""
CUDA_HEAD = (
    SYSCALL
    + CUDA_KERNELS
    + """
extern "C" int launch(const float* input, float* out, void* workspace, cudaStream_t stream) {
  (void)workspace;
"""
)
CUDA_LOOP = "  plain<<<16, 256, 0, stream>>>(input, out);\n"
CUDA_END = "  return cudaGetLastError();\n}\n"
CUDA_HONEST: Mapping[str, str] = {
    "plain": CUDA_LOOP,
    "backwards": "  backwards<<<16, 256, 0, stream>>>(input, out);\n",
    "by rows": "  row<<<4, 128, 0, stream>>>(input, out);\n",
}
CUDA_WRONG: Mapping[str, tuple[str, set[str]]] = {
    "half of it": ("  half_of_it<<<16, 256, 0, stream>>>(input, out);\n", {"wrong_value"}),
    "absolute": ("  absolute<<<16, 256, 0, stream>>>(input, out);\n", {"wrong_value"}),
}
# What a candidate does on the host it can do with a kernel beside it too; three rows are of the device alone.
CUDA_HOSTILE: Mapping[str, tuple[str, set[str]]] = {
    **{name: (body.replace(LOOP, CUDA_LOOP), outcomes) for name, (body, outcomes) in HOSTILE.items()
       if name != "an illegal write"},
    "an endless kernel": ("  endless<<<1, 1, 0, stream>>>(out);\n", {"timeout"}),
    "an illegal write": ("  wild<<<1, 1, 0, stream>>>(out);\n" + CUDA_LOOP, {"crash", "launch_error"}),
    "all device memory": (
        "  for (void* p; cudaMalloc(&p, size_t{1} << 30) == cudaSuccess;) {}\n" + CUDA_LOOP,
        {"launch_error", "oom", "timeout"}),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What a device's candidates are made of: the code around a body, and the bodies by name."""

    head: str
    end: str
    honest: Mapping[str, str]
    wrong: Mapping[str, tuple[str, set[str]]]
    hostile: Mapping[str, tuple[str, set[str]]]


SOURCES: Mapping[Device, Sources] = {
    "cpu": Sources(head=HEAD, end=END, honest=HONEST, wrong=WRONG, hostile=HOSTILE),
    "cuda": Sources(
        head=CUDA_HEAD, end=CUDA_END, honest=CUDA_HONEST, wrong=CUDA_WRONG, hostile=CUDA_HOSTILE
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One judgement: which source, what came out, how long it took, and the judge's resident memory after it."""

    name: str
    got: str
    right: bool
    seconds: float
    rss_bytes: int


def source_of(name: str, device: Device = "cpu") -> tuple[str, set[str]]:
    """A source by its name, and the outcomes that are right for it."""
    of = SOURCES[device]
    if name in of.honest:
        return of.head + of.honest[name] + of.end, {"accepted"}
    body, outcomes = {**of.wrong, **of.hostile}[name]
    return of.head + body + of.end, outcomes


def plan(candidates: int, hostile: float, seed: int, device: Device = "cpu") -> list[str]:
    """The names in the order in which they are judged; the same arguments give the same order."""
    of = SOURCES[device]
    generator = random.Random(seed)
    bad = round(candidates * hostile)
    names = [list(of.hostile)[i % len(of.hostile)] for i in range(bad)]
    good = [*of.honest, *of.honest, *of.wrong]
    names += [good[i % len(good)] for i in range(candidates - bad)]
    generator.shuffle(names)
    return names


def relu_record(device: Device = "cpu") -> VariantRecord:
    """relu of [4, 1000]."""
    pattern = TensorPattern(shape=(Extent(4), Extent(1000)), stride=(Extent(1000), Extent(1)), dtype="float32")
    variant = Variant(
        operator="relu", arguments=(("input", TensorRef(0)), ("inplace", False)), tensors=(pattern,),
        outputs=(pattern,), device=device, capability=capability_of(device),
    )  # fmt: skip
    point = SizePoint(dims={}, scalars={}, calls=1, eager_us=10.0)
    return VariantRecord(variant=variant, points=(point,), share=1.0)


def soak(names: list[str], folder: Path, device: Device = "cpu") -> Iterator[Row]:
    """Judge the named sources in order, all by one judge."""
    settings = load_settings()
    record, examples, process = relu_record(device), ExampleStore(folder), psutil.Process()
    unaudited = AuditLabel(kind=AuditKind.GENERATED, evidence=())
    limits = Limits(wall_s=WALL_S, memory_bytes=MEMORY_BYTES[device])
    language: Literal["cpp", "cuda"] = "cuda" if device == "cuda" else "cpp"
    protocol, backend = Protocol(budget_s=0.05, min_pairs=2, busy_share=1.0), get_backend(language, settings)
    with (
        patch("kernelforge.evaluate.judge.audit_binary", lambda path, *, device: unaudited),  # noqa: ARG005
        Judge(settings, device=device, backend=backend, threads=1, protocol=protocol, limits=limits) as judge,
    ):
        for name in names:
            source, outcomes = source_of(name, device)
            candidate = Candidate(variant_id=record.variant.id, source=source, backend=language, generator="soak")
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
    hangs = [r.seconds for r in rows if r.name in ("hang", "an endless kernel")]
    # The first tenth warms up: caches of torch and of the workbench.
    settled = rows[len(rows) // 10].rss_bytes
    return {
        "candidates": len(rows), "wrong": sum(not r.right for r in rows), "outcomes": by_name,
        "slowest_hang_s": max(hangs, default=0.0), "rss_growth_bytes": rows[-1].rss_bytes - settled,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, default=1000)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--hostile", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    names = plan(options.candidates, options.hostile, options.seed, options.device)
    log = options.out.with_suffix(".json.log")
    rows = [Row(**json.loads(line)) for line in log.read_text().splitlines()] if log.exists() else []
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, log.open("a") as stream:
        before = len(rows)
        for row in soak(names[before:], Path(folder), options.device):
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
        options.out,
        {
            "benchmark": "soak",
            "device": options.device,
            **result,
            "rows": [[r.name, r.got, round(r.seconds, 3)] for r in rows],
        },
    )
    log.unlink()
    for name, counts in sorted(result["outcomes"].items()):
        print(f"{name:22s} {dict(counts)}")
    print({k: v for k, v in result.items() if k != "outcomes"})
    return 1 if result["wrong"] or result["children_left"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
