"""Ask for work orders, tell what came of them. Owns `Study`; everything that proposes goes through it.

`ask` picks variant and parent by what is stored and what is under way anywhere; `tell` takes a candidate, however late;
`claim` gives the next delivered candidate to whoever judges, and `record` stores the trial. The study never calls a
generator, a compiler or the judge. What is kept here and not in the store is only a cache, and what the proposer of
this process said of its own ideas.

The shape is Optuna's (Akiba et al., KDD 2019): orders under way count as expansions of their parents, so proposers that
ask at the same time spread over the tree (Liu et al., WU-UCT, arXiv 1810.11755).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kernelforge.cards.types import VariantRecord
from kernelforge.errors import NotFound, UsageError
from kernelforge.evaluate.types import Trial
from kernelforge.explain.profile import Profile
from kernelforge.generate.types import Candidate, Exhausted, Feedback
from kernelforge.search.duplicates import normalised
from kernelforge.search.lineage import feedback_of, last_attempt, parent_node, told
from kernelforge.search.orders import ENQUEUED, OPEN, Order, OrderState, OrderStore, abandoned
from kernelforge.search.owners import is_gone, owner_of_this_process
from kernelforge.search.scheduler import GrowingState, Policy, VariantState, next_variant, park_reason
from kernelforge.search.tree import GrowingView, TreeView
from kernelforge.search.types import Node, Strategy

ASK_LEASE_S = 3600.0
JUDGE_LEASE_S = 3600.0
"""Longer than any judgement and its wait for the device: a dead owner on this host is known without it."""
KNOWN_TEXT = "this text, comments and spaces aside, was proposed before"
WAITING = "waiting for trials in flight"


@dataclass(slots=True, kw_only=True)
class Track:
    """One variant in a study.

    Attributes:
        nodes: as far as they were read. since: number of the last node before this study.
        exhausted: what the proposer said for good. waiting: it had no idea that is independent of trials under way.
        prior_floor: see `scheduler.VariantState`. profiles: of binaries, by sha256.
    """

    record: VariantRecord
    nodes: list[Node]
    since: int
    exhausted: str = ""
    waiting: bool = False
    prior_floor: float = 0.0
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    _feedback: dict[tuple[str, float], Feedback] = field(default_factory=dict)
    _texts: dict[str, str] = field(default_factory=dict)
    _view: GrowingView = field(default_factory=GrowingView)
    _state: GrowingState = field(init=False)

    def __post_init__(self) -> None:
        self._state = GrowingState(self.record, since=self.since, prior_floor=self.prior_floor)

    @property
    def label(self) -> str:
        return self.record.variant.label

    def state(self, in_flight: int) -> VariantState:
        """For the scheduler."""
        reason = self.exhausted or (WAITING if self.waiting else "")
        return self._state.state(self.nodes, in_flight=in_flight, exhausted=reason)

    def view(self, in_flight: Sequence[str], *, seed: int) -> TreeView:
        """For the strategy."""
        return self._view.view(self.nodes, in_flight, seed=seed)

    def history(self) -> tuple[Feedback, ...]:
        """As `lineage.history`; each node is explained once, and again when it was profiled."""
        return tuple(self.feedback(node) for node in told(self.nodes))

    def feedback(self, node: Node) -> Feedback:
        """What one of the nodes taught, with what a profiler found in its binary."""
        profile = self.profiles.get(node.summary.binary)
        key = (node.id, 0.0 if profile is None else profile.recorded)
        if key not in self._feedback:
            self._feedback[key] = feedback_of(node, self.record, profile)
        return self._feedback[key]

    def texts(self) -> set[str]:
        """The normalised sources of what `history` tells."""
        for node in told(self.nodes):
            if node.candidate_id not in self._texts:
                self._texts[node.candidate_id] = normalised(node.candidate.source)
        return set(self._texts.values())


class Study:
    """Not thread-safe; several processes, each with its own, may work on one store."""

    def __init__(
        self,
        store: OrderStore,
        records: Iterable[VariantRecord],
        *,
        strategy: Strategy,
        policy: Policy | None = None,
        seed: int = 0,
        prior_floors: Mapping[str, float] | None = None,
        owner: str = "",
        clock: Callable[[], float] = time.time,
        gone: Callable[[str], bool] = is_gone,
    ) -> None:
        """Args:
        records: what to work on.
        strategy: picks the parent. policy: picks the variant. seed: of the strategy.
        prior_floors: variant id -> floor as a fraction of eager's time (`search.plan.prior_floors`).
        owner: who asks; by default this process.
        clock: POSIX seconds. gone: whether an owner is dead.
        """
        self._store = store
        self._strategy = strategy
        self._policy = policy or Policy()
        self._seed = seed
        self._owner = owner or owner_of_this_process()
        self._clock, self._gone = clock, gone
        floors, profiles = prior_floors or {}, store.profiles()
        self.tracks: dict[str, Track] = {}
        for record in records:
            variant_id = record.variant.id
            nodes = list(store.nodes(variant_id))
            self.tracks[variant_id] = Track(
                record=record, nodes=nodes, since=nodes[-1].number if nodes else 0,
                prior_floor=floors.get(variant_id, 0.0), profiles=profiles,
            )  # fmt: skip

    def ask(self, n: int = 1, *, lease_s: float = ASK_LEASE_S, repairs: bool = False) -> tuple[Order, ...]:
        """Up to `n` work orders; fewer if no variant has use for more. What waits in the queue comes first.

        Args:
            repairs: whether the proposer can mend what failed; else such orders wait for one who can.

        Raises:
            ProjectError: the store cannot be written.
        """
        changed = self._store.change_orders(
            lambda orders: [*self._choose(orders, n, lease_s, repairs=repairs), *self._abandoned(orders)]
        )
        return tuple(o for o in changed if o.state == "asked")

    def _abandoned(self, orders: Sequence[Order]) -> list[Order]:
        """What becomes of the orders whose proposer will not deliver."""
        now = self._clock()
        return [
            abandoned(o, "its proposer ended or let the lease run out")
            for o in orders
            if o.state == "asked" and not self._is_held(o, now)
        ]

    def _choose(self, orders: Sequence[Order], n: int, lease_s: float, *, repairs: bool) -> list[Order]:
        self.refresh()
        now = self._clock()
        waiting = [
            o for o in orders
            if o.state == "waiting" and o.variant_id in self.tracks and (repairs or not o.repairs)
        ]  # fmt: skip
        chosen = [
            replace(o, state="asked", owner=self._owner, expires=now + lease_s, detail=ENQUEUED) for o in waiting[:n]
        ]
        taken = {o.id for o in chosen}
        flying = [o for o in self.under_way(orders) if o.id not in taken] + chosen
        while len(chosen) < n:
            state = next_variant((self._state(t, flying) for t in self.tracks.values()), self._policy)
            if state is None:
                break
            track = self.tracks[state.variant_id]
            # A repair is no expansion of its own: its proposal has been counted.
            parents = [o.parent for o in flying if o.variant_id == state.variant_id and not o.repairs]
            selection = self._strategy.select(track.view(parents, seed=self._seed))
            order = Order(
                id=uuid.uuid4().hex, variant_id=state.variant_id, parent=selection.parent, reason=selection.reason,
                state="asked", owner=self._owner, created=now, expires=now + lease_s,
            )  # fmt: skip
            chosen.append(order)
            flying.append(order)
        return chosen

    def tell(self, order_id: str, proposal: Candidate | Exhausted | str) -> Order:
        """What came of an order: a candidate, no idea, or a failure in words.

        Never refused because it is late. An order that has its candidate already takes another one as a new order of
        the same parent, and the same one again as what it is.

        Raises:
            NotFound: there is no such order. UsageError: the candidate is of another variant.
        """
        known = self._store.order(order_id)
        if isinstance(proposal, Candidate):
            _check_text(proposal)
            if proposal.variant_id != known.variant_id:
                raise UsageError(
                    f"order {order_id[:12]} is for variant {known.variant_id[:8]}, the candidate is of "
                    f"{proposal.variant_id[:8]}", hint="deliver it to an order of its own variant",
                )  # fmt: skip
            return self._deliver(known, proposal)
        failed = proposal.reason if isinstance(proposal, Exhausted) else proposal
        if isinstance(proposal, Exhausted):
            self._no_idea(known, proposal.reason)

        def fail(orders: Sequence[Order]) -> list[Order]:
            now = [o for o in orders if o.id == known.id and o.state in ("waiting", "asked")]
            return [replace(o, state="failed", detail=failed, owner="") for o in now]

        return next(iter(self._store.change_orders(fail)), known)

    def _deliver(self, known: Order, candidate: Candidate) -> Order:
        track = self.tracks.get(known.variant_id)
        # A proposer may have revised another one than it was asked to.
        parent = known.parent if track is None else parent_node(candidate.parent, track.nodes)
        told = [known]

        def deliver(orders: Sequence[Order]) -> list[Order]:
            # As it is now: what was read before the transaction may be over. One that is no longer open had its end.
            now = next((o for o in orders if o.id == known.id), None)
            ended = now is None and known.state in OPEN
            current = now or known
            if current.candidate is not None and current.candidate.id == candidate.id:
                told[0] = current
                return []
            if track is not None and self._has_text(candidate, track, orders, but=current.id):
                told[0] = replace(current, state="failed", owner="", detail=KNOWN_TEXT)
                return [] if current.candidate is not None or ended else told
            delivered = replace(
                current, state="delivered", candidate=candidate, parent=parent, owner="", expires=0.0, detail=""
            )
            if current.candidate is not None or ended:
                delivered = replace(delivered, id=uuid.uuid4().hex, created=self._clock(), node="")
                before = next((n for n in track.nodes if n.id == current.node), None) if track is not None else None
                delivered = delivered if track is None else _goes_on(delivered, before, track.nodes)
            return [delivered]

        return next(iter(self._store.change_orders(deliver)), told[0])

    def deliver(self, order: Order, candidate: Candidate, *, claim: bool) -> Order | None:
        """As `tell` of an order that was asked here, but None if the candidate's text is known by now.

        Two proposers may have the same idea at once; the store's transaction decides who was first. The other one's
        order fails, and says so.

        Args:
            claim: for this study to judge, in the same step.

        Raises:
            UsageError: the source is no text that can be stored.
        """
        _check_text(candidate)
        track = self.tracks[order.variant_id]
        # With its candidate: what it cost is counted.
        lost = replace(order, candidate=candidate, state="failed", owner="", detail=KNOWN_TEXT)
        taken = replace(
            order, state="judging" if claim else "delivered", candidate=candidate, detail="",
            parent=parent_node(candidate.parent, track.nodes), owner=self._owner if claim else "",
            expires=self._clock() + JUDGE_LEASE_S if claim else 0.0,
        )  # fmt: skip

        def decide(orders: Sequence[Order]) -> list[Order]:
            return [lost if self._has_text(candidate, track, orders, but=order.id) else taken]

        (stored,) = self._store.change_orders(decide)
        return None if stored.state == "failed" else stored

    def _has_text(self, candidate: Candidate, track: Track, orders: Sequence[Order], *, but: str) -> bool:
        """Whether the text was judged or delivered, by another order than `but`. Only while nobody else writes."""
        self.refresh()
        text = normalised(candidate.source)
        others = (o.candidate for o in orders if o.variant_id == candidate.variant_id and o.id != but)
        return text in track.texts() or any(c is not None and normalised(c.source) == text for c in others)

    def _no_idea(self, order: Order, reason: str) -> None:
        track = self.tracks.get(order.variant_id)
        if track is None:
            return
        others = [
            o for o in self.under_way(self._store.orders()) if o.variant_id == order.variant_id and o.id != order.id
        ]
        # With trials under way their outcome may give the generator ideas; without, it is final.
        track.waiting = bool(others)
        track.exhausted = "" if others else reason

    def enqueue(self, what: Candidate | str, *, parent: str = "", repairs: str = "", reason: str = ENQUEUED) -> Order:
        """Put a candidate before all others to the judge; or, given a variant id, an order before all others to ask.

        Args:
            parent: node id of what it revises or is to revise. repairs: node id of the attempt that is to be mended.

        Raises:
            NotFound: no such variant or node.
        """
        if isinstance(what, Candidate):
            _check_text(what)
        variant_id = what.variant_id if isinstance(what, Candidate) else what
        if variant_id not in self.tracks:
            raise NotFound(f"the study has no variant {variant_id[:8]}")
        self.refresh()
        for node in filter(None, (parent, repairs)):
            if all(n.id != node for n in self.tracks[variant_id].nodes):
                raise NotFound(f"{node[:12]!r} is no node of variant {self.tracks[variant_id].label}")
        candidate = what if isinstance(what, Candidate) else None
        order = Order(
            id=uuid.uuid4().hex, variant_id=variant_id, parent=parent, repairs=repairs, reason=reason,
            created=self._clock(), state="delivered" if candidate is not None else "waiting", candidate=candidate,
        )  # fmt: skip
        (stored,) = self._store.change_orders(lambda _: [order])
        return stored

    def is_lost(self, order: Order) -> bool:
        """Whether an order was asked of somebody who is gone, and is for nobody else."""
        return order.state == "asked" and order.detail != ENQUEUED and not self._is_held(order, self._clock())

    def hand_back(self, order: Order, reason: str) -> None:
        """Give an order back that this proposer cannot work on now."""
        self._store.change_orders(
            lambda orders: [abandoned(o, reason) for o in orders if (o.id, o.state) == (order.id, "asked")]
        )

    def take_left_over(self, left_over: Callable[[Collection[str]], Sequence[tuple[str, Candidate]]]) -> int:
        """Deliver what proposers had received when their processes ended; how many candidates that were.

        Args:
            left_over: order ids -> those with a candidate.
        """
        now = self._clock()
        orphans = {
            o.id
            for o in self._store.orders(closed=True)
            if o.candidate is None and not o.node and o.variant_id in self.tracks
            and not (o.state == "asked" and self._is_held(o, now))
        }  # fmt: skip
        found = left_over(orphans) if orphans else ()
        for order_id, candidate in found:
            self.tell(order_id, candidate)
        return len(found)

    def claim(self, order_id: str = "", *, lease_s: float = JUDGE_LEASE_S) -> Order | None:
        """The oldest delivered candidate of the study's variants, or that order; nobody else gets it to judge.

        One whose judge died is delivered again. None if there is nothing to judge.
        """

        def choose(orders: Sequence[Order]) -> list[Order]:
            now = self._clock()
            for order in orders:
                free = order.state == "delivered" or (order.state == "judging" and not self._is_held(order, now))
                if free and order.variant_id in self.tracks and order_id in ("", order.id):
                    return [replace(order, state="judging", owner=self._owner, expires=now + lease_s)]
            return []

        return next(iter(self._store.change_orders(choose)), None)

    def record(self, order: Order, trial: Trial) -> Node:
        """Store the trial of a claimed order."""
        node = self._store.finish(order.id, trial, parent=order.parent)
        self.refresh()
        track = self.tracks.get(order.variant_id)
        if track is not None:
            track.waiting = False
        return node

    def renew(self, order: Order, *, lease_s: float = JUDGE_LEASE_S) -> bool:
        """Whether a claimed order is still this study's; then the lease begins anew."""
        return bool(self._change_own(order, state="judging", owner=self._owner, expires=self._clock() + lease_s))

    def release(self, order: Order) -> None:
        """Give a claimed candidate back: it is delivered again, and the next who claims gets it."""
        self._change_own(order, state="delivered", owner="", expires=0.0)

    def give_up(self, order: Order, reason: str) -> None:
        """Close an order of this study that nobody shall work on any more."""
        self._change_own(order, state="failed", owner="", expires=order.expires, detail=reason)

    def _change_own(
        self, order: Order, *, state: OrderState, owner: str, expires: float, detail: str = ""
    ) -> Sequence[Order]:
        """Change an order, unless its lease has ended and it is another's or done."""
        changed = replace(order, state=state, owner=owner, expires=expires, detail=detail)
        return self._store.change_orders(
            lambda orders: [changed for o in orders if (o.id, o.owner) == (order.id, self._owner)]
        )

    def refresh(self) -> None:
        """Take in new nodes, in the store's order; other processes may have added some."""
        profiles = self._store.profiles()
        for variant_id, track in self.tracks.items():
            track.profiles = profiles
            last = track.nodes[-1].number if track.nodes else 0
            new = self._store.nodes(variant_id, after=last)
            track.nodes.extend(new)
            track.waiting = track.waiting and not new

    def under_way(self, orders: Sequence[Order]) -> list[Order]:
        """Of the open orders those that will become trials: delivered, or worked on by somebody who is not given up."""
        now = self._clock()
        return [o for o in orders if o.state == "delivered" or (o.state != "waiting" and self._is_held(o, now))]

    def pending(self, variant_id: str) -> tuple[Feedback, ...]:
        """The delivered candidates of a variant that are not judged yet, for the proposer."""
        return tuple(
            Feedback(
                candidate=o.candidate,
                outcome="pending",
                speedup=None,
                detail="being judged" if o.state == "judging" else "not judged yet",
            )
            for o in self.under_way(self._store.orders())
            if o.variant_id == variant_id and o.candidate is not None
        )

    def beside(self, order: Order) -> int:
        """How many other orders of the variant somebody works on, asked before this one."""
        asked = [o for o in self.under_way(self._store.orders()) if o.state == "asked" and not o.repairs]
        mine = (order.created, order.id)
        return sum(o.variant_id == order.variant_id and o.id != order.id and (o.created, o.id) < mine for o in asked)

    def is_known(self, candidate: Candidate) -> bool:
        """Whether the very text, comments and spaces aside, was judged or waits for it."""
        text = normalised(candidate.source)
        waiting = (normalised(f.candidate.source) for f in self.pending(candidate.variant_id))
        return text in self.tracks[candidate.variant_id].texts() or text in waiting

    def states(self) -> dict[str, VariantState]:
        """By variant id."""
        flying = self.under_way(self._store.orders())
        return {key: self._state(track, flying) for key, track in self.tracks.items()}

    def parked(self) -> dict[str, str]:
        """Variant id -> why it gets no more orders, for those that do not just wait."""
        reasons = {key: park_reason(state, self._policy) for key, state in self.states().items()}
        return {key: reason for key, reason in reasons.items() if reason and reason != WAITING}

    def _state(self, track: Track, flying: Sequence[Order]) -> VariantState:
        return track.state(sum(o.variant_id == track.record.variant.id and not o.repairs for o in flying))

    def _is_held(self, order: Order, now: float) -> bool:
        return now < order.expires and not self._gone(order.owner)


def _goes_on(order: Order, before: Node | None, nodes: Sequence[Node]) -> Order:
    """A further delivery for an order, whose trial was `before`: it mends what failed, or revises what passed."""
    candidate = order.candidate
    if before is None or candidate is None:
        return order
    last = last_attempt(before, nodes)
    if last.kind == "accepted" and order.parent == before.parent:
        return replace(order, parent=last.id, candidate=replace(candidate, parent=last.candidate_id))
    if last.kind in ("build_failure", "rejected"):
        return replace(order, repairs=last.id, candidate=replace(candidate, repairs=last.candidate_id))
    return order


def _check_text(candidate: Candidate) -> None:
    """Raises UsageError if the source is no text that can be stored: half of a surrogate pair, from a model's JSON."""
    try:
        candidate.source.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the source cannot be stored: {error.reason} at character {error.start}", hint="deliver it without that"
        ) from error
