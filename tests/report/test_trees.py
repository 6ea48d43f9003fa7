"""The tree of a variant and the difference of two of its kernels, as people see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.search.conftest import make_node as make_node  # noqa: PLC0414 - fixtures of the search's tests
from tests.search.conftest import make_record as make_record  # noqa: PLC0414
from tests.search.conftest import make_scored as make_scored  # noqa: PLC0414

from kernelforge.build.types import BuildFailure
from kernelforge.cards.types import VariantRecord
from kernelforge.evaluate.types import Scored
from kernelforge.report.grid import grid_text
from kernelforge.report.trees import diff_report, tree_grid, tree_report
from kernelforge.search.types import Node
from kernelforge.verify.types import Rejected, RejectReason


@pytest.fixture
def nodes(make_node: Callable[..., Node], make_scored: Callable[..., Scored]) -> list[Node]:
    """1 -> (2 -> 4, 3 failed), 5."""
    wrong = Rejected(reason=RejectReason.WRONG_VALUE, case="n0=8", detail="out[0]", worst_abs=1.0)
    one = make_node(1, make_scored(1.2), source="a\nb\nc")
    two = replace(make_node(2, make_scored(1.1), source="a\nB\nc"), parent=one.id)
    three = replace(make_node(3, wrong), parent=one.id)
    four = replace(make_node(4, make_scored(1.5)), parent=two.id)
    return [one, two, three, four, make_node(5, make_scored(0.9))]


def test_every_trial_stands_below_the_one_that_it_revises(
    make_record: Callable[..., VariantRecord], nodes: list[Node]
) -> None:
    report = tree_report(make_record(), nodes)
    assert [row.branch + str(row.trial.number) for row in report.rows] == ["1", "├─ 2", "│  └─ 4", "└─ 3", "5"]
    assert [row.trial.number for row in report.rows if row.best] == [4]
    assert {row.trial.number for row in report.rows if row.path} == {1, 2, 4}
    text = grid_text(tree_grid(report))
    assert "│  └─ #4 best" in text and "wrong_value" in text
    assert len(report.to_json()["nodes"]) == 5  # type: ignore[arg-type]


def test_a_variant_without_trials_says_so(make_record: Callable[..., VariantRecord], nodes: list[Node]) -> None:
    assert grid_text(tree_grid(tree_report(make_record(), []))).splitlines()[-1] == "no trials yet"
    assert "no trials yet" not in grid_text(tree_grid(tree_report(make_record(), nodes)))


def test_a_node_whose_parent_is_not_there_is_a_root(
    make_record: Callable[..., VariantRecord], nodes: list[Node]
) -> None:
    assert [row.branch for row in tree_report(make_record(), nodes[1:]).rows] == ["", "└─ ", "", ""]


def test_a_difference_names_both_trials(make_record: Callable[..., VariantRecord], nodes: list[Node]) -> None:
    lines = diff_report(make_record(), nodes[0], nodes[1]).text.splitlines()
    assert lines[0].startswith("--- #1  1.20x") and lines[1].startswith("+++ #2  1.10x")
    assert "-b" in lines and "+B" in lines
    assert diff_report(make_record(), None, nodes[0]).text.splitlines()[-3:] == ["+a", "+b", "+c"]
    assert diff_report(make_record(), nodes[0], nodes[0]).text == "#1 has the same source"


def test_a_repair_says_what_it_mends(
    make_record: Callable[..., VariantRecord], make_node: Callable[..., Node], make_scored: Callable[..., Scored]
) -> None:
    broken = make_node(1, BuildFailure(reason="compile_error", detail="no ;"), source="a")
    mended = make_node(2, make_scored(1.5), source="b")
    mended = replace(mended, summary=replace(mended.summary, repairs=broken.candidate_id))
    report = tree_report(make_record(), [broken, mended])
    assert [row.repairs for row in report.rows] == [0, 1] and report.rows[1].to_json()["repairs"] == 1
    assert "accepted, repair of #1" in grid_text(tree_grid(report))
