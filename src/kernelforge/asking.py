"""Work orders as folders: for a coding agent or a person, also on another machine than the one that judges.

Each folder has all that one must know to write the kernel; `telling` judges what was written into them.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernelforge.benchmark.target import target_facts
from kernelforge.build.abi import prelude
from kernelforge.build.backends import get_backend
from kernelforge.cards.types import VariantRecord
from kernelforge.digest import Json
from kernelforge.errors import EnvironmentMissing, UsageError
from kernelforge.evaluate.types import Scored
from kernelforge.generate.prompt import FILE_OF, prompt_for
from kernelforge.generate.types import Request
from kernelforge.report.asking import AskedRow, AskReport
from kernelforge.search.lineage import feedback_of
from kernelforge.search.orders import Order
from kernelforge.search.requests import request_for
from kernelforge.search.scheduler import get_policy
from kernelforge.search.strategies import get_strategy
from kernelforge.search.study import Study, Track
from kernelforge.settings import Settings
from kernelforge.store.project import Project
from kernelforge.workshop import BACKEND_OF

ORDER, PROMPT, PRELUDE = "order.json", "PROMPT.md", "prelude.h"
FORMAT = "kernelforge.order"
GENERATOR = "agent"
LEASE_S = 24 * 3600.0
"""An order is given up after a day; what is delivered later is taken all the same."""


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
        parent: node id of what is to be revised, of the only record; "" leaves that to the strategy.

    Raises:
        NotFound: no such strategy or policy. UsageError: `folder` cannot be written to.
    """
    owner = f"{platform.node()}:{GENERATOR}"  # no process: it ends long before the order does
    study = Study(
        project, [r for r in records if not r.forgeable], strategy=get_strategy(strategy or "best-first"),
        policy=get_policy(policy), owner=owner,
    )  # fmt: skip
    if parent:
        for _ in range(count):
            study.enqueue(records[0].variant.id, parent=parent, reason="asked for by hand")
    orders = study.ask(count, lease_s=LEASE_S)
    rows: list[AskedRow] = []
    try:
        for order in orders:
            request = _request(project, study, order, settings)
            rows.append(_write_order(folder, order, study.tracks[order.variant_id], request, project.model))
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be written to: {error.strerror or error}", hint="name another folder with -o"
        ) from error
    finally:
        # Nobody will work on what nobody can read.
        for order in orders[len(rows) :]:
            study.give_up(order, "its folder could not be written")
    return AskReport(path=str(folder), rows=tuple(rows), parked=study.parked())


def _request(project: Project, study: Study, order: Order, settings: Settings) -> Request:
    track = study.tracks[order.variant_id]
    backend = BACKEND_OF[project.device]
    environment = _environment(project, track)
    return request_for(
        track, order, backend=backend, prelude=prelude(track.record.variant, backend),
        brief=_brief(backend, track, settings), target=target_facts(environment),
        pending=study.pending(order.variant_id),
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


def _write_order(folder: Path, order: Order, track: Track, request: Request, model: str) -> AskedRow:
    place = folder / f"{track.label}-{order.id[:6]}"
    place.mkdir(parents=True)
    file = FILE_OF[request.backend]
    parent = next((n for n in track.nodes if n.id == order.parent), None)
    document: dict[str, Json] = {
        "format": FORMAT, "version": 1, "order": order.id, "variant": order.variant_id, "label": track.label,
        "model": model, "backend": request.backend, "parent": order.parent, "reason": order.reason, "write": file,
        "asked": order.created,
        "history": [
            {"number": f.number, "outcome": f.outcome, "speedup": f.speedup, "notes": f.candidate.notes}
            for f in request.history
        ],
    }  # fmt: skip
    texts = {PROMPT: prompt_for(request, into_folder=True).text, PRELUDE: request.prelude}
    if parent is not None:
        texts[f"parent.{file.rpartition('.')[2]}"] = parent.candidate.source
        texts["parent.md"] = "\n".join(feedback_of(parent, track.record).detail.splitlines()) + "\n"
    for name, text in texts.items():
        (place / name).write_text(text)
    # Last: a folder without it is none of an order.
    (place / ORDER).write_text(json.dumps(document, indent=2) + "\n")
    return AskedRow(
        order=order.id, label=track.label, parent=0 if parent is None else parent.number, reason=order.reason,
        path=str(place), write=file,
    )  # fmt: skip
