"""Writes docs/search-ablation.md and its figures from the records of `benchmarks/search.py` and `benchmarks/budget.py`,
their only sources."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from string import Template
from textwrap import fill
from typing import Any

import numpy as np

from benchmarks import budget_page
from benchmarks.budget import RECORD as BUDGETS
from benchmarks.harness import ROOT
from benchmarks.page_tables import head, mean, percent, row, times
from benchmarks.search_figures import Bar, Line, Panel, bars, lines
from benchmarks.search_landscapes import FAMILIES, MIXED, ORDERS, SCALES, Family, code_of

TEXT = Path(__file__).with_suffix(".md")
PAGE = ROOT / "docs" / "search-ablation.md"
RESULTS = ROOT / "benchmarks" / "results"
FIGURES = ROOT / "docs" / "figures"
DRAWN_DEFAULT, TABLE_DEFAULT = "best-first", "autotune"
FORMER = {
    "one start, restart after 6 (before)": "best-first starts=1 restart=6 penalty=0.03",
    "six starts": "best-first starts=6 restart=4 penalty=0.03",
}
WIDTH = 120
PAPER, DRAWS = "paper-mcts", "best-of-n"
ORDER = ("best-first", "autotune", "beam", "mcts", "paper-mcts", "linear", "best-of-n")
NAMES = (*(f.name for f in FAMILIES), MIXED)


def of_drawn(variant: str) -> bool:
    """Whether the constants were tried on drawn landscapes."""
    return not variant.startswith("autotune")


def over_landscapes(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95% interval, by the bootstrap over landscapes: there are few, and some are alike."""
    picks = np.random.default_rng(0).integers(0, len(values), size=(4000, len(values)))
    low, high = np.quantile(np.asarray(values)[picks].mean(axis=1), [0.025, 0.975])
    return fmean(values), float(low), float(high)


class Record:
    """The samples in log units, by landscape, strategy and what was sampled."""

    def __init__(self, path: Path) -> None:
        self.raw: Mapping[str, Any] = json.loads(path.read_text())
        self.landscapes: Mapping[str, Any] = self.raw["landscapes"]

    def values(self, landscape: str, strategy: str, what: str) -> list[float] | None:
        """Per seed; None where the budget exhausts the table."""
        found = self.landscapes[landscape]["samples"][strategy].get(what)
        if found is None:
            return None
        unit = 1.0 if what == "reached" else self.raw["unit"]
        return [unit * int(word) for word in found.split()]

    def lead(self, landscape: str, one: str, other: str, what: str) -> list[float] | None:
        """Per seed by how much `one` found more than `other`."""
        a, b = self.values(landscape, one, what), self.values(landscape, other, what)
        if a is None or b is None:
            return None
        sign = 1.0 if self.landscapes[landscape]["size"] is None else -1.0  # of a table the samples are regrets
        return [sign * (x - y) for x, y in zip(a, b, strict=True)]

    def tables(self, order: str) -> list[str]:
        return [name for name in self.landscapes if name.endswith(f"/{order}")]

    @property
    def budgets(self) -> list[int]:
        return list(self.raw["budgets"])


def drawn_tables(record: Record) -> Iterator[str]:
    """Per family what each strategy found. Only `paper-mcts` knows the scale of time; the others have one line."""
    for name in NAMES:
        yield f"\n**{name}**: {about(name)}.\n"
        yield head("speed-up after", [*record.budgets, "mean over 1-50"])
        for strategy in ORDER:
            scales = tuple(SCALES) if strategy == PAPER else ("us",)
            for scale in scales:
                label = f"{strategy}, {UNITS[scale]}" if strategy == PAPER else strategy
                found = [record.values(f"{name}/{scale}", strategy, w) for w in (*map(str, record.budgets), "mean")]
                yield row([label, *(times(mean(v or [])) for v in found)])


UNITS = {"us": "microseconds", "ms": "milliseconds"}


def about(name: str) -> str:
    return next((f.about for f in FAMILIES if f.name == name), "all constants drawn per seed")


