"""Orders that hold what no generator should have delivered."""

from __future__ import annotations

import logging
import sqlite3
import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest

from kernelforge.errors import ProjectError, UsageError
from kernelforge.evaluate.types import Trial
from kernelforge.search.orders import Order
from kernelforge.store.project import Project

MakeTrial = Callable[..., Trial]


def order(trial: Trial, **values: object) -> Order:
    candidate = replace(trial.candidate, **values)  # type: ignore[arg-type]
    return Order(id=uuid.uuid4().hex, variant_id=candidate.variant_id, state="delivered", candidate=candidate)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tokens_in", 12.0), ("tokens_in", True), ("tokens_out", "3"), ("tokens_out", 1 << 70), ("notes", None),
        ("notes", "\ud800"), ("model", None), ("model", "\udfff"), ("source", None), ("source", "\ud800"),
        ("generator", 3), ("schedule", {}), ("parent", None), ("prompt_digest", b""), ("cost_usd", "1"),
        ("cost_usd", True),
    ],
)  # fmt: skip
def test_what_could_not_be_read_again_is_not_stored(
    project: Project, make_trial: MakeTrial, field: str, value: object
) -> None:
    good = order(make_trial(1))
    project.change_orders(lambda _: [good])
    with pytest.raises(UsageError, match=f"'{field}'"):
        project.change_orders(lambda _: [order(make_trial(2), **{field: value})])
    assert project.orders() == (good,)


def test_why_an_order_failed_is_stored_whatever_it_says(project: Project, make_trial: MakeTrial) -> None:
    failed = replace(order(make_trial(1)), state="failed", detail="\ud800", reason="\udfff")
    project.change_orders(lambda _: [failed])
    assert (project.order(failed.id).detail, project.order(failed.id).reason) == ("\\ud800", "\\udfff")


@pytest.mark.parametrize("damage", ['{"notes": null}', "[" * 100_000, "{", '{"cost_usd": {}}'])
def test_a_damaged_order_blocks_no_other(
    project: Project, make_trial: MakeTrial, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    bad, good = order(make_trial(1)), order(make_trial(2))
    project.change_orders(lambda _: [bad, good])
    connection = sqlite3.connect(project.path / "nodes.db")
    connection.execute("UPDATE orders SET candidate = ? WHERE id = ?", (damage, bad.id))
    connection.commit()
    connection.close()
    with caplog.at_level(logging.WARNING, logger="kernelforge.store"):
        assert project.orders() == (good,)
        assert project.orders(closed=True) == (good,)
        assert project.change_orders(lambda orders: orders) == (good,)
    (told,) = (r.getMessage() for r in caplog.records)
    assert bad.id in told
    with pytest.raises(ProjectError, match="damaged"):
        project.order(bad.id)
