"""The story of a trial, as people see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.search.conftest import make_node as make_node  # noqa: PLC0414 - fixtures of the search's tests
from tests.search.conftest import make_record as make_record  # noqa: PLC0414
from tests.search.conftest import make_scored as make_scored  # noqa: PLC0414

from kernelforge.build.types import BuildFailure
from kernelforge.cards.types import VariantRecord
from kernelforge.cli.commands.log import Phase
from kernelforge.evaluate.types import Scored, WorkerFailure
from kernelforge.generate.llm.account import Call, Failure, Intent
from kernelforge.generate.llm.types import ChatRequest, Completion, TokenUsage, Turn
from kernelforge.report.logs import PHASES, log_report
from kernelforge.search.orders import Order
from kernelforge.search.types import Node


def test_a_trial_s_story_goes_from_its_ancestors_to_what_was_measured(
    make_record: Callable[..., VariantRecord], make_node: Callable[..., Node], make_scored: Callable[..., Scored]
) -> None:
    one = make_node(1, make_scored(1.2), source="a")
    two = replace(make_node(2, make_scored(1.4), source="b"), parent=one.id)
    three = replace(make_node(3, make_scored(1.6), source="c"), parent=two.id)
    again = make_node(4, WorkerFailure(detail="too busy"), source="c")
    order = Order(
        id="0" * 32,
        variant_id="v",
        parent=two.id,
        reason="1.40x, children: 0",
        state="done",
        node=three.id,
        created=5.0,
    )
    other = replace(order, id="1" * 32, node=two.id)
    report = log_report(make_record(), [one, two, three, again], three, [other, order])
    assert [e.phase for e in report.entries] == [
        "lineage", "lineage", "ask", "propose", "compile", "validate", "bench", "audit", "again",
    ]  # fmt: skip
    text = report.text()
    assert text.splitlines()[0].startswith("trial 3 of ")
    assert (
        text.index("#1  1.20x") < text.index("#2  1.40x") < text.index("for a revision of trial 2: 1.40x, children: 0")
    )
    assert "by the template generator, 1 line" in text and "1.60x" in text and "worker_failure: too busy" in text
    assert not any(line != line.rstrip() for line in text.splitlines())
    only = log_report(make_record(), [one, two, three, again], three, [order], phase="bench")
    assert [e.phase for e in only.entries] == ["bench"]
    assert len(report.to_json()["entries"]) == 9  # type: ignore[arg-type]


def test_what_does_not_build_has_its_reason(
    make_record: Callable[..., VariantRecord], make_node: Callable[..., Node]
) -> None:
    node = make_node(1, BuildFailure(reason="compile_error", detail="line 3: no ;"))
    text = log_report(make_record(), [node], node, []).text()
    assert "compile_error" in text and "no ;" in text and "bench" not in text


def test_the_command_knows_all_phases() -> None:
    assert tuple(Phase) == PHASES


def test_a_repair_s_story_has_what_it_mends_and_every_call(
    make_record: Callable[..., VariantRecord], make_node: Callable[..., Node]
) -> None:
    broken = make_node(1, BuildFailure(reason="compile_error", detail="line 3: no ;"), source="a")
    mended = make_node(2, BuildFailure(reason="compile_error", detail="line 4: no )"), source="b")
    mended = replace(mended, summary=replace(mended.summary, repairs=broken.candidate_id))
    order = Order(
        id="0" * 32,
        variant_id="v",
        repairs=broken.id,
        reason="repair 1 of 3",
        state="done",
        node=mended.id,
        created=5.0,
    )
    request = ChatRequest(
        system="Rules.", stable="A variant.", turns=(Turn(role="user", text="Mend it."),), max_output_tokens=9
    )
    intent = Intent(
        order=order.id, variant_id="v", model="a/x", step="repair", backend="cpp", parent="", repairs="r",
        prompt_digest="", request=request, bound_tokens=1, bound_usd=0.5,
    )  # fmt: skip
    reply = Completion(
        text="Here it is.", usage=TokenUsage(input_tokens=30, output_tokens=20, cache_read_tokens=10), cost_usd=0.25,
        finish_reason="stop", seconds=4.2,
    )  # fmt: skip
    calls = [
        Call(id=str(i), run="r", started=6.0 + i, intent=intent, end=end)
        for i, end in enumerate([Failure(kind="rate_limit", detail="too many", seconds=9.0), None, reply])
    ]
    text = log_report(make_record(), [broken, mended], mended, [order], calls=calls).text()
    assert text.index("#1  compile_error") < text.index("to mend trial 1: repair 1 of 3")
    assert "a/x, repair: rate limit after 9.0s: too many, cost $0.0000" in text
    assert "a/x, repair: its end is not known, cost unknown" in text
    assert "a/x, repair: stop after 4.2s, 30 tokens in (10 cached), 20 out, cost $0.2500" in text
    assert "Mend it." not in text
    whole = log_report(make_record(), [broken, mended], mended, [order], calls=calls, phase="call").text()
    for part in ("[system]", "Rules.", "A variant.", "Mend it.", "[assistant]", "Here it is."):
        assert part in whole
