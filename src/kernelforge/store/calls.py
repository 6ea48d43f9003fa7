"""Calls of language models as rows and back. Owns the format of the columns `request` and `result`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, cast

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from kernelforge.digest import Json, canonical_json, digest_bytes, encode_float
from kernelforge.errors import ProjectError
from kernelforge.generate.llm.account import Call, Failure, Intent, Limit, Step, counted_tokens, passed_limit
from kernelforge.generate.llm.types import ChatRequest, Completion, FailureKind, FinishReason, TokenUsage, Turn
from kernelforge.store.models import CallRow, TextRow
from kernelforge.store.serial import Fields, parse_json

Reader: TypeAlias = Callable[[Json], str]
"""Digest -> text."""


def open_call(session: Session, intent: Intent, *, run: str, usd: float | None, tokens: int | None) -> Call | Limit:
    """Store an intent, or say which limit it would pass. In the one write transaction."""
    sums = select(func.sum(CallRow.counted_usd), func.sum(CallRow.counted_tokens)).where(CallRow.run == run)
    dollars, counted = (value or 0 for value in session.execute(sums).one())
    passed = passed_limit(intent, usd=usd, tokens=tokens, counted_usd=dollars, counted_tokens=counted)
    if passed is not None:
        return passed
    call = Call(id=uuid.uuid4().hex, run=run, started=time.time(), intent=intent, end=None)
    session.add(
        CallRow(
            id=call.id, run=run, order_id=intent.order, variant_id=intent.variant_id, model=intent.model,
            step=intent.step, started=call.started, state="open", counted_tokens=intent.bound_tokens,
            counted_usd=intent.bound_usd, request=canonical_json(_request_to_json(session, intent)), result="{}",
        )
    )  # fmt: skip
    return call


def close_call(session: Session, call_id: str, end: Completion | Failure) -> None:
    """Store the end of a call; the bound counts on if what it cost is not known.

    Raises:
        ProjectError: there is no such call.
    """
    row = session.get(CallRow, call_id)
    if row is None:
        raise ProjectError(f"call {call_id[:12]} is not in nodes.db", hint="restore the project from a copy")
    call = Call(id=row.id, run=row.run, started=row.started, intent=_intent(_no_text, row), end=end)
    row.state = "replied" if isinstance(end, Completion) else "failed"
    row.tokens, row.usd = call.tokens, call.usd
    row.counted_tokens = counted_tokens(call)
    row.counted_usd = row.counted_usd if call.usd is None else call.usd
    row.result = canonical_json(end_to_json(end))
    if isinstance(end, Completion):
        row.reply = _keep(session, end.text)


def read_calls(session: Session, *, run: str = "", order: str = "", texts: bool = True) -> tuple[Call, ...]:
    """Oldest first.

    Args:
        texts: with prompts and replies; else these are empty, and ten thousand calls are read in a second.

    Raises:
        ProjectError: one is damaged.
    """
    query = select(CallRow).order_by(CallRow.started, CallRow.id)
    if run:
        query = query.where(CallRow.run == run)
    if order:
        query = query.where(CallRow.order_id == order)
    text = _reader(session) if texts else _no_text
    return tuple(_call(text, row) for row in session.scalars(query))


def _reader(session: Session) -> Reader:
    return lambda key: _text(session, key)


def _no_text(key: Json) -> str:
    del key
    return ""


def _call(text: Reader, row: CallRow) -> Call:
    try:
        return Call(
            id=row.id, run=row.run, started=row.started, intent=_intent(text, row), end=_end(text, row)
        )  # fmt: skip
    except ValueError as error:
        raise ProjectError(
            f"call {row.id[:12]} in nodes.db is damaged: {error}", hint="restore the project from a copy"
        ) from error


def _keep(session: Session, text: str) -> str:
    """Store a text once; its digest. Half of a surrogate pair, from a provider's JSON, is told as such."""
    text = text.encode(errors="backslashreplace").decode()
    key = digest_bytes(text.encode())
    if session.get(TextRow, key) is None:
        session.add(TextRow(digest=key, text=text))
        session.flush()
    return key


def _text(session: Session, key: Json) -> str:
    row = session.get(TextRow, key) if isinstance(key, str) else None
    if row is None:
        raise ValueError(f"text {str(key)[:12]!r} is not there")
    return row.text


