"""Proposals of a language model: calls, useless replies, limits, and what was left over."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from tests.fakes.language_model import ScriptedModel, answer, kernel

from kernelforge.build.abi import prelude
from kernelforge.capture.types import TensorRef
from kernelforge.cards.types import Extent, TensorPattern, Variant
from kernelforge.generate.llm.account import Account, Failure, MemoryCalls, counted_usd
from kernelforge.generate.llm.generator import FIRST_LENGTH, LLMGenerator, ProviderRefused
from kernelforge.generate.llm.types import Completion, ProviderFailure, TokenUsage
from kernelforge.generate.prompt import prompt_for
from kernelforge.generate.types import Candidate, Feedback, NoCandidate, OutOfBudget, Request

LAUNCH = 'extern "C" int launch() { return 0; }\n'


def variant() -> Variant:
    tensor = TensorPattern(shape=(Extent(8),), stride=(Extent(1),), dtype="float32")
    return Variant(operator="relu", arguments=(("input", TensorRef(0)),), tensors=(tensor,), outputs=(tensor,))


def request(**changes: object) -> Request:
    values: dict[str, object] = {
        "variant": variant(), "backend": "cpp", "prelude": prelude(variant(), "cpp"), "brief": "gcc", "order": "o1"
    }  # fmt: skip
    return Request(**{**values, **changes})  # type: ignore[arg-type]


def generator(model: ScriptedModel, *, usd: float | None = None, tokens: int | None = None) -> LLMGenerator:
    return LLMGenerator(client=model, account=Account(store=MemoryCalls(), run="r", usd=usd, tokens=tokens))


def test_a_reply_becomes_a_candidate_with_its_cost() -> None:
    model = ScriptedModel([kernel(LAUNCH, "Rows in fours.", usd=0.25)])
    made = generator(model)
    proposal = made.propose(request(parent=Candidate(variant_id="v", source="s", backend="cpp", generator="template")))
    assert isinstance(proposal, Candidate)
    assert (proposal.source, proposal.notes, proposal.generator, proposal.model) == (
        f"{LAUNCH}\n", "Rows in fours.", "llm", "fake/scripted"
    )  # fmt: skip
    assert (proposal.tokens_in, proposal.tokens_out, proposal.cost_usd) == (100, 50, 0.25)
    assert proposal.parent and not proposal.repairs
    (call,) = made.account.store.calls(order="o1")
    assert call.usd == 0.25 and call.tokens == 150 and call.intent.step == "propose"
    assert proposal.prompt_digest == call.intent.prompt_digest == prompt_for(
        request(parent=Candidate(variant_id="v", source="s", backend="cpp", generator="template"))
    ).digest  # fmt: skip


def test_the_stable_part_of_all_requests_of_a_variant_is_the_same_to_the_byte() -> None:
    model = ScriptedModel(lambda _: kernel(LAUNCH))
    made = generator(model)
    failed = Feedback(
        candidate=Candidate(variant_id="v", source="x", backend="cpp", generator="llm"), outcome="rejected",
        detail="wrong", speedup=None, reason="wrong_value",
    )  # fmt: skip
    for asked in (request(), request(history=(failed,)), request(attempts=(failed,))):
        made.propose(asked)
    assert len({(r.system, r.stable) for r in model.asked}) == 1
    assert len({r.turns for r in model.asked}) == 3
    assert "did not pass: wrong value" in model.asked[2].turns[0].text


def test_a_useless_reply_is_answered_and_paid_for() -> None:
    model = ScriptedModel([answer("I cannot see it."), answer(f"```\n{LAUNCH}```\n```\n{LAUNCH}```"), kernel(LAUNCH)])
    made = generator(model)
    proposal = made.propose(request())
    assert isinstance(proposal, Candidate) and proposal.tokens_in == 300 and proposal.cost_usd == pytest.approx(0.03)
    last = model.asked[2].turns
    assert [t.role for t in last] == ["user", "assistant", "user", "assistant", "user"]
    assert "no fenced code block" in last[2].text and "2 of its code blocks" in last[4].text
    assert [c.intent.step for c in made.account.store.calls()] == ["propose", "again", "again"]


def test_a_reply_that_was_cut_off_is_asked_for_again_with_the_model_s_longest() -> None:
    model = ScriptedModel([answer("```c++\nint x", finish="length"), kernel(LAUNCH)])
    assert isinstance(generator(model).propose(request()), Candidate)
    first, second = model.asked
    assert (first.max_output_tokens, second.max_output_tokens) == (FIRST_LENGTH, model.max_output_tokens)
    assert len(second.turns) == 1 and "cut off" in second.turns[0].text


@pytest.mark.parametrize("useless", [answer(""), answer("no"), answer("no", finish="refusal")])
def test_three_useless_replies_are_no_candidate(useless: object) -> None:
    model = ScriptedModel(lambda _: useless)  # type: ignore[arg-type, return-value]
    proposal = generator(model).propose(request())
    assert isinstance(proposal, NoCandidate) and "gave no kernel in 3 replies" in proposal.reason
    assert len(model.asked) == 3 and proposal.tokens_out == 150


@pytest.mark.parametrize(
    ("kind", "usd"), [("server", 0.0), ("rate_limit", 0.0), ("timeout", None), ("malformed", None)]
)
def test_a_provider_s_failure_is_no_text_and_its_cost_is_unknown_if_it_may_have_worked(
    kind: str, usd: float | None
) -> None:
    made = generator(ScriptedModel([ProviderFailure(kind, "<html>sorry</html>")]))  # type: ignore[arg-type]
    proposal = made.propose(request())
    assert isinstance(proposal, NoCandidate) and "sorry" in proposal.reason
    assert proposal.cost_usd == usd and proposal.tokens_in == (0 if usd == 0.0 else None)
    (call,) = made.account.store.calls()
    assert isinstance(call.end, Failure) and call.usd == usd


@pytest.mark.parametrize(("kind", "hint"), [("auth", "check the key"), ("bad_request", "check the model's name")])
def test_what_the_provider_will_never_serve_ends_the_search(kind: str, hint: str) -> None:
    made = generator(ScriptedModel([ProviderFailure(kind, "no such model")]))  # type: ignore[arg-type]
    with pytest.raises(ProviderRefused, match="no such model") as error:
        made.propose(request())
    assert hint in error.value.hint and len(made.account.store.calls()) == 1


def test_nothing_is_asked_that_could_pass_a_limit() -> None:
    model = ScriptedModel(lambda _: answer("nothing", usd=0.1), price_usd=0.1)
    proposal = generator(model, usd=0.25).propose(request())
    assert isinstance(proposal, OutOfBudget) and proposal.limit == "usd" and proposal.cost_usd == pytest.approx(0.2)
    assert len(model.asked) == 2
    small = ScriptedModel(lambda _: kernel(LAUNCH))
    refused = generator(small, tokens=FIRST_LENGTH + 10).propose(request())
    assert isinstance(refused, OutOfBudget) and refused.limit == "tokens" and not small.asked


def test_an_unknown_cost_counts_at_its_bound() -> None:
    model = ScriptedModel([ProviderFailure("timeout", "t"), kernel(LAUNCH)], price_usd=0.6)
    made = generator(model, usd=1.0)
    assert isinstance(made.propose(request()), NoCandidate)
    assert isinstance(made.propose(request()), OutOfBudget)


def test_usage_that_the_reply_does_not_tell_is_unknown_and_not_nothing() -> None:
    said_nothing = replace(kernel(LAUNCH), usage=None, cost_usd=None)
    proposal = generator(ScriptedModel([said_nothing])).propose(request())
    assert isinstance(proposal, Candidate)
    assert (proposal.tokens_in, proposal.tokens_out, proposal.cost_usd) == (None, None, None)


def test_what_was_received_before_the_process_died_is_left_over() -> None:
    made = generator(
        ScriptedModel([kernel(LAUNCH), answer("nothing here"), KeyboardInterrupt(), kernel("int launch();")])
    )
    first = made.propose(request(order="o1"))
    with pytest.raises(KeyboardInterrupt):
        made.propose(request(order="o2"))
    made.propose(request(order="o3"))
    assert made.left_over(["o1"]) == [("o1", first)]
    assert [order for order, _ in made.left_over(["o1", "o2", "o3", "unknown"])] == ["o1", "o3"]
    # The one that was under way has no known end, and counts.
    assert [c.usd for c in made.account.store.calls(order="o2")] == [0.01, None]
    assert TokenUsage() != made.account.store.calls(order="o2")[1].usage


def test_fifty_parallel_proposals_at_ten_cents_stay_within_a_dollar() -> None:
    """Whatever a search does: each call is held against what is paid, and what the others may cost."""
    most, lock = [0.0], threading.Lock()

    def say(_: object) -> Completion:
        with lock:
            most[0] = max(most[0], sum(counted_usd(call) for call in made.account.store.calls()))
        time.sleep(0.02)
        return kernel(LAUNCH, usd=0.1)

    model = ScriptedModel(say, price_usd=0.1)
    made = generator(model, usd=1.0)
    with ThreadPoolExecutor(50) as pool:
        proposals = list(pool.map(made.propose, (request(order=f"o{i}") for i in range(50))))
    assert len(model.asked) == 10 and sum(isinstance(p, Candidate) for p in proposals) == 10
    assert sum(isinstance(p, OutOfBudget) for p in proposals) == 40
    assert most[0] <= 1.0 + 1e-9


def test_a_server_that_is_not_there_ends_the_search_at_once_unless_it_was_there() -> None:
    away = ProviderFailure("connection", "refused at http://127.0.0.1:1")
    made = generator(ScriptedModel([away]))
    with pytest.raises(ProviderRefused, match=r"cannot be reached: refused at http://127\.0\.0\.1:1"):
        made.propose(request())
    later = generator(ScriptedModel([kernel(LAUNCH), away]))
    later.propose(request())
    assert isinstance(later.propose(request()), NoCandidate)
