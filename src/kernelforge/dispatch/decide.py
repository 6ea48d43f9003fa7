"""From a live call to the entry that may serve it, by the Guard alone. Nothing here launches or patches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from kernelforge.capture.facts import autocast_dtype, capability_of, describe_call, memory_aliases, tensor_spec
from kernelforge.capture.precision import precision_of
from kernelforge.cards.guard import Admitted as Fits
from kernelforge.cards.guard import CallFacts, Guard
from kernelforge.cards.types import DimValues, ScalarValues
from kernelforge.dispatch.state import is_repeatable, must_repeat
from kernelforge.operators import Entry as CallForm
from kernelforge.operators import Operator, Unsupported, canonical_call
from kernelforge.package.types import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The entry serves the call, at these dims and scalars (in the variant's order)."""

    entry: Entry
    dims: DimValues
    scalars: ScalarValues

    def __repr__(self) -> str:
        # Not the fields: an entry holds whole sources.
        return f"<Admitted: {self}>"

    def __str__(self) -> str:
        values = {**self.dims, **self.scalars}
        at = " at " + ", ".join(f"{name}={value:g}" for name, value in values.items()) if values else ""
        return f"served by {self.entry.variant.label}{at}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """No entry serves the call.

    Attributes:
        term: what failed: a term of the guard of the entry that came closest, or of the call itself ("call" when the
            call cannot be described, "operator" when no entry is for its operator), or of the state of torch. The same
            word stands among the misses of `LoadedPackage.stats`.
        detail: the same in words.
        by_variant: the failing term for each variant of the operator.
    """

    term: str
    detail: str
    by_variant: Mapping[str, str]

    def __str__(self) -> str:
        others = ", ".join(f"{variant[:8]} by {term}" for variant, term in self.by_variant.items())
        each = f" (refused: {others})" if len(self.by_variant) > 1 else ""
        return f"not served: {self.detail}{each}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallView:
    """A described call: what the guards look at, and its tensors in the variant's order."""

    facts: CallFacts
    tensors: Sequence[torch.Tensor]


def describe(
    forms: Iterable[tuple[Operator, CallForm]], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> CallView | str:
    """Describe a call under the first call form that can hold it, or say why none can."""
    reason = "no such call form"
    for operator, form in forms:
        canonical = canonical_call(operator, form, args, kwargs)
        if isinstance(canonical, Unsupported):
            reason = canonical.reason
            continue
        try:
            arguments, tensors = describe_call(operator.name, canonical)
        except TypeError as error:
            reason = str(error)
            continue
        device, specs = tensors[0].device, tuple(map(tensor_spec, tensors))
        cast = autocast_dtype(device.type)
        facts = CallFacts(
            operator=operator.name, arguments=arguments, tensors=specs, aliases=memory_aliases(tensors), autocast=cast,
            precision=precision_of(operator, device.type, {cast, *(s.dtype for s in specs)}),
            grad_enabled=torch.is_grad_enabled(), deterministic=must_repeat(operator, device.type), device=device.type,
            capability=capability_of(device.type, device.index or 0),
        )  # fmt: skip
        return CallView(facts=facts, tensors=tensors)
    return reason


def of_signature(facts: CallFacts, *, aligned: bool) -> CallFacts:
    """The facts that all calls of one signature share: aliasing and grad are left to each call.

    Args:
        aligned: take full alignment for granted, too.
    """
    tensors = tuple(replace(t, alignment=16 if aligned else t.alignment, requires_grad=False) for t in facts.tensors)
    return replace(facts, tensors=tensors, aliases=(), grad_enabled=False)


def decide(guarded: Sequence[tuple[Entry, Guard]], facts: CallFacts) -> Admitted | Refused:
    """The first entry whose guard admits the call.

    Args:
        guarded: the entries that are on, the preferred ones first.
    """
    by_variant: dict[str, str] = {}
    term, detail = "operator", f"no entry is for {facts.operator}"
    for entry, guard in guarded:
        if entry.variant.operator != facts.operator:
            continue
        answer = guard.check(facts)
        if not isinstance(answer, Fits):
            failed, why = str(answer.term), answer.detail
        elif facts.deterministic and not is_repeatable(entry):
            failed, why = "deterministic", _UNSTEADY
        else:
            return Admitted(entry=entry, dims=answer.dims, scalars=answer.scalars)
        if not by_variant or _PROGRESS[failed] > _PROGRESS[term]:
            term, detail = failed, why
        by_variant[entry.variant.id] = failed
    return Refused(term=term, detail=detail, by_variant=by_variant)


_UNSTEADY = "torch must compute the same bits each time, and the judge has not seen that of this kernel"
# The later a term is looked at, the closer the call was to the variant.
_ORDER = (
    "operator", "device", "capability", "autocast", "precision", "grad", "arity", "layout", "dtype", "rank",
    "alignment", "size", "argument", "stride", "alias", "dim", "scalar", "elements", "deterministic",
)  # fmt: skip
_PROGRESS = {term: position for position, term in enumerate(_ORDER)}
