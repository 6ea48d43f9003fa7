"""What a generator is asked: one order of a study as a `Request`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kernelforge.generate.types import Feedback, Request, Usage
from kernelforge.search.lineage import attempts_at, weights
from kernelforge.search.orders import Order
from kernelforge.search.scheduler import reference_node
from kernelforge.search.study import Track


def request_for(
    track: Track, order: Order, *, backend: str, prelude: str, brief: str, target: Sequence[str] = (),
    pending: Sequence[Feedback] = (), beside: int = 0,
) -> Request:  # fmt: skip
    """The request of an order.

    Args:
        target: facts of the device, a line each. pending: what is delivered and not judged yet. beside: how many orders
            of the variant others work on.
    """
    record = track.record
    broken = next((n for n in track.nodes if n.id == order.repairs), None)
    attempts = () if broken is None else attempts_at(broken, track.nodes)
    reference = reference_node(track.nodes)
    timed = None if reference is None else reference.summary
    return Request(
        variant=record.variant, backend=backend, prelude=prelude, brief=brief,
        history=(*track.history(), *pending), why=order.reason, weights=weights(record), order=order.id,
        beside=beside,
        attempts=tuple(track.feedback(n) for n in attempts),
        parent=next((n.candidate for n in track.nodes if n.id == order.parent), None),
        usage=Usage(
            points=record.points, share=record.share, captured_us=record.eager_us, target=tuple(target),
            eager_us=None if timed is None else timed.eager_us, floor_us=None if timed is None else timed.floor_us,
        ),
    )  # fmt: skip
