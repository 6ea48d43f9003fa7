"""Ask and tell: leases, late deliveries, spreading, the queue, and what survives a death."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kernelforge.cards.types import VariantRecord
from kernelforge.errors import NotFound, UsageError
from kernelforge.evaluate.types import Outcome, Scored, Trial
from kernelforge.generate.types import Candidate, Exhausted
from kernelforge.search.memory import MemoryStore
from kernelforge.search.orders import Order
from kernelforge.search.scheduler import Policy
from kernelforge.search.strategies.best_first import BestFirst
from kernelforge.search.study import KNOWN_TEXT, Study
from kernelforge.search.tree import tree_of
from kernelforge.verify.types import Rejected, RejectReason

WRONG = Rejected(reason=RejectReason.WRONG_VALUE, case="c", detail="out[0]", worst_abs=1.0)


@dataclass
class Setting:
    """Studies of several processes on one store, and their clock."""

    store: MemoryStore
    records: tuple[VariantRecord, ...]
    scored: Callable[[float], Scored]
    now: float = 1000.0
    dead: frozenset[str] = frozenset()

    def study(self, owner: str = "me") -> Study:
        policy = Policy(patience=None, warm_up=1)
        return Study(
            self.store, self.records, strategy=BestFirst(starts=1), policy=policy, owner=owner,
            clock=lambda: self.now, gone=lambda o: o in self.dead,
        )  # fmt: skip

    def candidate(self, text: str, record: int = 0, parent: str = "") -> Candidate:
        return Candidate(
            variant_id=self.records[record].variant.id, source=text, backend="cpp", generator="agent", parent=parent
        )

    def judge(self, study: Study, outcome: Outcome) -> None:
        order = study.claim()
        assert order is not None and order.candidate is not None
        self.now += 1
        study.record(order, Trial(candidate=order.candidate, outcome=outcome, started=self.now, seconds=1.0))


@pytest.fixture
def setting(tmp_path: Path, make_record: Callable[..., VariantRecord], make_scored: Callable[..., Scored]) -> Setting:
    records = (make_record("relu", 0.6), make_record("add", 0.3))
    return Setting(store=MemoryStore(tmp_path), records=records, scored=make_scored)


def test_an_order_becomes_a_trial(setting: Setting) -> None:
    study = setting.study()
    (order,) = study.ask()
    assert (order.variant_id, order.parent, order.state) == (setting.records[0].variant.id, "", "asked")
    assert order.reason
    told = study.tell(order.id, setting.candidate("a"))
    assert told.state == "delivered"
    setting.judge(study, setting.scored(2.0))
    (node,) = setting.store.stored
    assert setting.store.order(order.id).node == node.id and study.claim() is None
    assert [n.id for n in study.tracks[order.variant_id].nodes] == [node.id]


def test_orders_under_way_count_and_so_spread_over_variants_and_parents(setting: Setting) -> None:
    first, second = setting.study("one"), setting.study("two")
    (a,), (b,) = first.ask(), second.ask()
    assert a.variant_id != b.variant_id  # the warm-up of the other variant
    first.tell(a.id, setting.candidate("a"))
    setting.judge(first, setting.scored(2.0))
    node = setting.store.stored[0].id
    asked = first.ask(12)
    assert {o.parent for o in asked if o.variant_id == a.variant_id} == {node}
    reasons = [o.reason for o in asked if o.variant_id == a.variant_id]
    assert reasons[:2] == ["2.00x, children: 0", "2.00x, children: 1"]
    assert len({o.id for o in asked}) == 12


def test_a_lease_ends_and_a_late_delivery_is_taken_all_the_same(setting: Setting) -> None:
    setting.records = setting.records[:1]
    slow, other = setting.study("slow"), setting.study("other")
    (late,) = slow.ask(lease_s=60)
    assert len(other.under_way(setting.store.orders())) == 1
    setting.now += 61
    assert other.under_way(setting.store.orders()) == []
    assert slow.tell(late.id, setting.candidate("late")).state == "delivered"
    setting.judge(other, WRONG)
    assert [n.candidate.source for n in setting.store.stored] == ["late"]


def test_the_order_of_a_dead_process_is_under_way_no_more(setting: Setting) -> None:
    setting.study("dies").ask()
    study = setting.study()
    assert len(study.under_way(setting.store.orders())) == 1
    setting.dead = frozenset({"dies"})
    assert study.under_way(setting.store.orders()) == []


def test_whoever_asks_closes_what_dead_proposers_were_asked_for(setting: Setting) -> None:
    (left,) = setting.study("dies").ask()
    (kept,) = setting.study("works").ask()
    setting.dead = frozenset({"dies"})
    (mine,) = setting.study().ask()
    closed = setting.store.order(left.id)
    assert (closed.state, closed.detail) == ("failed", "its proposer ended or let the lease run out")
    assert {o.id for o in setting.store.orders()} == {kept.id, mine.id}
    assert setting.study("dies").tell(left.id, setting.candidate("after all")).state == "delivered"


def test_an_order_by_hand_waits_again_when_its_proposer_dies(setting: Setting) -> None:
    waiting = setting.study().enqueue(setting.records[1].variant.id, reason="look at this one")
    setting.study("dies").ask()
    setting.dead = frozenset({"dies"})
    setting.study().ask()
    assert setting.store.order(waiting.id).state == "waiting"
    (order,) = setting.study("next").ask()
    assert (order.id, order.reason) == (waiting.id, "look at this one")


def test_of_two_that_tell_the_same_text_one_is_judged(setting: Setting) -> None:
    study = setting.study()
    first, second, third = study.ask(3)
    same = [o for o in (first, second, third) if o.variant_id == first.variant_id]
    assert len(same) == 2
    assert study.tell(same[0].id, setting.candidate("idea")).state == "delivered"
    late = study.tell(same[1].id, setting.candidate("idea  // again"))
    assert (late.state, late.detail) == ("failed", KNOWN_TEXT)
    setting.judge(study, setting.scored(1.5))
    assert study.claim() is None
    assert study.tell(same[1].id, setting.candidate(" idea")).state == "failed", "judged by now"
    assert study.tell(same[1].id, setting.candidate("another")).state == "delivered"


def test_nobody_judges_what_another_judges_and_a_dead_judges_work_is_taken_over(setting: Setting) -> None:
    one, two = setting.study("one"), setting.study("two")
    (order,) = one.ask()
    one.tell(order.id, setting.candidate("a"))
    claimed = one.claim()
    assert claimed is not None and two.claim() is None
    setting.dead = frozenset({"one"})
    taken = two.claim()
    assert taken is not None and taken.id == claimed.id
    two.release(taken)
    assert (again := two.claim(order.id)) is not None and again.candidate == taken.candidate


def test_a_judgement_finished_twice_is_one_node(setting: Setting) -> None:
    study = setting.study()
    (order,) = study.ask()
    study.tell(order.id, setting.candidate("a"))
    first = study.tell(order.id, setting.candidate("a"))
    assert first.id == order.id and len(setting.store.orders()) == 1
    second = study.tell(order.id, setting.candidate("b"))
    assert second.id != order.id and len(setting.store.orders()) == 2


def test_what_is_put_in_by_hand_comes_first(setting: Setting) -> None:
    study = setting.study()
    (order,) = study.ask()
    study.tell(order.id, setting.candidate("a"))
    setting.judge(study, setting.scored(2.0))
    node = setting.store.stored[0].id
    waiting = study.enqueue(setting.records[1].variant.id, reason="look at this one")
    (asked,) = study.ask()
    assert (asked.id, asked.state, asked.reason) == (waiting.id, "asked", "look at this one")
    study.enqueue(setting.candidate("mine", parent=setting.store.stored[0].candidate.id), parent=node)
    claimed = study.claim()
    assert claimed is not None and claimed.candidate is not None and claimed.candidate.source == "mine"
    with pytest.raises(NotFound, match="no node"):
        study.enqueue(setting.records[1].variant.id, parent=node)
    with pytest.raises(NotFound, match="no variant"):
        study.enqueue("elsewhere")


def test_a_failed_order_has_its_reason_and_ends(setting: Setting) -> None:
    study = setting.study()
    (order,) = study.ask()
    failed = study.tell(order.id, "the provider answered 500 three times")
    assert (failed.state, failed.detail) == ("failed", "the provider answered 500 three times")
    assert study.under_way(setting.store.orders()) == []
    # It may have come back all the same.
    assert study.tell(order.id, setting.candidate("a")).state == "delivered"


def test_no_idea_ends_a_variant_unless_trials_under_way_may_give_one(setting: Setting) -> None:
    setting.records = setting.records[:1]
    study = setting.study()
    first, second = study.ask(2)
    study.tell(first.id, setting.candidate("a"))
    study.tell(second.id, Exhausted(reason="no more schedules"))
    assert study.ask() == () and study.parked() == {}
    setting.judge(study, setting.scored(1.5))
    (third,) = study.ask()
    study.tell(third.id, Exhausted(reason="no more schedules"))
    assert study.ask() == () and study.parked() == {third.variant_id: "no more schedules"}


def test_a_candidate_of_another_variant_is_refused(setting: Setting) -> None:
    study = setting.study()
    (order,) = study.ask()
    with pytest.raises(UsageError, match="is for variant"):
        study.tell(order.id, setting.candidate("a", record=1))
    with pytest.raises(NotFound):
        study.tell("unknown", setting.candidate("a"))


def test_the_node_hangs_below_what_was_really_revised(setting: Setting) -> None:
    study = setting.study()
    (order,) = study.ask()
    study.tell(order.id, setting.candidate("a"))
    setting.judge(study, setting.scored(2.0))
    revised = next(o for o in study.ask(4) if o.parent)
    assert study.tell(revised.id, setting.candidate("from scratch")).parent == ""


def test_orders_of_other_variants_stay(setting: Setting) -> None:
    setting.study().enqueue(setting.candidate("other", record=1))
    narrow = replace(setting, records=setting.records[:1]).study()
    assert narrow.claim() is None and isinstance(setting.study().claim(), Order)


def test_of_two_with_the_same_idea_the_first_is_taken_and_the_other_loses(setting: Setting) -> None:
    one, two = setting.study("one"), setting.study("two")
    (a,), (b,) = one.ask(), one.ask()
    (late,) = two.ask()
    b, late = (replace(o, variant_id=a.variant_id) for o in (b, late))
    taken = one.deliver(a, setting.candidate("same"), claim=True)
    assert taken is not None and (taken.state, taken.owner) == ("judging", "one")
    assert two.deliver(late, setting.candidate("/* the */ same"), claim=True) is None
    lost = setting.store.order(late.id)
    assert (lost.state, lost.detail) == ("failed", KNOWN_TEXT)
    one.record(taken, Trial(candidate=setting.candidate("same"), outcome=WRONG, started=1.0, seconds=1.0))
    assert two.deliver(b, setting.candidate("same"), claim=False) is None, "it is a node by now"
    waiting = one.deliver(b, setting.candidate("other"), claim=False)
    assert waiting is not None and (waiting.state, waiting.owner) == ("delivered", "")


def test_a_lease_is_renewed_by_its_holder_alone(setting: Setting) -> None:
    slow, other = setting.study("slow"), setting.study("other")
    (order,) = slow.ask()
    slow.tell(order.id, setting.candidate("a"))
    mine = slow.claim(lease_s=60)
    assert mine is not None
    setting.now += 50
    assert slow.renew(mine, lease_s=60)
    setting.now += 50
    assert other.claim() is None
    setting.now += 20
    theirs = other.claim()
    assert theirs is not None and not slow.renew(mine)
    other.record(theirs, Trial(candidate=setting.candidate("a"), outcome=WRONG, started=1.0, seconds=1.0))
    slow.release(mine)
    assert setting.store.order(order.id).state == "done", "what another has finished is not delivered again"


def test_trials_of_others_may_give_ideas(setting: Setting) -> None:
    setting.records = setting.records[:1]
    mine, other = setting.study("mine"), setting.study("other")
    (theirs,), (order,) = other.ask(), mine.ask()
    other.tell(theirs.id, setting.candidate("a"))
    mine.tell(order.id, Exhausted(reason="no more schedules"))
    assert mine.ask() == ()
    setting.judge(other, setting.scored(1.5))
    assert len(mine.ask()) == 1


def test_a_delivery_goes_by_what_the_order_is_now(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read before the transaction may be over: neither candidate is lost, and nothing is undone."""
    study, other = setting.study(), setting.study("other")
    (order,) = study.ask()
    stale = setting.store.order(order.id)
    other.tell(order.id, setting.candidate("a"))
    monkeypatch.setattr(setting.store, "order", lambda order_id: stale)
    second = study.tell(order.id, setting.candidate("b"))
    assert second.id != order.id
    assert study.tell(order.id, "I failed").state == "asked"  # of the order as this study read it
    monkeypatch.undo()
    assert {o.candidate.source for o in setting.store.orders() if o.candidate is not None} == {"a", "b"}
    assert setting.store.order(order.id).state == "delivered"
    setting.judge(other, setting.scored(2.0))
    monkeypatch.setattr(setting.store, "order", lambda order_id: stale)
    assert study.tell(order.id, setting.candidate("c")).id != order.id
    monkeypatch.undo()
    assert setting.store.order(order.id).state == "done"


