"""The search: propose, build ahead, judge one at a time, store, schedule. Owns `run_search`.

Resuming is calling it again: all it knows of earlier trials it reads from the store, also those that other processes
add meanwhile.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from kernelforge.build.types import Artifact, Backend, BuildFailure
from kernelforge.cards.types import Variant, VariantRecord
from kernelforge.evaluate.types import Trial
from kernelforge.generate.types import Candidate, Exhausted, Feedback, Generator, Request
from kernelforge.search.allowance import forecast, spent
from kernelforge.search.duplicates import normalised, same_binary
from kernelforge.search.events import Event, Phase, PhaseChanged, TrialFinished, VariantExhausted
from kernelforge.search.lineage import best_node, history, parent_node, speedup_of, weights
from kernelforge.search.scheduler import Policy, VariantState, next_variant, park_reason, state_of
from kernelforge.search.strategies import get_strategy
from kernelforge.search.tree import view_of
from kernelforge.search.types import Budget, Judge, Node, NodeStore, SearchSummary, StopReason, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """How a search runs.

    Attributes:
        policy: the scheduler's constants.
        prefetch: trials prepared ahead of judging, at least 1 (the next one).
        build_threads: builds beside judging; 0 leaves building to the judge, so that nothing runs beside a timing.
        clock: monotonic seconds.
        strategy: picks the node of a variant's tree that the next proposal revises; the scheduler picks the variant.
        seed: of the strategy.
    """

    policy: Policy = field(default_factory=Policy)
    prefetch: int = 2
    build_threads: int = 1
    clock: Callable[[], float] = time.monotonic
    strategy: Strategy = field(default_factory=lambda: get_strategy("autotune"))
    seed: int = 0


def run_search(
    store: NodeStore,
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
        should_stop: asked between trials. The trial in flight is finished and stored, those prepared are dropped.

    Raises:
        ForgeError: of the generator, the backend, the judge or the store; trials stored before stay stored.
    """
    search = _Search(
        store=store, generator=generator, backend=backend, judge=judge, budget=budget, prelude=prelude,
        on_event=on_event, should_stop=should_stop, options=options or SearchOptions(),
    )  # fmt: skip
    return search.run([r for r in variants if not r.forgeable])


