"""The loop with a deterministic generator, backend and judge."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kernelforge.build.types import Artifact, BuildFailure
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import Variant, VariantRecord
from kernelforge.errors import HarnessError
from kernelforge.evaluate.types import Outcome, Scored, Trial, WorkerFailure
from kernelforge.generate.types import Candidate, Exhausted, Request
from kernelforge.search.events import Event, PhaseChanged, SearchProgress, TrialFinished, VariantExhausted
from kernelforge.search.loop import SearchOptions, run_search
from kernelforge.search.memory import MemoryStore
from kernelforge.search.scheduler import Policy
from kernelforge.search.strategies.best_first import BestFirst
from kernelforge.search.study import Study
from kernelforge.search.types import Budget, SearchSummary
from kernelforge.verify.types import Rejected, RejectReason

if TYPE_CHECKING:
    from kernelforge.search.types import Judge

MakeRecord = Callable[..., VariantRecord]
MakeScored = Callable[..., Scored]


@dataclass
class CountingGenerator:
    """Proposes sources 0, 1, ... up to a limit; each revises the parent in the request."""

    limit: int = 1000
    needs_results: bool = False
    name: str = "counting"
    requests: list[Request] = field(default_factory=list)

    def propose(self, request: Request) -> Candidate | Exhausted:
        self.requests.append(request)
        if self.needs_results and any(f.outcome == "pending" for f in request.history):
            return Exhausted(reason="not before the result")
        tried = {f.candidate.source for f in request.history}
        for number in range(self.limit):
            if f"k_ {number}" not in tried:
                return Candidate(
                    variant_id=request.variant.id, source=f"k_ {number}", backend="cpp", generator=self.name,
                    parent=request.parent.id if request.parent else "",
                )  # fmt: skip
        return Exhausted(reason="no more sources")


@dataclass
class FakeBackend:
    """Builds everything but what is listed as broken."""

    broken: frozenset[str] = frozenset()
    name: str = "cpp"
    built: list[str] = field(default_factory=list)
    second: threading.Event = field(default_factory=threading.Event)

    def brief(self) -> str:
        return "a compiler"

    def build(self, candidate: Candidate, variant: Variant, *, timeout_s: float = 120.0) -> Artifact | BuildFailure:
        self.built.append(candidate.source)
        if len(self.built) == 2:
            self.second.set()
        if candidate.source in self.broken:
            return BuildFailure(reason="compile_error", detail="line 1")
        return Artifact(
            digest=f"binary of {candidate.source}", path=Path("k.so"), backend="cpp", target="t", compiler="c",
            flags=(), seconds=0.0, log="",
        )  # fmt: skip


@dataclass
class Clock:
    """A clock that stands still but when told."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeJudge:
    """Gives each source the outcome of a table; a trial takes 10 s of the clock."""

    verdict: Callable[[Candidate], Outcome]
    clock: Clock = field(default_factory=Clock)
    judged: list[tuple[str, str]] = field(default_factory=list)
    received: list[Artifact | BuildFailure | None] = field(default_factory=list)

    def evaluate(
        self, candidate: Candidate, record: VariantRecord, examples: ExampleStore,
        *, built: Artifact | BuildFailure | None = None,
    ) -> Trial:  # fmt: skip
        self.received.append(built)
        assert candidate.variant_id == record.variant.id
        self.judged.append((record.variant.operator, candidate.source))
        self.clock.now += 10.0
        return Trial(candidate=candidate, outcome=self.verdict(candidate), started=self.clock.now, seconds=10.0)


@dataclass
class Bench:
    """One search setting; `run` may be called again, as a user would."""

    store: MemoryStore
    records: Sequence[VariantRecord]
    judge: Judge
    generator: CountingGenerator = field(default_factory=CountingGenerator)
    backend: FakeBackend = field(default_factory=FakeBackend)
    options: SearchOptions = field(default_factory=SearchOptions)
    events: list[Event] = field(default_factory=list)

    def run(
        self, *, trials: int | None = None, seconds: float | None = None, should_stop: Callable[[], bool] | None = None
    ) -> SearchSummary:
        return run_search(
            self.store, self.generator, self.backend, self.judge, Budget(trials=trials, seconds=seconds),
            variants=self.records, prelude=lambda variant: f"k_ {variant.label}", on_event=self.events.append,
            should_stop=should_stop or (lambda: False), options=self.options,
        )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    return MemoryStore(tmp_path)


