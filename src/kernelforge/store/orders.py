"""Work orders as rows and back. Internal to the store."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from kernelforge.digest import canonical_json
from kernelforge.errors import NotFound, ProjectError
from kernelforge.search.orders import OPEN, Order, OrderState
from kernelforge.store.models import OrderRow
from kernelforge.store.serial import candidate_from_json, candidate_to_json, parse_json

logger = logging.getLogger(__name__)


def open_orders(session: Session, warned: set[str]) -> tuple[Order, ...]:
    """Oldest first, without damaged ones: those must not keep anybody from the others.

    Args:
        warned: ids of the damaged ones that were told of; more are added. Orders are read at every step of a search.
    """
    query = select(OrderRow).where(OrderRow.state.in_(OPEN)).order_by(OrderRow.created, OrderRow.id)
    return tuple(_readable(session.scalars(query), warned))


def all_orders(session: Session, warned: set[str]) -> tuple[Order, ...]:
    """Oldest first, without damaged ones. warned: as of `open_orders`."""
    return tuple(_readable(session.scalars(select(OrderRow).order_by(OrderRow.created, OrderRow.id)), warned))


def _readable(rows: Iterable[OrderRow], warned: set[str]) -> Iterator[Order]:
    for row in rows:
        try:
            yield order_of_row(row)
        except ProjectError as error:
            if row.id not in warned:
                warned.add(row.id)
                logger.warning("order %s is left out: %s", row.id, error.message)


def find_order(session: Session, prefix: str) -> Order:
    """The order whose id starts so.

    Raises:
        NotFound: none, or more than one. ProjectError: it is damaged.
    """
    found = list(session.scalars(select(OrderRow).where(OrderRow.id.startswith(prefix, autoescape=True)).limit(2)))
    if prefix and len(found) == 1:
        return order_of_row(found[0])
    many = "more than one order starts" if found and prefix else "no order starts"
    raise NotFound(f"{many} with {prefix!r}", hint="name it by its whole id, as `ask` gave it")


def store_order(session: Session, order: Order) -> None:
    """Insert or replace.

    Raises:
        UsageError: its candidate is none that can be read again.
    """
    candidate = order.candidate
    session.merge(
        OrderRow(
            id=order.id, variant_id=order.variant_id, parent=order.parent or None,
            repairs=order.repairs or None, reason=_encodable(order.reason),
            state=order.state, owner=order.owner, created=order.created, expires=order.expires,
            candidate=None if candidate is None else canonical_json(candidate_to_json(candidate)),
            source=None if candidate is None else candidate.source, detail=_encodable(order.detail),
            node=order.node or None,
        )
    )  # fmt: skip


def _encodable(text: str) -> str:
    # Why something failed is told even if it was told in half a surrogate pair.
    return text.encode(errors="backslashreplace").decode()


def order_of_row(row: OrderRow) -> Order:
    """Raises ProjectError if the row is damaged."""
    try:
        candidate = None
        if row.candidate is not None:
            candidate = candidate_from_json(parse_json(row.candidate), row.source or "")
    except ValueError as error:
        raise ProjectError(
            f"order {row.id[:12]} in nodes.db is damaged: {error}", hint="restore the project from a copy"
        ) from error
    return Order(
        id=row.id, variant_id=row.variant_id, parent=row.parent or "", repairs=row.repairs or "",
        reason=row.reason, state=cast(OrderState, row.state), owner=row.owner, created=row.created, expires=row.expires,
        candidate=candidate, detail=row.detail, node=row.node or "",
    )  # fmt: skip
