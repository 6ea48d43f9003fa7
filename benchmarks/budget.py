"""Which variant should get the next trial? The policies of the scheduler at equal budgets, on models that are drawn.

    python -m benchmarks.budget --out benchmarks/results/budget_ablation.json [--seed 0] [--seeds 200]
    python -m benchmarks.search --page      # the page, from this record too
    python -m benchmarks.budget --short     # seconds; prints, writes nothing

A model is a dozen variants with shares of its time, each with a landscape of `search_landscapes.py`: all drawn ones, or
all recorded tables. Scheduler, strategies and the states that they see are those of the real search, with a candidate
in flight as there. No kernel runs.

A model of a seed is the same for every policy: the same shares and floors, and behind each revision the same idea.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeAlias, cast

from benchmarks.harness import write_record
from benchmarks.search import PREPARED, RESULTS, TABLES, compact
from benchmarks.search_landscapes import FAMILIES, NOISE, SCALES, Drawn, Idea, Landscape, Table, tables
from kernelforge.capture.types import TensorRef
from kernelforge.cards.types import Extent, SizePoint, TensorPattern, Variant, VariantRecord
from kernelforge.search.scheduler import (
    PROGRESS,
    Policy,
    VariantState,
    get_policy,
    is_vendors,
    next_variant,
    park_reason,
)
from kernelforge.search.strategies import get_strategy
from kernelforge.search.study import WAITING, Track
from kernelforge.search.types import Node, Strategy, Summary

RECORD = RESULTS / "budget_ablation.json"
Kind: TypeAlias = Literal["drawn", "recorded"]
STRATEGIES: Mapping[Kind, str] = {"drawn": "best-first", "recorded": "autotune"}
"""Kind of model -> its strategy, the default for such a proposer."""
BUDGETS = (3, 5, 10, 20, 50)
"""Trials per variant, on average over the model."""
UNIT = 10_000
"""Samples are stored as whole ten-thousandths."""

VARIANTS = (12, 14)
EXPONENT = (0.8, 2.0)
"""Shares fall as rank to minus this: the largest has a quarter to two thirds of the time. In the recorded models of
docs/results.md it has a sixth to seven tenths."""
VENDORS = 1 / 3
"""Part of the variants that a vendor's library serves."""
PRIOR = 0.2
"""Standard deviation of the logarithm of an expected floor around the measured one."""
SLACK = (1.0, 2.0)
"""What a drawn variant's candidates can reach at best, as a multiple of the floor."""
EAGER = (1.5, 15.0)
EAGER_VENDOR = (1.05, 2.5)
"""Eager's time as a multiple of the floor. The recorded tables, launches aside, have 2 to 31."""
BEHIND = (0.4, 1.2)
"""Log speed-up that a drawn landscape loses against a vendor's library."""
BEHIND_BEST = (-0.1, 0.5)
"""Log speed-up by which the best of a recorded table stays behind a vendor's library."""

STALL = 12
"""Trials without progress that are counted as a stall; the patience was as short before this was run."""

DEFAULT = get_policy("gain")
MAIN: Mapping[str, Policy | None] = {"uniform": get_policy("uniform"), "share": None, "gain": DEFAULT}
"""None gives trials in proportion to shares and parks nothing: a reference, of this benchmark only."""
CONSTANTS: Mapping[str, Policy] = {
    **{f"warm_up={n}": replace(DEFAULT, warm_up=n) for n in (1, 2, 3, 5)},
    **{f"patience={n}": replace(DEFAULT, patience=n) for n in (6, 12, 24, None)},
    **{f"vendor_trials={n}": replace(DEFAULT, vendor_trials=n) for n in (4, 8, 16)},
    **{f"vendor_handicap={n}": replace(DEFAULT, vendor_handicap=n) for n in (0, 4, 8)},
    **{f"min_gain={gain}": replace(DEFAULT, min_gain=gain) for gain in (0.0, 0.0005, 0.002)},
}
OTHERS: Mapping[str, Policy] = {name: policy for name, policy in CONSTANTS.items() if policy != DEFAULT}
"""`gain` with one other constant each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imagined:
    """A variant of a model that is drawn.

    Attributes:
        seed: of the landscape.
        shift: what a candidate's log speed-up gains over the landscape's. ceiling: the largest that there is.
        floor: measured roofline floor as a fraction of eager's time. prior_floor: the same as it is expected.
    """

    record: VariantRecord
    landscape: Landscape
    seed: int
    shift: float
    ceiling: float
    floor: float
    prior_floor: float

    def true(self, idea: Idea) -> float | None:
        """True log speed-up of an idea in this model."""
        return None if idea.true is None else min(idea.true + self.shift, self.ceiling)

    def node(self, number: int, parent: str, idea: Idea) -> Node:
        """The trial of an idea, as the store would have it."""
        true, name = self.true(idea), str(number)
        if true is None or idea.true is None or idea.measured is None:
            summary = Summary(candidate_id=name, kind="rejected")
        else:
            measured = true + idea.measured - idea.true
            eager_us, speedup = self.landscape.eager_us(self.seed), math.exp(measured)
            summary = Summary(
                candidate_id=name, kind="accepted", speedup=speedup, low=math.exp(measured - 1.96 * NOISE),
                candidate_us=eager_us / speedup, eager_us=eager_us, floor_us=self.floor * eager_us,
            )  # fmt: skip
        return Node(
            id=name, number=number, variant_id=self.record.variant.id, parent=parent, started=0.0, seconds=0.0,
            summary=summary, contents=cast(Any, None),  # nobody here reads a source
        )  # fmt: skip


Model: TypeAlias = Sequence[Imagined]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A table in the emitter's order, and the floor of its record as a fraction of eager's time."""

    table: Table
    floor: float


