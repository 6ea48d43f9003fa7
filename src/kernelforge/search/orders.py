"""Work orders: what a proposer is asked for, what it delivered, and who judges it. Owns `Order`, `OrderStore`.

An order is *asked* of somebody under a lease, *delivered* with a candidate, *judging* under another lease, and *done*
with its node; or *failed*, with a reason. One that is *waiting* was put in by hand and goes to the next who asks. All
of it is stored: whoever dies loses at most the trial it was making, and another process goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias

from kernelforge.evaluate.types import Trial
from kernelforge.explain.profile import Profile
from kernelforge.generate.types import Candidate
from kernelforge.search.types import Node, NodeStore

OrderState: TypeAlias = Literal["waiting", "asked", "delivered", "judging", "done", "failed"]
ENQUEUED = "put in by hand"
OPEN: tuple[OrderState, ...] = ("waiting", "asked", "delivered", "judging")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One work order.

    Attributes:
        id: random. parent: node id of what is to be revised, or "" for a start from scratch.
        repairs: node id of the failed attempt at this proposal that is to be mended, or "" for a new proposal.
        reason: why this parent, of the strategy.
        owner: who works on it now (see `search.owners.owner_of_this_process`), or "".
        created, expires: POSIX seconds; after `expires` the owner is given up, but a late delivery is never refused.
        candidate: what was delivered. node: id of its node once it is done.
        detail: why it failed; `ENQUEUED` while one is asked that was put in by hand.
    """

    id: str
    variant_id: str
    parent: str = ""
    repairs: str = ""
    reason: str = ""
    state: OrderState = "asked"
    owner: str = ""
    created: float = 0.0
    expires: float = 0.0
    candidate: Candidate | None = None
    detail: str = ""
    node: str = ""


def abandoned(order: Order, reason: str) -> Order:
    """An order whose proposer will not deliver: closed, or waiting for another one if it was put in by hand.

    If it is delivered after all, the candidate is taken.
    """
    if order.detail == ENQUEUED:
        return replace(order, state="waiting", owner="", detail="")
    return replace(order, state="failed", owner="", detail=reason)


class OrderStore(NodeStore, Protocol):
    """A node store that keeps orders too. Safe for several threads and processes."""

    def orders(self, *, closed: bool = False) -> Sequence[Order]:
        """The open orders, or all, oldest first."""
        ...

    def order(self, order_id: str) -> Order:
        """An order in whatever state, by its id or a prefix of it that only it has.

        Raises:
            NotFound: none, or more than one.
        """
        ...

    def change_orders(self, decide: Callable[[Sequence[Order]], Sequence[Order]]) -> Sequence[Order]:
        """Show all open orders to `decide` and store what it returns, new or changed, in one transaction.

        `decide` changes nothing, but may read the store; between what it sees and what is stored nobody else writes.
        """
        ...

    def profiles(self) -> Mapping[str, Profile]:
        """What a profiler measured of binaries, by their sha256; of most there is nothing."""
        ...

    def finish(self, order_id: str, trial: Trial, *, parent: str = "") -> Node:
        """Store the trial and close its order, both or neither. A finished order gives its node again.

        Raises:
            NotFound: no such order or parent.
        """
        ...
