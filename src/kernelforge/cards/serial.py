"""Operator cards as files: one versioned JSON file per operator. No pickle; tensors are in `cards.examples`."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernelforge.cards.types import CARD_SCHEMA, OperatorCard, SizePoint, Variant, VariantRecord
from kernelforge.digest import Json, decode_float, encode_float
from kernelforge.errors import ProjectError, SchemaTooNew


def save_cards(cards: Sequence[OperatorCard], folder: Path) -> None:
    """Write one file per card, each atomically, and remove files of operators that are no longer there.

    Raises:
        ProjectError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for card in cards:
            path = folder / f"{card.operator}.json"
            partial = folder / f".{uuid.uuid4().hex}.partial"
            partial.write_text(json.dumps({"schema": CARD_SCHEMA, "card": card_to_json(card)}, indent=1) + "\n")
            os.replace(partial, path)  # noqa: PTH105 - same call, but said to be atomic
        kept = {card.operator for card in cards}
        for path in folder.glob("*.json"):
            if path.stem not in kept:
                path.unlink()
    except OSError as error:
        hint = "check free space and permissions"
        raise ProjectError(f"cards cannot be written to {folder}: {error}", hint=hint) from error


def load_cards(folder: Path) -> tuple[OperatorCard, ...]:
    """Read all cards of a folder, sorted by operator.

    Raises:
        SchemaTooNew: written by a newer kernelforge.
        ProjectError: the folder does not exist, or a file is damaged.
    """
    if not folder.is_dir():
        raise ProjectError(f"no cards in {folder}", hint="capture a model first: kforge capture MODEL -o PROJECT")
    return tuple(_load(path) for path in sorted(folder.glob("*.json")))


def _load(path: Path) -> OperatorCard:
    try:
        data = json.loads(path.read_text())
        schema = int(data["schema"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProjectError(f"card {path} cannot be read: {error!r}", hint="capture the model again") from error
    if schema > CARD_SCHEMA:
        raise SchemaTooNew(
            f"card {path} has schema {schema}, this kernelforge reads up to {CARD_SCHEMA}", hint="upgrade kernelforge"
        )
    try:
        return card_from_json(data["card"])
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, AssertionError, OverflowError) as error:
        raise ProjectError(f"card {path} is damaged: {error!r}", hint="capture the model again") from error


def card_to_json(card: OperatorCard) -> Json:
    """A card as JSON."""
    return {
        "operator": card.operator, "model": card.model, "device": card.device,
        "variants": [record_to_json(v) for v in card.variants],
    }  # fmt: skip


def card_from_json(data: Mapping[str, Json]) -> OperatorCard:
    """The inverse of `card_to_json`."""
    return OperatorCard(
        operator=str(data["operator"]), model=str(data["model"]), device=str(data["device"]),
        variants=tuple(record_from_json(_mapping(v)) for v in _items(data["variants"])),
    )  # fmt: skip


def record_to_json(record: VariantRecord) -> Json:
    """A variant's record as JSON; its id is there for people, and checked on reading."""
    return {
        "id": record.variant.id, "variant": record.variant.to_json(), "share": record.share,
        "forgeable": record.forgeable, "requires_grad": record.requires_grad,
        "points": [_point_to_json(p) for p in record.points],
    }  # fmt: skip


def record_from_json(data: Mapping[str, Json]) -> VariantRecord:
    """The inverse of `record_to_json`.

    Raises:
        ValueError: the variant was edited: its id does not match.
    """
    variant = Variant.from_json(_mapping(data["variant"]))
    if variant.id != data["id"]:
        raise ValueError(f"variant {data['id']} does not match its content")
    return VariantRecord(
        variant=variant, points=tuple(_point_from_json(_mapping(p)) for p in _items(data["points"])),
        share=decode_float(data["share"]), forgeable=str(data["forgeable"]),
        requires_grad=bool(data["requires_grad"]),
    )  # fmt: skip


def _point_to_json(point: SizePoint) -> Json:
    return {
        "dims": dict(point.dims), "scalars": {k: encode_float(v) for k, v in point.scalars.items()},
        "calls": point.calls, "eager_us": point.eager_us, "example": point.example,
    }  # fmt: skip


def _point_from_json(data: Mapping[str, Json]) -> SizePoint:
    calls, dims = data["calls"], _mapping(data["dims"])
    assert isinstance(calls, int)
    return SizePoint(
        dims={k: v for k, v in dims.items() if isinstance(v, int)},
        scalars={k: decode_float(v) for k, v in _mapping(data["scalars"]).items()},
        calls=calls, eager_us=decode_float(data["eager_us"]), example=str(data["example"]),
    )  # fmt: skip


def _mapping(data: Json) -> Mapping[str, Json]:
    assert isinstance(data, Mapping)
    return data


def _items(data: Json) -> Sequence[Json]:
    assert isinstance(data, Sequence) and not isinstance(data, str)
    return data
