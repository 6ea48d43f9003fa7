"""Limits on tokens and dollars in the search itself: what proposals cost is summed, and unknown is not 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kernelforge.build.types import Artifact, BuildFailure
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import Variant, VariantRecord
from kernelforge.errors import UsageError
from kernelforge.evaluate.types import Scored, Trial
from kernelforge.generate.types import Candidate, Request
from kernelforge.search.loop import SearchOptions, run_search
from kernelforge.search.memory import MemoryStore
from kernelforge.search.scheduler import get_policy
from kernelforge.search.types import Budget, SearchSummary

MakeRecord = Callable[..., VariantRecord]


@dataclass
class PayingGenerator:
    """Every proposal is new; each costs 100 tokens and a dime, unless it does not tell."""

    usd: float | None = 0.1
    name: str = "paying"
    asked: int = 0

    def propose(self, request: Request) -> Candidate:
        self.asked += 1
        return Candidate(
            variant_id=request.variant.id, source=f"k_ {self.asked}", backend="cpp", generator=self.name,
            tokens_in=90, tokens_out=10, cost_usd=self.usd,
        )  # fmt: skip


class Tools:
    """A backend that builds everything, and a judge that accepts it."""

    name = "cpp"

    def __init__(self, outcome: Scored) -> None:
        self._outcome = outcome
        self.judged: list[str] = []

    def brief(self) -> str:
        return "a compiler"

    def build(self, candidate: Candidate, variant: Variant, *, timeout_s: float = 120.0) -> Artifact | BuildFailure:
        return Artifact(
            digest=candidate.source, path=Path("k.so"), backend="cpp", target="t", compiler="c", flags=(), seconds=0.0,
            log="",
        )  # fmt: skip

    def evaluate(
        self, candidate: Candidate, record: VariantRecord, examples: ExampleStore,
        *, built: Artifact | BuildFailure | None = None,
    ) -> Trial:  # fmt: skip
        self.judged.append(record.variant.operator)
        return Trial(candidate=candidate, outcome=self._outcome, started=float(len(self.judged)), seconds=1.0)


@dataclass
class Bench:
    store: MemoryStore
    records: list[VariantRecord]
    tools: Tools
    generator: PayingGenerator = field(default_factory=PayingGenerator)

    def run(self, budget: Budget, *, policy: str = "gain") -> SearchSummary:
        return run_search(
            self.store, self.generator, self.tools, self.tools, budget, variants=self.records,
            prelude=lambda variant: variant.label, on_event=lambda _: None, should_stop=lambda: False,
            options=SearchOptions(policy=get_policy(policy), build_threads=0),
        )  # fmt: skip


@pytest.fixture
def bench(tmp_path: Path, make_record: MakeRecord, make_scored: Callable[..., Scored]) -> Bench:
    records = [make_record("relu", 0.9), make_record("add", 0.1)]
    return Bench(MemoryStore(tmp_path), records, Tools(make_scored(2.0)))


@pytest.mark.parametrize(
    ("budget", "trials", "stopped"),
    [
        (Budget(usd=0.5), 5, "usd"),
        (Budget(usd=0.45), 4, "usd"),
        (Budget(tokens=350), 3, "tokens"),
        (Budget(trials=2, tokens=350, usd=0.5), 2, "trials"),
        (Budget(trials=9, tokens=350, usd=0.25), 2, "usd"),
    ],
)
def test_whichever_limit_comes_first(bench: Bench, budget: Budget, trials: int, stopped: str) -> None:
    summary = bench.run(budget)
    assert (summary.trials, summary.stopped) == (trials, stopped)
    assert bench.generator.asked == trials, "what was paid for was judged"
    assert summary.tokens == 100 * trials
    assert summary.usd == pytest.approx(0.1 * trials)


def test_a_generator_that_does_not_tell_ends_a_search_with_a_limit_in_dollars(bench: Bench) -> None:
    bench.generator.usd = None
    with pytest.raises(UsageError, match="does not tell what a proposal costs in dollars"):
        bench.run(Budget(usd=100.0))
    assert bench.generator.asked == 1
    summary = bench.run(Budget(trials=2))
    # The first of the two is what was paid for before.
    assert (summary.trials, summary.tokens, summary.usd) == (2, 100, None), "without the limit it is just unknown"


def test_uniform_shares_trials_equally(bench: Bench) -> None:
    bench.run(Budget(trials=40), policy="uniform")
    assert bench.tools.judged == ["relu", "add"] * 20, "no progress for long, and still not parked"
