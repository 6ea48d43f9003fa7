"""The section on budget policies of docs/search-ablation.md, from the record of `benchmarks/budget.py`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.budget import AS_MANY, MAIN, Kind
from benchmarks.page_tables import head, mean, percent, row, times

DIGITS: Mapping[Kind, int] = {"drawn": 1, "recorded": 2}
"""Of a difference in percent: between policies the recorded tables leave little."""


class Record:
    """The samples in log units, by kind of model, policy and budget."""

    def __init__(self, path: Path) -> None:
        self.raw: Mapping[str, Any] = json.loads(path.read_text())

    def found(self, kind: Kind, policy: str, budget: int) -> list[float]:
        """Log speed-up of the model, per seed."""
        return [self.raw["unit"] * n for n in self._numbers(kind, policy, "found", budget)]

    def lead(self, kind: Kind, one: str, other: str, budget: int) -> list[float]:
        """Per seed by how much `one` found more than `other`."""
        pairs = zip(self.found(kind, one, budget), self.found(kind, other, budget), strict=True)
        return [a - b for a, b in pairs]

    def used(self, kind: Kind, policy: str, budget: int) -> float:
        """Mean trials per variant that were really made."""
        sizes = self.counts(kind, "variants")
        made = self._numbers(kind, policy, "used", budget)
        return fmean(n / size for n, size in zip(made, sizes, strict=True))

    def counts(self, kind: Kind, what: str) -> list[int]:
        """Of each model."""
        return [int(word) for word in self.raw["kinds"][kind][what].split()]

    def _numbers(self, kind: Kind, policy: str, what: str, budget: int) -> list[int]:
        words = self.raw["kinds"][kind]["samples"][policy][what][str(budget)].split()
        return [int(word) for word in words]

    @property
    def budgets(self) -> list[int]:
        return list(self.raw["budgets"])

    @property
    def constants(self) -> list[str]:
        """The policies that are `gain` with one other constant."""
        return [name for name in self.raw["kinds"]["drawn"]["samples"] if name not in MAIN and name != AS_MANY]


def lead(values: Sequence[float], *, digits: int) -> str:
    """A paired difference; "same" if no seed differs. Bold only what is more than nothing in the digits shown."""
    if not any(values):
        return "same"
    text = percent(mean(values), digits=digits)
    return text if any(c in "123456789" for c in text.partition("%")[0]) else text.replace("**", "")


def policy_table(record: Record, kind: Kind) -> Iterator[str]:
    """What each policy found, and by how much `gain` is ahead."""
    leads = ("uniform", "share", AS_MANY)
    yield head("trials", [*MAIN, *(f"gain over {o}" for o in leads), "trials of gain", "trials of uniform"])
    for budget in record.budgets:
        cells = [times(mean(record.found(kind, policy, budget))) for policy in MAIN]
        cells += [lead(record.lead(kind, "gain", other, budget), digits=DIGITS[kind]) for other in leads]
        used = [f"{record.used(kind, policy, budget):.1f}" for policy in ("gain", "uniform")]
        yield row([str(budget), *cells, *used])


def constants_table(record: Record, kind: Kind) -> Iterator[str]:
    """By how much `gain` with one other constant is ahead of itself with the default."""
    last = record.budgets[-1]
    yield head("constant", [*(f"after {b}" for b in record.budgets), f"trials of {last}"])
    for name in record.constants:
        cells = [lead(record.lead(kind, name, "gain", budget), digits=DIGITS[kind]) for budget in record.budgets]
        yield row([f"`{name}`", *cells, f"{record.used(kind, name, last):.1f}"])
    yield row(["default", *("" for _ in record.budgets), f"{record.used(kind, 'gain', last):.1f}"])


def clear(record: Record, kind: Kind, one: str, other: str) -> dict[int, float]:
    """Budget -> paired lead in percent, where its interval leaves out zero and it is not zero in the digits shown."""
    found = {budget: mean(record.lead(kind, one, other, budget)) for budget in record.budgets}
    shown = {b: round(100 * math.expm1(m.value), DIGITS[kind]) for b, m in found.items() if m.clear}
    return {budget: value for budget, value in shown.items() if value}


def sides(record: Record, kind: Kind, one: str, other: str) -> str:
    """Where one policy is clearly ahead and where behind: "ahead after 5 and 10 trials by 8.1% and 8.8%"."""
    leads = clear(record, kind, one, other)
    said = []
    for word, sign in (("ahead", 1), ("behind", -1)):
        those = {b: f"{abs(v):.{DIGITS[kind]}f}%" for b, v in leads.items() if sign * v > 0}
        if those:
            said.append(f"{word} after {listed(map(str, those))} trials by {listed(those.values())}")
    return ", ".join(said) or "nowhere clearly ahead or behind"


def listed(words: Iterable[str]) -> str:
    """ "5, 10 and 20"."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def better(record: Record, kinds: Sequence[Kind]) -> str:
    """Constants with which `gain` is clearly ahead of itself at most budgets and nowhere behind, in all these kinds."""

    def won(name: str, kind: Kind) -> bool:
        leads = clear(record, kind, name, "gain").values()
        return len(leads) > len(record.budgets) / 2 and min(leads) > 0

    return listed([f"`{n}`" for n in record.constants if all(won(n, kind) for kind in kinds)] or ["none"])


