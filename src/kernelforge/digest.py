"""Canonical JSON and the ids made from it. Ids are content hashes, so equal things have equal ids on every machine."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"


def canonical_json(value: Json) -> str:
    """Serialise with sorted keys, no spaces, no NaN; the same value gives the same bytes everywhere.

    Raises:
        ValueError: the value holds NaN or an infinity (encode those with `encode_float`).
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Json) -> str:
    """Hex sha256 of the canonical JSON of `value`."""
    return digest_bytes(canonical_json(value).encode())


def digest_bytes(data: bytes) -> str:
    """Hex sha256 of raw bytes."""
    return hashlib.sha256(data).hexdigest()


def encode_float(value: float) -> Json:
    """A float as JSON; infinities and NaN become {"float": "inf" | "-inf" | "nan"}."""
    if math.isfinite(value):
        return value
    return {"float": str(value)}


def decode_float(value: Json) -> float:
    """The inverse of `encode_float`.

    Raises:
        ValueError: `value` is neither a number nor an encoded float.
    """
    if isinstance(value, Mapping):
        return float(str(value.get("float", "")))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"not a float: {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError("not a float: a whole number beyond all floats") from None
