"""A project on disk as the other stages see it. Owns `Project`, which implements `search.orders.OrderStore` and
`generate.llm.account.CallStore`.

Layout of the folder: `nodes.db` (project row, trials, decisions of exports), `cards/` (one JSON file per operator),
`examples/`, `blobs/<sha256>` (binaries of accepted candidates), `capture.json` (what the capture said of itself).
"""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from sqlalchemy import Engine, delete, func, select
from sqlalchemy.orm import Session

from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.serial import load_cards
from kernelforge.cards.types import OperatorCard, VariantRecord
from kernelforge.digest import Json, canonical_json, digest_bytes
from kernelforge.errors import NotFound, ProjectError
from kernelforge.evaluate.types import Scored, Trial
from kernelforge.explain.profile import Profile
from kernelforge.generate.llm.account import Call, Failure, Intent, Limit
from kernelforge.generate.llm.types import Completion
from kernelforge.search.orders import Order
from kernelforge.search.types import Node, summarise
from kernelforge.store.blobs import get_blob, put_blob, write_atomically
from kernelforge.store.calls import close_call, open_call, read_calls
from kernelforge.store.checks import check_foreign, check_own, node_id
from kernelforge.store.database import open_database, reading, writing
from kernelforge.store.draft import BLOBS, CAPTURE, CARDS, DATABASE, EXAMPLES, start_draft
from kernelforge.store.models import DecisionRow, NodeRow
from kernelforge.store.nodes import add_node, node_of_row, read_nodes, row_of, stored_of
from kernelforge.store.orders import all_orders, find_order, open_orders, store_order
from kernelforge.store.profiles import keep_profile, read_profiles
from kernelforge.store.serial import outcome_to_json
from kernelforge.store.types import StoredDecision, StoredTrial