@pytest.fixture
def judge(make_scored: MakeScored) -> FakeJudge:
    """Source n is accepted with a speed-up of 1 + n / 10."""
    return FakeJudge(lambda c: make_scored(1.0 + int(c.source[3:]) / 10))


@pytest.fixture
def bench(store: MemoryStore, judge: FakeJudge, make_record: MakeRecord) -> Bench:
    records = [make_record("relu", 0.3), make_record("add", 0.6), make_record("conv", 0.1, forgeable="vendor")]
    return Bench(store=store, records=records, judge=judge, options=SearchOptions(clock=judge.clock))


def _has(store: MemoryStore, count: int) -> bool:
    return len(store.stored) >= count


def _sources(store: MemoryStore, record: VariantRecord) -> list[str]:
    return [n.candidate.source for n in store.nodes(record.variant.id)]


def test_trial_budget(bench: Bench, store: MemoryStore, judge: FakeJudge) -> None:
    summary = bench.run(trials=5)
    assert (summary.trials, summary.stopped, len(store.stored)) == (5, "trials", 5)
    assert judge.judged[:2] == [("add", "k_ 0"), ("relu", "k_ 0")], "one each, before what may win most"
    best = summary.best[bench.records[1].variant.id]
    assert best.candidate.source == _sources(store, bench.records[1])[-1]
    assert bench.records[2].variant.id not in summary.best


def test_time_budget(bench: Bench) -> None:
    summary = bench.run(seconds=35.0)
    assert (summary.trials, summary.stopped, summary.seconds) == (3, "seconds", 30.0)


def test_search_ends_when_the_generator_does(bench: Bench) -> None:
    bench.generator.limit = 2
    summary = bench.run(trials=100)
    assert (summary.trials, summary.stopped) == (4, "exhausted")
    ended = [(e.variant, e.reason) for e in bench.events if isinstance(e, VariantExhausted)]
    assert sorted(ended) == sorted((r.variant.label, "no more sources") for r in bench.records[:2])
    assert set(summary.parked.values()) == {"no more sources"}


def test_nothing_to_do(bench: Bench) -> None:
    bench.records = bench.records[2:]
    assert bench.run(trials=5).stopped == "exhausted"


def test_stop_finishes_the_trial_in_flight_and_drops_the_rest(bench: Bench, store: MemoryStore) -> None:
    summary = bench.run(trials=50, should_stop=lambda: len(store.stored) >= 3)
    assert (summary.trials, summary.stopped, len(store.stored)) == (3, "stopped", 3)
    assert len(bench.backend.built) >= 3


def test_resume_is_the_same_call_again(bench: Bench, store: MemoryStore, make_record: MakeRecord) -> None:
    bench.generator.limit = 6
    for stop_at in (1, 4, 5):
        bench.run(should_stop=partial(_has, store, stop_at))
    summary = bench.run()
    assert (summary.stopped, summary.trials, len(store.stored)) == ("exhausted", 7, 12)
    for record in bench.records[:2]:
        assert _sources(store, record) == [f"k_ {i}" for i in range(6)], "nothing twice, nothing left out"
    assert bench.run().trials == 0


def test_build_failure_is_stored_without_the_judge(bench: Bench, store: MemoryStore, judge: FakeJudge) -> None:
    bench.backend = FakeBackend(broken=frozenset({"k_ 0"}))
    bench.run(trials=4)
    assert [n.outcome for n in store.stored[:2]] == [BuildFailure(reason="compile_error", detail="line 1")] * 2
    assert "k_ 0" not in {source for _, source in judge.judged}
    last = bench.generator.requests[-1].history
    assert [f.outcome for f in last if f.candidate.source == "k_ 0"] == ["build_failure"]


def test_builds_run_beside_judging(bench: Bench, make_scored: MakeScored) -> None:
    seen: list[bool] = []

    def verdict(candidate: Candidate) -> Outcome:
        if not seen:
            seen.append(bench.backend.second.wait(timeout=10.0))
        return make_scored(1.5)

    bench.judge = FakeJudge(verdict)
    bench.run(trials=2)
    assert seen == [True], "the second candidate was built while the first was judged"


