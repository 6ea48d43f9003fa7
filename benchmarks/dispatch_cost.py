"""What dispatch adds to a call on the CPU: softmax of a 4x8 float32 tensor, on one pinned core, without and with it.

    python -m benchmarks.dispatch_cost --out benchmarks/results/cpu_dispatch_cost.json

Each case is a pair: the same call on the same tensor, plain and with a package dispatched. Blocks of the two alternate,
and which comes first alternates too, so that what others do on the machine falls on both. The cost is the median of the
differences of the pairs, with its bootstrap interval:

- hit: a kernel serves the call. Its own time is in it, so the cost may be negative.
- shape, dtype: another shape, another dtype; the package refuses, and torch runs.
- grad: the shape that hits, but a gradient is wanted; refused at every call anew.
- other operator: one that no entry is for. It is not replaced, so it costs nothing.

A core that others press on runs all of this in nearly twice the time, plain calls too: look at what a plain call takes
before a cost is compared with a bar or with another record.

Both ways through a call site are measured, each in a process of its own: the compiled one and, with KFORGE_NATIVE=0,
the one in Python. The record says which torch it was; for another version run the same command with the interpreter of
an environment that has it, with PYTHONPATH=src:. in the root of this repository, and another name for the record.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import ROOT, write_record
from benchmarks.unjudged_packages import write_softmax_package
from kernelforge.errors import HarnessError
from kernelforge.settings import load_settings

if TYPE_CHECKING:
    import torch

BARS_US: Mapping[str, float] = {"hit": 0.7, "shape": 0.5, "dtype": 0.5}
"""The most that a case may cost, where there is a bar."""
PATHS: Mapping[str, str] = {"native": "1", "python": "0"}
PAIRS, CALLS, WARM_UP = 101, 2000, 200
RESAMPLES, SEED = 2000, 20240229

Block = Callable[[int], float]
"""Makes so many calls and returns the microseconds of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One case: samples in microseconds per call, the i-th with the i-th a pair; the difference's median and interval.

    Attributes:
        form: how the operator was called.
    """

    form: str
    case: str
    plain_us: tuple[float, ...]
    dispatched_us: tuple[float, ...]
    cost_us: float
    low_us: float
    high_us: float

    @property
    def bar_us(self) -> float | None:
        return BARS_US.get(self.case)

    @property
    def holds(self) -> bool:
        """Whether the bar is kept: the median is not above it."""
        return self.bar_us is None or self.cost_us <= self.bar_us


def cost_of(form: str, case: str, plain_us: list[float], dispatched_us: list[float]) -> Cost:
    """The median of the paired differences and its 95 % bootstrap interval."""
    import numpy as np

    differences = np.asarray(dispatched_us) - np.asarray(plain_us)
    picks = np.random.default_rng(SEED).integers(0, len(differences), size=(RESAMPLES, len(differences)))
    low, high = np.quantile(np.median(differences[picks], axis=1), [0.025, 0.975])
    return Cost(
        form=form, case=case, plain_us=tuple(round(v, 4) for v in plain_us),
        dispatched_us=tuple(round(v, 4) for v in dispatched_us), cost_us=round(float(np.median(differences)), 4),
        low_us=round(float(low), 4), high_us=round(float(high), 4),
    )  # fmt: skip


def measure(pairs: int, calls: int) -> list[Cost]:
    """All cases in this process, by the way through a call site that KFORGE_NATIVE says.

    Raises:
        EnvironmentMissing: no compiler. HarnessError: a case did not do what it is named after.
    """
    import torch

    import kernelforge

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        settings = replace(load_settings(), cache_dir=Path(folder, "cache"))
        package = kernelforge.load(write_softmax_package(Path(folder, "softmax.cast"), [8], settings))
        return [_cost(package, *case, pairs=pairs, calls=calls) for case in _cases(torch)]


def _cases(torch: Any) -> Iterator[tuple[str, str, Block]]:
    inputs = {
        "hit": torch.rand(4, 8),
        "shape": torch.rand(4, 9),
        "dtype": torch.rand(4, 8, dtype=torch.float64),
        "grad": torch.rand(4, 8, requires_grad=True),
    }
    for form, make in _FORMS.items():
        for case, x in inputs.items():
            yield form, case, make(x)
    yield "torch.exp", "other operator", _exp(inputs["hit"])


# A call must look its function up each time, as a model does; so each form is a loop of its own.
def _functional(x: torch.Tensor) -> Block:
    from torch.nn import functional as F

    def block(calls: int) -> float:
        started = time.perf_counter_ns()
        for _ in repeat(None, calls):
            F.softmax(x, -1)
        return (time.perf_counter_ns() - started) / calls / 1e3

    return block


def _function(x: torch.Tensor) -> Block:
    import torch

    def block(calls: int) -> float:
        started = time.perf_counter_ns()
        for _ in repeat(None, calls):
            torch.softmax(x, -1)
        return (time.perf_counter_ns() - started) / calls / 1e3

    return block


def _method(x: torch.Tensor) -> Block:
    def block(calls: int) -> float:
        started = time.perf_counter_ns()
        for _ in repeat(None, calls):
            x.softmax(-1)
        return (time.perf_counter_ns() - started) / calls / 1e3

    return block


def _exp(x: torch.Tensor) -> Block:
    import torch

    def block(calls: int) -> float:
        started = time.perf_counter_ns()
        for _ in repeat(None, calls):
            torch.exp(x)
        return (time.perf_counter_ns() - started) / calls / 1e3

    return block


_FORMS: Mapping[str, Callable[[torch.Tensor], Block]] = {
    "F.softmax": _functional, "torch.softmax": _function, "Tensor.softmax": _method,
}  # fmt: skip


def _cost(package: Any, form: str, case: str, block: Block, *, pairs: int, calls: int) -> Cost:
    """Time the pairs of one case.

    Raises:
        HarnessError: not every dispatched call hit, missed or was left alone, as the case wants.
    """
    ways: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "plain": nullcontext, "dispatched": package.dispatch,
    }  # fmt: skip
    samples: dict[str, list[float]] = {"plain": [], "dispatched": []}
    before = _counts(package)
    gc.collect()
    gc.disable()
    try:
        for way in ways.values():
            with way():
                block(WARM_UP)
        for index in range(pairs):
            for name in ("plain", "dispatched") if index % 2 else ("dispatched", "plain"):
                with ways[name]():
                    samples[name].append(block(calls))
    finally:
        gc.enable()
    hits, misses = (after - b for after, b in zip(_counts(package), before, strict=True))
    made = WARM_UP + pairs * calls
    wanted = {"hit": (made, 0), "other operator": (0, 0)}.get(case, (0, made))
    if (hits, misses) != wanted:
        raise HarnessError(f"{form}, {case}: {hits} hits and {misses} misses where {wanted} were meant")
    return cost_of(form, case, samples["plain"], samples["dispatched"])


def _counts(package: Any) -> tuple[int, int]:
    rows = package.stats()
    return sum(row.hits for row in rows), sum(sum(row.misses.values()) for row in rows)


def measure_apart(path: str, pairs: int, calls: int) -> list[Cost]:
    """`measure` in a fresh process on one core, by one of PATHS.

    Raises:
        HarnessError: the process failed.
    """
    core = str(max(os.sched_getaffinity(0)))
    command = [
        sys.executable, "-m", "benchmarks.dispatch_cost", "--only-measure", core, "--pairs", str(pairs),
        "--calls", str(calls),
    ]  # fmt: skip
    environment = {**os.environ, "KFORGE_NATIVE": PATHS[path]}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HarnessError(f"the process that measures failed:\n{done.stderr}")
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return [cost_of(r["form"], r["case"], r["plain_us"], r["dispatched_us"]) for r in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the record")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--calls", type=int, default=CALLS, help="in one block")
    parser.add_argument("--only-measure", type=int, metavar="CORE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only_measure is not None:
        os.sched_setaffinity(0, {options.only_measure})
        print(json.dumps([asdict(cost) for cost in measure(options.pairs, options.calls)]))
        return
    found = {path: measure_apart(path, options.pairs, options.calls) for path in PATHS}
    for path, costs in found.items():
        for cost in costs:
            bar = "" if cost.bar_us is None else f"  bar {cost.bar_us:+.2f}: {'holds' if cost.holds else 'MISSED'}"
            plain = sorted(cost.plain_us)[len(cost.plain_us) // 2]
            print(
                f"{path:7} {cost.form:15} {cost.case:15} plain {plain:6.3f} us, dispatch {cost.cost_us:+.3f} "
                f"[{cost.low_us:+.3f}, {cost.high_us:+.3f}]{bar}"
            )
        print(f"{path}: {'all bars hold' if all(cost.holds for cost in costs) else 'not all bars hold'}")
    if options.out:
        rows = {path: [asdict(cost) for cost in costs] for path, costs in found.items()}
        write_record(options.out, {"benchmark": "dispatch_cost", "bars_us": dict(BARS_US), "paths": rows})


if __name__ == "__main__":
    main()