class Project:
    """An open project. Safe for several threads and processes; needs no closing.

    Attributes:
        path: the folder. model: the model's name. device: "cpu" or "cuda". created: POSIX seconds.
    """

    def __init__(self, path: Path, engine: Engine, *, model: str, device: str, created: float) -> None:
        """For `create` and `open` only."""
        self.path = path
        self.model = model
        self.device = device
        self.created = created
        self._engine = engine
        self._warned: set[str] = set()
        self._cards: tuple[OperatorCard, ...] | None = None

    @staticmethod
    def create(
        path: Path,
        *,
        model: str,
        device: str,
        cards: Sequence[OperatorCard],
        capture_info: Mapping[str, Json],
        examples: Path | None = None,
        overwrite: bool = False,
    ) -> Project:
        """Create a project whole, or not at all. A long capture takes `store.draft.start_draft` instead.

        Args:
            examples: root of an `ExampleStore` to copy into the project.

        Raises:
            UsageError: something stands there. ProjectError: it cannot be written.
        """
        with start_draft(path, overwrite=overwrite) as draft:
            if examples is not None:
                try:
                    shutil.copytree(examples, draft.examples.root)
                except (OSError, shutil.Error) as error:
                    raise ProjectError(f"examples cannot be copied from {examples}: {error}") from error
            draft.publish(model=model, device=device, cards=cards, capture_info=capture_info)
        return Project.open(path)

    @staticmethod
    def open(path: Path) -> Project:
        """Open a project, migrating an older one.

        Raises:
            NotFound: there is no project. SchemaTooNew: a newer kernelforge wrote it.
            ProjectError: damaged, or not writable.
        """
        require_project(path)
        engine, row = open_database(path / DATABASE)
        return Project(path, engine, model=row.model, device=row.device, created=row.created)

    @property
    def examples(self) -> ExampleStore:
        """The captured tensors."""
        return ExampleStore(self.path / EXAMPLES)

    @property
    def capture_info(self) -> Mapping[str, Json]:
        """What the capture said of itself: coverage, unsupported operators, warnings.

        Raises:
            ProjectError: the file is missing or damaged.
        """
        file = self.path / CAPTURE
        try:
            info = json.loads(file.read_bytes())
        except (OSError, ValueError) as error:
            raise ProjectError(f"{file} cannot be read: {error}", hint="capture again with --overwrite") from error
        if not isinstance(info, dict):
            raise ProjectError(f"{file} holds no JSON object", hint="capture again with --overwrite")
        return info

    def cards(self) -> tuple[OperatorCard, ...]:
        """The project's cards, largest share first. Read once: cards never change after the capture."""
        if self._cards is None:
            cards = load_cards(self.path / CARDS)
            self._cards = tuple(sorted(cards, key=lambda c: (-c.share, c.operator)))
        return self._cards

    def record(self, prefix: str) -> VariantRecord:
        """A variant by a prefix of its id, by its label (softmax-1a2b3c4d), or by its operator if that has only one.

        Raises:
            NotFound: none, or more than one.
        """
        records = [r for card in self.cards() for r in card.variants]
        found = [r for r in records if _is_called(r, prefix)]
        if len(found) == 1:
            return found[0]
        labels = [r.variant.label for r in (found or records)]
        listed = ", ".join(labels[:8]) + (", ..." if len(labels) > 8 else "")
        if not found:
            raise NotFound(f"no variant is called {prefix!r}", hint=f"variants: {listed}" if listed else "")
        raise NotFound(f"{prefix!r} names {len(found)} variants", hint=f"name one of {listed}")

    def append(self, trial: Trial, *, parent: str = "") -> Node:
        """Store a finished trial, and the binary if it was accepted. The same trial again is the same node.

        Raises:
            NotFound: `parent` is no node of the variant, or an accepted candidate's binary is gone.
            ProjectError: the project cannot be written, the binary is not the one that was judged, or the numbers of
                the outcome are none. UsageError: the candidate is none that can be read again.
        """
        check_own(trial)
        # The blob before the row: a row never names a binary that is not there.
        artifact = self._keep_binary(trial)
        with writing(self._engine) as session:
            return self._add(session, trial, parent, artifact)

    def _add(self, session: Session, trial: Trial, parent: str, artifact: str | None) -> Node:
        own_id = node_id(trial.candidate, trial.started)
        known = session.get(NodeRow, own_id)
        if known is not None:
            return _same(known, trial, parent, self.path / BLOBS)
        if parent:
            _check_node(session, parent, trial.candidate.variant_id)
        of_variant = select(func.max(NodeRow.number)).where(NodeRow.variant_id == trial.candidate.variant_id)
        number = (session.scalar(of_variant) or 0) + 1
        row = row_of(trial, node_id=own_id, number=number, parent=parent, artifact=artifact)
        add_node(session, row, summarise(trial.candidate, trial.outcome))
        return node_of_row(row, self.path / BLOBS)

    def nodes(self, variant_id: str, *, after: int = 0) -> tuple[Node, ...]:
        """Nodes of a variant with a number above `after`, oldest first. Binaries are those of `binary`, unchecked.

        Candidates and outcomes are read when they are asked for; a damaged one raises ProjectError then.

        Raises:
            ProjectError: the file is damaged.
        """
        return read_nodes(self._engine, variant_id, self.path / BLOBS, after=after)

    def orders(self, *, closed: bool = False) -> tuple[Order, ...]:
        """The open work orders, or all, oldest first. Damaged ones are left out, with a warning in the log.

        Raises:
            ProjectError: the file is damaged.
        """
        with reading(self._engine) as session:
            return all_orders(session, self._warned) if closed else open_orders(session, self._warned)

    def order(self, order_id: str) -> Order:
        """A work order in whatever state, by its id or a prefix of it that only it has.

        Raises:
            NotFound: none, or more than one. ProjectError: it is damaged.
        """
        with reading(self._engine) as session:
            return find_order(session, order_id)

    def change_orders(self, decide: Callable[[Sequence[Order]], Sequence[Order]]) -> tuple[Order, ...]:
        """Show the open orders to `decide` and store what it returns, new or changed, in one transaction.

        Raises:
            ProjectError: the project cannot be written. UsageError: a candidate is none that can be read again.
        """
        with writing(self._engine) as session:
            changed = tuple(decide(open_orders(session, self._warned)))
            for order in changed:
                store_order(session, order)
            return changed

    def finish(self, order_id: str, trial: Trial, *, parent: str = "") -> Node:
        """Store the trial of an order and close it, both or neither. A finished order gives its node again.

        Raises:
            As of `append`; NotFound also if there is no such order.
        """
        check_own(trial)
        artifact = self._keep_binary(trial)
        with writing(self._engine) as session:
            order = find_order(session, order_id)
            if order.node:
                row = session.get(NodeRow, order.node)
                assert row is not None, "a foreign key"
                return node_of_row(row, self.path / BLOBS)
            node = self._add(session, trial, parent, artifact)
            session.flush()
            store_order(session, replace(order, state="done", candidate=trial.candidate, node=node.id, owner=""))
            return node

    def open_call(self, intent: Intent, *, run: str, usd: float | None, tokens: int | None) -> Call | Limit:
        """Store an intent, unless with it the run would pass a limit; which one, if so. Both in one transaction.

        Raises:
            ProjectError: the project cannot be written.
        """
        with writing(self._engine) as session:
            return open_call(session, intent, run=run, usd=usd, tokens=tokens)

    def close_call(self, call_id: str, end: Completion | Failure) -> None:
        """Store what came of a call of a language model.

        Raises:
            ProjectError: there is no such call, or the project cannot be written.
        """
        with writing(self._engine) as session:
            close_call(session, call_id, end)

    def calls(self, *, run: str = "", order: str = "", texts: bool = True) -> tuple[Call, ...]:
        """All calls of language models, or those of a run or of an order, oldest first.

        Args:
            texts: with prompts and replies, which are long.

        Raises:
            ProjectError: one is damaged.
        """
        with reading(self._engine) as session:
            return read_calls(session, run=run, order=order, texts=texts)

    def keep_profile(self, binary: str, profile: Profile) -> None:
        """Store what a profiler measured of a binary, by its sha256, unless that device has measured it later.

        Raises:
            ProjectError: the project cannot be written.
        """
        with writing(self._engine) as session:
            keep_profile(session, binary, profile)

    def profiles(self) -> Mapping[str, Profile]:
        """The newest profile of each binary that has one, by its sha256.

        Raises:
            ProjectError: the file is damaged.
        """
        with reading(self._engine) as session:
            return read_profiles(session, self._warned)

    def profile_of(self, node: Node) -> Profile | None:
        """What a profiler measured of a node's binary.

        Raises:
            ProjectError: the file is damaged.
        """
        return self.profiles().get(node.summary.binary) if node.summary.binary else None

    def stored_trials(self) -> tuple[StoredTrial, ...]:
        """All finished trials as they are stored, a variant's in their order, so that parents come first.

        Raises:
            ProjectError: the file is damaged.
        """
        query = select(NodeRow).order_by(NodeRow.variant_id, NodeRow.number)
        with reading(self._engine) as session:
            return tuple(stored_of(row) for row in session.scalars(query))

    def add_trials(self, trials: Sequence[StoredTrial], blobs: Mapping[str, bytes]) -> tuple[StoredTrial, ...]:
        """Add trials of another copy of the project that are not here, all of them or none; they get the next numbers.

        Args:
            trials: a parent comes before its children.
            blobs: binaries by sha256. Of an accepted trial without `artifact` none is needed.

        Returns:
            Those that were added, as they are stored now.

        Raises:
            ProjectError: a trial is not of this project or not what its id says, its parent or binary is nowhere, or
                the project cannot be written.
        """
        variants = {r.variant.id for card in self.cards() for r in card.variants}
        with writing(self._engine) as session:
            nodes = {row[0]: row[1] for row in session.execute(select(NodeRow.id, NodeRow.variant_id))}
            rows = (session.get(NodeRow, t.id) for t in trials if t.id in nodes)
            stored = {row.id: stored_of(row) for row in rows if row is not None}
            new = check_foreign(trials, variants=variants, stored=stored, nodes=nodes)
            self._keep_foreign_binaries({t.artifact for t, _ in new if t.artifact}, blobs)
            last = select(NodeRow.variant_id, func.max(NodeRow.number)).group_by(NodeRow.variant_id)
            numbers: dict[str, int] = {row[0]: row[1] for row in session.execute(last)}
            added = []
            for trial, summary in new:
                numbers[trial.variant_id] = numbers.get(trial.variant_id, 0) + 1
                added.append(replace(trial, number=numbers[trial.variant_id]))
                values = {**asdict(added[-1]), "parent": trial.parent or None, "artifact": trial.artifact or None}
                add_node(session, NodeRow(**values), summary)
            return tuple(added)

    def _keep_foreign_binaries(self, digests: Collection[str], blobs: Mapping[str, bytes]) -> None:
        for digest in sorted(digests):
            if digest not in blobs or digest_bytes(blobs[digest]) != digest:
                raise ProjectError(f"binary {digest[:12]} is missing or was changed", hint="pack the project again")
        for digest in sorted(digests):
            target = self.path / BLOBS / digest
            try:
                write_atomically(target, blobs[digest])
            except OSError as error:
                raise ProjectError(
                    f"cannot write {target}: {error.strerror}", hint="free disk space, or check its rights"
                ) from error

    def record_decisions(self, decisions: Mapping[str, str], nodes: Mapping[str, str]) -> None:
        """Keep what an export decided; replaces what was known of the variants in either mapping.

        Args:
            decisions: variant id -> decision, where it differs from what the search says.
            nodes: variant id -> id of the node that was decided on. Those without a decision are as the search says.

        Raises:
            NotFound: a decision's variant has no such node. ProjectError: the project cannot be written.
        """
        recorded = time.time()
        with writing(self._engine) as session:
            session.execute(delete(DecisionRow).where(DecisionRow.variant_id.in_({*decisions, *nodes})))
            for variant_id, text in decisions.items():
                node = nodes.get(variant_id, "")
                _check_node(session, node, variant_id)
                session.add(DecisionRow(variant_id=variant_id, decision=text, node=node, recorded=recorded))

    def decisions(self) -> Mapping[str, StoredDecision]:
        """What exports decided, by variant id. Each holds only while its node is the variant's best.

        Raises:
            ProjectError: the file is damaged.
        """
        with reading(self._engine) as session:
            return {
                row.variant_id: StoredDecision(text=row.decision, node=row.node, recorded=row.recorded)
                for row in session.scalars(select(DecisionRow))
            }

    def put_binary(self, path: Path) -> str:
        """Copy a binary into the project; returns its sha256.

        Raises:
            NotFound: no such file. ProjectError: the project cannot be written.
        """
        return put_blob(self.path / BLOBS, path)

    def binary(self, digest: str) -> Path:
        """The stored binary of that sha256.

        Raises:
            NotFound: not stored. ProjectError: it was changed since.
        """
        return get_blob(self.path / BLOBS, digest)

    def _keep_binary(self, trial: Trial) -> str | None:
        if not isinstance(trial.outcome, Scored):
            return None
        artifact = trial.outcome.artifact
        stored = self.put_binary(artifact.path)
        if stored != artifact.digest:
            raise ProjectError(
                f"{artifact.path} is not the binary that was judged", hint="clear the build cache and run again"
            )
        return stored