def recorded(paths: Sequence[Path] = TABLES) -> list[Recorded]:
    """All tables, the order of the files."""
    made = []
    for path in paths:
        entries = json.loads(path.read_text())["landscapes"]
        for table, entry in zip(tables(path, orders=("emitter",)), entries, strict=True):
            made.append(Recorded(table=table, floor=entry["floor_us"] / entry["eager_us"]))
    return made


def imagine(
    number: int, share: float, landscape: Landscape, *, seed: int, vendor: bool, floor: float, prior_floor: float = 0.0,
    shift: float = 0.0, ceiling: float = math.inf,
) -> Imagined:  # fmt: skip
    """A variant; which one it is says its number."""
    tensor = TensorPattern(shape=(Extent(number + 1),), stride=(Extent(1),), dtype="float32")
    variant = Variant(
        # All that the scheduler asks of an operator is whether a vendor's library serves it.
        operator="linear" if vendor else "relu", arguments=(("input", TensorRef(0)),), tensors=(tensor,),
        outputs=(tensor,),
    )  # fmt: skip
    point = SizePoint(dims={}, scalars={}, calls=1, eager_us=landscape.eager_us(seed))
    return Imagined(
        record=VariantRecord(variant=variant, points=(point,), share=share), landscape=landscape, seed=seed,
        shift=shift, ceiling=ceiling, floor=floor, prior_floor=prior_floor,
    )  # fmt: skip


def draw_model(kind: Kind, seed: int, known: Sequence[Recorded]) -> list[Imagined]:
    """The model of a seed."""
    draw = random.Random(f"{seed} {kind} model")
    count, exponent = draw.randint(*VARIANTS), draw.uniform(*EXPONENT)
    parts = [(rank + 1) ** -exponent for rank in range(count)]
    vendors = {*draw.sample(range(count), round(VENDORS * count))}
    return [
        _draw_variant(kind, draw, index, parts[index] / sum(parts), known, vendor=index in vendors, seed=100 * seed)
        for index in range(count)
    ]


def _draw_variant(
    kind: Kind, draw: random.Random, index: int, share: float, known: Sequence[Recorded], *, vendor: bool, seed: int
) -> Imagined:
    landscape: Landscape
    over_floor = _log_uniform(draw, EAGER_VENDOR if vendor else EAGER)
    if kind == "drawn":
        landscape = Drawn(family=draw.choice((*FAMILIES, None)), scale=draw.choice(tuple(SCALES)))
        floor = 1 / over_floor
        shift = -draw.uniform(*BEHIND) if vendor else 0.0
        ceiling = math.log(over_floor / _log_uniform(draw, SLACK))
    else:
        entry = draw.choice(known)
        landscape, floor, shift, ceiling = entry.table, entry.floor, 0.0, math.inf
        if vendor:
            # Eager is faster by so much; the candidates' times and the floor are what they were.
            shift = -entry.table.best - draw.uniform(*BEHIND_BEST)
            floor = min(floor * math.exp(-shift), 1 / over_floor)
    prior = min(1.0, floor * math.exp(draw.gauss(0.0, PRIOR)))
    return imagine(
        index, share, landscape, seed=seed + index, vendor=vendor, floor=floor, prior_floor=prior, shift=shift,
        ceiling=ceiling,
    )  # fmt: skip


