"""The search: propose, build ahead, judge one at a time, store, schedule. Owns `run_search`.

Resuming is calling it again: all it knows of earlier trials it reads from the store, also those that other processes
add meanwhile, and candidates that were delivered and not judged come first.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from kernelforge.build.types import Artifact, Backend, BuildFailure
from kernelforge.cards.types import Variant, VariantRecord
from kernelforge.evaluate.types import Trial
from kernelforge.generate.types import Candidate, Exhausted, Generator, Request
from kernelforge.search.allowance import Cost, charged, forecast, spent, unaffordable
from kernelforge.search.duplicates import same_binary
from kernelforge.search.events import Event, Phase, PhaseChanged, TrialFinished, VariantExhausted
from kernelforge.search.lineage import best_node, speedup_of, weights
from kernelforge.search.orders import Order, OrderStore
from kernelforge.search.scheduler import Policy
from kernelforge.search.strategies import get_strategy
from kernelforge.search.study import Study, Track
from kernelforge.search.types import Budget, Judge, SearchSummary, StopReason, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """How a search runs.

    Attributes:
        policy: the scheduler's constants.
        prior_floors: variant id -> roofline floor as a fraction of eager's time, where bytes and machine tell it
            (`search.plan.prior_floors`).
        prefetch: trials prepared ahead of judging, at least 1 (the next one).
        build_threads: builds beside judging; 0 leaves building to the judge, so that nothing runs beside a timing.
        clock: monotonic seconds.
        strategy: picks the node of a variant's tree that the next proposal revises; the scheduler picks the variant.
        seed: of the strategy.
    """

    policy: Policy = field(default_factory=Policy)
    prior_floors: Mapping[str, float] = field(default_factory=dict)
    prefetch: int = 2
    build_threads: int = 1
    clock: Callable[[], float] = time.monotonic
    strategy: Strategy = field(default_factory=lambda: get_strategy("autotune"))
    seed: int = 0


def run_search(
    store: OrderStore,
    generator: Generator,
    backend: Backend,
    judge: Judge,
    budget: Budget,
    *,
    variants: Sequence[VariantRecord],
    prelude: Callable[[Variant], str],
    on_event: Callable[[Event], None],
    should_stop: Callable[[], bool],
    options: SearchOptions | None = None,
) -> SearchSummary:
    """Spend a budget on the variants; every trial is stored the moment it is judged.

    Args:
        backend: builds ahead in a thread; the judge is given the result.
        variants: what to work on; those that are not forgeable are skipped.
        prelude: the generated head of a candidate's source, for the request.
        on_event: called in this thread; what it raises ends the search.
        should_stop: asked between trials. The trial in flight is finished and stored, those prepared wait for the next
            search.

    Raises:
        ForgeError: of the generator, the backend, the judge or the store; trials stored before stay stored.
    """
    options = options or SearchOptions()
    study = Study(
        store, [r for r in variants if not r.forgeable], strategy=options.strategy, policy=options.policy,
        seed=options.seed, prior_floors=options.prior_floors,
    )  # fmt: skip
    search = _Search(
        store=store, study=study, generator=generator, backend=backend, judge=judge, budget=budget, prelude=prelude,
        on_event=on_event, should_stop=should_stop, options=options,
    )  # fmt: skip
    return search.run()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """A candidate on its way to the judge. `built` is None if the judge builds it itself."""

    track: Track
    trial: int
    order: Order
    candidate: Candidate
    built: Future[tuple[Artifact | BuildFailure, float, float]] | None


@dataclass(slots=True, kw_only=True)
class _Search:
    """The state of one call of `run_search`."""

    store: OrderStore
    study: Study
    generator: Generator
    backend: Backend
    judge: Judge
    budget: Budget
    prelude: Callable[[Variant], str]
    on_event: Callable[[Event], None]
    should_stop: Callable[[], bool]
    options: SearchOptions
    queue: deque[_Prepared] = field(default_factory=deque)
    parked: dict[str, str] = field(default_factory=dict)
    prepared: int = 0
    done: int = 0
    started: float = 0.0
    cost: Cost = field(default_factory=Cost)

    def run(self) -> SearchSummary:
        self.started = self.options.clock()
        try:
            with self._pool() as pool:
                stopped = self._loop(pool)
        finally:
            for item in self.queue:
                # The next search begins with what this one has prepared.
                self.study.release(item.order)
        best = {key: best_node(track.nodes) for key, track in self.study.tracks.items()}
        return SearchSummary(
            trials=self.done, seconds=self._elapsed(), stopped=stopped,
            best={key: node for key, node in best.items() if node is not None}, parked=self.parked,
            tokens=self.cost.tokens, usd=self.cost.usd,
        )  # fmt: skip

    @contextmanager
    def _pool(self) -> Iterator[ThreadPoolExecutor | None]:
        if not self.options.build_threads:
            yield None
            return
        pool = ThreadPoolExecutor(self.options.build_threads, thread_name_prefix="kforge-build")
        try:
            yield pool
        finally:
            # Waits for at most the builds that run; the cache keeps what they made.
            pool.shutdown(wait=True, cancel_futures=True)

    def _loop(self, pool: ThreadPoolExecutor | None) -> StopReason:
        self.on_event(forecast(self.budget, done=0, elapsed_s=0.0))
        while True:
            if self.should_stop():
                return "stopped"
            limit = spent(self.budget, done=self.done, elapsed_s=self._elapsed())
            if limit is not None:
                return limit
            self._drop_parked()
            self._fill(pool)
            if not self.queue:
                return unaffordable(self.budget, self.cost) or "exhausted"
            self._finish(self.queue[0])
            self.queue.popleft()
            self.on_event(forecast(self.budget, done=self.done, elapsed_s=self._elapsed(), cost=self.cost))

    def _elapsed(self) -> float:
        return self.options.clock() - self.started

    def _drop_parked(self) -> None:
        """Forget prepared trials of variants that the last judgement parked: their builds are a sunk cost."""
        parked = self.study.parked() if self.queue else {}
        for item in list(self.queue):
            # Trials under way do not matter to any reason for parking, so the state may include this one.
            reason = parked.get(item.candidate.variant_id)
            if reason:
                self.queue.remove(item)
                self.study.give_up(item.order, reason)
                if item.built is not None:
                    item.built.cancel()
                self._phase(item.track, item.trial, "done")

    def _fill(self, pool: ThreadPoolExecutor | None) -> None:
        room = self.options.prefetch
        if self.budget.trials is not None:
            room = min(room, self.budget.trials - self.done)
        while len(self.queue) < room:
            order = self.study.claim()
            if order is None:
                asked = self.study.ask() if unaffordable(self.budget, self.cost) is None else ()
                if not asked:
                    break
                order = self._propose(asked[0])
            if order is not None:
                self._prepare(order, pool)
        self._announce_parked()

    def _announce_parked(self) -> None:
        for variant_id, reason in self.study.parked().items():
            if variant_id not in self.parked:
                self.parked[variant_id] = reason
                self.on_event(VariantExhausted(variant=self.study.tracks[variant_id].label, reason=reason))

    def _propose(self, order: Order) -> Order | None:
        """Have a candidate proposed for the order and claim it; or note that there is none."""
        track = self.study.tracks[order.variant_id]
        number = self.prepared + 1
        self._phase(track, number, "generate")
        try:
            proposal = self.generator.propose(self._request(track, order))
        except BaseException as error:
            self.study.tell(order.id, f"the {self.generator.name} generator failed: {error}")
            raise
        if isinstance(proposal, Candidate):
            self.cost = charged(self.cost, proposal, self.budget)
            if self.study.is_known(proposal):
                proposal = Exhausted(reason=f"the {self.generator.name} generator repeats itself")
        told = self.study.tell(order.id, proposal)
        if isinstance(proposal, Exhausted):
            self._phase(track, number, "done")
            return None
        return self.study.claim(told.id)

    def _prepare(self, order: Order, pool: ThreadPoolExecutor | None) -> None:
        """Start the build of a claimed candidate."""
        assert order.candidate is not None, "it was delivered"
        track = self.study.tracks[order.variant_id]
        self.prepared += 1
        built = None
        if pool is not None:
            built = pool.submit(self._build, order.candidate, track.record.variant)
            self._phase(track, self.prepared, "build")
        self.queue.append(
            _Prepared(track=track, trial=self.prepared, order=order, candidate=order.candidate, built=built)
        )

    def _request(self, track: Track, order: Order) -> Request:
        parent = next((n.candidate for n in track.nodes if n.id == order.parent), None)
        return Request(
            variant=track.record.variant, backend=self.backend.name, prelude=self.prelude(track.record.variant),
            brief=self.backend.brief(), history=track.history() + self.study.pending(order.variant_id),
            parent=parent, why=order.reason, weights=weights(track.record),
        )  # fmt: skip

    def _build(self, candidate: Candidate, variant: Variant) -> tuple[Artifact | BuildFailure, float, float]:
        started, clock = time.time(), time.monotonic()
        result = self.backend.build(candidate, variant)
        return result, started, time.monotonic() - clock

    def _finish(self, item: _Prepared) -> None:
        """Judge a prepared candidate, store the trial and say so."""
        track = item.track
        trial = self._judge(item)
        node = self.study.record(item.order, trial)
        self.done += 1
        self._phase(track, item.trial, "done")
        best = best_node(track.nodes)
        self.on_event(
            TrialFinished(variant=track.label, node=node, best_speedup=speedup_of(best) if best is not None else None)
        )

    def _judge(self, item: _Prepared) -> Trial:
        record = item.track.record
        if item.built is None:
            self._phase(item.track, item.trial, "build")
            result, started, seconds = self._build(item.candidate, record.variant)
        else:
            result, started, seconds = item.built.result()
        known = None if isinstance(result, BuildFailure) else same_binary(result, item.track.nodes)
        if known is not None:
            return Trial(candidate=item.candidate, outcome=known, started=started, seconds=seconds)
        if isinstance(result, BuildFailure):
            # Nothing is left to judge, and the trial's time is that of the build.
            return Trial(candidate=item.candidate, outcome=result, started=started, seconds=seconds)
        self._phase(item.track, item.trial, "verify")
        trial = self.judge.evaluate(item.candidate, record, self.store.examples, built=result)
        return replace(trial, seconds=trial.seconds + seconds)

    def _phase(self, track: Track, trial: int, phase: Phase) -> None:
        self.on_event(PhaseChanged(variant=track.label, trial=trial, phase=phase))
