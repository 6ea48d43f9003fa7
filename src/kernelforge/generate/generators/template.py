"""The generator that needs no language model: the emitter's schedules and the templates, best guess first."""

from __future__ import annotations

from collections.abc import Iterator

from kernelforge.errors import NotFound
from kernelforge.generate.emitter import Backend, emit, loop_nest
from kernelforge.generate.emitter.choose import schedules
from kernelforge.generate.templates import TemplateSource, template_sources
from kernelforge.generate.types import Candidate, Exhausted, Request, Unforgeable
from kernelforge.operators import get_operator


class TemplateGenerator:
    """Deterministic: the n-th proposal for a variant is the n-th source that is not yet in the history."""

    name = "template"

    def propose(self, request: Request) -> Candidate | Exhausted:
        """The next schedule of the variant's family, or why there is none."""
        tried = {feedback.candidate.source for feedback in request.history}
        try:
            for made in sources(request):
                if made.source not in tried:
                    return Candidate(
                        variant_id=request.variant.id, source=made.source, backend=request.backend,
                        generator=self.name, notes=made.notes, schedule=made.schedule,
                    )  # fmt: skip
        except Unforgeable as reason:
            return Exhausted(reason=reason.reason)
        return Exhausted(reason="all schedules of this family have been tried")


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
