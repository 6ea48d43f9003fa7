"""JSON as packages hold it, and nothing that merely looks like it. Owns the limits of such a text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from kernelforge.digest import Json
from kernelforge.errors import PackageError

MAX_JSON_BYTES = 8 << 20
MAX_DEPTH = 32
_INTEGERS = range(-(1 << 63), 1 << 64)


def json_bytes(value: Json) -> bytes:
    """The text of a value: sorted keys, one line for each item, UTF-8; the same value gives the same bytes."""
    return (json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def parse_object(data: bytes, name: str) -> Mapping[str, Json]:
    """A JSON object.

    Raises:
        PackageError: not UTF-8, not JSON (NaN, infinities and lone surrogates are not), a key that is there twice, a
            number that others would read as another one, deeper or longer than allowed, or not an object.
    """
    if len(data) > MAX_JSON_BYTES:
        raise PackageError(f"{name} is longer than {MAX_JSON_BYTES} bytes")
    try:
        value = json.loads(
            data.decode("utf-8"), object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer,
            parse_float=_number,
        )  # fmt: skip
        # A lone surrogate can be escaped in JSON, but no text can hold it.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise PackageError(f"{name} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise PackageError(f"{name} is not a JSON object")
    if _deeper_than(value, MAX_DEPTH):
        raise PackageError(f"{name} is nested deeper than {MAX_DEPTH} levels")
    return value


def text_of(raw: Mapping[str, Json], key: str, name: str) -> str:
    """Raises PackageError unless `raw[key]` is text; `name` is the file's."""
    value = raw.get(key)
    if not isinstance(value, str):
        raise PackageError(f"{name}: {key!r} is missing or not text")
    return value


def texts_of(raw: Mapping[str, Json], key: str, name: str) -> tuple[str, ...]:
    """Raises PackageError unless `raw[key]` is a list of texts."""
    value = raw.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise PackageError(f"{name}: {key!r} is no list of texts")
    return tuple(str(item) for item in value)


def whole_number_of(raw: Mapping[str, Json], key: str, name: str) -> int:
    """Raises PackageError unless `raw[key]` is a whole number from 0 on."""
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise PackageError(f"{name}: {key!r} is missing or not a whole number")
    return value


def object_of(raw: Mapping[str, Json], key: str, name: str) -> Mapping[str, Json]:
    """Raises PackageError unless `raw[key]` is an object."""
    value = raw.get(key)
    if not isinstance(value, Mapping):
        raise PackageError(f"{name}: {key!r} is missing or not an object")
    return value


def objects_of(raw: Mapping[str, Json], key: str, name: str) -> tuple[Mapping[str, Json], ...]:
    """Raises PackageError unless `raw[key]` is a list of objects."""
    value = raw.get(key)
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(i, Mapping) for i in value):
        raise PackageError(f"{name}: {key!r} is no list of objects")
    return tuple(item for item in value if isinstance(item, Mapping))


def only(raw: Mapping[str, Json], keys: Sequence[str], name: str) -> None:
    """Raises PackageError if `raw` has a key that is none of these, or lacks one."""
    for key in sorted(set(raw) ^ set(keys)):
        raise PackageError(f"{name}: {key!r} is {'missing' if key in keys else 'unknown'}")


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key is there twice")
    return value


def _constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _integer(text: str) -> int:
    value = int(text)
    if value not in _INTEGERS:
        raise ValueError("a whole number of more than 64 bits")
    return value


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number beyond all floats")
    return value


def _deeper_than(value: Json, limit: int) -> bool:
    level: list[Json] = [value]
    for _ in range(limit):
        inner: list[Json] = []
        for item in level:
            if isinstance(item, Mapping):
                inner += item.values()
            elif isinstance(item, list):
                inner += item
        level = [item for item in inner if isinstance(item, Mapping | list)]
        if not level:
            return False
    return True