@dataclass(slots=True, kw_only=True)
class _Track:
    """One variant during this call. `pending` are prepared candidates, `waiting` that the generator had no idea that
    is independent of them."""

    record: VariantRecord
    nodes: list[Node]
    since: int
    pending: list[Candidate] = field(default_factory=list)
    exhausted: str = ""
    waiting: bool = False
    parked: str = ""

    @property
    def label(self) -> str:
        return self.record.variant.label

    def state(self) -> VariantState:
        reason = self.exhausted or ("waiting for trials in flight" if self.waiting else "")
        return state_of(
            self.record, self.nodes, in_flight=len(self.pending), since=self.since, exhausted=reason
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """A candidate on its way to the judge. `built` is None if the judge builds it itself."""

    track: _Track
    trial: int
    candidate: Candidate
    built: Future[tuple[Artifact | BuildFailure, float, float]] | None


@dataclass(slots=True, kw_only=True)
class _Search:
    """The state of one call of `run_search`."""

    store: NodeStore
    generator: Generator
    backend: Backend
    judge: Judge
    budget: Budget
    prelude: Callable[[Variant], str]
    on_event: Callable[[Event], None]
    should_stop: Callable[[], bool]
    options: SearchOptions
    tracks: dict[str, _Track] = field(default_factory=dict)
    queue: deque[_Prepared] = field(default_factory=deque)
    prepared: int = 0
    done: int = 0
    started: float = 0.0

    def run(self, records: Sequence[VariantRecord]) -> SearchSummary:
        self.started = self.options.clock()
        for record in records:
            nodes = list(self.store.nodes(record.variant.id))
            since = nodes[-1].number if nodes else 0
            self.tracks[record.variant.id] = _Track(record=record, nodes=nodes, since=since)
        with self._pool() as pool:
            stopped = self._loop(pool)
        best = {key: best_node(track.nodes) for key, track in self.tracks.items()}
        return SearchSummary(
            trials=self.done, seconds=self._elapsed(), stopped=stopped,
            best={key: node for key, node in best.items() if node is not None},
            parked={key: track.parked for key, track in self.tracks.items() if track.parked},
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
                return "exhausted"
            self._finish(self.queue.popleft())
            self.on_event(forecast(self.budget, done=self.done, elapsed_s=self._elapsed()))

    def _elapsed(self) -> float:
        return self.options.clock() - self.started

    def _drop_parked(self) -> None:
        """Forget prepared trials of variants that the last judgement parked: their builds are a sunk cost."""
        for item in list(self.queue):
            # Pending trials do not matter to any reason for parking, so the state may include this one.
            if park_reason(item.track.state(), self.options.policy) and not item.track.waiting:
                self.queue.remove(item)
                item.track.pending.remove(item.candidate)
                if item.built is not None:
                    item.built.cancel()
                self._phase(item.track, item.trial, "done")

    def _fill(self, pool: ThreadPoolExecutor | None) -> None:
        room = self.options.prefetch
        if self.budget.trials is not None:
            room = min(room, self.budget.trials - self.done)
        while len(self.queue) < room:
            chosen = next_variant((t.state() for t in self.tracks.values()), self.options.policy)
            if chosen is None:
                break
            self._prepare(self.tracks[chosen.variant_id], pool)
        self._announce_parked()

    def _announce_parked(self) -> None:
        for track in self.tracks.values():
            reason = park_reason(track.state(), self.options.policy)
            if reason and not track.parked and not track.waiting:
                track.parked = reason
                self.on_event(VariantExhausted(variant=track.label, reason=reason))

    def _prepare(self, track: _Track, pool: ThreadPoolExecutor | None) -> None:
        """Propose a candidate for the variant and start its build; or note that there is none."""
        number = self.prepared + 1
        self._phase(track, number, "generate")
        request = self._request(track)
        proposal = self.generator.propose(request)
        if isinstance(proposal, Exhausted):
            self._no_idea(track, number, proposal.reason)
            return
        if normalised(proposal.source) in {normalised(f.candidate.source) for f in request.history}:
            self._no_idea(track, number, f"the {self.generator.name} generator repeats itself")
            return
        self.prepared = number
        built = None
        if pool is not None:
            built = pool.submit(self._build, proposal, track.record.variant)
            self._phase(track, number, "build")
        track.pending.append(proposal)
        self.queue.append(_Prepared(track=track, trial=number, candidate=proposal, built=built))

    def _no_idea(self, track: _Track, number: int, reason: str) -> None:
        self._phase(track, number, "done")
        # With trials in flight their outcome may give the generator ideas; without, it is final.
        track.waiting = bool(track.pending)
        track.exhausted = "" if track.pending else reason

    def _refresh(self, track: _Track) -> None:
        """Take in new nodes, in the store's order; other processes may have added some."""
        last = track.nodes[-1].number if track.nodes else 0
        track.nodes.extend(self.store.nodes(track.record.variant.id, after=last))

    def _request(self, track: _Track) -> Request:
        self._refresh(track)
        in_flight = tuple(
            Feedback(candidate=c, outcome="pending", detail="being judged", speedup=None) for c in track.pending
        )
        view = view_of(track.nodes, [c.parent for c in track.pending], seed=self.options.seed)
        selection = self.options.strategy.select(view)
        parent = next((n.candidate for n in track.nodes if n.id == selection.parent), None)
        return Request(
            variant=track.record.variant, backend=self.backend.name, prelude=self.prelude(track.record.variant),
            brief=self.backend.brief(), history=history(track.nodes) + in_flight,
            parent=parent, why=selection.reason, weights=weights(track.record),
        )  # fmt: skip

    def _build(self, candidate: Candidate, variant: Variant) -> tuple[Artifact | BuildFailure, float, float]:
        started, clock = time.time(), time.monotonic()
        result = self.backend.build(candidate, variant)
        return result, started, time.monotonic() - clock

    def _finish(self, item: _Prepared) -> None:
        """Judge a prepared candidate, store the trial and say so."""
        track = item.track
        trial = self._judge(item)
        node = self.store.append(trial, parent=parent_node(item.candidate.parent, track.nodes))
        self._refresh(track)
        track.pending.remove(item.candidate)
        track.waiting = False
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

    def _phase(self, track: _Track, trial: int, phase: Phase) -> None:
        self.on_event(PhaseChanged(variant=track.label, trial=trial, phase=phase))
