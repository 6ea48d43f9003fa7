"""Costs, summed up: what is unknown is never 0."""

from __future__ import annotations

from dataclasses import replace

from kernelforge.cli.commands.cost import By
from kernelforge.generate.llm.account import Call, Failure, Intent, Step
from kernelforge.generate.llm.types import ChatRequest, Completion, TokenUsage
from kernelforge.report.costs import COST_KEYS, STEPS, cost_grid, cost_report, format_usd
from kernelforge.report.grid import grid_text

OPERATORS = {"v1": "linear", "v2": "softmax"}


def call(
    number: int, usd: float | None, *, variant: str = "v1", model: str = "a/x", run: str = "run1",
    step: Step = "propose",
    bound: float | None = 0.5, failed: bool = False,
) -> Call:  # fmt: skip
    request = ChatRequest(system="", stable="", turns=(), max_output_tokens=1)
    intent = Intent(
        order="o", variant_id=variant, model=model, step=step, backend="cpp", parent="", repairs="", prompt_digest="",
        request=request, bound_tokens=10, bound_usd=bound,
    )  # fmt: skip
    usage = None if usage_is_unknown(usd) else TokenUsage(input_tokens=1000, output_tokens=200, cache_read_tokens=800)
    end: Completion | Failure = Completion(text="", usage=usage, cost_usd=usd, finish_reason="stop", seconds=1.0)
    if failed:
        end = Failure(kind="server" if usd == 0.0 else "timeout", detail="")
    return Call(id=str(number), run=run, started=1.8e9 + number, intent=intent, end=end)


def usage_is_unknown(usd: float | None) -> bool:
    return usd is None


CALLS = (
    call(1, 0.25), call(2, 1.5, variant="v2", step="repair"), call(3, None, run="run2", model="b/y"),
    call(4, 0.0, failed=True, run="run2"), call(5, None, failed=True, run="run2"),
    replace(call(6, 0.125, run="run2", step="again"), id="6"),
)  # fmt: skip


def test_rows_are_summed_and_add_up() -> None:
    report = cost_report(CALLS, OPERATORS, by="run")
    first, second = report.rows
    assert (first.calls, first.usd, first.total_usd, first.unknown) == (2, 1.75, 1.75, 0)
    assert (second.calls, second.failed, second.usd, second.total_usd) == (4, 2, 0.125, 1.875)
    assert (second.unknown, second.unknown_usd) == (2, 1.0)
    assert report.whole.usd == report.rows[-1].total_usd
    for by in COST_KEYS:
        other = cost_report(CALLS, OPERATORS, by=by)
        assert sum(r.usd for r in other.rows) == other.rows[-1].total_usd == report.whole.usd == other.whole.usd
        assert sum(r.tokens_in for r in other.rows) == 3000 and sum(r.cached for r in other.rows) == 2400


def test_the_dearest_comes_first_and_steps_in_their_order() -> None:
    assert [r.name for r in cost_report(CALLS, OPERATORS, by="op").rows] == ["softmax", "linear"]
    assert [r.name for r in cost_report(CALLS, OPERATORS, by="model").rows] == ["a/x", "b/y"]
    assert [r.name for r in cost_report(CALLS, OPERATORS, by="step").rows] == list(STEPS.values())


def test_what_is_not_known_is_not_shown_as_nothing() -> None:
    only = cost_report([call(1, None), call(2, None, bound=None)], {}, by="model")
    text = grid_text(cost_grid(only))
    row = text.splitlines()[2]
    assert row.split() == ["a/x", "2", "0", "0", "0", "-", "$0.00", "2,", "no", "bound"]
    assert "What 2 calls cost is not known" in text
    assert "<= $1.00" in grid_text(cost_grid(cost_report(CALLS, OPERATORS, by="run")))


def test_no_call_is_told_in_words() -> None:
    assert "no language model was asked" in grid_text(cost_grid(cost_report([], {}, by="run")))


def test_dollars() -> None:
    assert [format_usd(x) for x in (None, 0.0, 0.00123, 0.5, 12.345)] == ["-", "$0.00", "$0.0012", "$0.5000", "$12.35"]


def test_the_option_has_the_keys() -> None:
    assert tuple(By) == COST_KEYS
