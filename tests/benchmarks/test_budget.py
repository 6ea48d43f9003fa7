"""The comparison of budget policies: paired, reproducible, and step by step what the real search does."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from benchmarks.budget import (
    BUDGETS,
    DEFAULT,
    MAIN,
    OTHERS,
    RECORD,
    STRATEGIES,
    Imagined,
    Kind,
    ablation,
    at_best,
    compare,
    draw_model,
    found,
    imagine,
    recorded,
    spend,
)
from benchmarks.budget_page import Record, parts
from benchmarks.search import PREPARED
from benchmarks.search_landscapes import FAMILIES, Drawn, Idea, Table
from benchmarks.search_page import PAGE

from kernelforge.audit.types import AuditKind, AuditLabel
from kernelforge.benchmark.types import Interval, Measurement
from kernelforge.build.types import Artifact, Backend
from kernelforge.cards.types import OperatorCard, Variant, VariantRecord
from kernelforge.evaluate.types import Outcome, Scored, Trial
from kernelforge.generate.types import Candidate, Exhausted, Request
from kernelforge.search.loop import SearchOptions, run_search
from kernelforge.search.scheduler import Policy
from kernelforge.search.strategies import get_strategy
from kernelforge.search.types import Budget
from kernelforge.store.project import Project
from kernelforge.verify.types import Accepted, ErrorStatistics, Rejected, RejectReason

KNOWN = recorded()
UNIFORM = Policy(allot="uniform")
BEST_FIRST, AUTOTUNE = get_strategy("best-first"), get_strategy("autotune")
STEADY = Drawn(family=FAMILIES[0], scale="us")
SMALL: tuple[float | None, ...] = (0.1, 0.3, None, 0.2, 0.8, None, 0.5, 0.4)


def table(true: Sequence[float | None]) -> Table:
    distances = tuple(tuple(abs(i - j) for j in range(len(true))) for i in range(len(true)))
    return Table(name="test/model/variant/emitter", order="emitter", eager=10.0, true=tuple(true), distances=distances)


def slower(number: int, share: float, **given: Any) -> Imagined:
    """A variant whose candidates are all as slow, and slower than eager."""
    return imagine(number, share, table([-0.5] * 400), seed=number, **{"vendor": False, "floor": 0.1, **given})


def counts(model: Sequence[Imagined], policy: Policy | None, trials: int) -> Counter[int]:
    return Counter(t.index for t in spend(model, policy, BEST_FIRST, trials=trials))


def test_the_short_form_is_short_and_the_same_every_time() -> None:
    started = time.thread_time()
    made = ablation(seeds=1)
    assert time.thread_time() - started < 20
    assert made["kinds"]["drawn"] == compare("drawn", seeds=1, first=0, known=KNOWN)
    assert made["kinds"]["recorded"] != compare("recorded", seeds=1, first=7, known=KNOWN)
    assert {*made["kinds"]["drawn"]["samples"]} == {*MAIN, *OTHERS, "uniform, as many"}


def test_other_constants_are_other_policies() -> None:
    assert DEFAULT not in OTHERS.values()
    assert len({*OTHERS.values()}) == len(OTHERS)


@pytest.mark.parametrize("kind", ["drawn", "recorded"])
def test_a_model_of_a_seed_is_the_same_for_every_policy(kind: Kind) -> None:
    """The first four trials of a variant are starts with either strategy; when they come is the policy's business."""
    model = draw_model(kind, 3, KNOWN)
    assert model == draw_model(kind, 3, KNOWN) != draw_model(kind, 4, KNOWN)
    assert math.isclose(sum(v.record.share for v in model), 1.0)
    runs = [spend(model, p, get_strategy(STRATEGIES[kind]), trials=8 * len(model)) for p in MAIN.values()]
    assert len({tuple(t.index for t in run) for run in runs}) == len(MAIN), "they allot alike: nothing is compared"
    for index in range(len(model)):
        starts = [[t.true for t in run if t.index == index][:4] for run in runs]
        least = min(map(len, starts))
        assert least and len({tuple(s[:least]) for s in starts}) == 1


@pytest.mark.parametrize("kind", ["drawn", "recorded"])
def test_no_candidate_beats_the_floor(kind: Kind) -> None:
    for seed in range(5):
        model = draw_model(kind, seed, KNOWN)
        for trial in spend(model, UNIFORM, get_strategy(STRATEGIES[kind]), trials=30 * len(model)):
            assert trial.true is None or math.exp(-trial.true) >= model[trial.index].floor * (1 - 1e-9)


def test_about_a_third_is_served_by_a_vendors_library_and_mostly_stays_so() -> None:
    vendors = beaten = variants = 0
    for seed in range(10):
        model = draw_model("drawn", seed, KNOWN)
        of_vendors = [i for i, v in enumerate(model) if v.record.variant.operator == "linear"]
        won = {t.index for t in spend(model, UNIFORM, BEST_FIRST, trials=10 * len(model)) if (t.true or 0.0) > 0}
        vendors, beaten, variants = vendors + len(of_vendors), beaten + len(won & {*of_vendors}), variants + len(model)
    assert 0.28 < vendors / variants < 0.38
    assert beaten < vendors / 4


