"""Records search landscapes: for variants of real models the time of every schedule that the emitter knows for them.

    python -m benchmarks.landscapes --device cuda --out FILE.json [--models NAME ...] [--seconds 500]
    python -m benchmarks.landscapes --models reductions --wide --out FILE.json

Each schedule is built, checked and timed by the judge like any candidate. `benchmarks/search.py` replays the tables
with every strategy and many seeds, which no machine could do by measuring. Written after each variant, so that a run
that is cut keeps what it has.

On the CPU the emitter knows three schedules of most variants of real models: no landscape. "reductions" is a model of
operators for which it knows more; `--wide` adds schedules that the emitter does not propose by itself, so that 50
trials leave something to find ("rows" is such a model for a GPU).
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.harness import write_record
from benchmarks.main_job import jobs
from kernelforge.build.abi import prelude
from kernelforge.build.backends import get_backend
from kernelforge.capture.models import LoadedModel
from kernelforge.capturing import Device, capture_calls
from kernelforge.cards.types import Variant, VariantRecord
from kernelforge.evaluate.judge import Judge
from kernelforge.evaluate.types import Outcome, Scored, WorkerFailure
from kernelforge.generate.emitter import emit, loop_nest
from kernelforge.generate.emitter.choose import schedules
from kernelforge.generate.emitter.choose_cuda import vectors
from kernelforge.generate.emitter.loops import Nest, bound
from kernelforge.generate.emitter.schedule import Cache, Schedule
from kernelforge.generate.generators.template import sources
from kernelforge.generate.types import Candidate, Request, Unforgeable
from kernelforge.operators import get_operator
from kernelforge.search.lineage import weights
from kernelforge.search.types import outcome_kind
from kernelforge.settings import load_settings
from kernelforge.store.project import Project

LEAST = 5
"""Fewer schedules are no landscape."""
TRIES, CLEAR = 3, 1.15
"""A schedule is judged again if others kept the machine busy: nothing was timed, or the interval of the ratio is wider
than this factor. The narrowest of the intervals counts."""
TILE_WIDTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Columns per tile, of the wide tables. Those that are no power of two the emitter never proposes."""
ROW_REGISTERS = 64


def reductions() -> LoadedModel:
    """Reductions over rows and columns in float32; the softmax over columns at two sizes, which are one variant."""
    import torch
    import torch.nn.functional as F

    images, small, tokens = torch.randn(4, 64, 56, 56), torch.randn(1, 64, 14, 14), torch.randn(197, 768)
    scale = torch.rand(768)

    def once() -> object:
        with torch.no_grad():
            return (
                F.softmax(images, 1), F.softmax(small, 1), images.sum(1), F.softmax(tokens, -1),
                F.layer_norm(tokens, (768,), scale, scale),
            )  # fmt: skip

    return LoadedModel(name="reductions", model=torch.nn.Identity(), calls=(once,))


def rows() -> LoadedModel:
    """Reductions over rows on a GPU: short and long ones, 16 and 32 bits."""
    import torch
    import torch.nn.functional as F

    half = {"device": "cuda", "dtype": torch.bfloat16}
    scores, tokens = torch.randn(16384, 1024, **half), torch.randn(2048, 4096, **half)  # type: ignore[call-overload]
    values, scale = torch.randn(8192, 768, device="cuda"), torch.rand(768, device="cuda")
    weight = torch.rand(4096, **half)  # type: ignore[call-overload]

    def once() -> object:
        with torch.no_grad():
            return (
                F.softmax(scores, -1), F.layer_norm(values, (768,), scale, scale), F.rms_norm(tokens, (4096,), weight),
            )  # fmt: skip

    return LoadedModel(name="rows", model=torch.nn.Identity(), calls=(once,))


def models(device: Device) -> Mapping[str, Callable[[], LoadedModel]]:
    """Whose variants can be recorded: those of the main job, and the reductions."""
    return {**jobs(device), **({"reductions": reductions} if device == "cpu" else {"rows": rows})}


def candidates(record: VariantRecord, backend: Any, *, wide: bool = False) -> list[Candidate]:
    """Every source that the template generator has for a variant, in its own order; then the wide ones."""
    request = Request(
        variant=record.variant, backend=backend.name, prelude=prelude(record.variant, backend.name),
        brief=backend.brief(), weights=weights(record),
    )  # fmt: skip
    try:
        made = list(sources(request))
    except Unforgeable:
        return []
    listed = [
        Candidate(
            variant_id=record.variant.id, source=m.source, backend=backend.name, generator="template",
            notes=m.notes, schedule=m.schedule,
        )
        for m in made
    ]  # fmt: skip
    known = {c.schedule for c in listed}
    return [*listed, *(c for c in (_wide(record, backend) if wide else ()) if c.schedule not in known)]


def _wide(record: VariantRecord, backend: Any) -> Iterator[Candidate]:
    """Schedules that the emitter can carry out and does not propose by itself: the whole grid of its constants.

    On the CPU all of TILE_WIDTHS for its tiled schedules, at its first grain; on CUDA all ways to share out a row.
    """
    variant, operator = record.variant, get_operator(record.variant.operator)
    if operator.family != "emitter":
        return
    loops = loop_nest(variant, operator)
    proposed = schedules(loops, variant, backend.name, weights(record))
    grid = _rows_grid(loops, variant) if backend.name == "cuda" else _tiles_grid(proposed)
    for schedule in dict.fromkeys(grid):
        try:
            source = emit(loops, schedule, variant, backend.name)
        except Unforgeable:
            continue
        yield Candidate(
            variant_id=variant.id, source=source, backend=backend.name, generator="template",
            notes=schedule.describe(), schedule=schedule.to_json(),
        )  # fmt: skip


