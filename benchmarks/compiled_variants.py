"""Eager, torch.compile and the stored kernels of a project's variants, timed against each other; one record.

    python -m benchmarks.compiled_variants model.kforge softmax linear-4d1e3933 --record FILE.json [--rounds 12]

All sides run in one torch process, interleaved block by block, forwards and backwards in turn, through the very code
that times eager for the judge (`EagerServer`): a chunk of calls is queued while the device is busy with other work, two
events around each call, calls rotating over buffer sets of different content that exceed the L2 together if eight of
them can. What two events add (`MachineFacts.clock_us`) is taken off all sides. `--flush` writes four times the L2
before every timed call besides, outside its window, so that nothing at all is cached.

Times are those of the device alone. The host's part of a call (dispatch, guards of compiled code, the kernel's own
guard) is in none of them, as it is in none of the judge's.

- eager: the operator's call as the judge makes it.
- compiled: the same call through torch.compile with fixed sizes, in its default mode and with
  `max-autotune-no-cudagraphs`. Each size is compiled by itself, before anything is timed; what it computes is compared
  with eager.
- written: of the stored kernels that no template made, the one that takes least time by its stored measurement.
  template: the same of the template generator's. Both are the stored binaries, called through their entry for tvm-ffi
  with outputs that exist already; eager and compiled code allocate theirs, which costs the device nothing.

Kernels are chosen by their own time, not by their speed-up: that one holds an eager which was measured on another day.
The sizes are those that the judge times, each with the calls that it stands for. Variants that change an input are
refused: compiled code and the kernel would have to be given it back before every call.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from benchmarks.harness import write_record
from kernelforge.benchmark.machine import MachineFacts, machine_facts
from kernelforge.benchmark.points import SETS_CAP_BYTES, representative_points, rotating_sets
from kernelforge.benchmark.statistics import median
from kernelforge.cards.bind import to_bound
from kernelforge.cards.types import SizePoint, Variant, VariantRecord
from kernelforge.dispatch.loading import _load_kernel
from kernelforge.errors import UsageError
from kernelforge.evaluate.types import Scored
from kernelforge.operators import get_operator
from kernelforge.runner.eager_main import EagerServer, Slot
from kernelforge.search.lineage import ranked_nodes
from kernelforge.search.types import Node
from kernelforge.settings import load_settings
from kernelforge.store.project import Project
from kernelforge.verify.cases import Case, CaseMaker, CasePlan
from kernelforge.verify.sizes import SizeChoice

MODES = {"compiled": "default", "max-autotune": "max-autotune-no-cudagraphs"}
SIDES = ("eager", *MODES, "written", "template")
BLOCK_US, MOST_CALLS, FEWEST_CALLS = 8000.0, 128, 4
SETTLING_CALLS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A stored kernel: its node, and its binary loaded into this process."""

    node: Node
    launch: Callable[..., int]
    workspace_bytes: Callable[[Sequence[int]], int]


@contextmanager
def as_captured(variant: Variant) -> Iterator[None]:
    """Torch's modes of the captured calls; code that is compiled in others would be compiled again."""
    with ExitStack() as modes:
        modes.enter_context(torch.no_grad())
        if variant.autocast:
            dtype = getattr(torch, variant.autocast)
            modes.enter_context(torch.autocast("cuda", dtype=dtype, cache_enabled=False))
        yield


def operator_call(variant: Variant, case: Case) -> Callable[..., object]:
    """The operator's call as a function of the variant's tensors alone, so that it can be compiled."""
    call = get_operator(variant.operator).call
    leaves, spec = pytree.tree_flatten(to_bound(variant, case.dims, case.scalars, case.inputs))
    places = {id(tensor): i for i, tensor in enumerate(case.inputs)}
    order = [places.get(id(leaf), -1) for leaf in leaves]
    rest = [None if at >= 0 else leaf for leaf, at in zip(leaves, order, strict=True)]

    def run(*tensors: torch.Tensor) -> object:
        given = [tensors[at] if at >= 0 else leaf for leaf, at in zip(rest, order, strict=True)]
        return call(pytree.tree_unflatten(given, spec))

    return run