def test_nothing_is_built_ahead_where_it_would_disturb_the_timings(bench: Bench, make_scored: MakeScored) -> None:
    ahead = []

    def verdict(candidate: Candidate) -> Outcome:
        ahead.append(len(bench.backend.built) - len(seen.judged))
        return make_scored(1.5)

    bench.judge = seen = FakeJudge(verdict)
    bench.options = replace(bench.options, build_threads=0)
    assert bench.run(trials=3).trials == 3
    assert ahead == [0, 0, 0] and all(isinstance(built, Artifact) for built in seen.received)


def test_a_binary_that_was_judged_is_not_judged_again(
    bench: Bench, store: MemoryStore, make_scored: MakeScored
) -> None:
    bench.records = bench.records[:1]
    same = make_scored(2.0)
    same = replace(same, artifact=replace(same.artifact, digest="binary of k_ 1"))
    bench.judge = seen = FakeJudge(lambda c: same)
    bench.run(trials=3)
    # The judge says of source 0 that it is the binary of source 1: then source 1 needs no judgement.
    assert [source for _, source in seen.judged] == ["k_ 0", "k_ 2"]
    alias = store.stored[1].outcome
    assert isinstance(alias, Scored) and alias.artifact.digest == "binary of k_ 1"
    assert alias.measurement.points == same.measurement.points
    assert alias.measurement.environment == {**same.measurement.environment, "measured_as": "trial 1"}


def test_a_source_that_differs_in_comments_alone_is_a_repetition(bench: Bench, store: MemoryStore) -> None:
    bench.records = bench.records[:1]
    bench.generator = CountingGenerator(limit=1)
    bench.run()
    tried = store.stored[0].candidate

    def again(request: Request) -> Candidate:
        return replace(tried, source="/* the same */ k_    0  // really")

    bench.generator.propose = again  # type: ignore[method-assign]
    summary = bench.run()
    assert summary.trials == 0 and "repeats itself" in summary.parked[bench.records[0].variant.id]


def test_no_phase_is_left_open(bench: Bench, make_scored: MakeScored) -> None:
    bench.judge = FakeJudge(lambda c: make_scored(5.0, floor_us=1.9))
    assert bench.run().stopped == "exhausted"
    last = {(e.variant, e.trial): e.phase for e in bench.events if isinstance(e, PhaseChanged)}
    assert set(last.values()) == {"done"} and len(last) > 2, "some were prepared and dropped"


def test_variant_at_the_floor_gets_no_more_trials(bench: Bench, store: MemoryStore, make_scored: MakeScored) -> None:
    relu, add = bench.records[0].variant, bench.records[1].variant
    bench.judge = FakeJudge(lambda c: make_scored(5.0, floor_us=1.9 if c.variant_id == add.id else 0.0))
    summary = bench.run(trials=8)
    assert _sources(store, bench.records[1]) == ["k_ 0"], "what was prepared for it was dropped"
    assert _sources(store, bench.records[0]) == [f"k_ {i}" for i in range(7)]
    assert "roofline floor" in summary.parked[add.id] and relu.id not in summary.parked


def test_no_progress_parks(bench: Bench, store: MemoryStore, make_scored: MakeScored) -> None:
    bench.judge = FakeJudge(lambda c: make_scored(1.5))
    bench.options = SearchOptions(policy=Policy(patience=4))
    summary = bench.run(trials=100)
    assert summary.stopped == "exhausted"
    assert [len(store.nodes(r.variant.id)) for r in bench.records[:2]] == [5, 5]
    assert set(summary.parked.values()) == {"no progress in 4 trials"}


def test_what_was_delivered_is_judged_although_its_variant_is_parked(
    bench: Bench, store: MemoryStore, make_scored: MakeScored
) -> None:
    bench.judge = FakeJudge(lambda c: make_scored(1.5))
    bench.records = bench.records[:1]
    bench.options = SearchOptions(policy=Policy(patience=2))
    study = Study(store, bench.records, strategy=bench.options.strategy)
    hands = [f"by hand {i}" for i in range(6)]
    for text in hands:
        study.enqueue(Candidate(variant_id=bench.records[0].variant.id, source=text, backend="cpp", generator="manual"))
    assert bench.run(trials=100).stopped == "exhausted"
    assert _sources(store, bench.records[0])[:6] == hands
    failed = [o.candidate.source for o in store.orders(closed=True) if o.state == "failed" and o.candidate is not None]
    assert not set(failed) & set(hands)


