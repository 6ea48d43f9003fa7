"""What a worker's proposals cost, however its process ends. Owns `settled`.

A worker notes the orders that it asks a generator for before it asks, and the store keeps what was proposed with its
cost the moment it is there. So whoever goes on with a run, or looks at it, finds what was spent until the very end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kernelforge.errors import NotFound
from kernelforge.generate.llm.account import Call, CallStore
from kernelforge.search.allowance import added, candidate_tokens
from kernelforge.search.orders import Order
from kernelforge.supervisor.types import WorkerState


def calls_of(store: CallStore) -> Callable[[str], Sequence[Call]]:
    """Order id -> the calls of language models for it."""
    return lambda order: store.calls(order=order)


def settled(
    worker: WorkerState, order_of: Callable[[str], Order], calls: Callable[[str], Sequence[Call]]
) -> WorkerState:
    """A worker with the cost of what came of its orders by now; only those under way stay unsettled.

    Args:
        order_of: order id -> the stored order; may raise NotFound.
        calls: as `calls_of` gives it; a proposal without a candidate has its cost too.
    """
    tokens, usd = worker.tokens, worker.usd
    unsettled = []
    for order_id in worker.unsettled:
        try:
            order = order_of(order_id)
        except NotFound:
            continue  # the project was replaced
        if order.candidate is None and order.state == "asked" and order.owner == worker.owner:
            unsettled.append(order_id)
            continue
        made = calls(order_id)
        for call in made:
            tokens, usd = added(tokens, call.tokens), added(usd, call.usd)
        if order.candidate is not None and not made:
            tokens, usd = added(tokens, candidate_tokens(order.candidate)), added(usd, order.candidate.cost_usd)
    return replace(worker, tokens=tokens, usd=usd, unsettled=tuple(unsettled))
