"""Which node of each variant is exported. Owns the policy `auto_best_fastest_valid` and picks by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelforge.audit.types import TORCH_TIER, AuditKind
from kernelforge.benchmark.types import Interval
from kernelforge.cards.types import VariantRecord
from kernelforge.errors import NotFound, UsageError
from kernelforge.evaluate.types import Scored
from kernelforge.search.lineage import MIN_SPEEDUP_LOW, ranked_nodes, standing
from kernelforge.search.types import Node, NodeStore
from kernelforge.wording import speedup_words

LEAST_DIGITS = 6
"""Fewer digits alone name a node by its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The decision for one variant.

    Attributes:
        node: the node to export, or None: the original operator stays.
        reason: why, in words for the operator table.
        runners_up: what may be exported if the node fails its certificate, the faster first.
    """

    record: VariantRecord
    node: Node | None
    reason: str
    runners_up: tuple[Node, ...] = ()


def choose_winners(store: NodeStore, picks: Mapping[str, str] | None = None) -> tuple[Choice, ...]:
    """One choice per variant of the project, largest share first.

    Args:
        picks: variant (id prefix, label or operator name) -> node (number or id prefix), decided by hand.

    Raises:
        NotFound: a pick names no variant or no node. UsageError: it names a node that is not valid, or two picks
            name the same variant.
    """
    by_id: dict[str, str] = {}
    for prefix, pick in (picks or {}).items():
        variant_id = store.record(prefix).variant.id
        if variant_id in by_id:
            raise UsageError(f"two picks name variant {store.record(prefix).variant.label}")
        by_id[variant_id] = pick
    records = sorted((r for card in store.cards() for r in card.variants), key=lambda r: (-r.share, r.variant.id))
    return tuple(choose_winner(r, store.nodes(r.variant.id), pick=by_id.get(r.variant.id, "")) for r in records)


def choose_winner(record: VariantRecord, nodes: Sequence[Node], *, pick: str = "") -> Choice:
    """The node of one variant: `pick` if given, else by the policy.

    Raises:
        NotFound: no node is called `pick`. UsageError: that node is not valid.
    """
    if pick:
        return Choice(record=record, node=_picked(record, nodes, pick), reason=f"picked by hand: node {pick}")
    if record.forgeable:
        return Choice(record=record, node=None, reason=record.forgeable)
    if not nodes:
        return Choice(record=record, node=None, reason="not tried")
    ranked = ranked_nodes(nodes)
    if not ranked:
        judged = [n for n in nodes if n.kind != "worker_failure"]
        if not judged:
            return Choice(record=record, node=None, reason="not judged: the machine was too busy; forge again")
        many = "1 trial" if len(judged) == 1 else f"{len(judged)} trials"
        only_torch = (
            "only kernels of the torch ABI, which are not exported,"
            if any(n.kind == "accepted" for n in judged)
            else "no valid candidate"
        )
        return Choice(record=record, node=None, reason=f"{only_torch} in {many}")
    faster = tuple(n for n in ranked if isinstance(n.outcome, Scored) and _low(n.outcome) > MIN_SPEEDUP_LOW)
    best = ranked[0]
    if best not in faster:
        assert isinstance(best.outcome, Scored)
        speedup = best.outcome.measurement.speedup
        reason = not_faster(speedup)
        return Choice(record=record, node=None, reason=reason)
    others = tuple(n for n in faster if n is not best)
    return Choice(record=record, node=best, reason="fastest valid candidate", runners_up=others)


def not_faster(speedup: Interval, *, than: str = "eager") -> str:
    """Why a right kernel is not used, with its speed-up: it is slower, or not faster beyond the noise."""
    words = f"slower than {than}" if speedup.high < 1.0 else "not faster beyond noise"
    return f"{words}: {speedup_words(speedup.median, speedup.low, speedup.high)}"


def _low(outcome: Scored) -> float:
    return outcome.measurement.speedup.low


def find_node(record: VariantRecord, nodes: Sequence[Node], name: str) -> Node:
    """The node called `name`: its number, or a prefix of its id that only it has. A number is tried first.

    Ids are random, so few digits alone are only ever a number.

    Raises:
        NotFound: none, or more than one.
    """
    label = record.variant.label
    found = [n for n in nodes if str(n.number) == name]
    if not found and not is_number(name):
        found = [n for n in nodes if n.id.startswith(name.lower())]
    if len(found) == 1:
        return found[0]
    if not found:
        known = f"it has nodes 1 to {len(nodes)}" if nodes else "it has no nodes yet; run `kforge forge` first"
        raise NotFound(f"variant {label} has no node {name!r}", hint=known)
    numbers = ", ".join(str(n.number) for n in found)
    raise NotFound(f"{name!r} is the start of {len(found)} nodes of variant {label}", hint=f"name one of {numbers}")


def is_number(name: str) -> bool:
    """Whether a node's name means its number, not the start of its id."""
    return name.isdigit() and len(name) < LEAST_DIGITS


def _picked(record: VariantRecord, nodes: Sequence[Node], pick: str) -> Node:
    node = find_node(record, nodes, pick)
    where = f"node {node.number} of variant {record.variant.label}"
    hint = "pick an accepted node, or leave the variant to the policy"
    if not isinstance(node.outcome, Scored):
        raise UsageError(f"{where} is not valid: {node.kind}", hint=hint)
    if node.outcome.audit.kind is AuditKind.TORCH:
        raise UsageError(f"{where} cannot be exported: {TORCH_TIER}", hint=hint)
    if node.outcome.audit.kind is AuditKind.FALLBACK:
        raise UsageError(f"{where} falls back to the original operator", hint=hint)
    stands = next(n for n in standing(nodes) if n.candidate.id == node.candidate.id)
    if not isinstance(stands.outcome, Scored):
        raise UsageError(f"{where} was judged again as node {stands.number}: {stands.kind}", hint=hint)
    return node
