"""The generator that needs no language model: the emitter's schedules and the templates, best guess first.

Asked for a revision, it gives the untried schedule that differs least from that of the parent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from kernelforge.errors import NotFound
from kernelforge.generate.emitter import Backend, emit, loop_nest
from kernelforge.generate.emitter.choose import schedules
from kernelforge.generate.templates import TemplateSource, template_sources
from kernelforge.generate.types import Candidate, Exhausted, Request, Unforgeable
from kernelforge.operators import get_operator


class TemplateGenerator:
    """Deterministic, and without state: a proposal is the first source that is not yet in the history, in the order of
    promise, or for a revision of nearness to the parent."""

    name = "template"

    def propose(self, request: Request) -> Candidate | Exhausted:
        """A schedule of the variant's family that was not tried, or why there is none."""
        tried = {feedback.candidate.source for feedback in request.history}
        parent = request.parent
        try:
            untried = (made for made in sources(request) if made.source not in tried)
            if parent is not None and parent.schedule:
                made = min(untried, key=lambda m: distance(m.schedule, parent.schedule), default=None)
            else:
                made = next(untried, None)
        except Unforgeable as reason:
            return Exhausted(reason=reason.reason)
        if made is None:
            return Exhausted(reason="all schedules of this family have been tried")
        return Candidate(
            variant_id=request.variant.id, source=made.source, backend=request.backend, generator=self.name,
            notes=made.notes, schedule=made.schedule, parent=parent.id if parent is not None else "",
            tokens_in=0, tokens_out=0, cost_usd=0.0,
        )  # fmt: skip


def distance(one: str, other: str) -> int:
    """How many fields of two schedules, in JSON, differ; another mapping is another design, and counts for three."""
    fields, others = json.loads(one) if one else {}, json.loads(other) if other else {}
    different = sum(1 for name in {*fields, *others} if fields.get(name) != others.get(name))
    return different + (0 if fields.get("mapping") == others.get("mapping") else 2)


def sources(request: Request) -> Iterator[TemplateSource]:
    """All sources for the request's variant, best guess first, whatever the history holds.

    Raises:
        Unforgeable: nothing is made for this variant, and why.
    """
    variant = request.variant
    try:
        operator = get_operator(variant.operator)
    except NotFound:
        raise Unforgeable(f"no operator file for {variant.operator}") from None
    backend: Backend = "cuda" if request.backend == "cuda" else "cpp"
    if not operator.family:
        raise Unforgeable(f"no template family makes {variant.operator}")
    if operator.family != "emitter":
        yield from template_sources(operator.family, variant, backend, request.weights)
        return
    loops = loop_nest(variant, operator)
    for schedule in schedules(loops, variant, backend, request.weights):
        source = emit(loops, schedule, variant, backend)
        yield TemplateSource(source=source, schedule=schedule.to_json(), notes=schedule.describe())


GENERATOR = TemplateGenerator()
