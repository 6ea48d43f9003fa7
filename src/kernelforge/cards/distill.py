"""Turns a recording into operator cards: groups calls into variants with named dims, or exact ones. Owns `distill`.

In "auto" mode calls of one operator that differ only in sizes, in strides that follow from sizes, in one float, or in
the integers that the operator lets vary, become one variant. Where no common rule is found the group is split until
there is one; a group of very many sizes without a rule is recorded whole and not forged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from kernelforge.capture.types import ObservedCall, OperatorCall, Recording, TensorSpec, Value, contiguous_stride
from kernelforge.cards.extrapolate import settle_ranges
from kernelforge.cards.fitting import Fitted, candidate_orders, fit, is_dense
from kernelforge.cards.types import Dim, OperatorCard, Scalar, SizePoint, Variant, VariantRecord
from kernelforge.operators import Operator, get_operator

Shapes: TypeAlias = Literal["auto", "exact"]
Calls: TypeAlias = "list[ObservedCall]"

_MOST_EXAMPLES = 4
_MOST_EXACT = 8
_INDEX_LIMIT = 2**31 - 1
_ALWAYS_ROOM = 2**20
_LENGTH_ROOM = 8192
"""How far a length may grow, however short those seen were. A row of so many elements still fits into a block's
registers on a GPU; longer ones want other kernels, and are reached by capturing longer ones."""
_MOST_NUMBERS = 4
_ARITHMETIC = frozenset({"add", "sub", "mul", "div"})
NO_RULE = "output sizes do not follow from input sizes"
COUNTS = "a number beside integers takes many values, so each would be a variant"


def distill(recording: Recording, *, model: str, shapes: Shapes = "auto") -> tuple[OperatorCard, ...]:
    """Operator cards of one recording, sorted by operator; variants in order of first appearance."""
    exact = shapes == "exact"
    groups = _split(recording.calls, _exact_key if exact else _key)
    records: dict[str, VariantRecord] = {}
    for group, counting in ((g, False) for g in groups) if exact else _counting(groups):
        for record in [_counted(group)] if counting else _records(group, exact=exact):
            known = records.get(record.variant.id)
            records[record.variant.id] = record if known is None else _joined(known, record)
    total = sum(r.calls * r.eager_us for r in records.values())
    shared = [replace(r, share=r.calls * r.eager_us / total if total else 0.0) for r in records.values()]
    return tuple(
        OperatorCard(
            operator=name, model=model, device=recording.device,
            variants=tuple(r for r in shared if r.variant.operator == name),
        )
        for name in sorted({r.variant.operator for r in shared})
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Group:
    """Calls that become one variant."""

    calls: Calls
    fitted: Fitted
    variant: Variant
    reason: str


def _records(calls: Calls, *, exact: bool) -> Iterator[VariantRecord]:
    operator = get_operator(calls[0].call.operator)
    pieces = [calls] if exact else _compatible(calls)
    for piece in pieces:
        for group in _fitted(piece, operator):
            yield _record(group)


def _counting(groups: list[Calls]) -> Iterator[tuple[Calls, bool]]:
    """The groups in their order, and whether one is all of many that differ by a number beside integers only."""
    families: dict[Hashable, list[Calls]] = {}
    for group in groups:
        families.setdefault(_key(group[0], numbers=False), []).append(group)
    for group in groups:
        family = families[_key(group[0], numbers=False)]
        if len(family) <= _MOST_NUMBERS:
            yield group, False
        elif group is family[0]:
            yield [call for member in family for call in member], True


def _counted(calls: Calls) -> VariantRecord:
    return _record(_unruly(calls, get_operator(calls[0].call.operator), COUNTS))


def _compatible(calls: Calls) -> Iterator[Calls]:
    """Split until at most one float varies, and until an axis that is broadcast in one call has size 1 in all."""
    for piece in _split(calls, _floats) if _varying_floats(calls) > 1 else [calls]:
        merged: list[Calls] = []
        classes = _split(piece, lambda c: _stretched(c.call))
        for group in sorted(classes, key=lambda g: -len(_stretched(g[0].call))):
            home = next((m for m in merged if _broadcast_alike([*m, *group])), None)
            if home is None:
                merged.append(list(group))
            else:
                home.extend(group)
        yield from _in_order(merged, piece)


def _broadcast_alike(calls: Calls) -> bool:
    places = {place for c in calls for place in _stretched(c.call)}
    return all(c.call.tensors[i].shape[axis] == 1 for i, axis in places for c in calls)


def _in_order(groups: list[Calls], calls: Calls) -> list[Calls]:
    """Groups by first appearance, and so the calls in each."""
    place = {id(c): index for index, c in enumerate(calls)}
    ordered = [sorted(group, key=lambda c: place[id(c)]) for group in groups]
    return sorted(ordered, key=lambda group: place[id(group[0])])


def _fitted(calls: Calls, operator: Operator) -> Iterator[_Group]:
    """Variants for these calls: one if a rule covers all, else by memory layout, else exact ones."""
    group = _fit_one(calls, operator)
    if group is not None:
        yield group
        return
    pieces = _by_layout(calls)
    if len(pieces) == 1:
        pieces = _split(calls, _exact_key)
        if len(pieces) > _MOST_EXACT:
            yield _unruly(calls, operator, NO_RULE)
            return
    for piece in pieces:
        yield from _fitted(piece, operator)


def _fit_one(calls: Calls, operator: Operator) -> _Group | None:
    """One variant for all the calls, with ranges that eager confirms, or None."""
    fitted = fit([c.call for c in calls], _varying_ints(operator))
    reason = calls[0].unforgeable
    if fitted is None or (fitted.free_outputs and not reason):
        return None
    variant = _variant([c.call for c in calls], fitted)
    if reason:
        return _Group(calls, fitted, variant, reason)
    first = {name: values[0] for name, values in fitted.dims.items()}
    scalars = {name: values[0] for name, values in fitted.scalars.items()}
    seen = {name: (min(values), max(values)) for name, values in fitted.dims.items()}
    settled = settle_ranges(variant, first, scalars, seen)
    return None if settled is None else _Group(calls, fitted, settled, reason)


def _unruly(calls: Calls, operator: Operator, why: str) -> _Group:
    """Many calls without a common rule, as one record that is not forged; its strides are shown as row-major."""
    shown = [replace(c.call, tensors=_row_major(c.call.tensors), outputs=_row_major(c.call.outputs)) for c in calls]
    fitted = fit(shown, _varying_ints(operator))
    assert fitted is not None, f"{operator.name}: row-major tensors always fit"
    return _Group(calls, fitted, _variant(shown, fitted), calls[0].unforgeable or why)


def _row_major(specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    return tuple(replace(s, stride=contiguous_stride(s.shape)) for s in specs)


def _variant(calls: Sequence[OperatorCall], fitted: Fitted) -> Variant:
    first = calls[0]
    largest = max(t.elements for c in calls for t in (*c.tensors, *c.outputs))
    return Variant(
        operator=first.operator, arguments=fitted.arguments, tensors=fitted.tensors, outputs=fitted.outputs,
        mutates=first.mutates, aliases=_changing_aliases(first),
        dims=tuple(_dim(name, values) for name, values in fitted.dims.items()),
        scalars=tuple(_scalar(name, values) for name, values in fitted.scalars.items()),
        # Room for a longer text and a larger batch. Small tensors may grow further, several of their sizes at once.
        # Kernels may index with 32 bits up to this many elements, and the judge must hold such a call in memory.
        max_elements=max(min(max(8 * largest, _ALWAYS_ROOM), _INDEX_LIMIT), largest),
        device=first.device, capability=first.capability, autocast=first.autocast, precision=first.precision,
    )  # fmt: skip


def _dim(name: str, values: Sequence[int]) -> Dim:
    """From 1 to four times the greatest value seen, rounded up to a power of two.

    A power of two that divides at least four different values is taken for a rule (channels, say); fewer may agree by
    chance. As many different values without such a rule are lengths, of texts or of caches: those are captured short
    and used long, and one more variant for each multiple of what was captured would have to be forged.
    """
    distinct = set(values)
    many = len(distinct) >= 4
    multiple = math.gcd(64, *distinct) if many else 1
    high = 1 << (4 * max(distinct) - 1).bit_length()
    if many and multiple == 1:
        high = max(high, _LENGTH_ROOM)
    return Dim(name=name, low=multiple, high=high, multiple_of=multiple)


def _scalar(name: str, values: Sequence[float]) -> Scalar:
    """The captured range, widened by a factor of two away from and towards zero, never across it."""
    low, high = min(values), max(values)
    return Scalar(name=name, low=low * (2.0 if low < 0 else 0.5), high=high * (0.5 if high < 0 else 2.0))


def _record(group: _Group) -> VariantRecord:
    points: dict[Hashable, SizePoint] = {}
    for index, observed in enumerate(group.calls):
        dims = {name: values[index] for name, values in group.fitted.dims.items()}
        scalars = {name: values[index] for name, values in group.fitted.scalars.items()}
        point = SizePoint(
            dims=dims, scalars=scalars, calls=observed.calls, eager_us=observed.eager_us, example=observed.example
        )
        _add_point(points, point)
    return VariantRecord(
        variant=group.variant, points=_few_examples(points.values()), share=0.0, forgeable=group.reason,
        requires_grad=any(c.call.grad_enabled and any(t.requires_grad for t in c.call.tensors) for c in group.calls),
    )  # fmt: skip


def _joined(known: VariantRecord, other: VariantRecord) -> VariantRecord:
    """Two records of one variant (calls that differ in what a variant does not hold) as one."""
    points: dict[Hashable, SizePoint] = {}
    for point in (*known.points, *other.points):
        _add_point(points, point)
    return replace(
        known, points=_few_examples(points.values()), requires_grad=known.requires_grad or other.requires_grad,
        forgeable=known.forgeable and other.forgeable,
    )  # fmt: skip


def _add_point(points: dict[Hashable, SizePoint], point: SizePoint) -> None:
    key = (tuple(point.dims.items()), tuple(point.scalars.items()))
    known = points.get(key)
    if known is not None:
        calls = known.calls + point.calls
        mean = (known.calls * known.eager_us + point.calls * point.eager_us) / max(calls, 1)
        point = replace(known, calls=calls, eager_us=mean, example=known.example or point.example)
    points[key] = point


def _few_examples(points: Iterable[SizePoint]) -> tuple[SizePoint, ...]:
    """The points by size, the first few of which (in order of appearance) keep their example."""
    kept, result = 0, []
    for point in points:
        kept += bool(point.example)
        result.append(point if kept <= _MOST_EXAMPLES else replace(point, example=""))
    return tuple(sorted(result, key=lambda p: (tuple(p.dims.values()), tuple(p.scalars.values()))))


def _split(calls: Iterable[ObservedCall], key: Callable[[ObservedCall], Hashable]) -> list[Calls]:
    groups: dict[Hashable, Calls] = {}
    for call in calls:
        groups.setdefault(key(call), []).append(call)
    return list(groups.values())


def _varying_ints(operator: Operator) -> tuple[str, ...]:
    """Views and random operators are only listed, so there every integer may vary."""
    return operator.arguments if operator.view or operator.random else operator.varying_ints


def _key(observed: ObservedCall, *, numbers: bool = True) -> Hashable:
    """All that the calls of one variant must share; sizes, strides, alignment and most floats are not in it.

    Args:
        numbers: the numbers of integer arithmetic are.
    """
    call = observed.call
    operator = get_operator(call.operator)
    varying = _varying_ints(operator)
    free = varying if numbers or call.operator not in _ARITHMETIC else operator.arguments
    arguments = [(n, _masked(v, n, varying=n in free, view=operator.view)) for n, v in call.arguments]
    kinds = tuple((t.dtype, len(t.shape), t.device, t.layout, 0 in t.shape) for t in (*call.tensors, *call.outputs))
    return (
        call.operator, repr(arguments), kinds, len(call.tensors), call.output_kind, call.output_aliases,
        call.mutates, _changing_aliases(call), call.autocast, call.precision, call.device, call.capability,
        observed.unforgeable,
    )  # fmt: skip


def _masked(value: Value, name: str, *, varying: bool, view: bool) -> Value:
    if isinstance(value, tuple):
        return tuple(_masked(v, name, varying=varying, view=view) for v in value)
    if isinstance(value, float):
        return "a float" if _may_vary(name, value) else value
    if isinstance(value, int) and not isinstance(value, bool):
        return "an integer" if varying else value
    return "a text" if view and isinstance(value, str) else value


def _may_vary(name: str, value: float) -> bool:
    """Epsilons guard a division and are part of the formula; infinities and NaN need code of their own."""
    return math.isfinite(value) and "eps" not in name


def _floats(observed: ObservedCall) -> tuple[float, ...]:
    found: list[float] = []

    def visit(name: str, value: Value) -> None:
        if isinstance(value, tuple):
            for item in value:
                visit(name, item)
        elif isinstance(value, float) and _may_vary(name, value):
            found.append(value)

    for name, value in observed.call.arguments:
        visit(name, value)
    return tuple(found)


def _varying_floats(calls: Calls) -> int:
    return sum(len(set(column)) > 1 for column in zip(*map(_floats, calls), strict=True))


def _stretched(call: OperatorCall) -> tuple[tuple[int, int], ...]:
    """Places (input, axis) of size 1 that broadcasting stretches; none if the operator does not broadcast."""
    if call.mutates:
        target = call.tensors[call.mutates[0]].shape
    elif len(call.outputs) == 1:
        target = call.outputs[0].shape
    else:
        return ()
    places = []
    for index, tensor in enumerate(call.tensors):
        offset = len(target) - len(tensor.shape)
        if offset < 0:
            return ()
        for axis, size in enumerate(tensor.shape):
            if size == 1 != target[offset + axis]:
                places.append((index, axis))
            elif size != target[offset + axis]:
                return ()
    return tuple(places)


def _by_layout(calls: Calls) -> list[Calls]:
    """Groups in which each tensor is dense in some common order of its axes, or has the same strides with gaps.

    A tensor with axes of size 1 is dense in several orders, so the calls with the least choice come first.
    """
    count = len(_specs(calls[0]))
    known = [dict.fromkeys(o for c in calls for o in candidate_orders(_specs(c)[i])) for i in range(count)]
    choices = {id(c): [_layouts(s, known[i]) for i, s in enumerate(_specs(c))] for c in calls}
    groups: list[tuple[list[set[Hashable]], Calls]] = []
    for call in sorted(calls, key=lambda c: sum(map(len, choices[id(c)]))):
        own = choices[id(call)]
        for common, members in groups:
            if all(a & b for a, b in zip(common, own, strict=True)):
                common[:] = [a & b for a, b in zip(common, own, strict=True)]
                members.append(call)
                break
        else:
            groups.append((list(own), [call]))
    return _in_order([members for _, members in groups], calls)


def _layouts(spec: TensorSpec, orders: Iterable[Hashable]) -> set[Hashable]:
    dense: set[Hashable] = {o for o in orders if isinstance(o, tuple) and is_dense(spec, o)}
    return dense or {("gaps", spec.stride)}


def _specs(observed: ObservedCall) -> tuple[TensorSpec, ...]:
    return (*observed.call.tensors, *observed.call.outputs)


def _exact_key(observed: ObservedCall) -> Hashable:
    """Everything that a variant without dims holds, plus whether it may be forged."""
    call = observed.call
    specs = tuple(
        (s.shape, tuple(0 if n == 1 else st for n, st in zip(s.shape, s.stride, strict=False)), s.dtype, s.layout)
        for s in (*call.tensors, *call.outputs)
    )
    return (
        call.operator, repr(call.arguments), specs, call.output_kind, call.mutates, _changing_aliases(call),
        call.autocast, call.precision, call.device, call.capability, observed.unforgeable,
    )  # fmt: skip


def _changing_aliases(call: OperatorCall) -> tuple[tuple[int, int], ...]:
    return tuple(pair for pair in call.aliases if set(pair) & set(call.mutates))
