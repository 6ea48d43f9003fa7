"""The ablation of search strategies: fair, reproducible, and driven as the real search drives them."""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from benchmarks.search import PREPARED, ablation, curve, grown, landscapes, run, samples, short
from benchmarks.search_landscapes import FAMILIES, Drawn, Idea, Landscape, Table

from kernelforge.audit.types import AuditKind, AuditLabel
from kernelforge.benchmark.types import Interval, Measurement
from kernelforge.build.types import Artifact, Backend
from kernelforge.capture.types import TensorRef
from kernelforge.cards.types import Extent, OperatorCard, SizePoint, TensorPattern, Variant, VariantRecord
from kernelforge.evaluate.types import Outcome, Scored, Trial
from kernelforge.generate.types import Candidate, Exhausted, Request
from kernelforge.search.loop import SearchOptions, run_search
from kernelforge.search.scheduler import Policy
from kernelforge.search.strategies import get_strategy, strategy_names
from kernelforge.search.types import Budget
from kernelforge.store.project import Project
from kernelforge.verify.types import Accepted, ErrorStatistics, Rejected, RejectReason

NAMES = strategy_names()
TRUE: tuple[float | None, ...] = (0.1, 0.3, None, 0.2, 0.8, None, 0.5, 0.4, 0.0, -0.2, 0.7, 0.6)
TABLE = Table(
    name="test/model/variant/emitter", order="emitter", eager=10.0, true=TRUE,
    distances=tuple(tuple(abs(i - j) for j in range(len(TRUE))) for i in range(len(TRUE))),
)  # fmt: skip


def test_the_short_form_is_short_and_the_same_every_time() -> None:
    started = time.thread_time()
    made = ablation(short(), seeds=4)
    assert time.thread_time() - started < 20
    assert {*made["landscapes"]} == {*made["variants"], "basins/ms"}
    again = ablation(short()[:1], seeds=4)
    assert again["landscapes"]["basins/us"] == made["landscapes"]["basins/us"]
    other = ablation(short()[:1], seeds=4, first=100)
    assert other["landscapes"]["basins/us"] != made["landscapes"]["basins/us"]


def test_every_landscape_has_its_own_name() -> None:
    names = [landscape.name for landscape in landscapes()]
    assert len({*names}) == len(names) > 2 * len(FAMILIES)


@pytest.mark.parametrize("name", NAMES)
def test_only_the_papers_search_knows_the_scale_of_time(name: str) -> None:
    us, ms = (
        [run(get_strategy(name), Drawn(family=FAMILIES[1], scale=scale), trials=30, seed=s) for s in range(8)]
        for scale in ("us", "ms")
    )
    assert (us == ms) is (name != "paper-mcts")


@pytest.mark.parametrize("landscape", [Drawn(family=FAMILIES[3], scale="us"), Drawn(family=None, scale="us"), TABLE])
def test_all_strategies_search_one_landscape(landscape: Landscape) -> None:
    """The second start of a seed is the same idea, whatever was tried in between."""
    starts: set[float | None] = set()
    for name in NAMES:
        from_scratch = [i for node, i in grown(get_strategy(name), landscape, trials=12, seed=5) if not node.parent]
        starts.add(from_scratch[0].true)
    assert len(starts) == 1


def test_failures_are_trials() -> None:
    tree = grown(get_strategy("best-first"), Drawn(family=FAMILIES[3], scale="us"), trials=40, seed=1)
    assert len(tree) == 40
    failed = [node for node, idea in tree if idea.true is None]
    assert failed and all(node.speedup is None and node.time_us is None for node in failed)


def test_eager_is_kept_where_nothing_is_faster() -> None:
    assert curve([None, -0.5, 0.25, 0.1], 5) == [0.0, 0.0, 0.25, 0.25, 0.25]


def test_a_start_is_the_next_guess_and_a_revision_the_nearest_untried() -> None:
    assert run(get_strategy("best-of-n"), TABLE, trials=50, seed=0) == [*TRUE]
    proposer = TABLE.proposer(0)
    chosen = [proposer.propose(None)]
    for _ in range(3):
        chosen.append(proposer.propose(Idea(true=0.4, measured=0.4, place=7)))
    assert [idea.place for idea in chosen if idea is not None] == [0, 7, 6, 8]