def _log_uniform(draw: random.Random, ends: tuple[float, float]) -> float:
    return math.exp(draw.uniform(math.log(ends[0]), math.log(ends[1])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """One trial: the variant's place in the model, and the true log speed-up, None where the candidate failed."""

    index: int
    true: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    index: int
    parent: str
    idea: Idea


def spend(model: Model, policy: Policy | None, strategy: Strategy, *, trials: int) -> list[Spent]:
    """One search of all variants, trial by trial, step by step as `run_search` makes them.

    Fewer than `trials` if every variant is parked or has nothing left.
    """
    tracks = [Track(record=v.record, nodes=[], since=0, prior_floor=v.prior_floor) for v in model]
    proposers = [v.landscape.proposer(v.seed) for v in model]
    ideas: list[dict[str, Idea]] = [{} for _ in model]
    states = [track.state(0) for track in tracks]
    places = {state.variant_id: index for index, state in enumerate(states)}
    queue: deque[_Prepared] = deque()
    done: list[Spent] = []

    def parents(index: int) -> list[str]:
        return [item.parent for item in queue if item.index == index]

    def fill() -> None:
        while len(queue) < min(PREPARED, trials - len(done)):
            state = next_of(states, policy)
            if state is None:
                return
            index = places[state.variant_id]
            track, flying = tracks[index], parents(index)
            parent = strategy.select(track.view(flying, seed=0)).parent
            idea = proposers[index].propose(ideas[index].get(parent))
            if idea is None:
                track.waiting, track.exhausted = bool(flying), "" if flying else "nothing left"
            else:
                queue.append(_Prepared(index=index, parent=parent, idea=idea))
            states[index] = track.state(len(parents(index)))

    def drop_parked() -> None:
        for item in list(queue):
            if parked(states[item.index], policy) not in ("", WAITING):
                queue.remove(item)
                states[item.index] = tracks[item.index].state(len(parents(item.index)))

    while len(done) < trials:
        drop_parked()
        fill()
        if not queue:
            break
        item = queue.popleft()
        track, variant = tracks[item.index], model[item.index]
        node = variant.node(len(track.nodes) + 1, item.parent, item.idea)
        ideas[item.index][node.id] = item.idea
        track.nodes.append(node)
        track.waiting = False
        states[item.index] = track.state(len(parents(item.index)))
        done.append(Spent(index=item.index, true=variant.true(item.idea)))
    return done


def next_of(states: Sequence[VariantState], policy: Policy | None) -> VariantState | None:
    """By the scheduler; without a policy the variant that lacks most of its share of the trials."""
    if policy is not None:
        return next_variant(states, policy)
    open_states = [s for s in states if not s.exhausted]
    return min(open_states, key=lambda s: ((s.trials + 0.5) / s.share, s.variant_id), default=None)


def parked(state: VariantState, policy: Policy | None) -> str:
    """Why the variant gets no more trials, or ""."""
    return state.exhausted if policy is None else park_reason(state, policy)


def found(model: Model, spent: Sequence[Spent], totals: Sequence[int]) -> list[float]:
    """The model's true log speed-up after so many trials together, in ascending order; eager is kept where it wins."""
    best, values, seen = [0.0] * len(model), [], 0
    for total in totals:
        for trial in spent[seen:total]:
            best[trial.index] = max(best[trial.index], trial.true or 0.0)
        seen = total
        values.append(-math.log(sum(v.record.share * math.exp(-b) for v, b in zip(model, best, strict=True))))
    return values


def at_best(model: Model) -> float | None:
    """The same if every variant had the best of its table; None if there are landscapes without an end."""
    left = 0.0
    for variant in model:
        if variant.landscape.best is None:
            return None
        left += variant.record.share * math.exp(-max(0.0, min(variant.landscape.best + variant.shift, variant.ceiling)))
    return -math.log(left)


def stalls(spent: Sequence[Spent], index: int) -> tuple[bool, bool]:
    """Whether a variant had `STALL` trials in a row without progress, and whether progress came after them."""
    best, count, stalled = 0.0, 0, False
    for trial in spent:
        if trial.index != index:
            continue
        speedup = 0.0 if trial.true is None else math.exp(trial.true)
        if speedup > PROGRESS * best:
            if stalled:
                return True, True
            best, count = speedup, 0
        else:
            count += 1
            stalled = stalled or count >= STALL
    return stalled, False


class Samples:
    """Per policy and budget what each seed found, and how many trials that took."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, list[int]]] = {}
        self.used: dict[str, dict[str, list[int]]] = {}

    def add(self, name: str, values: Sequence[float], used: Sequence[int]) -> None:
        for budget, value, count in zip(BUDGETS, values, used, strict=True):
            self.found.setdefault(name, {}).setdefault(str(budget), []).append(round(UNIT * value))
            self.used.setdefault(name, {}).setdefault(str(budget), []).append(count)

    def compact(self) -> dict[str, Any]:
        return {
            name: {"found": compact(self.found[name]), "used": compact(self.used[name])} for name in self.found
        }  # fmt: skip


AS_MANY = "uniform, as many"
"""`uniform` after as many trials as `gain` really used."""


def compare(kind: Kind, *, seeds: int, first: int, known: Sequence[Recorded]) -> dict[str, Any]:
    """All policies on the models of one kind.

    Of each model, under `uniform` with the largest budget: its variants, those of a vendor's library, which of these
    are beaten; of the others those that stall, and those that go on after it. And `at_best`.
    """
    strategy, samples = get_strategy(STRATEGIES[kind]), Samples()
    counts: dict[str, list[int]] = {"variants": [], "vendors": [], "beaten": [], "stalled": [], "resumed": []}
    best = []
    for seed in range(first, first + seeds):
        model = draw_model(kind, seed, known)
        totals = [budget * len(model) for budget in BUDGETS]
        runs = {n: spend(model, p, strategy, trials=totals[-1]) for n, p in {**MAIN, **OTHERS}.items()}
        for name, spent in runs.items():
            samples.add(name, found(model, spent, totals), [min(t, len(spent)) for t in totals])
        as_many = [min(t, len(runs["gain"])) for t in totals]
        samples.add(AS_MANY, found(model, runs["uniform"], as_many), as_many)
        vendors = {i for i, v in enumerate(model) if is_vendors(v.record.variant.operator)}
        stalled = [stalls(runs["uniform"], i) for i in range(len(model)) if i not in vendors]
        for name, count in {
            "variants": len(model), "vendors": len(vendors),
            "beaten": len({t.index for t in runs["uniform"] if (t.true or 0.0) > 0.0} & vendors),
            "stalled": sum(had for had, _ in stalled), "resumed": sum(went_on for _, went_on in stalled),
        }.items():  # fmt: skip
            counts[name].append(count)
        if (reached := at_best(model)) is not None:
            best.append(round(UNIT * reached))
    said = ", ".join(f"{name} {math.exp(fmean(samples.found[name]['10']) / UNIT):.3f}x" for name in MAIN)
    print(f"{kind}: {seeds} models, after 10 trials per variant: {said}", flush=True)
    return {"strategy": strategy.name, **compact({**counts, "best": best}), "samples": samples.compact()}


def ablation(*, seeds: int, first: int = 0) -> dict[str, Any]:
    """Both kinds: the part of the record that is not about the machine."""
    known = recorded()
    kinds: tuple[Kind, ...] = ("drawn", "recorded")
    return {
        "benchmark": "budget", "first_seed": first, "seeds": seeds, "budgets": BUDGETS, "prepared": PREPARED,
        "noise": NOISE, "unit": 1 / UNIT, "defaults": asdict(DEFAULT), "stall": STALL,
        "model": {
            "variants": VARIANTS, "exponent": EXPONENT, "vendors": VENDORS, "prior": PRIOR, "slack": SLACK,
            "eager": EAGER, "eager_vendor": EAGER_VENDOR, "behind": BEHIND, "behind_best": BEHIND_BEST,
        },
        "kinds": {kind: compare(kind, seeds=seeds, first=first, known=known) for kind in kinds},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RECORD)
    parser.add_argument("--seed", type=int, default=0, help="the first of the seeds")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--short", action="store_true", help="few models; writes only to a given --out")
    options = parser.parse_args()
    made = ablation(seeds=2 if options.short else options.seeds, first=options.seed)
    if not options.short or options.out != RECORD:
        write_record(options.out, made)


if __name__ == "__main__":
    main()