def lead_table(record: Record, default: str, names: Sequence[str], whats: Sequence[str]) -> Iterator[str]:
    """Paired differences of the default to the paper's and to mere draws, per landscape."""
    columns = [(other, what) for other in (PAPER, DRAWS) for what in whats]
    yield head("landscape", [f"{other} at {w}" if w.isdigit() else f"{other}, {w}" for other, w in columns])
    for name in names:
        cells = []
        for other, what in columns:
            lead = record.lead(name, default, other, what)
            cells.append("-" if lead is None else percent(mean(lead)))
        yield row([name.rpartition("/")[0] if name.count("/") > 1 else name, *cells])


def table_list(record: Record) -> Iterator[str]:
    yield head(
        "landscape",
        ["schedules", "best speed-up", "best over the first guess", "guess that is best", "same code again"],
    )
    for name in record.tables("emitter"):
        entry = record.landscapes[name]
        curve = [record.raw["unit"] * int(w) for w in entry["samples"][DRAWS]["curve"].split()]
        reached = fmean(record.values(name, DRAWS, "reached") or [math.nan])
        yield row([
            name.rpartition("/")[0], str(entry["size"]), f"{math.exp(entry['best']):.2f}",
            f"{100 * math.expm1(curve[0]):.1f}%", f"{reached:.0f}", again(name),
        ])  # fmt: skip


def again(name: str) -> str:
    """By how much schedules differ that are the same code: in one CPU thread those that differ in `grain` alone."""
    device, model, variant, _ = name.split("/")
    if device != "cpu":
        return "-"
    record = json.loads((RESULTS / "cpu_landscapes.json").read_text())
    entry = next(e for e in record["landscapes"] if (e["model"], e["variant"]) == (model, variant))
    alike: dict[str, list[float]] = {}
    for each in entry["schedules"]:
        if each["outcome"] == "accepted":
            alike.setdefault(code_of(each["schedule"]), []).append(each["speedup"][1])
    return f"{100 * max(max(r) / min(r) - 1 for r in alike.values()):.1f}%"


def regrets(record: Record, order: str) -> Iterator[str]:
    """Means over landscapes. A table that the budget exhausts counts with nothing left to find."""
    names = record.tables(order)
    budgets = [b for b in record.budgets if any((record.landscapes[n]["size"] or 0) > b for n in names)]
    yield head("strategy", [*(f"short of the best at {b}" for b in budgets), "mean over all trials", "trials to 99%"])
    for strategy in ORDER if order != "uniform" else (DRAWS,):
        cells = []
        for what in (*map(str, budgets), "mean", "reached"):
            per = [fmean(record.values(n, strategy, what) or [0.0]) for n in names]
            middle, low, high = over_landscapes(per)
            if what == "reached":
                cells.append(f"{middle:.1f} [{low:.1f}, {high:.1f}]")
            else:
                cells.append(f"{100 * middle:.2f}% [{100 * low:.2f}, {100 * high:.2f}]")
        yield row([strategy if order != "uniform" else "any", *cells])


def apart(record: Record, default: str, other: str, names: Sequence[str], what: str) -> tuple[int, int, int]:
    """(landscapes where the default's interval lies above the other's, below, all that can tell)."""
    above = below = told = 0
    for name in names:
        a, b = record.values(name, default, what), record.values(name, other, what)
        if a is None or b is None:
            continue
        sign = 1.0 if record.landscapes[name]["size"] is None else -1.0
        one, two = mean(a), mean(b)
        gap, room = sign * (one.value - two.value), one.half + two.half
        told, above, below = told + 1, above + (gap > room), below + (-gap > room)
    return above, below, told


def apart_table(record: Record) -> Iterator[str]:
    kinds: list[tuple[str, str, list[str]]] = [
        ("drawn, microseconds", DRAWN_DEFAULT, [f"{n}/us" for n in NAMES]),
        ("drawn, milliseconds", DRAWN_DEFAULT, [f"{n}/ms" for n in NAMES]),
        ("tables in the emitter's order", TABLE_DEFAULT, record.tables("emitter")),
        ("tables in random order", TABLE_DEFAULT, record.tables("shuffled")),
    ]
    yield head("landscapes", ["default", "against", *(f"{b} trials" for b in record.budgets)])
    for label, default, names in kinds:
        for other in (PAPER, DRAWS):
            cells = []
            for budget in record.budgets:
                above, below, told = apart(record, default, other, names, str(budget))
                cells.append(f"{above} above, {below} below, of {told}" if told else "all exhausted")
            yield row([label, default, other, *cells])


