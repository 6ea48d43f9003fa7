"""Kernels by a language model: one proposal is a call, and another one if the reply holds no kernel.

What did not pass the judge comes back as a request with `attempts`, and its prompt asks to mend the last of them. Every
call is in the account before it is made, and its reply before anything else is done with it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from kernelforge.errors import ForgeError
from kernelforge.generate.llm.account import Account, Call, Intent, Limit, Step
from kernelforge.generate.llm.reply import Reply, read_reply
from kernelforge.generate.llm.types import ChatRequest, Completion, LLMClient, ProviderFailure, Turn
from kernelforge.generate.prompt import Prompt, prompt_for, useless_reply
from kernelforge.generate.types import Candidate, NoCandidate, OutOfBudget, Proposal, Request

FIRST_LENGTH = 16_384
"""Tokens of a first reply, where the model can write more: a cut one is asked for again, with the model's longest."""
MOST_CALLS = 3
"""Of one proposal."""
NAME = "llm"
FATAL = frozenset({"auth", "bad_request"})
"""Asking again would bring the same."""


class ProviderRefused(ForgeError):
    """The provider will not serve such requests: a wrong key, an unknown model, a request that it does not take."""

    exit_code = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMGenerator:
    """Thread-safe.

    Attributes:
        client: of one model. account: what may be spent, and where calls are stored.
        most_repairs: attempts at one proposal after the first.
    """

    client: LLMClient
    account: Account
    most_repairs: int = 3
    name: str = NAME

    def propose(self, request: Request) -> Proposal:
        """One candidate of the model, or what the calls cost that brought none.

        Raises:
            ProviderRefused: the provider will not serve such requests.
        """
        prompt = prompt_for(request)
        chat = ChatRequest(
            system=prompt.system, stable=prompt.variant, turns=(Turn(role="user", text=prompt.round),),
            max_output_tokens=min(FIRST_LENGTH, self.client.max_output_tokens),
        )  # fmt: skip
        step: Step = "repair" if request.attempts else "propose"
        made: list[Call] = []
        why = ""
        for _ in range(MOST_CALLS):
            call = self.account.begin(self._intent(request, prompt, chat, step))
            if not isinstance(call, Call):
                return _out_of_budget(call, made)
            try:
                completion = self.client.complete(chat)
            except ProviderFailure as failure:
                made.append(replace(call, end=self.account.end(call, failure)))
                if failure.kind in FATAL:
                    raise _refused(self.client.model, failure) from None
                if failure.kind == "connection" and not self._was_reached():
                    raise ProviderRefused(
                        f"{self.client.model} cannot be reached: {failure.detail}",
                        hint="is the server running, and base_url right? see docs/llm.md",
                    ) from None
                return NoCandidate(reason=f"{self.client.model}: {failure}", **_cost(made))
            made.append(replace(call, end=self.account.end(call, completion)))
            reply = read_reply(completion)
            if isinstance(reply, Reply):
                return _candidate(made, reply)
            why, step, chat = reply, "again", self._once_more(chat, completion, reply)
        return NoCandidate(reason=f"{self.client.model} gave no kernel in {MOST_CALLS} replies: {why}", **_cost(made))

    def left_over(self, orders: Collection[str]) -> Sequence[tuple[str, Candidate]]:
        """Of these orders those whose candidate was received, with it: their process ended before it delivered it."""
        found = []
        for order in sorted(orders):
            calls = self.account.store.calls(order=order)
            last = calls[-1].end if calls else None
            reply = read_reply(last) if isinstance(last, Completion) else ""
            if isinstance(reply, Reply):
                found.append((order, _candidate(calls, reply)))
        return found

    def _was_reached(self) -> bool:
        """Whether any call of this run got an answer. Until one has, an absent server is rather a mistake of ours."""
        ends = [call.end for call in self.account.store.calls(run=self.account.run)]
        return any(isinstance(end, Completion) or (end is not None and end.kind != "connection") for end in ends)

    def _intent(self, request: Request, prompt: Prompt, chat: ChatRequest, step: Step) -> Intent:
        return Intent(
            order=request.order, variant_id=request.variant.id, model=self.client.model, step=step,
            backend=request.backend, parent=request.parent.id if request.parent is not None else "",
            repairs=request.attempts[-1].candidate.id if request.attempts else "", prompt_digest=prompt.digest,
            request=chat, bound_tokens=chat.text_bytes + chat.max_output_tokens,
            bound_usd=self.client.bound_usd(chat),
        )  # fmt: skip

    def _once_more(self, chat: ChatRequest, completion: Completion, why: str) -> ChatRequest:
        """The request after a useless reply. A cut one is not repeated to the model: half of it would be cut again."""
        said = Turn(role="user", text=useless_reply(why))
        if completion.finish_reason == "length" or not completion.text.strip():
            first = chat.turns[0]
            return replace(
                chat, turns=(replace(first, text=f"{first.text}\n{said.text}"),),
                max_output_tokens=self.client.max_output_tokens,
            )  # fmt: skip
        return replace(chat, turns=(*chat.turns, Turn(role="assistant", text=completion.text), said))


def _candidate(calls: Sequence[Call], reply: Reply) -> Candidate:
    intent = calls[-1].intent
    return Candidate(
        variant_id=intent.variant_id, source=reply.source, backend=intent.backend, generator=NAME, notes=reply.notes,
        parent=intent.parent, repairs=intent.repairs, model=intent.model, prompt_digest=intent.prompt_digest,
        **_cost(calls),
    )  # fmt: skip


class _Cost(TypedDict):
    tokens_in: int | None
    tokens_out: int | None
    cost_usd: float | None


def _cost(calls: Sequence[Call]) -> _Cost:
    """Of all calls of a proposal together; None as soon as one is unknown."""
    usages = [call.usage for call in calls]
    known = [usage for usage in usages if usage is not None]
    costs = [call.usd for call in calls]
    return {
        "tokens_in": sum(u.input_tokens for u in known) if len(known) == len(usages) else None,
        "tokens_out": sum(u.output_tokens for u in known) if len(known) == len(usages) else None,
        "cost_usd": None if None in costs else sum(usd for usd in costs if usd is not None),
    }


def _out_of_budget(limit: Limit, calls: Sequence[Call]) -> OutOfBudget:
    what = "dollars" if limit == "usd" else "tokens"
    return OutOfBudget(limit=limit, reason=f"the next call might cost more {what} than are left", **_cost(calls))


def _refused(model: str, failure: ProviderFailure) -> ProviderRefused:
    hint = "check the key, which is read from the environment: kforge doctor names the variable"
    if failure.kind == "bad_request":
        hint = (
            "check the model's name and settings, and base_url (what speaks OpenAI's protocol mostly wants its /v1): "
            "docs/llm.md"
        )
    return ProviderRefused(f"{model} refuses: {failure.detail}", hint=hint)