def test_with_one_variant_both_policies_spend_alike() -> None:
    model = [imagine(0, 1.0, STEADY, seed=1, vendor=False, floor=0.01)]
    uniform = spend(model, UNIFORM, BEST_FIRST, trials=60)
    assert len(uniform) == 60
    assert spend(model, Policy(patience=None), BEST_FIRST, trials=60) == uniform
    stopped = spend(model, Policy(patience=3), BEST_FIRST, trials=60)
    assert 3 <= len(stopped) < 60 and stopped == uniform[: len(stopped)]


def test_gain_spends_on_the_only_variant_that_can_win() -> None:
    """Two others have no faster candidate, two are at the floor."""
    model = [
        slower(0, 0.2), slower(1, 0.2), slower(2, 0.2, floor=0.95), slower(3, 0.2, floor=0.95),
        imagine(4, 0.2, STEADY, seed=4, vendor=False, floor=0.01),
    ]  # fmt: skip
    gain, uniform, share = (counts(model, policy, 100) for policy in (Policy(patience=12), UNIFORM, None))
    assert gain[4] > sum(gain.values()) / 2
    assert [*uniform.values()] == [*share.values()] == [20] * 5
    assert gain[2] <= PREPARED and gain[3] <= PREPARED, "at the floor: what was prepared is all"


def test_a_vendors_variant_that_stays_slower_is_left() -> None:
    model = [slower(0, 0.5, vendor=True), imagine(1, 0.5, STEADY, seed=1, vendor=False, floor=0.01)]
    policy = Policy(patience=None)
    assert counts(model, policy, 100)[0] == policy.vendor_trials
    assert counts(model, UNIFORM, 100)[0] == 50


def test_share_gives_trials_in_proportion() -> None:
    model = [slower(0, 0.6), slower(1, 0.3), slower(2, 0.1)]
    assert counts(model, None, 100) == {0: 60, 1: 30, 2: 10}


def test_an_expected_floor_orders_the_first_trials_and_the_measured_one_parks() -> None:
    """Without a valid candidate no floor is measured, and what is expected never parks."""
    failing = table([None] * 400)
    no_headroom, headroom = (
        imagine(i, 0.5, failing, seed=i, vendor=False, floor=0.5, prior_floor=prior) for i, prior in ((0, 0.99), (1, 0))
    )
    policy = Policy(warm_up=3, patience=12)
    allotted = counts([no_headroom, headroom], policy, 15)
    assert allotted[0] == policy.warm_up and allotted[1] == policy.patience
    assert counts([no_headroom, headroom], policy, 99) == {0: policy.patience, 1: policy.patience}


def test_a_model_is_as_fast_as_its_variants() -> None:
    model = [imagine(i, share, table(SMALL), seed=i, vendor=False, floor=0.1) for i, share in ((0, 0.75), (1, 0.25))]
    spent = spend(model, UNIFORM, AUTOTUNE, trials=99)
    assert len(spent) == 2 * len(SMALL), "both tables are exhausted"
    first, everything, later = found(model, spent, [1, 16, 99])
    assert math.exp(-first) == pytest.approx(0.75 * math.exp(-0.1) + 0.25)
    assert everything == later == pytest.approx(0.8) == at_best(model)
    none = found([slower(0, 1.0)], spend([slower(0, 1.0)], UNIFORM, AUTOTUNE, trials=5), [5])
    assert none == [0.0], "eager is kept"


# --- the simulation against the real search ---


class Forge:
    """Generator, backend and judge in one, of an imagined model: a source is the number of an idea."""

    name = "cpp"

    def __init__(self, model: Sequence[Imagined], binaries: Path) -> None:
        self.variants = {v.record.variant.id: v for v in model}
        self.proposers = {key: v.landscape.proposer(v.seed) for key, v in self.variants.items()}
        self.ideas, self.binaries, self.judged = list[Idea](), binaries, 0

    def brief(self) -> str:
        return ""

    def propose(self, request: Request) -> Candidate | Exhausted:
        parent = self.ideas[int(request.parent.source)] if request.parent is not None else None
        idea = self.proposers[request.variant.id].propose(parent)
        if idea is None:
            return Exhausted(reason="nothing left")
        self.ideas.append(idea)
        return Candidate(
            variant_id=request.variant.id, source=str(len(self.ideas) - 1), backend="cpp", generator="imagined",
            parent=request.parent.id if request.parent is not None else "",
        )  # fmt: skip

    def build(self, candidate: Candidate, variant: Variant) -> Artifact:
        path = self.binaries / f"{candidate.id}.so"
        path.write_text(candidate.source)
        return Artifact(
            digest=hashlib.sha256(path.read_bytes()).hexdigest(), path=path, backend="cpp", target="t", compiler="c",
            flags=(), seconds=0.0, log="",
        )  # fmt: skip

    def evaluate(self, candidate: Candidate, record: VariantRecord, examples: Any, *, built: Any = None) -> Trial:
        self.judged += 1
        said = self.variants[record.variant.id].node(1, "", self.ideas[int(candidate.source)]).summary
        outcome: Outcome
        if said.speedup is None or said.low is None or said.candidate_us is None or said.eager_us is None:
            outcome = Rejected(reason=RejectReason.WRONG_VALUE, case="c", detail="out[0]", worst_abs=1.0)
        else:
            outcome = Scored(
                verdict=Accepted(
                    cases=1, worst=ErrorStatistics(max_abs=0.0, rms=0.0, eager_max_abs=0.0, eager_rms=0.0),
                    bitwise=True,
                ),
                measurement=Measurement(
                    points=(), speedup=Interval(median=said.speedup, low=said.low, high=said.speedup),
                    eager_us=said.eager_us, candidate_us=said.candidate_us, floor_us=said.floor_us or 0.0,
                    environment={},
                ),
                audit=AuditLabel(kind=AuditKind.GENERATED, evidence=()), artifact=built,
            )  # fmt: skip
        return Trial(candidate=candidate, outcome=outcome, started=float(self.judged), seconds=0.0)


