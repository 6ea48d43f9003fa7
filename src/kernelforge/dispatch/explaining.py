"""What dispatch would do with a call, in words. Owns `explain`; asks in the order in which a call site asks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch

from kernelforge.dispatch.decide import Admitted, CallView, Refused, decide, describe, of_signature
from kernelforge.dispatch.plans import hit_plan
from kernelforge.dispatch.state import call_problem, foreign_modes, is_plain, unreadable
from kernelforge.dispatch.tables import Tables
from kernelforge.errors import NotFound
from kernelforge.native.extension import new_counter
from kernelforge.operators import Entry as CallForm
from kernelforge.operators import Operator, get_operator, operator_names
from kernelforge.wording import did_you_mean

_WORDS: Mapping[str, str] = {
    "dispatch mode": "a dispatch mode is active, which must see every operator of PyTorch",
    "function mode": "a function mode is active, which must see every call",
    "tracing": "torch.jit is tracing",
    "functorch": "a transform (vmap, grad, jvp ...) is active",
    "forward AD": "forward-mode differentiation is active",
    "default dtype": "the default dtype is not float32",
    "autocast": "autocast is on, and the kernels are of calls without it",
    "layout": "a tensor has no plain memory: sparse, nested, quantized, on another device, or with a lazy bit",
    "argument type": "an argument is of a type that no variant can hold",
    "grad": "grad mode is on and an input requires grad",
    "alias": "an input that the call changes shares memory with another one",
    "inference tensor": "an inference tensor would be changed outside of inference mode",
}  # fmt: skip


def forms_of(name: str) -> list[tuple[Operator, CallForm]]:
    """The call forms of an operator, or of all operators that a function of torch may mean, by its dotted name.

    Raises:
        NotFound: no operator and no function of one is called so.
    """
    known = operator_names()
    if name in known:
        operator = get_operator(name)
        return [(operator, form) for form in operator.entries]
    found = [(o, form) for o in map(get_operator, known) for form in o.entries if form.target == name]
    if not found:
        near = did_you_mean(name, known)
        raise NotFound(f"no operator {name!r}", hint=near or "kforge ops lists a model's")
    return found


def explain(
    tables: Tables, forms: Sequence[tuple[Operator, CallForm]], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Admitted | Refused:
    """Which entry would serve a call of one of the forms now, or the reason under which it would be counted.

    Whether a CUDA stream is being captured is left out: what ran before the capture runs in it, all else does not.
    """
    names = {operator.name for operator, _ in forms}
    own = [(entry, guard) for entry, guard in tables.guarded if entry.variant.operator in names]

    def refused(term: str, detail: str = "") -> Refused:
        by_variant = {entry.variant.id: term for entry, _ in own}
        return Refused(term=term, detail=detail or _WORDS.get(term, term), by_variant=by_variant)

    if not own:
        return _none_on(tables, names)
    if not tables.enabled:
        return refused("disabled", "the package was switched off: its `enabled` is False")
    if foreign_modes():
        return refused("function mode")
    values = (*args, *kwargs.values())
    reason = unreadable(values)
    if reason != "argument type":
        name = reason.removeprefix("subclass ")
        return refused(reason, "" if name == reason else f"an argument is a {name}, not a plain tensor")
    tensors = _tensors(values)
    reason = call_problem(by_autocast=any(entry.variant.autocast for entry, _ in own))
    if not reason and not all(map(is_plain, tensors)):
        reason = "layout"
    if reason:
        return refused(reason)
    view = describe(forms, args, kwargs)
    if isinstance(view, str):
        return refused("call", view)
    answer = decide(own, of_signature(view.facts, aligned=True))
    if isinstance(answer, Refused):
        return answer
    reason = _refused_by_memory(tables, answer, view)
    if reason:
        return refused(reason)
    return decide(own, of_signature(view.facts, aligned=False))


def _none_on(tables: Tables, names: Collection[str]) -> Refused:
    off = {s.entry.variant.id: s for s in tables.states if s.entry.variant.operator in names}
    if not off:
        return Refused(term="operator", detail=f"no entry is for {', '.join(sorted(names))}", by_variant={})
    detail = "; ".join(f"{s.entry.variant.label} is off: {s.reasons.get(tables.mode) or 'off'}" for s in off.values())
    return Refused(term="off", detail=detail, by_variant=dict.fromkeys(off, "off"))


def _refused_by_memory(tables: Tables, answer: Admitted, view: CallView) -> str:
    """What only a single call can tell of one signature: gradients, and memory that it may not change."""
    if view.facts.grad_enabled and any(t.requires_grad for t in view.tensors):
        return "grad"
    if not answer.entry.variant.mutates:
        return ""
    order = tuple(range(len(view.tensors)))
    plan = hit_plan(answer, tables.kernels[answer.entry.variant.id], view.tensors, order, new_counter())
    return plan.memory_problem(view.tensors)


def _tensors(values: Sequence[object]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, tuple | list):
            found += _tensors(value)
    return found
