"""Basic indexing, which is a view. Indexing by tensors or lists copies, and is recorded without its arguments.

The canonical index holds, per position, an integer, "start:stop:step" (either end may be empty), "..." or None.
"""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, as_int, tensor
from kernelforge.operators._views import view
from kernelforge.operators.types import Bound, Entry, Unsupported


def _normalise(bound: dict[str, object]) -> Canonical:
    index = bound["index"]
    items = index if isinstance(index, tuple) else (index,)
    if not all(_is_basic(item) for item in items):
        return Unsupported(reason="indexing by a tensor or a list")
    return {"input": tensor(bound["input"]), "index": tuple(_text(item) for item in items)}


def _is_basic(item: object) -> bool:
    if isinstance(item, slice):
        return all(end is None or type(end) is int for end in (item.start, item.stop, item.step))
    return item is None or item is Ellipsis or type(item) is int


def _text(item: object) -> int | str | None:
    if isinstance(item, slice):
        return ":".join("" if end is None else str(end) for end in (item.start, item.stop, item.step))
    if item is Ellipsis:
        return "..."
    return None if item is None else as_int(item)


def _item(text: object) -> slice | int | None:
    if isinstance(text, str):
        return slice(*(int(end) if end else None for end in text.split(":")))
    return None if text is None else as_int(text)


def _call(arguments: Bound) -> object:
    index = arguments["index"]
    assert isinstance(index, tuple)
    return tensor(arguments["input"])[tuple(... if text == "..." else _item(text) for text in index)]


OPERATOR = view(
    "getitem",
    ("input", "index"),
    (Entry(target="torch.Tensor.__getitem__", parameters="(input, index, /)"),),
    _normalise,
    call=_call,
)