def variant_table(record: Record, kinds: Sequence[str], wanted: Callable[[str], bool]) -> Iterator[str]:
    """Mean over all trials per choice of constants; for tables what is lacking, on average over the landscapes."""
    variants = record.raw["variants"]
    unit = record.raw["unit"]
    columns = {
        kind: [n for n in variants if n == kind or n.endswith(f"/{kind}")] for kind in kinds
    }  # fmt: skip
    names = [v for v in next(iter(variants.values())) if wanted(v)] or [
        v for n in columns[kinds[0]] for v in variants[n] if wanted(v)
    ]
    yield head("constants", [k.removesuffix("/us") for k in kinds])
    for variant in dict.fromkeys(names):
        cells = []
        for kind in kinds:
            per = [[unit * int(w) for w in variants[n][variant]["mean"].split()] for n in columns[kind]]
            if kind.endswith("/us"):
                cells.append(times(mean(per[0])))
            else:
                cells.append(f"{100 * fmean(fmean(p) for p in per):.2f}%")
        yield row([variant, *cells])


def family_table() -> Iterator[str]:
    fields = ("start", "reach", "gain", "good", "loss", "redesign", "structural", "failing", "deeper", "fragile")
    yield head("family", fields)
    for family in FAMILIES:
        yield row([family.name, *(shown(family, f) for f in fields)])


def shown(family: Family, field: str) -> str:
    value = getattr(family, field)
    return f"N({value[0]}, {value[1]})" if isinstance(value, tuple) else str(value)


def by_ratio(path: Path) -> Iterator[str]:
    """What the schedule with the largest recorded ratio loses to the one with the least time of its own."""
    record = json.loads(path.read_text())
    yield head("landscape", ["least time", "time of the largest ratio", "lost"])
    for entry in record["landscapes"]:
        rows = [r for r in entry["schedules"] if "time_us" in r]
        best, chosen = min(r["time_us"] for r in rows), max(rows, key=lambda r: r["speedup"][1])["time_us"]
        name, lost = f"{entry['model']}/{entry['variant']}", 100 * (chosen / best - 1)
        yield row([name, f"{best:.2f} us", f"{chosen:.2f} us", f"{lost:.1f}%"])


def figures(record: Record) -> dict[str, str]:
    """SVG by file name."""
    unit = record.raw["unit"]

    def line(landscape: str, strategy: str, label: str) -> Line:
        words = record.landscapes[landscape]["samples"][strategy]["curve"].split()
        return Line(label=label, values=tuple(math.exp(unit * int(w)) for w in words))

    drawn = []
    for name in NAMES:
        shown_lines = [line(f"{name}/us", s, s if s != PAPER else f"{PAPER}, microseconds") for s in ORDER]
        drawn.append(Panel(title=name, lines=(*shown_lines, line(f"{name}/ms", PAPER, f"{PAPER}, milliseconds"))))
    measured = []
    for order, title in (("emitter", "in the emitter's order"), ("shuffled", "in random order")):
        curves = []
        for strategy in ORDER:
            per = [
                [100 * unit * int(w) for w in record.landscapes[n]["samples"][strategy]["curve"].split()]
                for n in record.tables(order)
            ]
            longest = max(map(len, per))
            padded = [p + [0.0] * (longest - len(p)) for p in per]
            curves.append(Line(label=strategy, values=tuple(fmean(c) for c in zip(*padded, strict=True))))
        measured.append(Panel(title=title, lines=tuple(curves), first=2, last=20))
    rows = []
    for scale in SCALES:
        for name in NAMES:
            for other in (PAPER, DRAWS):
                lead = mean(record.lead(f"{name}/{scale}", DRAWN_DEFAULT, other, "20") or [])
                far = mean(record.lead(f"{name}/{scale}", DRAWN_DEFAULT, other, "50") or [])
                if scale == "us" or other == PAPER:
                    label = f"{name}, {other}" + (f", {UNITS[scale]}" if other == PAPER else "")
                    rows.append(Bar(label=label, values=((lead.value, lead.half), (far.value, far.half))))
    rows.sort(key=lambda r: (r.label.split(", ")[1] != PAPER, r.label.endswith("milliseconds")))
    return {
        "search-drawn.svg": lines(drawn, across=3, y="speed-up", x="trials"),
        "search-tables.svg": lines(measured, across=2, y="short of the best, %", x="trials"),
        "search-lead.svg": bars(
            rows, series=("20 trials", "50 trials"), x=f"log speed-up of {DRAWN_DEFAULT} above the other's"
        ),
    }  # fmt: skip