def test_failing_judge_is_not_charged_to_candidates(bench: Bench, store: MemoryStore, judge: FakeJudge) -> None:
    bench.judge = FakeJudge(lambda c: WorkerFailure(detail="no GPU"))
    bench.records = bench.records[:1]
    summary = bench.run(trials=100)
    assert summary.stopped == "exhausted" and "judge failed 3 times" in summary.parked[bench.records[0].variant.id]
    failed = len(store.stored)
    bench.judge = judge
    assert bench.run(trials=4).trials == 4, "a repaired judge gets to work"
    again = _sources(store, bench.records[0])[failed:]
    assert "k_ 1" in again, "a candidate that was never judged is judged"
    accepted = [n.candidate.source for n in store.stored if isinstance(n.outcome, Scored)]
    assert len(set(accepted)) == len(accepted)


def test_request_tells_the_generator_all(bench: Bench, store: MemoryStore, make_scored: MakeScored) -> None:
    wrong = Rejected(reason=RejectReason.WRONG_VALUE, case="n0=8", detail="out[0]", worst_abs=1.0)
    bench.judge = FakeJudge(lambda c: wrong if c.source == "k_ 0" else make_scored(2.0))
    bench.records = bench.records[:1]
    bench.options = replace(bench.options, strategy=BestFirst(starts=1))
    bench.run(trials=4)
    variant, last = bench.records[0].variant, bench.generator.requests[-1]
    assert (last.variant, last.backend, last.brief, last.prelude) == (
        variant,
        "cpp",
        "a compiler",
        f"k_ {variant.label}",
    )
    assert [f.outcome for f in last.history] == ["rejected", "accepted", "pending"]
    assert last.parent is not None and last.parent.source == "k_ 1"
    assert last.why == "2.00x, children: 0"  # the one that is being judged was begun before
    assert last.weights == (({}, 1.0),)
    assert store.stored[3].parent == store.stored[1].id and store.stored[0].parent == ""


def test_generator_that_waits_for_results_is_asked_again(bench: Bench, store: MemoryStore) -> None:
    bench.generator = CountingGenerator(limit=4, needs_results=True)
    bench.records = bench.records[:1]
    summary = bench.run()
    assert (summary.trials, summary.stopped) == (4, "exhausted")
    assert [e.reason for e in bench.events if isinstance(e, VariantExhausted)] == ["no more sources"]


def test_generator_that_repeats_itself_is_exhausted(bench: Bench, store: MemoryStore) -> None:
    class Stuck(CountingGenerator):
        def propose(self, request: Request) -> Candidate | Exhausted:
            return super().propose(replace(request, history=()))

    bench.generator = Stuck()
    summary = bench.run(trials=50)
    assert summary.trials == 2 and "repeats itself" in summary.parked[bench.records[0].variant.id]


def test_trials_of_other_processes_are_seen(bench: Bench, store: MemoryStore, make_scored: MakeScored) -> None:
    record = bench.records[0]
    bench.records = [record]
    foreign = Candidate(variant_id=record.variant.id, source="k_ 3", backend="cpp", generator="counting")

    def verdict(candidate: Candidate) -> Outcome:
        if candidate.source == "k_ 0":
            store.append(Trial(candidate=foreign, outcome=make_scored(1.2), started=0.0, seconds=1.0))
        return make_scored(1.1)

    bench.judge = FakeJudge(verdict)
    bench.run(trials=5)
    sources = _sources(store, record)
    assert sources.count("k_ 3") == 1 and set(sources) == {f"k_ {i}" for i in range(6)}


def test_events_of_a_trial(bench: Bench, store: MemoryStore) -> None:
    bench.records, bench.options = bench.records[:1], replace(bench.options, prefetch=1)
    bench.run(trials=2)
    label = bench.records[0].variant.label
    words = [e.phase if isinstance(e, PhaseChanged) else type(e).__name__ for e in bench.events]
    assert words == ["SearchProgress"] + ["generate", "build", "verify", "done", "TrialFinished", "SearchProgress"] * 2
    assert {e.trial for e in bench.events if isinstance(e, PhaseChanged)} == {1, 2}
    finished = [e for e in bench.events if isinstance(e, TrialFinished)]
    assert [e.node for e in finished] == store.stored
    assert [(e.variant, e.best_speedup) for e in finished] == [(label, 1.0), (label, 1.1)]


