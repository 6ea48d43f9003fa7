"""What every strategy obeys, whatever it does; new ones are found by their names."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kernelforge.errors import NotFound
from kernelforge.search.strategies import get_strategy, strategy_names
from kernelforge.search.tree import TreeNode, TreeView, stalled, tree_of

NAMES = strategy_names()


def grown(name: str, trials: int, *, seed: int, failing: float = 0.3) -> TreeView:
    """The view after a search on a random landscape: a revision is its parent's time times a random factor."""
    draw, strategy = random.Random(seed), get_strategy(name)
    nodes: list[TreeNode] = []
    for number in range(1, trials + 1):
        view = TreeView(nodes=tuple(nodes), seed=seed)
        parent = strategy.select(view).parent
        if draw.random() < failing:
            nodes.append(TreeNode(id=str(number), parent=parent, number=number))
            continue
        before = next((n.time_us for n in nodes if n.id == parent), None) or 20.0
        time_us = before * draw.uniform(0.8, 1.15)
        nodes.append(TreeNode(id=str(number), parent=parent, number=number, time_us=time_us, speedup=10.0 / time_us))
    return TreeView(nodes=tuple(nodes), seed=seed)


def test_they_are_there() -> None:
    assert {*NAMES} >= {"paper-mcts", "mcts", "best-first", "best-of-n", "autotune", "linear", "beam"}


@pytest.mark.parametrize("name", ["bestfirst", "best_first", ""])
def test_an_unknown_name_is_told_the_known_ones_as_they_are_typed(name: str) -> None:
    with pytest.raises(NotFound, match="no strategy") as error:
        get_strategy(name)
    assert "best-first" in error.value.hint and "_" not in error.value.hint


@pytest.mark.parametrize("name", NAMES)
def test_the_name_is_that_of_the_file(name: str) -> None:
    assert get_strategy(name).name == name


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_tree_is_begun_from_scratch(name: str) -> None:
    selection = get_strategy(name).select(TreeView())
    assert selection.parent == "" and selection.reason


@pytest.mark.parametrize("name", NAMES)
def test_only_valid_nodes_are_revised(name: str) -> None:
    for seed in range(20):
        view = grown(name, 60, seed=seed)
        valid = {"", *(n.id for n in view.valid)}
        assert {n.parent for n in view.nodes} <= valid


@pytest.mark.parametrize("name", NAMES)
def test_the_same_view_gives_the_same_selection(name: str) -> None:
    view = grown(name, 40, seed=1)
    assert get_strategy(name).select(view) == get_strategy(name).select(view)


@pytest.mark.parametrize("name", NAMES)
def test_failures_alone_do_not_end_it(name: str) -> None:
    view = TreeView(nodes=tuple(TreeNode(id=str(i), parent="", number=i) for i in range(1, 30)))
    assert get_strategy(name).select(view).parent == ""


@pytest.mark.parametrize("name", NAMES)
def test_selections_under_way_spread(name: str) -> None:
    """Eight proposers that ask at once do not all revise one node, unless the strategy knows of one only."""
    view, strategy = grown(name, 60, seed=3), get_strategy(name)
    asked: list[str] = []
    for _ in range(8):
        now = TreeView(nodes=view.nodes, in_flight=tuple(asked))
        asked.append(strategy.select(now).parent)
    least = 1 if name in {"best-of-n", "linear"} else 2
    assert len(Counter(asked)) >= least, asked


@pytest.mark.parametrize("name", NAMES)
def test_five_thousand_nodes_take_no_time(name: str) -> None:
    import time

    draw = random.Random(0)
    nodes = [
        TreeNode(id=str(i), parent=str(draw.randrange(1, i)) if i > 5 else "", number=i, time_us=5.0, speedup=2.0)
        for i in range(1, 5001)
    ]
    view = TreeView(nodes=tuple(nodes))
    times = []
    for _ in range(5):
        started = time.thread_time()  # of this thread alone: others use the machine
        get_strategy(name).select(view)
        times.append(time.thread_time() - started)
    assert min(times) < 0.1  # a fifth of that on a quiet machine


def test_a_tree_counts_visits_children_and_the_best_below() -> None:
    nodes = (
        TreeNode(id="a", parent="", number=1, time_us=10.0, speedup=1.0),
        TreeNode(id="b", parent="a", number=2, time_us=8.0, speedup=1.25),
        TreeNode(id="c", parent="a", number=3),
        TreeNode(id="d", parent="b", number=4, time_us=5.0, speedup=2.0),
    )
    tree = tree_of(TreeView(nodes=nodes, in_flight=("b", "")), failures=True)
    a, b = tree.branches["a"], tree.branches["b"]
    assert (a.visits, a.expansions, a.best_us, a.best) == (5, 2, 5.0, 2.0)
    assert (b.visits, b.expansions) == (3, 2)
    assert (tree.visits, tree.expansions) == (6, 2)
    without = tree_of(TreeView(nodes=nodes), failures=False).branches
    assert without["a"].visits == 3 and "c" not in without


def test_stalled_counts_trials_since_progress() -> None:
    times = [10.0, 9.0, 8.95, None, 9.5]
    nodes = tuple(
        TreeNode(id=str(i), parent="", number=i, time_us=t, speedup=None if t is None else 10.0 / t)
        for i, t in enumerate(times, 1)
    )
    assert stalled(TreeView(nodes=nodes), progress=1.01) == 3


def test_best_first_begins_with_several_designs_and_with_another_when_nothing_helps() -> None:
    def view(speedups: list[float | None], parents: list[str]) -> TreeView:
        made = [
            TreeNode(id=str(i), parent=p, number=i, time_us=None if s is None else 10.0 / s, speedup=s)
            for i, (s, p) in enumerate(zip(speedups, parents, strict=True), 1)
        ]
        return TreeView(nodes=tuple(made))

    select = get_strategy("best-first").select
    assert select(view([2.0, None, 1.0], [""] * 3)).parent == "", "a failed start is one, too"
    assert select(view([1.0, None, 2.0, 1.5], [""] * 4)).parent == "3"
    assert select(view([1.0, None, 2.0, 1.5, 1.9, 2.01], ["", "", "", "", "3", "3"])).parent == "6"
    four = view([1.0, None, 2.0, 1.5, 1.9, 2.01, 1.0], ["", "", "", "", "3", "3", "6"])
    assert select(four).parent == "", "less than 1% is no progress"
