"""Cards on disk: what is written is read back equal, and damage or a newer schema is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelforge.capture.recorder import record
from kernelforge.cards.distill import distill
from kernelforge.cards.serial import load_cards, save_cards
from kernelforge.cards.types import OperatorCard
from kernelforge.digest import decode_float
from kernelforge.errors import ProjectError, SchemaTooNew


@pytest.fixture(scope="module")
def cards() -> tuple[OperatorCard, ...]:
    def model() -> None:
        for n in (2, 3):
            torch.randn(n, 4).softmax(-1)
            torch.randn(n, 4).masked_fill(torch.ones(n, 4, dtype=torch.bool), -torch.inf)
            torch.randn(n, 4) * (n / 2)

    return distill(record(model), model="m")


def test_round_trip(tmp_path: Path, cards: tuple[OperatorCard, ...]) -> None:
    save_cards(cards, tmp_path / "cards")
    assert load_cards(tmp_path / "cards") == cards
    assert sorted(p.name for p in (tmp_path / "cards").iterdir()) == sorted(f"{c.operator}.json" for c in cards)


def test_saving_again_forgets_operators_that_are_gone(tmp_path: Path, cards: tuple[OperatorCard, ...]) -> None:
    save_cards(cards, tmp_path)
    save_cards(cards[:1], tmp_path)
    assert load_cards(tmp_path) == cards[:1]


def test_a_newer_schema_is_refused(tmp_path: Path, cards: tuple[OperatorCard, ...]) -> None:
    save_cards(cards[:1], tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 999}))
    with pytest.raises(SchemaTooNew, match="schema 999"):
        load_cards(tmp_path)


def test_damage_and_edits_are_refused(tmp_path: Path, cards: tuple[OperatorCard, ...]) -> None:
    save_cards(cards[:1], tmp_path)
    (path,) = tmp_path.iterdir()
    text = path.read_text()
    for broken in (text[: len(text) // 2], "[]", text.replace('"max_elements": ', '"max_elements": 1')):
        path.write_text(broken)
        with pytest.raises(ProjectError):
            load_cards(tmp_path)


def test_a_missing_folder_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match="kforge capture"):
        load_cards(tmp_path / "none")


def test_a_folder_that_cannot_be_made_is_a_project_error(tmp_path: Path, cards: tuple[OperatorCard, ...]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProjectError, match="cannot be written"):
        save_cards(cards, tmp_path / "file" / "cards")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000, '{"schema": 1', '{"schema": 1, "card": []}', '{"schema": 1, "card": {"operator": 1}}',
        '{"schema": 1, "card": null}', '{"schema": []}',
    ],
)  # fmt: skip
def test_a_damaged_card_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "relu.json").write_text(text)
    with pytest.raises(ProjectError, match=r"relu\.json"):
        load_cards(tmp_path)


@pytest.mark.parametrize("value", [{}, {"float": "much"}, 10**400, True, "1.0", None, []])
def test_what_is_no_float_is_a_value_error(value: Any) -> None:
    with pytest.raises(ValueError, match="float"):
        decode_float(value)
