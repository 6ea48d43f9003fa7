"""The search as a pipeline of three lanes: propose, build, judge. Owns `run_search`.

Proposals and builds may run in threads of their own, so that neither a slow language model nor a compiler holds up the
judge, which works in the calling thread, one trial at a time. What was proposed is in the store the moment it is there.

Resuming is calling it again: all it knows of earlier trials it reads from the store, also those that other processes
add meanwhile, and candidates that were delivered and not judged come first.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from kernelforge.build.types import Artifact, Backend, BuildFailure
from kernelforge.cards.types import Variant, VariantRecord
from kernelforge.errors import ForgeError
from kernelforge.evaluate.types import Trial
from kernelforge.generate.types import (
    Candidate,
    Exhausted,
    Generator,
    NoCandidate,
    OutOfBudget,
    Proposal,
    Repairing,
    Request,
)
from kernelforge.search.allowance import Cost, charged, forecast, paid, spent, unaffordable
from kernelforge.search.duplicates import normalised
from kernelforge.search.events import Event, Phase, PhaseChanged, TrialFinished, VariantExhausted
from kernelforge.search.lanes import Lanes
from kernelforge.search.lineage import attempts_at, best_node, speedup_of
from kernelforge.search.orders import Order, OrderStore
from kernelforge.search.requests import request_for
from kernelforge.search.scheduler import Policy
from kernelforge.search.strategies import get_strategy
from kernelforge.search.study import KNOWN_TEXT, Study, Track
from kernelforge.search.trials import judged
from kernelforge.search.types import Budget, Judge, Node, SearchSummary, StopReason, Strategy

FRUITLESS_OF_VARIANT, FRUITLESS_IN_ALL = 4, 8
"""Proposals without a candidate in a row, after which a variant, or the search, is left alone."""
POLL_S = 0.2
"""How often `should_stop` and `should_pause` are asked while there is nothing to judge."""


class FruitlessSearch(ForgeError):
    """Proposals come to nothing any more: the provider does not answer, say, or its replies hold no kernel."""


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """How a search runs.

    Attributes:
        policy: the scheduler's constants.
        prior_floors: variant id -> roofline floor as a fraction of eager's time, where bytes and machine tell it
            (`search.plan.prior_floors`).
        prefetch: trials prepared ahead of judging, at least 1 (the next one). Whenever the judge has to wait for a
            build, one more is begun, as long as there are idle `build_threads`.
        propose_threads: proposals under way beside judging; 0 makes them between two trials, in the calling thread, so
            that each knows all results before it, and a search repeats itself exactly.
        build_threads: builds beside judging; 0 leaves building to the judge, so that nothing runs beside a timing.
        clock: monotonic seconds.
        strategy: picks the node of a variant's tree that the next proposal revises; the scheduler picks the variant.
        seed: of the strategy.
        should_pause: asked between trials; while it says so nothing begins, and what was prepared is anyone's. The time
            counts for no limit.
        repairing: the generator, if it can mend what failed and keeps the limits of tokens and dollars itself.
        target: facts of the device, a line each, for the generator.
    """

    policy: Policy = field(default_factory=Policy)
    prior_floors: Mapping[str, float] = field(default_factory=dict)
    prefetch: int = 2
    propose_threads: int = 0
    build_threads: int = 1
    clock: Callable[[], float] = time.monotonic
    strategy: Strategy = field(default_factory=lambda: get_strategy("autotune"))
    seed: int = 0
    should_pause: Callable[[], bool] = _never
    repairing: Repairing | None = None
    target: Sequence[str] = ()


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
        generator: called in threads, if `options` say so.
        backend: builds ahead in threads; the judge is given the result.
        variants: what to work on; those that are not forgeable are skipped.
        prelude: the generated head of a candidate's source, for the request.
        on_event: called in this thread; what it raises ends the search.
        should_stop: asked between trials. The trial in flight is finished and stored, proposals under way are awaited
            and stored, and what was prepared waits for the next search.

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
        on_event=on_event, should_stop=should_stop, options=options, lanes=Lanes(options.clock),
    )  # fmt: skip
    return search.run()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Prepared:
    """A candidate on its way to the judge. `built` is None if the judge builds it itself.

    `owed`: it was delivered by others, or paid for, and is judged whatever becomes of its variant.
    """

    track: Track
    trial: int
    order: Order
    candidate: Candidate
    owed: bool
    built: Future[tuple[Artifact | BuildFailure, float, float]] | None

    @property
    def ready(self) -> bool:
        return self.built is None or self.built.done()


@dataclass(slots=True, kw_only=True)
class _Search:
    """The state of one call of `run_search`. `lock` guards the study, the queue, the counters and the cost."""

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
    lanes: Lanes
    lock: threading.RLock = field(default_factory=threading.RLock)
    thread: int = field(default_factory=threading.get_ident)
    told: SimpleQueue[Event] = field(default_factory=SimpleQueue)
    proposers: ThreadPoolExecutor | None = None
    builders: ThreadPoolExecutor | None = None
    queue: deque[_Prepared] = field(default_factory=deque)
    proposing: list[Future[None]] = field(default_factory=list)
    parked: dict[str, str] = field(default_factory=dict)
    takes: bool = True
    numbered: int = 0
    done: int = 0
    started: float = 0.0
    paused_s: float = 0.0
    cost: Cost = field(default_factory=Cost)
    refused: StopReason | None = None
    fruitless: dict[str, int] = field(default_factory=dict)

    def run(self) -> SearchSummary:
        self.started = self.options.clock()
        if self.options.repairing is not None:
            self.study.take_left_over(self.options.repairing.left_over)
        try:
            with (
                self._pool("build", self.options.build_threads) as self.builders,
                # Left first, and it waits: what was asked may have been paid for.
                self._pool("propose", self.options.propose_threads) as self.proposers,
            ):
                try:
                    stopped = self._loop()
                finally:
                    with self.lock:
                        self.takes = False
        finally:
            # The next search begins with what this one has prepared.
            self._release_all()
        self._harvest()
        self._deliver_events()
        best = {key: best_node(track.nodes) for key, track in self.study.tracks.items()}
        return SearchSummary(
            trials=self.done, seconds=self._elapsed(), stopped=stopped,
            best={key: node for key, node in best.items() if node is not None}, parked=self.parked,
            tokens=self.cost.tokens, usd=self.cost.usd, busy_s=self.lanes.busy_s(),
        )  # fmt: skip

    @contextmanager
    def _pool(self, name: str, threads: int) -> Iterator[ThreadPoolExecutor | None]:
        if not threads:
            yield None
            return
        pool = ThreadPoolExecutor(threads, thread_name_prefix=f"kforge-{name}")
        killed = False
        try:
            yield pool
        except KeyboardInterrupt:
            killed = True
            raise
        finally:
            # Waits for what runs; the cache keeps what builds made, the store what was proposed. Only who kills does
            # not wait for a language model: what it answers is lost, and counted as unknown.
            pool.shutdown(wait=not killed, cancel_futures=True)

    def _loop(self) -> StopReason:
        self._say(forecast(self.budget, done=0, elapsed_s=0.0))
        while True:
            self._pause()
            if self.should_stop():
                return "stopped"
            limit = self._spent()
            if limit is not None:
                return limit
            with self.lock:
                self._harvest()
                self._drop_parked()
                self._fill(self.options.prefetch)
                item = self._next()
                if item is None and sum(not i.ready for i in self.queue) < self.options.build_threads:
                    self._fill(len(self.queue) + 1)
            self._deliver_events()
            if item is not None:
                self._finish(item)
                self._say(forecast(self.budget, done=self.done, elapsed_s=self._elapsed(), cost=self.cost))
            elif not self._await():
                return self.refused or unaffordable(self.budget, self.cost) or "exhausted"

    def _elapsed(self) -> float:
        return self.options.clock() - self.started - self.paused_s

    def _spent(self) -> StopReason | None:
        return spent(self.budget, done=self.done, elapsed_s=self._elapsed())

    def _pause(self) -> None:
        """Begin nothing for as long as someone wishes so."""
        began = self.options.clock()
        if not self.options.should_pause():
            return
        with self.lock:
            self.takes = False
        self._release_all()
        while self.options.should_pause() and not self.should_stop():
            self._deliver_events()
            time.sleep(POLL_S)
        with self.lock:
            self.takes = True
        self.paused_s += self.options.clock() - began

    def _await(self) -> bool:
        """With nothing to judge, wait until there may be; False if there never will be."""
        with self.lock:
            under_way: list[Future[Any]] = [*self.proposing, *(i.built for i in self.queue if i.built is not None)]
            if not under_way:
                return self._await_others()
        while not self._is_wanted_elsewhere():
            ended, _ = wait(under_way, timeout=POLL_S, return_when=FIRST_COMPLETED)
            self._deliver_events()
            if ended:
                break
        return True

    def _await_others(self) -> bool:
        """Wait a little for trials of other processes, if they may give the generator new ideas."""
        waiting = [t for t in self.study.tracks.values() if t.waiting]
        self.study.refresh()
        if all(t.waiting for t in waiting):
            judged = {o.variant_id for o in self.study.under_way(self.store.orders()) if o.state == "judging"}
            if not any(t.record.variant.id in judged for t in waiting):
                return False
            time.sleep(POLL_S)
        return bool(waiting)

    def _is_wanted_elsewhere(self) -> bool:
        return self.should_stop() or self.options.should_pause() or self._spent() is not None

    def _harvest(self) -> None:
        """Forget proposals that have ended; one that failed ends the search."""
        ended = [f for f in self.proposing if f.done()]
        self.proposing = [f for f in self.proposing if f not in ended]
        for future in ended:
            if not future.cancelled():
                future.result()

    def _release_all(self) -> None:
        with self.lock:
            while self.queue:
                item = self.queue.popleft()
                if item.built is not None:
                    item.built.cancel()
                self.study.release(item.order)
                self._phase(item.track, item.trial, "done")

    def _drop_parked(self) -> None:
        """Forget prepared trials of variants that the last judgement parked: their builds are a sunk cost."""
        parked = self.study.parked() if self.queue else {}
        for item in list(self.queue):
            # Trials under way do not matter to any reason for parking, so the state may include this one.
            reason = parked.get(item.candidate.variant_id)
            if reason and not item.owed:
                self.queue.remove(item)
                self.study.give_up(item.order, reason)
                if item.built is not None:
                    item.built.cancel()
                self._phase(item.track, item.trial, "done")

    def _next(self) -> _Prepared | None:
        """The first that can be judged now."""
        return next((i for i in self.queue if i.ready), None)

    def _fill(self, prepared: int) -> None:
        """Claim what was delivered, and have more proposed, until so many are prepared or a limit is met."""
        while len(self.queue) < prepared and self._has_trials_left():
            order = self.study.claim()
            if order is not None:
                self._prepare(order, self._number(), delivered=True)
                continue
            if self.proposers is not None and len(self.proposing) >= self.options.propose_threads:
                break
            if self.refused or unaffordable(self.budget, self.cost, under_way=len(self.proposing)) is not None:
                break
            asked = self.study.ask(repairs=self.options.repairing is not None)
            if not asked:
                break
            self._order(asked[0])
        for variant_id, reason in self.study.parked().items():
            if variant_id not in self.parked:
                self.parked[variant_id] = reason
                self._say(VariantExhausted(variant=self.study.tracks[variant_id].label, reason=reason))

    def _has_trials_left(self) -> bool:
        limit = self.budget.trials
        return limit is None or self.done + len(self.queue) + len(self.proposing) < limit

    def _order(self, order: Order) -> None:
        """Have a candidate proposed, here or in a thread."""
        track, number = self.study.tracks[order.variant_id], self._number()
        request = self._request(track, order)
        self._phase(track, number, "generate")
        if self.proposers is None:
            self._propose(order, request, number)
        else:
            self.proposing.append(self.proposers.submit(self._propose, order, request, number))

    def _propose(self, order: Order, request: Request, number: int) -> None:
        """Ask the generator, store what it says, and start the build. In a thread of the pool, if there is one."""
        try:
            with self.lanes.busy("propose"):
                proposal = self.generator.propose(request)
        except BaseException as error:
            with self.lock:
                self.study.tell(order.id, f"the {self.generator.name} generator failed: {error}")
            raise
        with self.lock:
            claimed = self._told(order, request, proposal)
            if claimed is not None:
                self._prepare(claimed, number)
            else:
                self._phase(self.study.tracks[order.variant_id], number, "done")

    def _told(self, order: Order, request: Request, proposal: Proposal) -> Order | None:
        """Store a proposal; its order if it is to be judged here and now."""
        match proposal:
            case Exhausted():
                self.study.tell(order.id, proposal)
                return None
            case OutOfBudget():
                self.study.hand_back(order, proposal.reason)
                self.refused, self.cost = proposal.limit, paid(self.cost, proposal)
                return None
            case NoCandidate():
                self.cost = paid(self.cost, proposal)
                self._no_candidate(order, proposal.reason)
                return None
        accounted = self.options.repairing is not None
        if not accounted and self._is_repeated(request, proposal):
            self.study.tell(order.id, Exhausted(reason=f"the {self.generator.name} generator repeats itself"))
            delivered = None
        else:
            delivered = self.study.deliver(order, proposal, claim=self.takes)
        # After it is stored: what was paid for is kept even if its cost is refused.
        try:
            self.cost = paid(self.cost, proposal) if accounted else charged(self.cost, proposal, self.budget)
        except BaseException:
            if delivered is not None:
                self.study.release(delivered)
            raise
        if delivered is not None:
            self.fruitless.clear()
        elif accounted:
            self._no_candidate(order, KNOWN_TEXT)
        return delivered if delivered is not None and delivered.state == "judging" else None

    def _is_repeated(self, request: Request, candidate: Candidate) -> bool:
        """Whether a generator proposes what it was told that it has proposed: it will do so again."""
        text = normalised(candidate.source)
        return self.study.is_known(candidate) and any(normalised(f.candidate.source) == text for f in request.history)

    def _no_candidate(self, order: Order, reason: str) -> None:
        """Note a proposal that came to nothing. After some in a row its variant is left alone, after more all are.

        Raises:
            FruitlessSearch: nothing comes of it any more, whatever the variant.
        """
        self.study.tell(order.id, reason)
        mine = self.fruitless[order.variant_id] = self.fruitless.get(order.variant_id, 0) + 1
        if sum(self.fruitless.values()) >= FRUITLESS_IN_ALL:
            raise FruitlessSearch(
                f"{FRUITLESS_IN_ALL} proposals in a row came to nothing; the last one: {reason}",
                hint="mend that, and the same command goes on",
            )
        if mine >= FRUITLESS_OF_VARIANT:
            self.study.tracks[order.variant_id].exhausted = f"{mine} proposals in a row came to nothing: {reason}"

    def _number(self) -> int:
        self.numbered += 1
        return self.numbered

    def _prepare(self, order: Order, number: int, *, delivered: bool = False) -> None:
        """Start the build of a claimed candidate."""
        assert order.candidate is not None, "it was delivered"
        track = self.study.tracks[order.variant_id]
        built = None
        if self.builders is not None:
            built = self.builders.submit(self._build, order.candidate, track.record.variant)
            self._phase(track, number, "build")
        candidate = order.candidate
        owed = delivered or bool(candidate.tokens_in or candidate.tokens_out)
        self.queue.append(
            _Prepared(track=track, trial=number, order=order, candidate=candidate, owed=owed, built=built)
        )  # fmt: skip

    def _request(self, track: Track, order: Order) -> Request:
        return request_for(
            track, order, backend=self.backend.name, prelude=self.prelude(track.record.variant),
            brief=self.backend.brief(), target=self.options.target, pending=self.study.pending(order.variant_id),
            beside=self.study.beside(order),
        )  # fmt: skip

    def _build(self, candidate: Candidate, variant: Variant) -> tuple[Artifact | BuildFailure, float, float]:
        started, clock = time.time(), time.monotonic()
        with self.lanes.busy("build"):
            result = self.backend.build(candidate, variant)
        return result, started, time.monotonic() - clock

    def _finish(self, item: _Prepared) -> None:
        """Judge a prepared candidate, store the trial and say so."""
        track = item.track
        with self.lock:
            if not self.study.renew(item.order):
                # Its lease ended, for example while this machine slept, and another process took it.
                self.queue.remove(item)
                self._phase(track, item.trial, "done")
                return
        trial = self._judge(item)
        with self.lock:
            node = self.study.record(item.order, trial)
            self.queue.remove(item)
            # Another process may have judged it, if its lease ended meanwhile; then that trial stands.
            self.done += node.started == trial.started
            best = best_node(track.nodes)
            self._have_it_mended(item, node)
        self._phase(track, item.trial, "done")
        self._say(
            TrialFinished(variant=track.label, node=node, best_speedup=speedup_of(best) if best is not None else None)
        )

    def _have_it_mended(self, item: _Prepared, node: Node) -> None:
        """Put an order in for the repair of what failed, if its generator can do that and has not tried too often."""
        mender = self.options.repairing
        if mender is None or item.candidate.generator != mender.name or node.kind not in ("build_failure", "rejected"):
            return
        attempts = len(attempts_at(node, item.track.nodes))
        if attempts <= mender.most_repairs:
            self.study.enqueue(
                node.variant_id, parent=node.parent, repairs=node.id,
                reason=f"repair {attempts} of {mender.most_repairs}",
            )  # fmt: skip

    def _judge(self, item: _Prepared) -> Trial:
        record = item.track.record
        if item.built is None:
            self._phase(item.track, item.trial, "build")
            result, started, seconds = self._build(item.candidate, record.variant)
        else:
            result, started, seconds = item.built.result()
        with self._judging(item) if isinstance(result, Artifact) else nullcontext():
            return judged(
                item.candidate, result, started=started, seconds=seconds, record=record, nodes=item.track.nodes,
                examples=self.store.examples, judge=self.judge,
            )  # fmt: skip

    @contextmanager
    def _judging(self, item: _Prepared) -> Iterator[None]:
        self._phase(item.track, item.trial, "verify")
        with self.lanes.busy("judge"):
            yield

    def _phase(self, track: Track, trial: int, phase: Phase) -> None:
        self._say(PhaseChanged(variant=track.label, trial=trial, phase=phase))

    def _say(self, event: Event) -> None:
        """Tell the caller, in its own thread: what other threads say waits until that one has time."""
        self.told.put(event)
        if threading.get_ident() == self.thread:
            self._deliver_events()

    def _deliver_events(self) -> None:
        while True:
            try:
                event = self.told.get_nowait()
            except Empty:
                return
            self.on_event(event)
