"""What a search would do, from a project and what is known of the machine: no trial, no build, no new measurement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from kernelforge.benchmark.machine import known_facts
from kernelforge.build.abi import prelude
from kernelforge.cards.types import VariantRecord
from kernelforge.generate.generators.template import TemplateGenerator, sources
from kernelforge.generate.types import Request, Unforgeable
from kernelforge.library.folder import Library
from kernelforge.library.proposals import proposals
from kernelforge.report.plan import PlanReport, plan_report
from kernelforge.search.duplicates import normalised
from kernelforge.search.lineage import weights
from kernelforge.search.orders import Order
from kernelforge.search.plan import plan_search, prior_floors
from kernelforge.search.scheduler import get_policy
from kernelforge.search.types import Budget, Node
from kernelforge.settings import Settings
from kernelforge.workshop import BACKEND_OF

if TYPE_CHECKING:
    from kernelforge.store.project import Project

MOST_IDEAS = 500
"""Templates of a variant are counted up to it."""


def make_plan(
    project: Project,
    records: Sequence[VariantRecord],
    budget: Budget,
    *,
    generator: str,
    policy: str,
    settings: Settings,
) -> PlanReport:
    """The plan of a search on some variants of a project.

    Raises:
        NotFound: no such policy.
    """
    chosen = {r.variant.id for r in records}
    others = [r for card in project.cards() for r in card.variants if r.variant.id not in chosen]
    nodes = {r.variant.id: project.nodes(r.variant.id) for r in (*records, *others)}
    delivered = [o for o in project.orders() if o.state == "delivered" and o.variant_id in chosen]
    ideas, exhausted, limits = dict[str, int](), dict[str, str](), budget
    if generator == TemplateGenerator.name:
        library = Library(settings.library_dir) if settings.library else None
        ideas, exhausted = _ideas(records, nodes, delivered, library)
        limits = replace(budget, tokens=None, usd=None)  # templates cost nothing
    facts = known_facts(settings, device=project.device)
    plan = plan_search(
        records, lambda r: nodes[r.variant.id], limits, get_policy(policy), generator=generator.partition(":")[0],
        others=others,
        prior_floors=prior_floors(records, facts), ideas=ideas, exhausted=exhausted,
        waiting=Counter(o.variant_id for o in delivered), coverage=_coverage(project),
    )  # fmt: skip
    return plan_report(plan, budget, policy=policy, machine_known=facts is not None, waiting=len(delivered))


def _ideas(
    records: Sequence[VariantRecord],
    nodes: Mapping[str, Sequence[Node]],
    delivered: Sequence[Order],
    library: Library | None,
) -> tuple[dict[str, int], dict[str, str]]:
    """How many sources library and templates have left for each variant, and for which none, with the reason.

    To ask them costs nothing.
    """
    ideas, exhausted = dict[str, int](), dict[str, str]()
    for record in records:
        variant = record.variant
        if record.forgeable:
            continue
        backend = BACKEND_OF[variant.device]
        request = Request(
            variant=variant, backend=backend, prelude=prelude(variant, backend), brief="", weights=weights(record)
        )
        tried = {normalised(n.candidate.source) for n in nodes[variant.id]}
        tried |= {normalised(o.candidate.source) for o in delivered if o.candidate and o.variant_id == variant.id}
        left = {normalised(k.source) for k in proposals(library, request)} if library is not None else set()
        why = "all schedules of this family have been tried"
        try:
            left |= {normalised(made.source) for made in islice(sources(request), MOST_IDEAS)}
        except Unforgeable as reason:
            why = reason.reason
        ideas[variant.id] = len(left - tried)
        if not ideas[variant.id]:
            exhausted[variant.id] = why
    return ideas, exhausted


def _coverage(project: Project) -> float:
    """Captured part of the model's time, by the clock that the shares are of; 1.0 if the capture did not say."""
    told = project.capture_info.get("coverage_device" if project.device == "cuda" else "coverage_wall")
    return min(1.0, max(0.0, float(told))) if isinstance(told, int | float) else 1.0
