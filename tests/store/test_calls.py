"""Calls of language models in the project's file."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from kernelforge.errors import ProjectError
from kernelforge.generate.llm.account import Call, Failure, Intent, MemoryCalls
from kernelforge.generate.llm.types import ChatRequest, Completion, TokenUsage, Turn
from kernelforge.store.project import Project


def intent(order: str = "o1", *, bound_usd: float | None = 0.1, bound_tokens: int = 1000) -> Intent:
    request = ChatRequest(
        system="rules", stable="a variant", max_output_tokens=900,
        turns=(Turn(role="user", text="write"), Turn(role="assistant", text="no"), Turn(role="user", text="yes")),
    )  # fmt: skip
    return Intent(
        order=order, variant_id="v", model="anthropic/x", step="repair", backend="cuda", parent="p", repairs="r",
        prompt_digest="d", request=request, bound_tokens=bound_tokens, bound_usd=bound_usd,
    )  # fmt: skip


REPLY = Completion(
    text="```\nint launch();\n```\n", finish_reason="stop", seconds=0.1 + 0.2, attempts=2, request_id="req",
    model="x-1",
    usage=TokenUsage(
        input_tokens=100, output_tokens=50, cache_read_tokens=30, cache_write_tokens=20, reasoning_tokens=10
    ),
    cost_usd=0.1 + 0.2,
)  # fmt: skip


def opened(project: Project, made: Intent, **limits: float | int | None) -> Call:
    call = project.open_call(made, run="r1", **{"usd": None, "tokens": None, **limits})  # type: ignore[arg-type]
    assert isinstance(call, Call)
    return call


@pytest.mark.parametrize(
    "end",
    [
        REPLY, replace(REPLY, usage=None, cost_usd=None, text=""), replace(REPLY, finish_reason="length"),
        Failure(kind="timeout", detail="no byte in 300 s", seconds=300.0), Failure(kind="auth", detail="", attempts=3),
    ],
)  # fmt: skip
def test_what_is_stored_is_read_again(end: Completion | Failure, project: Project) -> None:
    call = opened(project, intent())
    assert Project.open(project.path).calls() == (call,) and call.end is None
    project.close_call(call.id, end)
    (stored,) = Project.open(project.path).calls(run="r1")
    assert stored == replace(call, end=end)
    assert (project.calls(order="o1"), project.calls(order="o2"), project.calls(run="r2")) == ((stored,), (), ())


def test_the_stores_keep_the_same_account(project: Project) -> None:
    for store in (project, MemoryCalls()):
        for end in (REPLY, Failure(kind="server", detail=""), Failure(kind="timeout", detail="")):
            call = store.open_call(intent(), run="r", usd=None, tokens=None)
            assert isinstance(call, Call)
            store.close_call(call.id, end)
        known = [(c.usd, c.tokens) for c in store.calls(run="r")]
        assert known == [(0.1 + 0.2, 150), (0.0, 0), (None, None)]
        # 0.30 paid, nothing for the refusal, 0.10 that may have been paid.
        assert store.open_call(intent(), run="r", usd=0.499, tokens=None) == "usd"
        assert isinstance(store.open_call(intent(), run="r", usd=0.5, tokens=None), Call)
        assert store.open_call(intent(), run="r", usd=9.0, tokens=3149) == "tokens"
        assert isinstance(store.open_call(intent(), run="r", usd=9.0, tokens=3150), Call)
        assert isinstance(store.open_call(intent(), run="another", usd=0.1, tokens=1000), Call)
        assert store.open_call(intent(bound_usd=None), run="third", usd=9.0, tokens=None) == "usd"
        assert isinstance(store.open_call(intent(bound_usd=None), run="third", usd=None, tokens=None), Call)


def test_many_threads_never_pass_a_limit_together(project: Project) -> None:
    with ThreadPoolExecutor(16) as pool:
        calls = list(pool.map(lambda i: project.open_call(intent(f"o{i}"), run="r", usd=1.0, tokens=None), range(50)))
    assert sum(isinstance(call, Call) for call in calls) == 10 and calls.count("usd") == 40


def test_texts_that_repeat_are_kept_once(project: Project) -> None:
    for _ in range(5):
        project.close_call(opened(project, intent()).id, REPLY)
    with sqlite3.connect(project.path / "nodes.db") as connection:
        assert connection.execute("SELECT count(*) FROM texts").fetchone() == (6,)
    connection.close()


def test_text_that_is_none_is_told_as_such(project: Project) -> None:
    call = opened(project, intent())
    project.close_call(call.id, replace(REPLY, text="half of a pair: \ud800"))
    (stored,) = project.calls()
    assert isinstance(stored.end, Completion) and stored.end.text == "half of a pair: \\ud800"
    project.close_call(opened(project, intent()).id, Failure(kind="server", detail="\udfff"))


def test_a_damaged_call_is_named(project: Project) -> None:
    call = opened(project, intent())
    for statement in ("DELETE FROM texts", "UPDATE calls SET request = '[' WHERE 1"):
        with sqlite3.connect(project.path / "nodes.db") as connection:
            connection.execute(statement)
        connection.close()
        with pytest.raises(ProjectError, match=f"call {call.id[:12]} in nodes.db is damaged"):
            project.calls()
    with pytest.raises(ProjectError, match="call unknown is not"):
        project.close_call("unknown", REPLY)


def test_a_copy_of_the_folder_has_the_account(project: Project, tmp_path: Path) -> None:
    import shutil

    project.close_call(opened(project, intent()).id, REPLY)
    shutil.copytree(project.path, tmp_path / "copy.kforge")
    assert Project.open(tmp_path / "copy.kforge").calls() == project.calls()


def test_without_texts_everything_else_is_read(project: Project) -> None:
    call = opened(project, intent())
    project.close_call(call.id, REPLY)
    opened(project, intent())
    bare, whole = project.calls(texts=False), project.calls()
    assert [(c.usd, c.tokens, c.usage, c.run, c.intent.bound_usd, c.intent.step) for c in bare] == [
        (c.usd, c.tokens, c.usage, c.run, c.intent.bound_usd, c.intent.step) for c in whole
    ]
    assert isinstance(bare[0].end, Completion) and bare[0].end.text == "" and bare[0].intent.request.system == ""