def sentences(record: Record) -> dict[str, str]:
    """What the text says about the numbers."""
    first, last = record.budgets[0], record.budgets[-1]
    patient = "patience=None"
    best = record.raw["unit"] * fmean(record.counts("recorded", "best"))
    lacking = math.expm1(best - fmean(record.found("recorded", "uniform", first)))
    stalled, resumed = (sum(record.counts("drawn", what)) for what in ("stalled", "resumed"))
    both = {"uniform": ("gain", "uniform"), "share": ("gain", "share"), "patient_gain": (patient, "gain"),
            "warm": ("warm_up=3", "gain"), "short": ("patience=12", "gain")}  # fmt: skip
    kinds: tuple[Kind, ...] = ("drawn", "recorded")
    return {
        **{f"{name}_{kind}": sides(record, kind, *pair) for name, pair in both.items() for kind in kinds},
        **{f"patient_{other}_drawn": sides(record, "drawn", patient, other) for other in ("uniform", "share")},
        **{f"used_{kind}": f"{record.used(kind, 'gain', last):.1f}" for kind in kinds},
        **{f"better_{kind}": better(record, (kind,)) for kind in kinds}, "better_both": better(record, kinds),
        "as_many": lead(record.lead("drawn", "gain", AS_MANY, last), digits=1),
        "used_patient": f"{record.used('recorded', patient, last):.1f}",
        "used_uniform": f"{record.used('recorded', 'uniform', last):.1f}",
        "lacking": f"{100 * lacking:.2f}%", "resumed": f"{100 * resumed / stalled:.0f}%",
    }  # fmt: skip


def ends(values: Sequence[float]) -> str:
    return f"{values[0]:g} to {values[1]:g}"


def parts(record: Record) -> dict[str, str]:
    """What the page's template names, with "budget_" before it."""
    facts, defaults, model = record.raw["environment"], record.raw["defaults"], record.raw["model"]
    kinds: tuple[Kind, ...] = ("drawn", "recorded")
    made = {
        "run": f"`{facts['command']}`, commit `{facts['commit'][:10]}`, Python {facts['python']}, {facts['time']}",
        "seeds": str(record.raw["seeds"]), "stall": str(record.raw["stall"]),
        "prior": f"{100 * model['prior']:.0f}%",
        **{name: ends(model[name]) for name in ("variants", "exponent", "slack", "eager", "eager_vendor")},
        "defaults": ", ".join(
            f"`{name}={defaults[name]}`" for name in dict.fromkeys(n.partition("=")[0] for n in record.constants)
        ),
    }  # fmt: skip
    for kind in kinds:
        made[kind] = "\n".join(policy_table(record, kind))
        made[f"constants_{kind}"] = "\n".join(constants_table(record, kind))
        beaten, vendors = sum(record.counts(kind, "beaten")), sum(record.counts(kind, "vendors"))
        made[f"beaten_{kind}"] = f"{100 * beaten / vendors:.0f}%"
    return {f"budget_{name}": text for name, text in {**made, **sentences(record)}.items()}