def test_progress_and_time_left(bench: Bench) -> None:
    bench.run(trials=4)
    progress = [e for e in bench.events if isinstance(e, SearchProgress)]
    assert [(p.done, p.expected, p.eta_s) for p in progress] == [
        (0, 4, None), (1, 4, 30.0), (2, 4, 20.0), (3, 4, 10.0), (4, 4, 0.0),
    ]  # fmt: skip


def test_fault_of_the_harness_ends_the_search(bench: Bench, store: MemoryStore, make_scored: MakeScored) -> None:
    def verdict(candidate: Candidate) -> Outcome:
        if candidate.source == "k_ 1":
            raise HarnessError("the runner does not start")
        return make_scored(1.5)

    bench.judge = FakeJudge(verdict)
    with pytest.raises(HarnessError):
        bench.run(trials=50)
    assert len(store.stored) == 2
    assert not [t for t in threading.enumerate() if t.name.startswith("kforge-build")]


def test_a_slow_proposer_does_not_hold_up_the_judge(bench: Bench, make_scored: MakeScored) -> None:
    """The first proposals come at once; the next one only when a trial has been judged meanwhile."""
    judged = threading.Event()

    class Slow(CountingGenerator):
        def propose(self, request: Request) -> Candidate | Exhausted:
            if len(self.requests) >= 2:
                assert judged.wait(10.0), "judging goes on beside a proposal"
            return super().propose(request)

    def verdict(candidate: Candidate) -> Outcome:
        judged.set()
        return make_scored(1.5)

    bench.generator, bench.judge = Slow(), FakeJudge(verdict)
    bench.options = SearchOptions(propose_threads=1, policy=Policy(patience=None))
    summary = bench.run(trials=6)
    assert (summary.trials, summary.stopped) == (6, "trials")


def test_while_the_judge_waits_for_a_build_idle_threads_begin_another(bench: Bench) -> None:
    together, begun = threading.Barrier(2, timeout=10.0), count()

    class Slow(FakeBackend):
        def build(self, candidate: Candidate, variant: Variant, *, timeout_s: float = 120.0) -> Artifact | BuildFailure:
            if next(begun) < 2:
                together.wait()
            return super().build(candidate, variant)

    bench.backend = Slow()
    bench.options = SearchOptions(prefetch=1, build_threads=2)
    assert bench.run(trials=4).trials == 4


def test_proposals_and_builds_in_threads_lose_and_double_nothing(bench: Bench, store: MemoryStore) -> None:
    bench.generator = CountingGenerator(limit=20)
    bench.options = SearchOptions(propose_threads=4, build_threads=3, prefetch=4, policy=Policy(patience=None))
    summary = bench.run()
    assert (summary.stopped, summary.trials) == ("exhausted", 40)
    for record in bench.records[:2]:
        assert sorted(_sources(store, record)) == sorted(f"k_ {i}" for i in range(20))
    assert not [o for o in store.orders() if o.state != "waiting"]
    last = {(e.variant, e.trial): e.phase for e in bench.events if isinstance(e, PhaseChanged)}
    assert set(last.values()) == {"done"}


def test_the_trial_budget_counts_proposals_under_way(bench: Bench, store: MemoryStore) -> None:
    bench.options = SearchOptions(propose_threads=8, prefetch=8, policy=Policy(patience=None))
    assert bench.run(trials=5).trials == len(store.stored) == 5
    assert not store.orders()


def test_events_of_other_threads_arrive_in_the_calling_one(bench: Bench) -> None:
    threads = set()

    class Heard(list[Event]):
        def append(self, event: Event) -> None:
            threads.add(threading.get_ident())
            super().append(event)

    bench.events = Heard()
    bench.options = SearchOptions(propose_threads=2)
    bench.run(trials=4)
    assert threads == {threading.get_ident()} and len(bench.events) > 8


def test_a_failed_proposal_in_a_thread_ends_the_search_and_its_order_says_why(bench: Bench, store: MemoryStore) -> None:
    class Broken(CountingGenerator):
        def propose(self, request: Request) -> Candidate | Exhausted:
            raise HarnessError("the provider answered 500")

    bench.generator = Broken()
    bench.options = SearchOptions(propose_threads=2)
    with pytest.raises(HarnessError, match="answered 500"):
        bench.run(trials=5)
    assert all(o.state == "failed" and "answered 500" in o.detail for o in store.orders(closed=True))


