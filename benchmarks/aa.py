"""A/A: eager against eager, through the very code that decides whether a kernel is faster. How often does it say so?

    python -m benchmarks.aa --comparisons 500 --out FILE.json [--device cuda]

Two protocols are tried: the judge's (two processes of eager in place of eager and a runner), and the export's (calls
from Python, repeated and in flow, with nothing dispatched). A comparison is a false win if its decision would be "use".
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Container, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.harness import write_record
from kernelforge.benchmark.machine import machine_facts
from kernelforge.benchmark.protocol import Protocol, measure
from kernelforge.capture.facts import capability_of
from kernelforge.capture.types import TensorRef
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import Extent, SizePoint, TensorPattern, Variant, VariantRecord
from kernelforge.certification import DispatchTiming, _time_point
from kernelforge.errors import HarnessError
from kernelforge.evaluate.judge import single_threaded
from kernelforge.evaluate.workbench import Workbench
from kernelforge.runner.eager import EagerWorker
from kernelforge.runner.protocol import BufferSet, LoadReply, RunReply, TimeReply
from kernelforge.search.lineage import MIN_SPEEDUP_LOW
from kernelforge.settings import load_settings
from kernelforge.verify.prepare import EagerBaseline, named_values
from kernelforge.verify.types import Rejected

BUDGET_S = 0.25


class EagerAsCandidate:
    """A second eager worker with the methods of a runner's session that timing uses."""

    death = None
    in_torch = False

    def __init__(self, worker: EagerWorker, variant: Variant) -> None:
        self._worker, self._variant = worker, variant

    @property
    def pid(self) -> int:
        return self._worker.pid

    def load(self, slot: int, work: BufferSet) -> LoadReply:
        dims, scalars = named_values(self._variant, work)
        self._worker.load(slot, self._variant.to_json(), dims, scalars, work.buffers)
        return LoadReply(error="", message="", workspace_bytes=0)

    def unload(self, slot: int) -> None:
        self._worker.unload(slot)

    def run_slot(self, slot: int) -> RunReply:
        return self._worker.run_slot(slot)

    def time_slots(
        self, first: int, count: int, *, collect: bool = False, prepare: bool = False,  # noqa: ARG002
        read: Container[int] = (), **options: Any,
    ) -> TimeReply:  # fmt: skip
        """As a runner's session; eager allocates its outputs, so there is nothing to `prepare`."""
        reply = self._worker.time_slots(first, count, **options)
        if not collect:
            return reply
        outputs = tuple(
            self._worker.run_slot(first + position).outputs if position in read else () for position in range(count)
        )
        return replace(reply, outputs=outputs)


class Nothing:
    """A package of which nothing is dispatched."""

    def dispatch(self) -> Any:
        return nullcontext()


def variants(device: Literal["cpu", "cuda"]) -> list[VariantRecord]:
    """Pointwise and reducing operators, small and large."""

    def record(operator: str, shape: tuple[int, ...], arguments: dict[str, Any]) -> VariantRecord:
        stride = torch.empty(shape, device="meta").stride()
        pattern = TensorPattern(shape=tuple(map(Extent, shape)), stride=tuple(map(Extent, stride)), dtype="float32")
        variant = Variant(
            operator=operator, arguments=(("input", TensorRef(0)), *arguments.items()), tensors=(pattern,),
            outputs=(pattern,), device=device, capability=capability_of(device),
        )  # fmt: skip
        point = SizePoint(dims={}, scalars={}, calls=1, eager_us=10.0)
        return VariantRecord(variant=variant, points=(point,), share=0.2)

    large = (64, 256, 56) if device == "cpu" else (32, 256, 56, 14)
    return [
        record("relu", (4, 1000), {"inplace": False}), record("softmax", (64, 100), {"dim": 1, "dtype": None}),
        record("silu", large, {"inplace": False}), record("softmax", (512, 2048), {"dim": 1, "dtype": None}),
    ]  # fmt: skip


def judged(records: list[VariantRecord], device: Literal["cpu", "cuda"], folder: Path) -> Iterator[dict[str, Any]]:
    """Endless comparisons by the judge's protocol."""
    settings, threads = load_settings(), torch.get_num_threads()
    facts = replace(machine_facts(settings, device=device, threads=threads), dispatch_overhead_us=0.0)
    with EagerWorker(device, threads) as eager, EagerWorker(device, threads) as other:
        bench = Workbench(EagerBaseline(eager), facts, torch.device(device), cap_bytes=1 << 30)
        for record in cycle(records):
            session: Any = EagerAsCandidate(other, record.variant)
            with single_threaded():
                points = bench.bench(record, ExampleStore(folder)).points
            protocol = Protocol(budget_s=BUDGET_S)
            try:
                result = measure(eager, session, record.variant, points, facts, protocol=protocol, environment={})
            except HarnessError as error:
                yield {"variant": record.variant.label, "busy": str(error)}
                continue
            if isinstance(result, Rejected):
                yield {"variant": record.variant.label, "rejected": f"{result.reason}: {result.detail}"}
            else:
                i = result.speedup
                yield {"variant": record.variant.label, "speedup": [i.low, i.median, i.high]}


def exported(records: list[VariantRecord], folder: Path) -> Iterator[dict[str, Any]]:
    """Endless comparisons by the export's protocol."""
    for record in cycle(records):
        point = _time_point(
            Nothing(), record, record.points[0], ExampleStore(folder), calls=1, budget_s=BUDGET_S
        )  # fmt: skip
        i = DispatchTiming(points=(point,)).interval
        yield {"variant": record.variant.label, "speedup": [i.low, i.median, i.high]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comparisons", type=int, default=500)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        records = variants(options.device)
        for name, stream in (
            ("judge", judged(records, options.device, Path(folder))),
            ("export", exported(records, Path(folder))),
        ):
            rows = list(islice(stream, options.comparisons))
            timed = [r for r in rows if "speedup" in r]
            wins = [r for r in timed if r["speedup"][0] > MIN_SPEEDUP_LOW]
            holds = sum(r["speedup"][0] <= 1.0 <= r["speedup"][2] for r in timed)
            results[name] = {"comparisons": rows, "false_wins": len(wins), "timed": len(timed), "contain_one": holds}
            print(
                f"{name}: {len(wins)} of {len(timed)} comparisons of eager with itself say faster; "
                f"1.00 is in the interval of {holds}; {len(rows) - len(timed)} not timed"
            )
            write_record(options.out, {"benchmark": "aa", "device": options.device, "protocols": results})


if __name__ == "__main__":
    main()
