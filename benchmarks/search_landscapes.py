"""What the ablation searches: landscapes that are drawn, and tables that were recorded. Owns `Landscape`, `Idea`.

A landscape of a seed is the same for every strategy: the j-th revision of a candidate is the same idea, whoever asks
for it. Differences between strategies are therefore paired.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kernelforge.generate.generators.template import distance

NOISE = 0.015
"""Standard deviation of a measured log speed-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idea:
    """A proposal.

    Attributes:
        true: natural logarithm of the true speed-up over eager; None if the candidate fails.
        measured: the same as the judge reads it.
        place: where in its landscape it lies; the landscape's own business.
    """

    true: float | None
    measured: float | None
    place: Any


class Proposer(Protocol):
    """What stands for the generator during one search."""

    def propose(self, parent: Idea | None) -> Idea | None:
        """A revision of the parent, or a start from scratch; None if there is nothing left."""
        ...


class Landscape(Protocol):
    """Candidates and what they are worth. `best` is the largest log speed-up, `size` how many there are; None if there
    is no end to them."""

    @property
    def name(self) -> str: ...

    @property
    def best(self) -> float | None: ...

    @property
    def size(self) -> int | None: ...

    def proposer(self, seed: int) -> Proposer: ...

    def eager_us(self, seed: int) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How a proposer like a language model behaves, in log speed-ups over eager. `N(m, s)` is a normal draw.

    A start from scratch is a *design*: it begins at `N(*start)`, and no revision gets beyond its limit, which lies
    `|N(*reach)|` above. A revision wins a part of what is left to the limit, so gains diminish; or it loses.

    Attributes:
        start, reach: mean and standard deviation.
        gain: a good revision wins a uniform share in [0, gain] of the distance to the limit.
        good: chance that a valid revision is good. A bad one loses |N(0, loss)|.
        redesign: chance that a revision is really a start from scratch, whatever it was asked to revise.
        structural: chance that a revision changes the structure: it loses `|N(0.3, 0.1)|` at once, and lifts the limit
            by `|N(0.5, 0.2)|`. What is slower now is then the better parent.
        failing: chance that a start fails. deeper: what each revision down the chain adds to it, up to 0.9 in all.
        fragile: standard deviation of what a candidate's own nature adds to the chance that its revisions fail.
    """

    name: str
    about: str
    start: tuple[float, float] = (0.0, 0.3)
    reach: tuple[float, float] = (0.6, 0.2)
    gain: float = 0.5
    good: float = 0.45
    loss: float = 0.3
    redesign: float = 0.0
    structural: float = 0.0
    failing: float = 0.25
    deeper: float = 0.0
    fragile: float = 0.1


FAMILIES = (
    Family(
        name="steady", about="designs are much alike, revisions add up", start=(-0.2, 0.15), reach=(1.0, 0.1),
        gain=0.35,
    ),
    Family(
        name="basins", about="designs differ widely in how far they go", start=(-0.2, 0.4), reach=(0.3, 0.7),
    ),
    Family(
        name="valleys", about="as basins, less wide, and a change of structure is slower before it is faster",
        start=(-0.2, 0.3), reach=(0.3, 0.3), structural=0.2,
    ),
    Family(
        name="fragile", about="many revisions fail, more of them down the chain, and by candidate",
        start=(-0.2, 0.3), reach=(0.8, 0.3), failing=0.35, deeper=0.04, fragile=0.25,
    ),
    Family(
        name="redraws", about="a proposer that does not revise: every proposal is a design of its own",
        start=(-0.2, 0.4), reach=(0.0, 0.0), redesign=1.0,
    ),
)  # fmt: skip

MIXED = "mixed"
"""A family whose constants are drawn anew for every seed, from ranges around those of the others. No constant of a
strategy was chosen by it."""


def mixed(seed: int) -> Family:
    """The family of a seed."""
    draw = random.Random(f"{seed} constants").uniform
    return Family(
        name=MIXED, about="all constants drawn per seed", start=(-0.2, draw(0.1, 0.4)),
        reach=(draw(0.1, 1.0), draw(0.1, 0.7)), gain=draw(0.2, 0.6), good=draw(0.3, 0.6), loss=draw(0.1, 0.4),
        redesign=draw(0.0, 0.3), structural=draw(0.0, 0.25), failing=draw(0.1, 0.45), deeper=draw(0.0, 0.05),
        fragile=draw(0.0, 0.25),
    )  # fmt: skip


SCALES: Mapping[str, tuple[float, float]] = {"us": (3.0, 20.0), "ms": (1_000.0, 20_000.0)}
"""Eager's time, drawn log-uniformly between these, microseconds."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Of an idea in a drawn landscape. `path`: which proposal of which proposal, the key of its draws."""

    path: str
    limit: float
    failing: float
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A family at a scale; without a family the mixed one."""

    family: Family | None
    scale: str
    best: float | None = None
    size: int | None = None

    @property
    def name(self) -> str:
        return f"{self.family.name if self.family else MIXED}/{self.scale}"

    def eager_us(self, seed: int) -> float:
        low, high = SCALES[self.scale]
        return math.exp(random.Random(f"{seed} eager").uniform(math.log(low), math.log(high)))

    def proposer(self, seed: int) -> Proposer:
        return _Imagined(family=self.family or mixed(seed), seed=seed)


@dataclass(slots=True, kw_only=True)
class _Imagined:
    """An endless tree of ideas, of which the searches of one seed see different parts."""

    family: Family
    seed: int
    asked: dict[str, int] = field(default_factory=dict)

    def propose(self, parent: Idea | None) -> Idea:
        place: _Place | None = parent.place if parent is not None else None
        above = place.path if place is not None else ""
        self.asked[above] = number = self.asked.get(above, 0) + 1
        path = f"{above}.{number}"
        draw, family = random.Random(f"{self.seed} {self.family.name} {path}"), self.family
        fails, noise = draw.random(), draw.gauss(0.0, NOISE)
        if place is None or parent is None or parent.true is None or draw.random() < family.redesign:
            true = draw.gauss(*family.start)
            limit, failing, depth = true + abs(draw.gauss(*family.reach)), family.failing, 0
        else:
            true, limit = self._revised(draw, parent.true, place.limit)
            failing, depth = place.failing, place.depth + 1
        own = min(0.9, max(0.0, failing + family.deeper + draw.gauss(0.0, family.fragile)))
        if fails < failing:
            return Idea(true=None, measured=None, place=_Place(path, limit, own, depth))
        return Idea(true=true, measured=true + noise, place=_Place(path, limit, own, depth))

    def _revised(self, draw: random.Random, true: float, limit: float) -> tuple[float, float]:
        family, kind = self.family, draw.random()
        if kind < family.structural:
            return true - abs(draw.gauss(0.3, 0.1)), limit + abs(draw.gauss(0.5, 0.2))
        if draw.random() < family.good:
            return true + draw.uniform(0.0, family.gain) * (limit - true), limit
        return true - abs(draw.gauss(0.0, family.loss)), limit


ORDERS: Mapping[str, str] = {
    "emitter": "a start is the emitter's next guess, a revision the untried schedule nearest to the parent",
    "shuffled": "the same with the schedules in random order: the emitter's guesses know nothing",
    "uniform": "any proposal is an untried schedule at random: no strategy can matter",
}
"""How a proposal is made from a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A recorded landscape under one of ORDERS.

    Attributes:
        eager: microseconds. true: log speed-up per schedule, None if it was rejected.
        distances: between schedules, as the template generator counts them.
    """

    name: str
    order: str
    eager: float
    true: tuple[float | None, ...]
    distances: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        return len(self.true)

    @property
    def best(self) -> float:
        return max((t for t in self.true if t is not None), default=0.0)

    def eager_us(self, seed: int) -> float:  # noqa: ARG002 - that of the record, whatever the seed
        return self.eager

    def proposer(self, seed: int) -> Proposer:
        draw = random.Random(f"{seed} {self.name.rpartition('/')[0]}")
        noise = [draw.gauss(0.0, NOISE) for _ in self.true]
        untried = list(range(self.size))
        if self.order != "emitter":
            draw.shuffle(untried)
        return _Replayed(table=self, noise=noise, untried=untried)


@dataclass(slots=True, kw_only=True)
class _Replayed:
    """As the template generator: the first untried schedule, or the nearest; of equals the first."""

    table: Table
    noise: Sequence[float]
    untried: list[int]

    def propose(self, parent: Idea | None) -> Idea | None:
        if not self.untried:
            return None
        chosen = self.untried[0]
        if parent is not None and self.table.order != "uniform":
            row = self.table.distances[parent.place]
            chosen = min(self.untried, key=lambda i: row[i])
        self.untried.remove(chosen)
        true = self.table.true[chosen]
        return Idea(true=true, measured=None if true is None else true + self.noise[chosen], place=chosen)


def tables(path: Path, *, orders: Sequence[str] = tuple(ORDERS)) -> list[Table]:
    """The landscapes of a record of `benchmarks/landscapes.py`, under each order."""
    record = json.loads(path.read_text())
    made = []
    for entry in record["landscapes"]:
        rows = [r for r in entry["schedules"] if r["outcome"] != "worker_failure"]
        texts = [json.dumps(r["schedule"]) for r in rows]
        distances = tuple(tuple(distance(one, other) for other in texts) for one in texts)
        true = [true_speedup(entry, row, device=record["device"]) for row in rows]
        if record["device"] == "cpu" and record["environment"]["threads"] == 1:
            true = _same_code(true, [row["schedule"] for row in rows])
        for order in orders:
            name = f"{record['device']}/{entry['model']}/{entry['variant']}/{order}"
            made.append(
                Table(name=name, order=order, eager=entry["eager_us"], true=tuple(true), distances=distances)
            )  # fmt: skip
    return made


def _same_code(true: Sequence[float | None], schedules: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """The mean over schedules that differ in `grain` alone: in one thread they are one code, timed several times."""
    alike: dict[str, list[float]] = {}
    keys = [code_of(schedule) for schedule in schedules]
    for key, value in zip(keys, true, strict=True):
        if value is not None:
            alike.setdefault(key, []).append(value)
    return [None if v is None else sum(alike[k]) / len(alike[k]) for k, v in zip(keys, true, strict=True)]


def code_of(schedule: Mapping[str, Any]) -> str:
    """What a schedule comes to in one thread."""
    return json.dumps({name: value for name, value in schedule.items() if name != "grain"}, sort_keys=True)


def true_speedup(entry: Mapping[str, Any], row: Mapping[str, Any], *, device: str) -> float | None:
    """What a replay takes for the truth, as a logarithm.

    On a GPU the candidate's own time: the device's clock is exact, whereas eager's time of a small operator is that of
    its launch, which differs by factors from one minute to the next. On the CPU the paired ratio, from which the
    machine's slow minutes cancel.
    """
    if "time_us" not in row:
        return None
    return math.log(entry["eager_us"] / row["time_us"] if device == "cuda" else row["speedup"][1])