def test_what_was_proposed_when_the_search_was_stopped_waits_for_the_next(bench: Bench, store: MemoryStore) -> None:
    stop, begun = threading.Event(), threading.Event()

    class Slow(CountingGenerator):
        def propose(self, request: Request) -> Candidate | Exhausted:
            begun.set()
            assert stop.wait(10.0)
            return super().propose(request)

    def should_stop() -> bool:
        if begun.is_set():
            stop.set()
        return stop.is_set()

    bench.generator, bench.records = Slow(), bench.records[:1]
    bench.options = SearchOptions(propose_threads=1)
    summary = bench.run(should_stop=should_stop)
    assert (summary.trials, summary.stopped, [o.state for o in store.orders()]) == (0, "stopped", ["delivered"])
    bench.generator = CountingGenerator()
    bench.options = SearchOptions()
    assert bench.run(trials=1).trials == 1 and bench.generator.requests == []


def test_one_idea_of_two_proposers_is_one_trial(bench: Bench, store: MemoryStore, make_scored: MakeScored) -> None:
    """Another process delivers the same text while this one thinks: that is no repetition, and ideas are left."""
    bench.records = bench.records[:1]
    variant = bench.records[0].variant
    twin = Candidate(variant_id=variant.id, source="k_ 0", backend="cpp", generator="counting")
    told: list[bool] = []

    class Late(CountingGenerator):
        def propose(self, request: Request) -> Candidate | Exhausted:
            if not told:
                told.append(True)
                store.append(Trial(candidate=twin, outcome=make_scored(1.2), started=0.0, seconds=1.0))
            return super().propose(request)

    bench.generator = Late()
    summary = bench.run(trials=3)
    assert summary.trials == 3 and not summary.parked
    assert _sources(store, bench.records[0]) == [f"k_ {i}" for i in range(4)]


def test_a_trial_that_another_finished_meanwhile_is_not_counted(
    bench: Bench, store: MemoryStore, make_scored: MakeScored
) -> None:
    bench.records = bench.records[:1]

    def while_judging(candidate: Candidate) -> Scored:
        scored = make_scored(1.3)
        if candidate.source == "k_ 0":
            (order,) = (o for o in store.orders() if o.candidate is not None and o.candidate.id == candidate.id)
            store.finish(order.id, Trial(candidate=candidate, outcome=scored, started=-1.0, seconds=1.0))
        return scored

    bench.judge = FakeJudge(while_judging)
    summary = bench.run(trials=3)
    assert summary.trials == 3 and len(store.stored) == 4, "the other's trial is none of this search"


def test_a_trial_whose_lease_another_took_is_left_alone(bench: Bench, store: MemoryStore) -> None:
    bench.records = bench.records[:1]

    def steal(event: Event) -> None:
        bench.events.append(event)
        if isinstance(event, TrialFinished) and event.node.number == 1:
            for order in store.orders():
                store.kept[order.id] = replace(order, owner="another", expires=float("inf"))

    run_search(
        store, bench.generator, bench.backend, bench.judge, Budget(trials=3), variants=bench.records,
        prelude=lambda _: "", on_event=steal, should_stop=lambda: False, options=bench.options,
    )  # fmt: skip
    assert [o.owner for o in store.orders()] == ["another"]
    assert len(set(_sources(store, bench.records[0]))) == 3


def test_a_pause_lets_nothing_begin_and_costs_no_time(bench: Bench, store: MemoryStore, judge: FakeJudge) -> None:
    asked: list[list[str]] = []

    def should_pause() -> bool:
        if len(store.stored) != 2 or len(asked) >= 3:
            return False
        asked.append([o.state for o in store.orders()])
        judge.clock.now += 1000.0
        return True

    bench.options = replace(bench.options, should_pause=should_pause)
    summary = bench.run(seconds=45.0)
    assert (summary.trials, summary.seconds) == (4, 40.0)
    assert asked[1:] == [["delivered"]] * 2, "what was prepared is anyone's meanwhile"


def test_how_busy_the_lanes_were(bench: Bench, judge: FakeJudge) -> None:
    summary = bench.run(trials=3)
    assert summary.busy_s == {"propose": 0.0, "build": 0.0, "judge": 30.0}