def _request_to_json(session: Session, intent: Intent) -> Json:
    request = intent.request
    return {
        "system": _keep(session, request.system), "stable": _keep(session, request.stable),
        "turns": [[turn.role, _keep(session, turn.text)] for turn in request.turns],
        "max_output_tokens": request.max_output_tokens, "backend": intent.backend, "parent": intent.parent,
        "repairs": intent.repairs, "prompt_digest": intent.prompt_digest, "bound_tokens": intent.bound_tokens,
        "bound_usd": None if intent.bound_usd is None else encode_float(intent.bound_usd),
    }  # fmt: skip


def _intent(text: Reader, row: CallRow) -> Intent:
    data = parse_json(row.request)
    fields = Fields(data)
    turns = fields.value("turns")
    if not isinstance(turns, Sequence):
        raise ValueError("field 'turns' is no list")
    return Intent(
        order=row.order_id, variant_id=row.variant_id, model=row.model, step=cast(Step, row.step),
        backend=fields.text("backend"), parent=fields.text("parent"), repairs=fields.text("repairs"),
        prompt_digest=fields.text("prompt_digest"), bound_tokens=fields.integer("bound_tokens"),
        bound_usd=fields.number_or_none("bound_usd"),
        request=ChatRequest(
            system=text(fields.value("system")), stable=text(fields.value("stable")),
            turns=tuple(_turn(text, turn) for turn in turns), max_output_tokens=fields.integer("max_output_tokens"),
        ),
    )  # fmt: skip


def _turn(text: Reader, turn: Json) -> Turn:
    if not (isinstance(turn, Sequence) and len(turn) == 2 and turn[0] in ("user", "assistant")):
        raise ValueError("a turn is none")
    return Turn(role="user" if turn[0] == "user" else "assistant", text=text(turn[1]))


def end_to_json(end: Completion | Failure) -> dict[str, Json]:
    """What came of a call, without the text of a reply."""
    data: dict[str, Json] = {"seconds": encode_float(end.seconds), "attempts": end.attempts}
    if isinstance(end, Failure):
        return data | {"kind": end.kind, "detail": end.detail.encode(errors="backslashreplace").decode()}
    usage = end.usage
    return data | {
        "finish_reason": end.finish_reason, "request_id": end.request_id, "model": end.model,
        "usd": None if end.cost_usd is None else encode_float(end.cost_usd),
        "usage": None if usage is None else {
            "input": usage.input_tokens, "output": usage.output_tokens, "cache_read": usage.cache_read_tokens,
            "cache_write": usage.cache_write_tokens, "reasoning": usage.reasoning_tokens,
        },
    }  # fmt: skip


def _end(text: Reader, row: CallRow) -> Completion | Failure | None:
    if row.state == "open":
        return None
    return end_from_json(parse_json(row.result), text=None if row.state == "failed" else text(row.reply))


def end_from_json(data: Json, *, text: str | None) -> Completion | Failure:
    """The inverse of `end_to_json`.

    Args:
        text: of the reply; None of a failure.

    Raises:
        ValueError: it is none.
    """
    fields = Fields(data)
    seconds, attempts = fields.number("seconds"), fields.integer("attempts")
    if text is None:
        kind = cast(FailureKind, fields.text("kind"))
        return Failure(kind=kind, detail=fields.text("detail"), seconds=seconds, attempts=attempts)
    usage = fields.value("usage")
    return Completion(
        text=text, usage=None if usage is None else _usage(usage), cost_usd=fields.number_or_none("usd"),
        finish_reason=cast(FinishReason, fields.text("finish_reason")), seconds=seconds, attempts=attempts,
        request_id=fields.text("request_id"), model=fields.text("model"),
    )  # fmt: skip


def _usage(data: Json) -> TokenUsage:
    fields = Fields(cast(Mapping[str, Json], data))
    return TokenUsage(
        input_tokens=fields.integer("input"), output_tokens=fields.integer("output"),
        cache_read_tokens=fields.integer("cache_read"), cache_write_tokens=fields.integer("cache_write"),
        reasoning_tokens=fields.integer("reasoning"),
    )  # fmt: skip