def compiled_calls(run: Callable[..., object], case: Case) -> tuple[dict[str, Callable[..., object]], dict[str, Any]]:
    """Compiled forms by name, each called once, and of each what it took in seconds or why there is none."""
    torch._dynamo.reset()
    calls: dict[str, Callable[..., object]] = {}
    told: dict[str, Any] = {}
    for name, mode in MODES.items():
        started = time.monotonic()
        form = torch.compile(run, fullgraph=True, dynamic=False, mode=mode)
        try:
            form(*case.inputs)
        except Exception as error:  # noqa: BLE001 - any failure of the compiler is a result, not ours to handle
            told[name] = {"failed": f"{type(error).__name__}: {error}"[:500]}
            continue
        calls[name] = form
        told[name] = {"mode": mode, "compile_s": time.monotonic() - started}
    return calls, told


def kernel_call(kernel: Kernel, variant: Variant, case: Case) -> Callable[[], object]:
    """The kernel on a case's tensors, with outputs and workspace of its own.

    Raises:
        RuntimeError: when called, if the binary refuses it or the launch fails.
    """
    outputs = [
        torch.empty_strided(s.shape, s.stride, dtype=getattr(torch, s.dtype), device="cuda") for s in case.outputs
    ]
    size = kernel.workspace_bytes([case.dims[d.name] for d in variant.dims])
    workspace = torch.empty(size, dtype=torch.uint8, device="cuda")
    address = workspace.data_ptr() if size else 0
    scalars = [case.scalars[s.name] for s in variant.scalars]

    def call() -> object:
        status = kernel.launch(*case.inputs, *outputs, *scalars, address, torch.cuda.current_stream().cuda_stream)
        if status != 0:
            raise RuntimeError(f"node {kernel.node.number}: status {status}")
        # Whoever holds the call holds the workspace too.
        return workspace, outputs

    return call


def stored_kernels(project: Project, record: VariantRecord, folder: Path) -> dict[str, Kernel]:
    """The fastest written kernel and the template generator's fastest, as far as there are any."""
    nodes = [n for n in ranked_nodes(project.nodes(record.variant.id)) if scored(n).artifact.backend == "cuda"]
    groups = {
        "written": [n for n in nodes if n.candidate.generator != "template"],
        "template": [n for n in nodes if n.candidate.generator == "template"],
    }
    kernels = {}
    for name, group in groups.items():
        if not group:
            continue
        node = min(group, key=lambda n: scored(n).measurement.candidate_us)
        library = folder / f"{record.variant.label}-{node.number}.so"
        shutil.copyfile(scored(node).artifact.path, library)
        loaded = _load_kernel(library)
        kernels[name] = Kernel(node=node, launch=loaded.launch, workspace_bytes=loaded.workspace_bytes)
    return kernels


def scored(node: Node) -> Scored:
    assert isinstance(node.outcome, Scored)
    return node.outcome


def slots_of(
    record: VariantRecord, cases: Sequence[Case], kernels: Mapping[str, Kernel]
) -> tuple[dict[str, list[Slot]], dict[str, Any]]:
    """For each side its slots, one a case, and what there is to say of it: seconds, difference from eager."""
    variant = record.variant
    run = operator_call(variant, cases[0])
    compiled, told = compiled_calls(run, cases[0])
    calls: dict[str, list[Callable[[], object]]] = {}
    for name, form in (("eager", run), *compiled.items()):
        calls[name] = [lambda form=form, case=case: form(*case.inputs) for case in cases]
    for name, kernel in kernels.items():
        calls[name] = [kernel_call(kernel, variant, case) for case in cases]
        told[name] = {
            "node": kernel.node.number, "notes": kernel.node.candidate.notes,
            "stored_us": scored(kernel.node).measurement.candidate_us,
            "stored_eager_us": scored(kernel.node).measurement.eager_us,
        }  # fmt: skip
    expected = tensors_of(calls["eager"][0]())
    for name in list(calls)[1:]:
        made = calls[name][0]()
        told[name]["differs"] = difference(expected, made[1] if name in kernels else tensors_of(made))  # type: ignore[index]
    slots = {
        name: [
            Slot(variant=variant, call=call, inputs=list(case.inputs), pristine={}, outputs=case.outputs, out=None,
                 out_offsets=[])
            for call, case in zip(each, cases, strict=True)
        ]
        for name, each in calls.items()
    }  # fmt: skip
    return slots, told


