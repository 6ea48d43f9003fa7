"""The tables of `nodes.db`. The schema itself is made by the migrations; a test keeps the two equal."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """Holds the metadata of all tables."""


class ProjectRow(Base):
    """The one row that says what the project is. `schema` is the number that `database.SCHEMA` had on writing."""

    __tablename__ = "project"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    schema: Mapped[int]
    model: Mapped[str]
    device: Mapped[str]
    created: Mapped[float]


class NodeRow(Base):
    """One finished trial. Rows are only ever inserted: triggers refuse updates and deletions.

    `candidate` and `outcome` are JSON of `store.serial`; `kind` repeats the outcome's tag and `artifact` the digest of
    a scored node's binary, so that both can be asked for in SQL.
    """

    __tablename__ = "nodes"
    __table_args__ = (UniqueConstraint("variant_id", "number", name="number_per_variant"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    variant_id: Mapped[str]
    number: Mapped[int]
    parent: Mapped[str | None] = mapped_column(ForeignKey("nodes.id"))
    candidate: Mapped[str]
    source: Mapped[str]
    kind: Mapped[str]
    outcome: Mapped[str]
    started: Mapped[float]
    seconds: Mapped[float]
    artifact: Mapped[str | None]


class DecisionRow(Base):
    """What an export decided on a variant, where that differs from what the search says of its node."""

    __tablename__ = "decisions"

    variant_id: Mapped[str] = mapped_column(primary_key=True)
    decision: Mapped[str]
    node: Mapped[str] = mapped_column(ForeignKey("nodes.id"))
    recorded: Mapped[float]


class SummaryRow(Base):
    """`search.types.Summary` of a node, so that large trees are read without sources and samples. Follows from it."""

    __tablename__ = "summaries"

    node: Mapped[str] = mapped_column(ForeignKey("nodes.id"), primary_key=True)
    candidate_id: Mapped[str]
    speedup: Mapped[float | None]
    low: Mapped[float | None]
    candidate_us: Mapped[float | None]
    eager_us: Mapped[float | None]
    floor_us: Mapped[float | None]
    repairs: Mapped[str] = mapped_column(server_default="")


class OrderRow(Base):
    """A work order of a study (`search.orders`). Unlike nodes it changes: from asked for to delivered to done."""

    __tablename__ = "orders"
    __table_args__ = (
        CheckConstraint("state IN ('waiting', 'asked', 'delivered', 'judging', 'done', 'failed')", name="known_state"),
        Index("orders_by_state", "state"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    variant_id: Mapped[str]
    parent: Mapped[str | None] = mapped_column(ForeignKey("nodes.id"))
    repairs: Mapped[str | None] = mapped_column(ForeignKey("nodes.id"))
    reason: Mapped[str]
    state: Mapped[str]
    owner: Mapped[str]
    created: Mapped[float]
    expires: Mapped[float]
    candidate: Mapped[str | None]
    source: Mapped[str | None]
    detail: Mapped[str]
    node: Mapped[str | None] = mapped_column(ForeignKey("nodes.id"))


class TextRow(Base):
    """A text that calls refer to: prompts share most of theirs."""

    __tablename__ = "texts"

    digest: Mapped[str] = mapped_column(primary_key=True)
    text: Mapped[str]


class CallRow(Base):
    """One call of a language model (`generate.llm.account`): the intent before it, its end after it.

    `counted_*` is what it counts for in a budget: its bound until more is known. `tokens` and `usd` are what it cost,
    null while that is unknown. `request`, `reply` and `result` are the JSON and text of `store.calls`.
    """

    __tablename__ = "calls"
    __table_args__ = (
        CheckConstraint("state IN ('open', 'replied', 'failed')", name="known_call_state"),
        Index("calls_by_run", "run"),
        Index("calls_by_order", "order_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    run: Mapped[str]
    order_id: Mapped[str]
    variant_id: Mapped[str]
    model: Mapped[str]
    step: Mapped[str]
    started: Mapped[float]
    state: Mapped[str]
    counted_tokens: Mapped[int]
    counted_usd: Mapped[float | None]
    tokens: Mapped[int | None]
    usd: Mapped[float | None]
    request: Mapped[str]
    reply: Mapped[str | None]
    result: Mapped[str]


class ProfileRow(Base):
    """What a profiler measured of a stored binary on one device (`explain.profile`); `metrics` is its JSON."""

    __tablename__ = "profiles"

    binary: Mapped[str] = mapped_column(primary_key=True)
    device: Mapped[str] = mapped_column(primary_key=True)
    metrics: Mapped[str]
    recorded: Mapped[float]