def span(record: Record, one: str, other: str, names: Sequence[str], what: str) -> str:
    """By how much `one` leads over several landscapes: "3% to 41%"."""
    leads = [100 * math.expm1(fmean(record.lead(n, one, other, what) or [math.nan])) for n in names]
    return f"{min(leads):.0f}% to {max(leads):.0f}%"


def clear(record: Record, one: str, other: str, names: Sequence[str], what: str) -> str:
    """In how many landscapes the paired interval is above zero, and, if any, below: "5 of 6"."""
    leads = [mean(lead) for n in names if (lead := record.lead(n, one, other, what)) is not None]
    above = sum(1 for lead in leads if lead.clear and lead.value > 0)
    below = sum(1 for lead in leads if lead.clear and lead.value < 0)
    return f"{above} of {len(leads)}" + (f" (behind in {below})" if below else "")


def findings(record: Record) -> dict[str, str]:
    """What the sentences of the page name."""
    us, ms = ([f"{name}/{scale}" for name in NAMES] for scale in SCALES)
    helped = [n for n in NAMES if n != "redraws"]  # where revising helps at all
    helped_us, helped_ms = ([f"{n}/{scale}" for n in helped] for scale in SCALES)

    def lost(budget: str) -> str:
        """What `paper-mcts` finds less at microseconds than at milliseconds, of the very same ideas."""
        gaps = []
        for one, other in zip(helped_us, helped_ms, strict=True):
            pairs = zip(record.values(one, PAPER, budget) or [], record.values(other, PAPER, budget) or [], strict=True)
            gaps.append(-100 * math.expm1(fmean(a - b for a, b in pairs)))
        return f"{min(gaps):.0f}% to {max(gaps):.0f}%"

    def lead(family: str, other: str) -> str:
        return percent(mean(record.lead(f"{family}/us", DRAWN_DEFAULT, other, "50") or [])).replace("**", "")

    def reached(order: str, strategy: str) -> float:
        return fmean(fmean(record.values(n, strategy, "reached") or []) for n in record.tables(order))

    made = {
        "lost_20": lost("20"), "lost_50": lost("50"), "mcts_span": span(record, "mcts", PAPER, helped_us, "50"),
        "against_autotune": ", ".join(f"`{n}` {lead(n, TABLE_DEFAULT)}" for n in helped),
        "against_linear": lead("valleys", "linear"), "verdict": verdict(record),
        "us_paper_span": span(record, DRAWN_DEFAULT, PAPER, us, "50"),
        "ms_paper_span": span(record, DRAWN_DEFAULT, PAPER, ms, "50"),
        "shuffled_least": f"{min(reached('shuffled', s) for s in ORDER):.1f}",
        "shuffled_most": f"{max(reached('shuffled', s) for s in ORDER):.1f}",
    }  # fmt: skip
    for name, strategy in (
        ("autotune", "autotune"), ("beam", "beam"), ("best_first", "best-first"), ("draws", DRAWS), ("paper", PAPER)
    ):  # fmt: skip
        made[f"reached_{name}"] = f"{reached('emitter', strategy):.1f}"
    for budget in ("20", "50"):
        made[f"us_paper_{budget}"] = clear(record, DRAWN_DEFAULT, PAPER, us, budget)
        made[f"ms_paper_{budget}"] = clear(record, DRAWN_DEFAULT, PAPER, ms, budget)
        made[f"us_draws_{budget}"] = clear(record, DRAWN_DEFAULT, DRAWS, us, budget)
    return made