def tensors_of(result: object) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def difference(expected: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> float:
    """The largest difference, relative to the largest value; infinite where one alone is not finite."""
    worst = 0.0
    for a, b in zip(expected, made, strict=True):
        x, y = a.double(), b.double()
        apart = torch.where(x == y, torch.zeros_like(x), (x - y).abs()).nan_to_num(nan=float("inf")).max()
        worst = max(worst, float(apart / x.abs().max().clamp(min=1e-30)))
    return worst


def time_point(
    server: EagerServer, slots: Mapping[str, list[Slot]], *, rounds: int, flush_bytes: int, clock_us: float
) -> dict[str, list[float]]:
    """For each side the median of each of its blocks, microseconds per call."""

    def block(name: str, calls: int) -> float:
        samples = server._time_cuda(slots[name], calls, flush_bytes)
        return median([ns / 1e3 for ns in samples]) - clock_us

    medians: dict[str, list[float]] = {name: [] for name in slots}
    for each in slots.values():
        for i in range(SETTLING_CALLS):
            each[i % len(each)].call()
    torch.cuda.synchronize()
    calls = {
        name: max(FEWEST_CALLS, min(MOST_CALLS, int(BLOCK_US / max(block(name, FEWEST_CALLS), 0.1)))) for name in slots
    }
    for i in range(rounds):
        for name in slots if i % 2 == 0 else reversed(slots):
            medians[name].append(block(name, calls[name]))
    return medians


def measured(
    project: Project, record: VariantRecord, facts: MachineFacts, folder: Path, *, rounds: int, flush: bool
) -> Iterator[dict[str, Any]]:
    """One row for each size of a variant that the judge times."""
    variant = record.variant
    kernels = stored_kernels(project, record, folder)
    maker = CaseMaker(record, project.examples, torch.device("cuda"))
    server, flush_bytes = EagerServer("cuda"), 4 * facts.cache_bytes if flush else 0
    for point, calls, _ in representative_points(record):
        with as_captured(variant):
            slots, told = slots_of(record, drawn(maker, point, facts), kernels)
            medians = time_point(server, slots, rounds=rounds, flush_bytes=flush_bytes, clock_us=facts.clock_us)
        sets = len(slots["eager"])
        yield {
            "variant": variant.label, "dims": dict(point.dims), "calls": calls, "sets": sets, "us": medians,
            "sides": told,
        }  # fmt: skip
        del slots
        torch.cuda.empty_cache()


def drawn(maker: CaseMaker, point: SizePoint, facts: MachineFacts) -> list[Case]:
    """Buffer sets as the judge's, on the device."""
    count = rotating_sets(maker.record.variant, point.dims, facts, cap_bytes=SETS_CAP_BYTES["cuda"])
    choice = SizeChoice(dims=point.dims, scalars=point.scalars, why="observed", example=point.example)
    return [maker.draw(CasePlan(choice=choice, distribution="normal")) for _ in range(count)]


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Microseconds per call: each size, and each variant over its sizes, weighted by their calls."""
    print(f"{'us per call':44s}" + "".join(f"{side:>14s}" for side in SIDES))
    for label in dict.fromkeys(row["variant"] for row in rows):
        own = [row for row in rows if row["variant"] == label]
        for row in own:
            dims = ", ".join(f"{name}={value}" for name, value in row["dims"].items()) or "the fixed sizes"
            print_line(f"  {dims}, {row['calls']} calls", {side: median(us) for side, us in row["us"].items()})
        total = sum(row["calls"] for row in own)
        sides = [side for side in SIDES if all(side in row["us"] for row in own)]
        print_line(label, {side: sum(row["calls"] * median(row["us"][side]) for row in own) / total for side in sides})


def print_line(name: str, us: Mapping[str, float]) -> None:
    print(f"{name:44s}" + "".join(f"{us[side]:14.2f}" if side in us else f"{'-':>14s}" for side in SIDES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("project", type=Path)
    parser.add_argument("variants", nargs="+", metavar="VARIANT")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--flush", action="store_true")
    options = parser.parse_args()
    project = Project.open(options.project)
    facts = machine_facts(load_settings(), device="cuda", threads=torch.get_num_threads())
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="kernelforge-bench-") as folder:
        for name in options.variants:
            record = project.record(name)
            if record.variant.mutates:
                raise UsageError(f"{record.variant.label} changes its inputs; only others are compared here")
            for row in measured(project, record, facts, Path(folder), rounds=options.rounds, flush=options.flush):
                rows.append(row)
                for side, told in row["sides"].items():
                    words = ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in told.items())
                    print(f"{row['variant']}, {row['dims']}, {side}: {words}", flush=True)
                # Written again after each size: what was measured is kept if a later one fails.
                write_record(
                    options.record,
                    {"benchmark": "compiled_variants", "model": project.model, "clock_us": facts.clock_us,
                     "flush": options.flush, "rows": rows},
                )  # fmt: skip
    print_table(rows)


if __name__ == "__main__":
    main()
