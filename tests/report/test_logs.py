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
