"""Repairs: what failed comes back to its generator, one proposal is one visit, and what was paid for is never lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.fakes.language_model import ScriptedModel, answer, kernel

from kernelforge.build.types import Artifact, BuildFailure
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import Variant, VariantRecord
from kernelforge.evaluate.types import Outcome, Scored, Trial
from kernelforge.generate.llm.account import Account, Failure, MemoryCalls, counted_usd
from kernelforge.generate.llm.generator import LLMGenerator
from kernelforge.generate.llm.types import Completion, ProviderFailure
from kernelforge.generate.types import Candidate
from kernelforge.search.loop import FruitlessSearch, SearchOptions, run_search
from kernelforge.search.memory import MemoryStore
from kernelforge.search.scheduler import Policy, state_of
from kernelforge.search.strategies import get_strategy
from kernelforge.search.study import Study
from kernelforge.search.tree import tree_of, view_of
from kernelforge.search.types import Budget, Node, SearchSummary
from kernelforge.verify.types import Rejected, RejectReason

MakeRecord = Callable[..., VariantRecord]
MakeScored = Callable[..., Scored]


OPERATORS = ["abs", "cos", "exp", "gelu", "log", "neg", "relu", "silu", "sin", "sqrt", "tanh"]


def source(word: str, number: int) -> str:
    return f"int launch(); int {word}_{number};"


@dataclass
class Bench:
    """Backend and judge in one: the first word of a source says what comes of it, its number how fast it is."""

    scored: MakeScored
    name: str = "cpp"
    built: list[str] = field(default_factory=list)

    def brief(self) -> str:
        return "a compiler"

    def build(self, candidate: Candidate, variant: Variant, *, timeout_s: float = 120.0) -> Artifact | BuildFailure:
        self.built.append(candidate.source)
        if "broken" in candidate.source:
            return BuildFailure(reason="compile_error", detail="kernel.cpp:1: error: expected ')'")
        return Artifact(
            digest=candidate.id, path=Path("k.so"), backend="cpp", target="t", compiler="c", flags=(), seconds=0.0,
            log="",
        )  # fmt: skip

    def evaluate(
        self, candidate: Candidate, record: VariantRecord, examples: ExampleStore,
        *, built: Artifact | BuildFailure | None = None,
    ) -> Trial:  # fmt: skip
        outcome: Outcome
        if "wrong" in candidate.source:
            outcome = Rejected(reason=RejectReason.WRONG_VALUE, case="n0=4", detail="at [3]: expected 1, got 0")
        else:
            outcome = self.scored(1.0 + int(candidate.source.rstrip("; \n").rpartition("_")[2]) / 10)
        return Trial(candidate=candidate, outcome=outcome, started=float(len(self.built)), seconds=1.0)


def search(
    store: MemoryStore, record: VariantRecord, model: ScriptedModel, bench: Bench, *, calls: MemoryCalls | None = None,
    strategy: str = "best-first", trials: int | None = None, usd: float | None = None, threads: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> SearchSummary:  # fmt: skip
    account = Account(store=calls or MemoryCalls(), run="r", usd=usd)
    generator = LLMGenerator(client=model, account=account)
    options = SearchOptions(
        strategy=get_strategy(strategy), policy=Policy(patience=None), build_threads=0, propose_threads=threads,
        repairing=generator, prefetch=max(1, threads),
    )  # fmt: skip
    return run_search(
        store, generator, bench, bench, Budget(trials=trials, usd=usd), variants=[record], prelude=lambda _: "",
        on_event=lambda _: None, should_stop=stop, options=options,
    )  # fmt: skip


def script(*words: str) -> list[object]:
    """Replies with kernels that come to what the words say."""
    return [kernel(source(word, number), f"idea {number}") for number, word in enumerate(words, 1)]


def nodes(store: MemoryStore, record: VariantRecord) -> list[Node]:
    return list(store.nodes(record.variant.id))


def test_what_failed_is_mended_with_the_prompt_of_its_own_failure(
    tmp_path: Path, make_record: MakeRecord, make_scored: MakeScored
) -> None:
    store, record = MemoryStore(tmp_path), make_record()
    model = ScriptedModel(script("broken", "wrong", "fast", "fast"))  # type: ignore[arg-type]
    summary = search(store, record, model, Bench(make_scored), trials=4)
    first, second, third, fourth = nodes(store, record)
    assert [n.kind for n in (first, second, third, fourth)] == ["build_failure", "rejected", "accepted", "accepted"]
    # All four attempts are stored, and say which failure they mend.
    repairs = [n.candidate.repairs for n in (first, second, third, fourth)]
    assert repairs == ["", first.candidate_id, second.candidate_id, ""]
    assert all(n.parent == "" for n in (first, second, third, fourth))
    asked = [r.turns[0].text for r in model.asked]
    assert "compile error" in asked[1] and "expected ')'" in asked[1] and "does not compile" in asked[1]
    assert "wrong value" in asked[2] and "at [3]: expected 1, got 0" in asked[2] and "attempt 2" in asked[2]
    assert "- compile error:" in asked[2], "the attempt before is told of, too"
    assert "Write a kernel from scratch" in asked[3]
    assert summary.tokens == 600 and summary.usd == pytest.approx(0.04), "all attempts count"


@pytest.mark.parametrize("strategy", ["best-first", "mcts", "beam", "paper-mcts", "linear", "best-of-n"])
def test_one_proposal_is_one_visit_however_many_attempts_it_took(
    strategy: str, tmp_path: Path, make_record: MakeRecord, make_scored: MakeScored
) -> None:
    store, record = MemoryStore(tmp_path), make_record()
    words = ["fast", "broken", "wrong", "fast", "broken", "broken", "broken", "broken", "fast"]
    search(store, record, ScriptedModel(script(*words)), Bench(make_scored), trials=9, strategy=strategy)  # type: ignore[arg-type]
    stored = nodes(store, record)
    assert len(stored) == 9
    tree = tree_of(view_of(stored), failures=True)
    # Four proposals: 1; 2 mended by 3 and 4; 5 given up after 6, 7 and 8; 9.
    assert tree.visits == sum(tree.branches[r].visits for r in tree.roots) == 4
    assert sorted(b.node.number for b in tree.branches.values()) == [1, 4, 8, 9]
    valid = tree_of(view_of(stored), failures=False)
    assert sorted(b.node.number for b in valid.branches.values()) == [1, 4, 9] and valid.visits == 3
    state = state_of(record, stored)
    assert (state.trials, state.judged) == (4, 4)


def test_a_tree_that_grows_is_the_tree_of_all(make_record: MakeRecord, make_scored: MakeScored, tmp_path: Path) -> None:
    store, record = MemoryStore(tmp_path), make_record()
    words = ["wrong", "fast", "fast", "broken", "fast", "wrong", "wrong", "fast"]
    search(store, record, ScriptedModel(script(*words)), Bench(make_scored), trials=8)  # type: ignore[arg-type]
    stored = nodes(store, record)
    growing = view_of(stored[:1])
    for count in range(1, len(stored) + 1):
        grown, whole = view_of(stored[:count]), view_of(stored[:count])
        assert tree_of(grown, failures=True) == tree_of(whole, failures=True)
    assert growing.nodes == view_of(stored[:1]).nodes


def test_three_repairs_and_no_more(tmp_path: Path, make_record: MakeRecord, make_scored: MakeScored) -> None:
    store, record = MemoryStore(tmp_path), make_record()
    model = ScriptedModel(script("broken", "broken", "wrong", "broken", "fast"))  # type: ignore[arg-type]
    search(store, record, model, Bench(make_scored), trials=5)
    assert [n.candidate.repairs != "" for n in nodes(store, record)] == [False, True, True, True, False]
    reasons = [o.reason for o in store.orders(closed=True) if o.repairs]
    assert reasons == ["repair 1 of 3", "repair 2 of 3", "repair 3 of 3"]


def test_a_repair_waits_for_who_can_mend(tmp_path: Path, make_record: MakeRecord, make_scored: MakeScored) -> None:
    store, record = MemoryStore(tmp_path), make_record()
    search(store, record, ScriptedModel(script("broken")), Bench(make_scored), trials=1)  # type: ignore[arg-type]
    (waiting,) = store.orders()
    assert (waiting.state, waiting.reason) == ("waiting", "repair 1 of 3")
    study = Study(store, [record], strategy=get_strategy("best-first"))
    assert all(not order.repairs for order in study.ask(2))
    # The next search of a language model begins with it.
    model = ScriptedModel(script("fast"))  # type: ignore[arg-type]
    search(store, record, model, Bench(make_scored), trials=1)
    assert "did not pass" in model.asked[0].turns[0].text
    assert nodes(store, record)[-1].candidate.repairs == nodes(store, record)[0].candidate_id


def test_a_repair_that_changes_nothing_ends_its_proposal(
    tmp_path: Path, make_record: MakeRecord, make_scored: MakeScored
) -> None:
    store, record = MemoryStore(tmp_path), make_record()
    same = kernel(source("wrong", 1))
    model = ScriptedModel([same, same, *script("broken", "fast", "fast")[1:]])  # type: ignore[list-item]
    search(store, record, model, Bench(make_scored), trials=3)
    assert [n.kind for n in nodes(store, record)] == ["rejected", "accepted", "accepted"]
    assert len(model.asked) == 4


@pytest.mark.parametrize(
    "step", [ProviderFailure("server", "503"), answer("I will not."), answer("", finish="refusal")]
)
def test_a_search_of_which_nothing_comes_ends_and_says_why(
    step: object, tmp_path: Path, make_record: MakeRecord, make_scored: MakeScored
) -> None:
    store, record = MemoryStore(tmp_path), make_record()
    model = ScriptedModel(lambda _: step)  # type: ignore[arg-type, return-value]
    summary = search(store, record, model, Bench(make_scored))
    (reason,) = summary.parked.values()
    assert "4 proposals in a row came to nothing: fake/scripted" in reason and summary.stopped == "exhausted"


def test_many_variants_are_not_all_tried_in_vain(
    tmp_path: Path, make_record: MakeRecord, make_scored: MakeScored
) -> None:
    store, records = MemoryStore(tmp_path), [make_record(name) for name in OPERATORS]
    model = ScriptedModel(lambda _: ProviderFailure("timeout", "no answer"))
    generator = LLMGenerator(client=model, account=Account(store=MemoryCalls(), run="r"))
    options = SearchOptions(repairing=generator, strategy=get_strategy("best-first"), build_threads=0, prefetch=1)
    bench = Bench(make_scored)
    with pytest.raises(FruitlessSearch, match=r"8 proposals in a row came to nothing; the last one: .*no answer"):
        run_search(
            store, generator, bench, bench, Budget(), variants=records, prelude=lambda _: "",
            on_event=lambda _: None, should_stop=lambda: False, options=options,
        )  # fmt: skip
    assert len(model.asked) == 8


def test_fifty_parallel_proposals_at_ten_cents_never_pass_a_dollar(
    tmp_path: Path, make_record: MakeRecord, make_scored: MakeScored
) -> None:
    store, record, calls = MemoryStore(tmp_path), make_record(), MemoryCalls()
    most, lock, number = [0.0], threading.Lock(), [0]

    def say(_: object) -> object:
        with lock:
            number[0] += 1
            mine = number[0]
            most[0] = max(most[0], sum(counted_usd(c) for c in calls.calls()))
        threading.Event().wait(0.02)
        return kernel(source("fast", mine), usd=0.1)

    model = ScriptedModel(say, price_usd=0.1)  # type: ignore[arg-type]
    summary = search(store, record, model, Bench(make_scored), calls=calls, usd=1.0, threads=50)
    assert summary.stopped == "usd" and summary.usd is not None and summary.usd <= 1.0 + 1e-9
    assert most[0] <= 1.0 + 1e-9 and len(model.asked) == len(nodes(store, record)) == 10


class Dying(MemoryCalls):
    """Keeps what another store keeps; the process ends as soon as the end of a call is there."""

    def __init__(self, kept: MemoryCalls) -> None:
        self.open_call, self.calls, self.kept = kept.open_call, kept.calls, kept  # type: ignore[method-assign]

    def close_call(self, call_id: str, end: Completion | Failure) -> None:
        self.kept.close_call(call_id, end)
        raise KeyboardInterrupt


def test_a_reply_that_was_received_is_not_asked_for_again(
    tmp_path: Path, make_record: MakeRecord, make_scored: MakeScored
) -> None:
    """The process dies between the end of a call and the delivery of its candidate."""
    store, record, calls = MemoryStore(tmp_path), make_record(), MemoryCalls()

    with pytest.raises(KeyboardInterrupt):
        search(store, record, ScriptedModel(script("fast")), Bench(make_scored), calls=Dying(calls), trials=1)  # type: ignore[arg-type]
    assert not nodes(store, record) and len(calls.calls()) == 1
    again = ScriptedModel([])
    search(store, record, again, Bench(make_scored), calls=calls, trials=1)
    assert [n.kind for n in nodes(store, record)] == ["accepted"] and not again.asked
    # And not twice.
    more = ScriptedModel(script("fast", "fast")[1:])  # type: ignore[arg-type]
    search(store, record, more, Bench(make_scored), calls=calls, trials=1)
    assert len(more.asked) == 1 and len(nodes(store, record)) == 2


def test_a_model_begins_with_what_others_made_and_with_another_design_after_a_stall(
    tmp_path: Path, make_record: MakeRecord, make_scored: MakeScored
) -> None:
    """A warm start from emitted and imported kernels; from scratch where there are none, and when it stalls."""
    store, record, bench = MemoryStore(tmp_path), make_record(), Bench(make_scored)
    scratch = ScriptedModel(script("fast"))  # type: ignore[arg-type]
    search(MemoryStore(tmp_path), record, scratch, bench, trials=1)
    assert "Write a kernel from scratch" in scratch.asked[0].turns[0].text
    for number, generator in enumerate(("template", "template", "manual", "library"), 1):
        other = Candidate(
            variant_id=record.variant.id, source=source(generator, 20 - number), backend="cpp", generator=generator
        )
        store.append(Trial(candidate=other, outcome=make_scored(3.0 - number / 10), started=float(number), seconds=1.0))
    emitted = nodes(store, record)[0]
    model = ScriptedModel(lambda _: kernel(source("slow", len(model.asked))))
    search(store, record, model, bench, trials=2)
    asked = [r.turns[0].text for r in model.asked]
    # Three trials without progress stand there already, and after every fourth one another design is wanted.
    assert "It is #1" in asked[0] and emitted.candidate.source in asked[0]
    assert "Its design must differ from all of the above" in asked[1]
    assert [n.parent for n in nodes(store, record)[4:]] == [emitted.id, ""]
