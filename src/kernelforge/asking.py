"""Work orders with all that one must know to write their kernels, for a coding agent or a person.

`ask_orders` writes them as folders, also for another machine than the one that judges; `next_order` hands one out.
`telling` judges what was written for them.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kernelforge.benchmark.clock import environment
from kernelforge.benchmark.machine import device_name, known_facts
from kernelforge.benchmark.target import gpu_resources, target_facts
from kernelforge.build.abi import prelude
from kernelforge.build.backends import get_backend
from kernelforge.cards.types import VariantRecord
from kernelforge.digest import Json
from kernelforge.errors import EnvironmentMissing, UsageError
from kernelforge.evaluate.types import Scored
from kernelforge.generate.prompt import FILE_OF, prompt_for
from kernelforge.generate.types import Request
from kernelforge.report.asking import AskedRow, AskReport, NextOrder, ParentKernel, PastKernel, WorkOrder
from kernelforge.search.lineage import best_node
from kernelforge.search.orders import Order
from kernelforge.search.requests import request_for
from kernelforge.search.scheduler import get_policy
from kernelforge.search.strategies import get_strategy
from kernelforge.search.study import Study, Track
from kernelforge.search.winners import find_node
from kernelforge.settings import Settings
from kernelforge.store.project import Project
from kernelforge.workshop import BACKEND_OF

ORDER, PROMPT, PRELUDE = "order.json", "PROMPT.md", "prelude.h"
FORMAT = "kernelforge.order"
GENERATOR = "agent"
LEASE_S = 24 * 3600.0
"""An order is given up after a day; what is delivered later is taken all the same."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """Orders of one study, their texts still to be made."""

    project: Project
    study: Study
    orders: tuple[Order, ...]
    settings: Settings

    def hand_out(self, give: Callable[[WorkOrder], T], *, into_folder: bool) -> list[T]:
        """Give each order away with its texts. What cannot be given is given up: nobody could work on it."""
        given: list[T] = []
        try:
            for order in self.orders:
                work = _work_order(self.project, self.study, order, self.settings, into_folder=into_folder)
                given.append(give(work))
        finally:
            for order in self.orders[len(given) :]:
                self.study.give_up(order, "it could not be handed out")
        return given


def ask_orders(
    project: Project,
    records: Sequence[VariantRecord],
    folder: Path,
    *,
    count: int,
    parent: str,
    strategy: str,
    policy: str,
    settings: Settings,
) -> AskReport:
    """Write up to `count` work orders as folders below `folder`; fewer if no variant has use for more.

    Args:
        parent: what is to be revised, of the only record: a trial's number, or a unique prefix of its node's id; ""
            leaves that to the strategy.

    Raises:
        NotFound: no such node, strategy or policy. UsageError: `parent` without exactly one record, or one that is not
            valid; or `folder` cannot be written to.
    """
    asked = _ask(project, records, count=count, parent=parent, strategy=strategy, policy=policy, settings=settings)
    try:
        rows = asked.hand_out(lambda work: _write_order(folder, work), into_folder=True)
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be written to: {error.strerror or error}", hint="name another folder with -o"
        ) from error
    return AskReport(path=str(folder), rows=tuple(rows), parked=asked.study.parked())


def next_order(
    project: Project,
    records: Sequence[VariantRecord],
    *,
    parent: str,
    strategy: str,
    policy: str,
    settings: Settings,
) -> NextOrder:
    """Hand out the next work order, if a variant has use for one.

    Args:
        parent: as of `ask_orders`.

    Raises:
        NotFound, UsageError: as `ask_orders`.
    """
    asked = _ask(project, records, count=1, parent=parent, strategy=strategy, policy=policy, settings=settings)
    given = asked.hand_out(lambda work: work, into_folder=False)
    labels = {key: track.label for key, track in asked.study.tracks.items()}
    parked = {labels[key]: reason for key, reason in asked.study.parked().items()}
    return NextOrder(order=given[0] if given else None, parked=parked)


def order_context(project: Project, *, order: str, variant: str, settings: Settings) -> WorkOrder:
    """The texts of an order as they are now, or what an order of a variant would say. Stores nothing.

    Args:
        order: its id, or a unique prefix of it; or else `variant`, whose best kernel is then to be revised.

    Raises:
        NotFound: no such order or variant. UsageError: both or none are named, or the variant is not forgeable.
    """
    if bool(order) == bool(variant):
        raise UsageError("name either an order or a variant", hint="next_order gives an order's id")
    if order:
        shown = project.order(order)
        record = project.record(shown.variant_id)
    else:
        record = project.record(variant)
        best = best_node(project.nodes(record.variant.id))
        shown = Order(id="", variant_id=record.variant.id, parent="" if best is None else best.id)
    if record.forgeable:
        raise UsageError(f"no kernel can be made for {record.variant.label}: {record.forgeable}")
    study = Study(project, [record], strategy=get_strategy("best-first"))
    return _work_order(project, study, shown, settings, into_folder=False)


def _ask(
    project: Project,
    records: Sequence[VariantRecord],
    *,
    count: int,
    parent: str,
    strategy: str,
    policy: str,
    settings: Settings,
) -> _Asked:
    """Take up to `count` orders of the search, as any proposer does."""
    revised = _node_to_revise(project, records, parent) if parent else ""
    owner = f"{platform.node()}:{GENERATOR}"  # no process: it ends long before the order does
    study = Study(
        project, [r for r in records if not r.forgeable], strategy=get_strategy(strategy or "best-first"),
        policy=get_policy(policy), owner=owner,
    )  # fmt: skip
    if revised:
        for _ in range(count):
            study.enqueue(records[0].variant.id, parent=revised, reason="asked for by hand")
    return _Asked(project=project, study=study, orders=study.ask(count, lease_s=LEASE_S), settings=settings)


def _node_to_revise(project: Project, records: Sequence[VariantRecord], name: str) -> str:
    if len(records) != 1:
        raise UsageError(f"which variant's trial {name}?", hint="name one variant beside --parent")
    found = find_node(records[0], project.nodes(records[0].variant.id), name)
    if found.kind != "accepted":
        raise UsageError(f"trial {found.number} is not valid: {found.kind}", hint="revise an accepted one")
    return found.id


def _work_order(project: Project, study: Study, order: Order, settings: Settings, *, into_folder: bool) -> WorkOrder:
    track = study.tracks[order.variant_id]
    request = _request(project, study, order, settings)
    parent = next((n for n in track.nodes if n.id == order.parent), None)
    return WorkOrder(
        order=order.id, state=order.state if order.id else "", variant=order.variant_id, label=track.label,
        model=project.model, backend=request.backend, reason=order.reason, write=FILE_OF[request.backend],
        prompt=prompt_for(request, into_folder=into_folder).text, prelude=request.prelude,
        parent=None if parent is None else ParentKernel(
            node=parent.id, number=parent.number, source=parent.candidate.source,
            diagnosis=track.feedback(parent).detail,
        ),
        history=tuple(
            PastKernel(number=f.number, outcome=f.outcome, speedup=f.speedup, notes=f.candidate.notes)
            for f in request.history
        ),
        asked=order.created, expires=order.expires,
    )  # fmt: skip


def _request(project: Project, study: Study, order: Order, settings: Settings) -> Request:
    track = study.tracks[order.variant_id]
    backend = BACKEND_OF[project.device]
    facts = _environment(project, track) or _this_machine(project.device, settings)
    return request_for(
        track, order, backend=backend, prelude=prelude(track.record.variant, backend),
        brief=_brief(backend, track, settings), target=target_facts(facts),
        pending=study.pending(order.variant_id), beside=study.beside(order),
    )  # fmt: skip


def _brief(backend: str, track: Track, settings: Settings) -> str:
    """What the compiler says of itself; here there may be none, and then the one of an earlier trial."""
    try:
        return get_backend(backend, settings).brief()
    except EnvironmentMissing:
        built = next((n.outcome.artifact for n in track.nodes if isinstance(n.outcome, Scored)), None)
        return "" if built is None else f"{built.compiler}; {built.target}"


def _environment(project: Project, track: Track) -> Mapping[str, str]:
    """Beside the first measurement of the variant, or else of any other: the later ones would change the prompt."""
    others = (r.variant.id for card in project.cards() for r in card.variants)
    for nodes in (track.nodes, *(project.nodes(variant_id) for variant_id in others)):
        for node in nodes:
            if isinstance(node.outcome, Scored):
                return node.outcome.measurement.environment
    return {}


def _this_machine(device: str, settings: Settings) -> Mapping[str, str]:
    """What is known here before anything was measured, if there is such a device."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        return {}
    threads = torch.get_num_threads()
    facts = known_facts(settings, device=device, threads=threads)
    if facts is not None:
        return environment(facts, device=device, threads=threads, torch_version=torch.__version__)
    gpu = {"gpu_resources": gpu_resources(), "gpu_clocks": ""} if device == "cuda" else {}
    return {"device": device_name(device), "threads": str(threads), **gpu}


def _write_order(folder: Path, work: WorkOrder) -> AskedRow:
    place = folder / f"{work.label}-{work.order[:6]}"
    place.mkdir(parents=True)
    document: dict[str, Json] = {
        "format": FORMAT, "version": 1, "order": work.order, "variant": work.variant, "label": work.label,
        "model": work.model, "backend": work.backend, "parent": "" if work.parent is None else work.parent.node,
        "reason": work.reason, "write": work.write, "asked": work.asked,
        "history": [past.to_json() for past in work.history],
    }  # fmt: skip
    texts = {PROMPT: work.prompt, PRELUDE: work.prelude}
    if work.parent is not None:
        texts[f"parent.{work.write.rpartition('.')[2]}"] = work.parent.source
        texts["parent.md"] = "\n".join(work.parent.diagnosis.splitlines()) + "\n"
    for name, text in texts.items():
        (place / name).write_text(text)
    # Last: a folder without it is none of an order.
    (place / ORDER).write_text(json.dumps(document, indent=2) + "\n")
    return AskedRow(
        order=work.order, label=work.label, parent=0 if work.parent is None else work.parent.number,
        reason=work.reason, path=str(place), write=work.write,
    )  # fmt: skip
