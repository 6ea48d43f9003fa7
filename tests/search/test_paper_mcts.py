"""A trace of the paper's search, computed by hand from its equations: two roots, failures, a stagnation skip."""

from __future__ import annotations

import pytest

from kernelforge.search.strategies.paper_mcts import STRATEGY, exponent, most_children, score
from kernelforge.search.tree import TreeNode, TreeView, tree_of


class Trace:
    """Grows a tree node by node; times in milliseconds, as in the paper."""

    def __init__(self) -> None:
        self.nodes: list[TreeNode] = []

    def add(self, name: str, parent: str, ms: float | None) -> None:
        time_us = None if ms is None else 1000 * ms
        speedup = None if ms is None else 1 / ms
        number = len(self.nodes) + 1
        self.nodes.append(TreeNode(id=name, parent=parent, number=number, time_us=time_us, speedup=speedup))

    @property
    def view(self) -> TreeView:
        return TreeView(nodes=tuple(self.nodes))

    @property
    def next(self) -> str:
        return STRATEGY.select(self.view).parent


def test_the_exponent_of_equation_4() -> None:
    # 0.5 - 0.2 min(1, R / 1000)
    assert [exponent(r) for r in (0, 500, 1000, 5000)] == pytest.approx([0.5, 0.4, 0.3, 0.3])


def test_the_cap_of_equation_3() -> None:
    assert most_children(4, 0) == 2  # 4^0.5 = 2
    assert most_children(4, 4) == 1  # 4^0.4992 = 1.998: the annealing takes the second child away
    assert most_children(100, 1000) == 3  # 100^0.3 = 3.98


def test_the_trace() -> None:
    trace = Trace()
    assert trace.next == ""
    trace.add("failed", "", None)
    assert trace.next == ""  # neither node, child nor visit
    trace.add("A", "", 2.0)
    assert trace.next == "A"  # the only leaf
    trace.add("B", "", 1.0)
    assert trace.next == "B"  # of the leaves A (2.0) and B (1.0) the faster

    trace.add("B1", "B", 0.9)
    # B: N = R = 2, a = 0.4996, 2^a = 1.41: one child at most, and it has one. Down to B1; its 0.9 beats A's 2.0.
    assert trace.next == "B1"
    trace.add("failed too", "B1", None)
    assert trace.next == "B1"  # as before: the failure left no trace
    trace.add("B2", "B1", 0.95)
    # B: N = 3, 3^0.4994 = 1.73. B1: N = 2, 2^0.4994 = 1.41. Down to B2, though it is slower than B1.
    assert trace.next == "B2"
    trace.add("B3", "B2", 0.5)
    # B: N = 4, 4^0.4992 = 1.998, still one child; B1: N = 3; B2: N = 2.
    assert trace.next == "B3"
    assert tree_of(trace.view, failures=False).branches["B"].best_us == 500.0  # equation (6): min(1.0, 0.5)

    trace.add("B4", "B3", 0.6)
    # B: N = 5, 5^0.499 = 2.23: two children are allowed and there is one.
    assert trace.next == "B"
    trace.add("C1", "B", 1.2)
    # B: N = 6, 6^0.4988 = 2.44: full. Equation (5) with ln 6 = 1.7918:
    #   B1: L = 0.5 (of B3), N = 4: 0.5 - sqrt(1.7918 / 4) = -0.1693
    #   C1: L = 1.2, N = 1:         1.2 - sqrt(1.7918)     = -0.1386
    tree = tree_of(trace.view, failures=False).branches
    assert score(tree["B1"], 6) == pytest.approx(-0.1693, abs=1e-4)
    assert score(tree["C1"], 6) == pytest.approx(-0.1386, abs=1e-4)
    # B1: N = 4, 4^0.4988 = 1.997; B2: N = 3; B3: N = 2: all full. The leaf is B4 (0.6 against A's 2.0).
    assert trace.next == "B4"


def test_a_child_that_stagnates_is_skipped() -> None:
    trace = Trace()
    trace.add("S", "", 1.0)
    trace.add("T", "S", 0.5)
    for number in range(1, 10):
        trace.add(f"t{number}", f"t{number - 1}" if number > 1 else "T", 0.6)
    trace.add("U", "S", 3.0)
    trace.add("V", "S", 3.5)
    # S: N = R = 13, a = 0.4974, 13^a = 3.58: full with three. ln 13 = 2.565:
    #   T: N = 10: 0.5 - sqrt(2.565 / 10) = -0.0065, the least, but nothing below it beat its 0.5 in 10 visits
    #   U: N = 1:  3.0 - sqrt(2.565)      =  1.3985
    #   V: N = 1:  3.5 - sqrt(2.565)      =  1.8985
    assert trace.next == "U"
    trace.nodes[5] = TreeNode(id="t4", parent="t3", number=6, time_us=450.0, speedup=2.2)
    # Now something below T did. T: N = 10, 10^0.4974 = 3.14, one child: widened.
    assert trace.next == "T"


def test_if_all_children_stagnate_their_parent_gets_another() -> None:
    trace = Trace()
    trace.add("S", "", 1.0)
    for number in range(1, 8):
        trace.add(f"T{number}", "S", 0.5)
        for below in range(9):
            trace.add(f"T{number}.{below}", f"T{number}.{below - 1}" if below else f"T{number}", 0.6)
    # S: N = R = 71, a = 0.4858, 71^a = 7.93: full with seven, all of which stagnate.
    selection = STRATEGY.select(trace.view)
    assert (selection.parent, selection.reason) == ("S", "all children stagnate")