def mixture() -> list[Imagined]:
    """One of a vendor's, one that is soon exhausted, one that is soon at its floor, and one of each drawn kind."""
    return [
        imagine(0, 0.3, STEADY, seed=0, vendor=True, floor=0.3, prior_floor=0.35, shift=-0.8),
        imagine(1, 0.2, table(SMALL), seed=1, vendor=False, floor=0.1),
        imagine(2, 0.2, Drawn(family=FAMILIES[1], scale="us"), seed=2, vendor=False, floor=0.9, prior_floor=0.6,
                ceiling=0.1),
        imagine(3, 0.2, Drawn(family=FAMILIES[3], scale="ms"), seed=3, vendor=False, floor=0.2, prior_floor=0.2),
        imagine(4, 0.1, Drawn(family=None, scale="us"), seed=4, vendor=False, floor=0.2, prior_floor=0.1),
    ]  # fmt: skip


@pytest.mark.parametrize("policy", [DEFAULT, UNIFORM, replace(DEFAULT, patience=4, warm_up=1)])
def test_the_real_search_makes_the_same_trials(policy: Policy, tmp_path: Path) -> None:
    model, trials = mixture(), 45
    records = [v.record for v in model]
    cards = [
        OperatorCard(operator=name, model="tiny", device="cpu",
                     variants=tuple(r for r in records if r.variant.operator == name))
        for name in ("linear", "relu")
    ]  # fmt: skip
    store = Project.create(tmp_path / "tiny.kforge", model="tiny", device="cpu", cards=cards, capture_info={})
    forge = Forge(model, tmp_path)
    assert SearchOptions().prefetch == PREPARED
    options = SearchOptions(
        strategy=BEST_FIRST, build_threads=0, policy=policy,
        prior_floors={v.record.variant.id: v.prior_floor for v in model},
    )  # fmt: skip
    run_search(
        store, forge, cast(Backend, forge), forge, Budget(trials=trials), variants=records, prelude=lambda v: "",
        on_event=lambda e: None, should_stop=lambda: False, options=options,
    )  # fmt: skip
    nodes = sorted((n for r in records for n in store.nodes(r.variant.id)), key=lambda n: n.started)
    places = {r.variant.id: index for index, r in enumerate(records)}
    real = [(places[n.variant_id], model[places[n.variant_id]].true(forge.ideas[int(n.candidate.source)]))
            for n in nodes]  # fmt: skip
    mine = [(t.index, t.true) for t in spend(model, policy, BEST_FIRST, trials=trials)]
    assert real == mine and len({i for i, _ in mine}) == len(model)


# --- the page ---


def test_the_section_of_the_page_is_what_the_record_says() -> None:
    made = parts(Record(RECORD))
    text = PAGE.read_text()
    for name, part in made.items():
        assert " ".join(part.split()) in " ".join(text.split()), f"{name}: run: python -m benchmarks.search --page"


def test_the_section_changes_with_the_record(tmp_path: Path) -> None:
    raw = json.loads(RECORD.read_text())
    sampled = raw["kinds"]["drawn"]["samples"]["uniform"]["found"]
    sampled["10"] = " ".join(str(int(word) + 5000) for word in sampled["10"].split())
    (tmp_path / "other.json").write_text(json.dumps(raw))
    made, other = parts(Record(RECORD)), parts(Record(tmp_path / "other.json"))
    assert made["budget_drawn"] != other["budget_drawn"]
    assert made["budget_recorded"] == other["budget_recorded"]


def test_the_record_is_of_these_policies_and_no_burden() -> None:
    raw = json.loads(RECORD.read_text())
    assert tuple(raw["budgets"]) == BUDGETS
    assert all({*kind["samples"]} == {*MAIN, *OTHERS, "uniform, as many"} for kind in raw["kinds"].values())
    assert RECORD.stat().st_size < 1_000_000