def test_an_uninformed_proposer_makes_all_strategies_equal() -> None:
    table = replace(TABLE, order="uniform")
    assert len({tuple(run(get_strategy(name), table, trials=12, seed=3)) for name in NAMES}) == 1


def test_regrets_end_at_zero_when_the_table_is_exhausted() -> None:
    made = samples(get_strategy("best-of-n"), TABLE, range(3))
    assert {*made} == {"5", "10", "mean", "reached", "curve"}, "budgets of 20 and 50 leave nothing to tell"
    assert made["5"] == [0, 0, 0] and made["reached"] == [5, 5, 5]
    assert made["curve"] == [700, 500, 500, 500, *([0] * 8)]


# --- the driver against the real search ---


class Table12:
    """Generator, backend and judge in one: a source is the number of a schedule."""

    name = "cpp"

    def __init__(self, seed: int, binaries: Path) -> None:
        self.proposer, self.ideas, self.binaries = TABLE.proposer(seed), dict[str, Idea](), binaries

    def brief(self) -> str:
        return ""

    def propose(self, request: Request) -> Candidate | Exhausted:
        parent = self.ideas[request.parent.source] if request.parent is not None else None
        idea = self.proposer.propose(parent)
        if idea is None:
            return Exhausted(reason="nothing left")
        source = f"schedule {idea.place}"
        self.ideas[source] = idea
        return Candidate(
            variant_id=request.variant.id, source=source, backend="cpp", generator="table",
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
        measured, outcome = self.ideas[candidate.source].measured, cast(Outcome, None)
        if measured is None:
            outcome = Rejected(reason=RejectReason.WRONG_VALUE, case="c", detail="out[0]", worst_abs=1.0)
        else:
            speedup = math.exp(measured)
            outcome = Scored(
                verdict=Accepted(
                    cases=1, worst=ErrorStatistics(max_abs=0.0, rms=0.0, eager_max_abs=0.0, eager_rms=0.0),
                    bitwise=True,
                ),
                measurement=Measurement(
                    points=(), speedup=Interval(median=speedup, low=speedup, high=speedup), eager_us=TABLE.eager,
                    candidate_us=TABLE.eager / speedup, floor_us=0.0, environment={},
                ),
                audit=AuditLabel(kind=AuditKind.GENERATED, evidence=()), artifact=built,
            )  # fmt: skip
        return Trial(candidate=candidate, outcome=outcome, started=0.0, seconds=0.0)


def record() -> VariantRecord:
    tensor = TensorPattern(shape=(Extent(8),), stride=(Extent(1),), dtype="float32")
    variant = Variant(operator="relu", arguments=(("input", TensorRef(0)),), tensors=(tensor,), outputs=(tensor,))
    return VariantRecord(
        variant=variant, points=(SizePoint(dims={}, scalars={}, calls=1, eager_us=10.0),), share=0.5, forgeable=""
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_real_search_grows_the_same_tree(name: str, tmp_path: Path) -> None:
    assert SearchOptions().prefetch == PREPARED
    card = OperatorCard(operator="relu", model="tiny", device="cpu", variants=(record(),))
    store = Project.create(tmp_path / "tiny.kforge", model="tiny", device="cpu", cards=(card,), capture_info={})
    both = Table12(seed=4, binaries=tmp_path)
    options = SearchOptions(strategy=get_strategy(name), build_threads=0, policy=Policy(patience=None))
    run_search(
        store, both, cast(Backend, both), both, Budget(trials=12), variants=[record()], prelude=lambda v: "",
        on_event=lambda e: None, should_stop=lambda: False, options=options,
    )  # fmt: skip
    nodes = store.nodes(record().variant.id)
    numbers = {n.id: str(n.number) for n in nodes} | {"": ""}
    mine = grown(get_strategy(name), TABLE, trials=12, seed=4)
    assert [(str(n.number), numbers[n.parent]) for n in nodes] == [(node.id, node.parent) for node, _ in mine]
    assert [n.candidate.source for n in nodes] == [f"schedule {idea.place}" for _, idea in mine]