def _tiles_grid(proposed: Sequence[Schedule]) -> Iterator[Schedule]:
    tiled = [s for s in proposed if s.mapping == "tile"]
    widths = [w for w in TILE_WIDTHS if w <= 2 * max((s.vector for s in tiled), default=0)]
    for schedule, width in product(tiled, widths):
        yield replace(schedule, vector=width, grain=tiled[0].grain)


def _rows_grid(loops: Nest, variant: Variant) -> Iterator[Schedule]:
    """A warp's lanes or a block for a row, kept in registers where 64 of a thread suffice, or read again."""
    if not loops.program.reduced or loops.inner is not None:
        return
    longest = bound(loops.length, variant)
    for vector in vectors(loops, variant):
        for lanes, threads in product((32, 16, 8), (64, 128, 256, 512)):
            if -(-longest // (lanes * vector)) * vector <= ROW_REGISTERS:
                yield Schedule(mapping="warp_row", vector=vector, threads=threads, lanes=lanes, cache="registers")
        for threads in (64, 128, 256, 512, 1024):
            if -(-longest // (threads * vector)) * vector <= ROW_REGISTERS:
                yield Schedule(mapping="block_row", vector=vector, threads=threads, cache="registers")
        caches: tuple[Cache, ...] = ("shared", "reread")
        for cache, threads, unroll in product(caches, (128, 256, 512, 1024), (1, 4)):
            yield Schedule(mapping="block_row", vector=vector, threads=threads, cache=cache, unroll=unroll)


def landscape(
    record: VariantRecord, tried: Sequence[Candidate], *, project: Project, judge: Judge, backend: Any, pool: Any
) -> dict[str, Any]:
    """One variant's table."""
    built = [pool.submit(backend.build, candidate, record.variant) for candidate in tried]
    rows, eager, floor = [], [], []
    for candidate, building in zip(tried, built, strict=True):
        outcome = _judged(judge, candidate, record, project, building.result())
        row: dict[str, Any] = {
            "schedule": json.loads(candidate.schedule), "notes": candidate.notes, "outcome": outcome_kind(outcome),
        }  # fmt: skip
        if isinstance(outcome, Scored):
            m = outcome.measurement
            row |= {"time_us": m.candidate_us, "speedup": [m.speedup.low, m.speedup.median, m.speedup.high]}
            eager.append(m.eager_us)
            floor.append(m.floor_us)
        rows.append(row)
    return {
        "variant": record.variant.label, "operator": record.variant.operator, "share": record.share,
        "eager_us": sorted(eager)[len(eager) // 2] if eager else None, "floor_us": max(floor, default=None),
        "schedules": rows,
    }  # fmt: skip


def _judged(judge: Judge, candidate: Candidate, record: VariantRecord, project: Project, built: Any) -> Outcome:
    """The clearest of at most TRIES judgements."""
    kept, narrowest = None, math.inf
    for _ in range(TRIES):
        outcome = judge.evaluate(candidate, record, project.examples, built=built).outcome
        if isinstance(outcome, Scored):
            speedup = outcome.measurement.speedup
            if speedup.high / speedup.low < narrowest:
                kept, narrowest = outcome, speedup.high / speedup.low
            if narrowest <= CLEAR:
                break
        elif not isinstance(outcome, WorkerFailure):
            return outcome
    return kept or outcome


def landscapes(
    device: Device, names: Sequence[str], *, until: float, threads: int, wide: bool = False
) -> Iterator[dict[str, Any]]:
    """The tables of all models, a variant of each in turn, largest share first."""
    settings = load_settings()
    backend = get_backend("cuda" if device == "cuda" else "cpp", settings)
    with tempfile.TemporaryDirectory(prefix="kernelforge-bench-") as folder:
        waiting = []
        for name in names:
            loaded = models(device)[name]()
            path = Path(folder) / f"{name}.kforge"
            capture_calls(loaded.calls, model=name, device=device, project=path, shapes="auto", overwrite=False)
            del loaded
            project = Project.open(path)
            records = sorted(
                (r for c in project.cards() for r in c.variants if not r.forgeable), key=lambda r: -r.share
            )
            waiting += [(rank, name, project, record) for rank, record in enumerate(records)]
        with ThreadPoolExecutor(threads) as pool, Judge(settings, device=device, backend=backend) as judge:
            for _, name, project, record in sorted(waiting, key=lambda item: item[0]):
                tried = candidates(record, backend, wide=wide)
                if len(tried) >= LEAST and time.monotonic() < until:
                    table = landscape(record, tried, project=project, judge=judge, backend=backend, pool=pool)
                    yield {"model": name, **table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--models", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=500.0, help="no variant is begun after so long")
    parser.add_argument("--threads", type=int, default=1, help="that build")
    parser.add_argument("--wide", action="store_true", help="schedules that the emitter does not propose, too")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    tables = []
    names = options.models or list(jobs(options.device))
    for table in landscapes(options.device, names, until=until, threads=options.threads, wide=options.wide):
        tables.append(table)
        write_record(options.out, {"benchmark": "landscapes", "device": options.device, "landscapes": tables})
        times = [r["time_us"] for r in table["schedules"] if "time_us" in r]
        spread = f"{min(times):.1f} to {max(times):.1f} us" if times else "none accepted"
        print(
            f"{table['model']:24s} {table['variant']:28s} {len(table['schedules']):3d} schedules, {spread}", flush=True
        )
    print(f"{len(tables)} landscapes, {sum(len(t['schedules']) for t in tables)} schedules")


if __name__ == "__main__":
    main()
