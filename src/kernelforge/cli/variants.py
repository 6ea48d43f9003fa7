"""Names of variants as people type them: also those of a package, and without the variant where a node says it all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from kernelforge.errors import NotFound, UsageError
from kernelforge.report.rows import OperatorRow
from kernelforge.wording import did_you_mean

T = TypeVar("T")


def with_variants(folder: Path, names: Sequence[str], verb: Callable[[tuple[str, ...]], T]) -> T:
    """Call a verb with names of variants. One that is only a package's is replaced by the captured variant's.

    Raises:
        NotFound: as the verb; for an unknown name the hint says which ones are near.
    """
    try:
        return verb(tuple(names))
    except NotFound as error:
        known = _captured(folder, names, error)
    return verb(known)


def with_variant(folder: Path, name: str, verb: Callable[[str], T]) -> T:
    """`with_variants` for one name."""
    return with_variants(folder, [name], lambda names: verb(names[0]))


def variant_of_node(folder: Path, *nodes: str) -> str:
    """Label of the variant that the first of these nodes belongs to which is named by its id.

    Raises:
        UsageError: only numbers, which every variant has. NotFound: no node's id begins so, or several.
    """
    from kernelforge import forge
    from kernelforge.search.winners import is_number

    node = next((n for n in nodes if n and not is_number(n)), "")
    if not node:
        raise UsageError(f"which variant's node {nodes[0]}?", hint="add --variant, or name the node by its id")
    start, found = node.lower(), []
    for row in forge.list_operators(folder):
        trials = [r.trial for r in forge.variant_tree(folder, row.variant).rows] if row.trials else []
        found += [(row.label, t.node) for t in trials if t.node.startswith(start)]
    if len(found) == 1:
        return found[0][0]
    if found:
        listed = ", ".join(f"{id_[:16]} ({label})" for label, id_ in found[:6])
        raise NotFound(f"{node!r} is the start of {len(found)} nodes", hint=f"name one of {listed}")
    raise NotFound(f"no node is called {node!r}", hint="`kforge tree` lists the nodes of a variant")


def _captured(folder: Path, names: Sequence[str], error: NotFound) -> tuple[str, ...]:
    """The names, packages' ones replaced.

    Raises:
        NotFound: one is unknown; `error` itself if none is, or if none had to be replaced.
    """
    from kernelforge import forge

    rows = forge.list_operators(folder)
    captured = tuple(_name_of(rows, name, error) for name in names)
    if captured == tuple(names):
        raise error
    return captured


def _name_of(rows: Sequence[OperatorRow], name: str, error: NotFound) -> str:
    low = name.lower()
    if not low or any(low == r.operator or r.label.startswith(low) or r.variant.startswith(low) for r in rows):
        return name
    packaged = [r for r in rows if r.packaged and (r.packaged == low or r.packaged.endswith(f"-{low}"))]
    if len(packaged) == 1:
        return packaged[0].label
    names = [n for r in rows for n in ((r.label, r.packaged) if "-" in low else (r.operator,)) if n]
    hint = " ".join(part for part in (did_you_mean(low, names), error.hint) if part)
    raise NotFound(f"no variant is called {name!r}", hint=hint) from None