def verdict(record: Record) -> str:
    """Whether the default beats the others on the recorded tables; ends the bold question."""
    answers = {
        (order, budget): [apart(record, TABLE_DEFAULT, other, record.tables(order), budget) for other in (PAPER, DRAWS)]
        for order in ("emitter", "shuffled")
        for budget in ("10", "20", "50")
    }
    # The generator asks in the emitter's order; the random one is for comparison.
    late = [a for key in (("emitter", "20"), ("emitter", "50")) for a in answers[key]]
    said = "No" if not any(above for above, _, _ in late) else "In part" if any(a < t for a, _, t in late) else "Yes"
    counts = []
    for (order, budget), (paper, draws) in answers.items():
        if paper[2]:
            where = {"emitter": "the emitter's order", "shuffled": "random order"}[order]
            behind = f" (behind in {max(paper[1], draws[1])})" if paper[1] or draws[1] else ""
            counts.append(f"{paper[0]} and {draws[0]} of {paper[2]} after {budget} trials in {where}{behind}")
    total = len(record.tables("emitter"))
    gone = [total - answers["emitter", b][0][2] for b in ("20", "50")]
    return (
        f"{said}.** 20 trials exhaust {gone[0]} of {total} tables and 50 exhaust {gone[1]}; there all strategies have "
        f"the best. Of the others it is ahead of `paper-mcts` and of `best-of-n` in {'; '.join(counts)}."
    )


def former_table(record: Record) -> Iterator[str]:
    """By how much `best-first` leads over itself with other constants."""
    yield head("ahead of", ["after", *NAMES])
    for label, variant in FORMER.items():
        for budget in map(str, record.budgets):
            cells = []
            for name in NAMES:
                words = record.raw["variants"][f"{name}/us"][variant][budget].split()
                other = [record.raw["unit"] * int(w) for w in words]
                mine = (record.values(f"{name}/us", DRAWN_DEFAULT, budget) or [])[: len(other)]
                cells.append(percent(mean([a - b for a, b in zip(mine, other, strict=True)])))
            yield row([label, budget, *cells])


def page(record: Record) -> str:
    """The page as text; the same record gives the same text."""
    facts = record.raw["environment"]
    drawn = [f"{name}/{scale}" for scale in SCALES for name in NAMES]
    parts: dict[str, Iterable[str]] = {
        "drawn_leads": lead_table(record, DRAWN_DEFAULT, drawn, ("20", "50")),
        "drawn_tables": drawn_tables(record),
        "table_list": table_list(record),
        **{f"regrets_{order}": regrets(record, order) for order in ORDERS},
        **{
            f"leads_{order}": lead_table(record, TABLE_DEFAULT, record.tables(order), ("10", "20", "mean"))
            for order in ("emitter", "shuffled")
        },
        "apart": apart_table(record),
        "drawn_constants": variant_table(record, [f"{n}/us" for n in NAMES], of_drawn),
        "table_constants": variant_table(record, ("emitter", "shuffled"), lambda v: not of_drawn(v)),
        "former": former_table(record),
        "by_ratio": by_ratio(RESULTS / "h200_landscapes.json"),
        "families": family_table(),
    }
    text = Template(TEXT.read_text()).substitute(
        run=f"`{facts['command']}`, commit `{facts['commit'][:10]}`, Python {facts['python']}, {facts['time']}",
        seeds=record.raw["seeds"], noise=f"{100 * record.raw['noise']:.1f}", **findings(record),
        **budget_page.parts(budget_page.Record(BUDGETS)),
        **{name: "\n".join(lines).strip() for name, lines in parts.items()},
    )  # fmt: skip
    return reflow(text)


def reflow(text: str) -> str:
    """Paragraphs and list items whose lines got too long, wrapped again."""
    blocks = []
    for block in text.split("\n\n"):
        if max(map(len, block.split("\n"))) <= WIDTH or block.startswith(("|", "!", "#")):
            blocks.append(block)
            continue
        items = block.replace("\n  ", " ").split("\n") if block.startswith("- ") else [block.replace("\n", " ")]
        indent = "  " if block.startswith("- ") else ""
        blocks.append("\n".join(fill(i, WIDTH, subsequent_indent=indent, break_on_hyphens=False) for i in items))
    return "\n\n".join(blocks)


def write_page(path: Path) -> None:
    """The page and its figures."""
    record = Record(path)
    PAGE.write_text(page(record))
    FIGURES.mkdir(parents=True, exist_ok=True)
    for name, text in figures(record).items():
        (FIGURES / name).write_text(text)
