"""Records search landscapes: for variants of real models the time of every schedule that the emitter knows for them.

    python -m benchmarks.landscapes --device cuda --out FILE.json [--models NAME ...] [--seconds 500]

Each schedule is built, checked and timed by the judge like any candidate. `benchmarks/search.py` replays the tables
with every strategy and many seeds, which no machine could do by measuring. Written after each variant, so that a run
that is cut keeps what it has.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.harness import write_record
from benchmarks.main_job import jobs
from kernelforge.build.abi import prelude
from kernelforge.build.backends import get_backend
from kernelforge.capturing import capture_calls
from kernelforge.cards.types import VariantRecord
from kernelforge.evaluate.judge import Judge
from kernelforge.evaluate.types import Scored
from kernelforge.generate.generators.template import sources
from kernelforge.generate.types import Candidate, Request, Unforgeable
from kernelforge.search.lineage import outcome_kind, weights
from kernelforge.settings import load_settings
from kernelforge.store.project import Project

LEAST = 5
"""Fewer schedules are no landscape."""


def candidates(record: VariantRecord, backend: Any) -> list[Candidate]:
    """Every source that the template generator has for a variant, in its own order."""
    request = Request(
        variant=record.variant, backend=backend.name, prelude=prelude(record.variant, backend.name),
        brief=backend.brief(), weights=weights(record),
    )  # fmt: skip
    try:
        made = list(sources(request))
    except Unforgeable:
        return []
    return [
        Candidate(
            variant_id=record.variant.id, source=m.source, backend=backend.name, generator="template",
            notes=m.notes, schedule=m.schedule,
        )
        for m in made
    ]  # fmt: skip


def landscape(
    record: VariantRecord, tried: Sequence[Candidate], *, project: Project, judge: Judge, backend: Any, pool: Any
) -> dict[str, Any]:
    """One variant's table."""
    built = [pool.submit(backend.build, candidate, record.variant) for candidate in tried]
    rows, eager, floor = [], [], []
    for candidate, building in zip(tried, built, strict=True):
        outcome = judge.evaluate(candidate, record, project.examples, built=building.result()).outcome
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


def landscapes(device: Any, models: Sequence[str], *, until: float, threads: int) -> Iterator[dict[str, Any]]:
    """The tables of all models, a variant of each in turn, largest share first."""
    settings = load_settings()
    backend = get_backend("cuda" if device == "cuda" else "cpp", settings)
    with tempfile.TemporaryDirectory(prefix="kernelforge-bench-") as folder:
        waiting = []
        for name in models:
            loaded = jobs(device)[name]()
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
                tried = candidates(record, backend)
                if len(tried) >= LEAST and time.monotonic() < until:
                    table = landscape(record, tried, project=project, judge=judge, backend=backend, pool=pool)
                    yield {"model": name, **table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--models", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=500.0, help="no variant is begun after so long")
    parser.add_argument("--threads", type=int, default=1, help="that build")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    tables = []
    models = options.models or list(jobs(options.device))
    for table in landscapes(options.device, models, until=until, threads=options.threads):
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
