"""A store of nodes and orders in memory: for a search that leaves nothing behind. Owns `MemoryStore`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import OperatorCard, VariantRecord
from kernelforge.digest import digest
from kernelforge.errors import NotFound
from kernelforge.evaluate.types import Trial
from kernelforge.explain.profile import Profile
from kernelforge.search.orders import OPEN, Order
from kernelforge.search.types import Node, node_of


@dataclass
class MemoryStore:
    """What `run_search` and `Study` need of a project. For one process, and no damage but by its own."""

    root: Path
    stored: list[Node] = field(default_factory=list)
    kept: dict[str, Order] = field(default_factory=dict)

    @property
    def examples(self) -> ExampleStore:
        return ExampleStore(self.root)

    def append(self, trial: Trial, *, parent: str = "") -> Node:
        number = len(self.nodes(trial.candidate.variant_id)) + 1
        node = node_of(id=digest([trial.candidate.id, len(self.stored)]), number=number, parent=parent, trial=trial)
        self.stored.append(node)
        return node

    def nodes(self, variant_id: str, *, after: int = 0) -> Sequence[Node]:
        return [n for n in self.stored if n.variant_id == variant_id and n.number > after]

    def cards(self) -> Sequence[OperatorCard]:
        raise AssertionError("the search was told the variants")

    def record(self, prefix: str) -> VariantRecord:
        raise AssertionError(f"the search was told the variants, and {prefix} too")

    def orders(self, *, closed: bool = False) -> Sequence[Order]:
        return [o for o in self.kept.values() if closed or o.state in OPEN]

    def order(self, order_id: str) -> Order:
        if order_id not in self.kept:
            raise NotFound(f"no order {order_id}")
        return self.kept[order_id]

    def change_orders(self, decide: Callable[[Sequence[Order]], Sequence[Order]]) -> Sequence[Order]:
        changed = tuple(decide(self.orders()))
        self.kept |= {o.id: o for o in changed}
        return changed

    def profiles(self) -> Mapping[str, Profile]:
        return {}

    def finish(self, order_id: str, trial: Trial, *, parent: str = "") -> Node:
        done = self.order(order_id).node
        if done:
            return next(n for n in self.stored if n.id == done)
        node = self.append(trial, parent=parent)
        self.kept[order_id] = replace(self.order(order_id), state="done", node=node.id, owner="")
        return node