def test_a_source_that_is_no_text_is_refused(setting: Setting) -> None:
    study = setting.study()
    (order,) = study.ask()
    with pytest.raises(UsageError, match="surrogates not allowed at character 3"):
        study.tell(order.id, setting.candidate("// \ud800"))
    with pytest.raises(UsageError, match="cannot be stored"):
        study.deliver(order, setting.candidate("// \ud800"), claim=True)
    with pytest.raises(UsageError, match="cannot be stored"):
        study.enqueue(setting.candidate("// \ud800"))


def test_a_further_attempt_at_an_order_mends_what_failed_and_revises_what_passed(setting: Setting) -> None:
    study = setting.study()
    (order,) = study.ask()
    for text, outcome in (("a", WRONG), ("b", WRONG), ("c", setting.scored(1.5)), ("d", setting.scored(2.0))):
        told = study.tell(order.id, setting.candidate(text))
        assert told.candidate is not None
        setting.judge(study, outcome)
    first, second, third, fourth = study.tracks[order.variant_id].nodes
    assert [n.candidate.repairs for n in (first, second, third, fourth)] == [
        "", first.candidate_id, second.candidate_id, ""
    ]  # fmt: skip
    assert [n.parent for n in (first, second, third, fourth)] == ["", "", "", third.id]
    assert fourth.candidate.parent == third.candidate_id
    # For strategies the first three are one proposal.
    assert tree_of(study.tracks[order.variant_id].view([], seed=0), failures=True).visits == 2


def test_an_order_knows_how_many_were_asked_before_it(setting: Setting) -> None:
    study = setting.study()
    orders = [study.enqueue(setting.records[0].variant.id) for _ in range(3)]
    asked = study.ask(3)
    assert {o.id for o in asked} == {o.id for o in orders}
    assert sorted(study.beside(o) for o in asked) == [0, 1, 2]
    study.tell(asked[0].id, setting.candidate("a"))
    (pending,) = study.pending(asked[0].variant_id)
    assert pending.detail == "not judged yet"
    study.claim()
    assert study.pending(asked[0].variant_id)[0].detail == "being judged"