def require_project(path: Path) -> None:
    """Check that a project is there; it is not opened.

    Raises:
        NotFound: there is none. ProjectError: the folder cannot be read.
    """
    try:
        exists, is_project = path.exists(), (path / DATABASE).exists()
    except OSError as error:
        raise ProjectError(f"{path} cannot be read: {error.strerror}", hint="check its rights") from error
    if not exists:
        raise NotFound(f"no project at {path}", hint=f"capture a model first: {_capture_command(path)}")
    if not is_project:
        hint = "name the folder of a project" if path.is_file() else _capture_command(path)
        raise NotFound(f"{path} is no project: it has no {DATABASE}", hint=hint)


def _capture_command(path: Path) -> str:
    return f"kforge capture MODEL -o {shlex.quote(str(path))}"


def _is_called(record: VariantRecord, prefix: str) -> bool:
    variant, prefix = record.variant, prefix.lower()
    operator, _, start = prefix.rpartition("-")
    by_label = bool(start) and operator == variant.operator and variant.id.startswith(start)
    return prefix == variant.operator or by_label or (bool(prefix) and variant.id.startswith(prefix))


def _check_node(session: Session, node: str, variant_id: str) -> None:
    row = session.get(NodeRow, node)
    if row is None or row.variant_id != variant_id:
        raise NotFound(f"{node[:12]!r} is no node of variant {variant_id[:8]}")


def _same(row: NodeRow, trial: Trial, parent: str, blobs: Path) -> Node:
    # By their JSON: the worst error may be NaN, which equals nothing.
    outcome = canonical_json(outcome_to_json(trial.outcome))
    if (row.outcome, row.seconds, row.parent or "") != (outcome, trial.seconds, parent):
        raise ProjectError(f"another trial of the same candidate and start is stored as node {row.number}")
    return node_of_row(row, blobs)
