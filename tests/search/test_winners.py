"""Which node is exported: by the policy and by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kernelforge.audit.types import AuditKind
from kernelforge.benchmark.types import Interval
from kernelforge.build.types import BuildFailure
from kernelforge.cards.types import VariantRecord
from kernelforge.errors import NotFound, UsageError
from kernelforge.evaluate.types import Scored
from kernelforge.search.types import Node
from kernelforge.search.winners import choose_winner, find_node, not_faster
from kernelforge.verify.types import Rejected, RejectReason

MakeNode = Callable[..., Node]
MakeScored = Callable[..., Scored]
MakeRecord = Callable[..., VariantRecord]
FAILED = BuildFailure(reason="compile_error", detail="line 1")


def test_policy_takes_the_fastest_valid(make_node: MakeNode, make_scored: MakeScored, make_record: MakeRecord) -> None:
    nodes = [make_node(1, FAILED), make_node(2, make_scored(1.5)), make_node(3, make_scored(1.8)),
             make_node(4, make_scored(7.0, audit=AuditKind.BACKEND))]  # fmt: skip
    assert choose_winner(make_record(), nodes).node == nodes[2]


@pytest.mark.parametrize(("low", "exported"), [(1.02, False), (1.021, True), (float("nan"), False)])
def test_policy_wants_more_than_noise(
    make_node: MakeNode, make_scored: MakeScored, make_record: MakeRecord, low: float, exported: bool
) -> None:
    choice = choose_winner(make_record(), [make_node(1, make_scored(1.3, low=low))])
    assert (choice.node is not None) is exported
    assert exported or "not faster beyond noise" in choice.reason


def test_a_luckier_but_less_certain_one_hides_no_winner(
    make_node: MakeNode, make_scored: MakeScored, make_record: MakeRecord
) -> None:
    nodes = [make_node(1, make_scored(1.5, low=1.01)), make_node(2, make_scored(1.49, low=1.45))]
    assert choose_winner(make_record(), nodes).node == nodes[1]


def test_what_stands_does_not_depend_on_the_direction_of_a_merge(
    make_node: MakeNode, make_scored: MakeScored, make_record: MakeRecord
) -> None:
    wrong = Rejected(reason=RejectReason.WRONG_VALUE, case="c", detail="out[0]", worst_abs=1.0)
    here = [make_node(1, make_scored(2.0), "// x"), make_node(3, wrong, "// x")]
    there = [make_node(2, make_scored(2.1), "// x")]
    for nodes in (here + there, there + here):
        assert choose_winner(make_record(), nodes).node is None, "rejected last, by the clock"


def test_a_reason_has_the_digits_of_the_table() -> None:
    assert not_faster(Interval(median=0.0031, low=0.0029, high=0.004)) == "slower than eager: 0.003x [0.003, 0.004]"


def test_reasons_for_keeping_the_original(make_node: MakeNode, make_record: MakeRecord) -> None:
    assert choose_winner(make_record(), []).reason == "not tried"
    assert choose_winner(make_record(), [make_node(1, FAILED)]).reason == "no valid candidate in 1 trial"
    assert choose_winner(make_record(forgeable="random"), []).reason == "random"


def test_pick_by_number_and_id(make_node: MakeNode, make_scored: MakeScored, make_record: MakeRecord) -> None:
    nodes = [make_node(1, make_scored(3.0)), make_node(2, make_scored(0.9))]
    for pick in ("2", nodes[1].id, nodes[1].id[:16]):
        assert choose_winner(make_record(), nodes, pick=pick).node == nodes[1], "slower, but asked for"


def test_invalid_nodes_cannot_be_picked(make_node: MakeNode, make_scored: MakeScored, make_record: MakeRecord) -> None:
    nodes = [make_node(1, FAILED), make_node(2, make_scored(2.0, audit=AuditKind.FALLBACK)),
             make_node(3, make_scored(2.0), source="a"), make_node(4, FAILED, source="a")]  # fmt: skip
    for pick, message in (("1", "build_failure"), ("2", "falls back"), ("3", "judged again as node 4")):
        with pytest.raises(UsageError, match=message):
            choose_winner(make_record(), nodes, pick=pick)


def test_names_of_nodes(make_node: MakeNode, make_record: MakeRecord) -> None:
    nodes = [make_node(i, FAILED) for i in range(1, 40)]
    assert find_node(make_record(), nodes, "7") == nodes[6]
    with pytest.raises(NotFound, match="no node"):
        find_node(make_record(), nodes, "400000")
    renamed = [replace(nodes[0], id="9abc"), replace(nodes[1], id="1234567f")]
    assert find_node(make_record(), renamed, "9a") == renamed[0]
    assert find_node(make_record(), renamed, "1234567") == renamed[1]
    with pytest.raises(NotFound, match="no node '9'"):  # as a number; ids are random
        find_node(make_record(), renamed, "9")
    letters = [n for n in nodes if n.id[0] in "abcdef"]
    start = next(n.id[0] for n in letters if sum(m.id[0] == n.id[0] for m in letters) > 1)
    with pytest.raises(NotFound, match="is the start of"):
        find_node(make_record(), nodes, start)
