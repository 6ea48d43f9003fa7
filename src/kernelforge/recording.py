"""A search on file: what was asked, what the model answered, what came of each trial. Owns `Recording`.

One JSON document a line, written the moment it is there, so that a killed search leaves what it had. A recorded search
asks for one proposal at a time: what a prompt says of the trials before it then follows from their order alone, and
`replaying` can make every prompt again, byte for byte.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from kernelforge.build.types import Backend
from kernelforge.cards.serial import record_from_json, record_to_json
from kernelforge.cards.types import VariantRecord
from kernelforge.digest import Json, canonical_json, decode_float, encode_float
from kernelforge.errors import NotFound, ProjectError, SchemaTooNew, UsageError
from kernelforge.evaluate.types import Trial
from kernelforge.explain.profile import Profile
from kernelforge.generate.llm.account import Call, Failure
from kernelforge.generate.llm.generator import LLMGenerator
from kernelforge.generate.llm.types import ChatRequest, Completion, Turn
from kernelforge.generate.types import Generator
from kernelforge.search.events import Event, TrialFinished
from kernelforge.search.loop import SearchOptions
from kernelforge.search.owners import owner_of_this_process
from kernelforge.search.study import Study
from kernelforge.search.types import Node
from kernelforge.store.calls import end_from_json, end_to_json
from kernelforge.store.profiles import profile_from_json, profile_to_json
from kernelforge.store.serial import (
    Fields,
    candidate_from_json,
    candidate_to_json,
    checked_text,
    outcome_from_json,
    outcome_to_json,
    parse_json,
)
from kernelforge.wording import plural

if TYPE_CHECKING:
    from kernelforge.store.project import Project

logger = logging.getLogger(__name__)

FORMAT, VERSION = "kernelforge.recording", 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """How the search was begun: all that its prompts and choices follow from, beside replies and trials.

    Attributes:
        project: the model's name. device: "cpu" or "cuda". model: "PROVIDER/MODEL".
        backend, brief, target: as in `Request`. records: the variants, in their order.
        strategy, policy, prior_floors: as in `SearchOptions`.
        max_output_tokens: of the model. usd, tokens: limits, None for no limit.
        before: trials that were there, oldest first. profiles: of their binaries, by sha256; prompts tell of them.
    """

    project: str
    device: str
    model: str
    backend: str
    brief: str
    target: tuple[str, ...]
    records: tuple[VariantRecord, ...]
    strategy: str
    policy: str
    prior_floors: Mapping[str, float]
    max_output_tokens: int
    usd: float | None
    tokens: int | None
    before: tuple[RecordedTrial, ...] = ()
    profiles: Mapping[str, Profile] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTrial:
    """A trial with the node ids that it had, so that revisions are told from starts."""

    node: str
    parent: str
    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request and what came of it."""

    request: ChatRequest
    end: Completion | Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A recording that was read. Exchanges and trials in their order."""

    header: Header
    exchanges: tuple[Exchange, ...]
    trials: tuple[RecordedTrial, ...]


class RecordingWriter:
    """Writes a recording. For the thread of a search; each line is on disk when the call returns.

    It ends, with a warning, where another process touches the variants: what the search does then follows from that
    process too, and could not be replayed.
    """

    def __init__(self, path: Path, header: Header, *, is_alone: Callable[[int], bool]) -> None:
        """Args:
            is_alone: given the number of trials so far, whether these are all that the variants have.

        Raises:
            UsageError: something stands at `path`, or it cannot be written.
        """
        try:
            self._file: IO[str] = path.open("x", encoding="utf-8")
        except FileExistsError as error:
            raise UsageError(f"{path} exists", hint="name a new file: a recording is never written over") from error
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}", hint="name another file") from error
        self._path, self._is_alone = path, is_alone
        self._trials, self._ended = len(header.before), False
        self._write({"format": FORMAT, "version": VERSION, **_header_to_json(header)})

    def __enter__(self) -> RecordingWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def exchange(self, call: Call) -> None:
        """A call that has ended."""
        assert call.end is not None, "it has ended"
        text = call.end.text if isinstance(call.end, Completion) else None
        if self._goes_on():
            self._write({
                "event": "exchange", "request": _request_to_json(call.intent.request), "end": end_to_json(call.end),
                "reply": text,
            })  # fmt: skip

    def listening(self, on_event: Callable[[Event], None]) -> Callable[[Event], None]:
        """A listener that writes down the trials, and passes everything on."""

        def listen(event: Event) -> None:
            if isinstance(event, TrialFinished):
                self._trials += 1
                if self._goes_on():
                    self._write({"event": "trial", **_trial_to_json(recorded(event.node))})
            on_event(event)

        return listen

    def _goes_on(self) -> bool:
        if not self._ended and not self._is_alone(self._trials):
            self._ended = True
            logger.warning("%s ends here: others work on its variants, and that cannot be replayed", self._path)
        return not self._ended

    def _write(self, document: Mapping[str, Json]) -> None:
        try:
            self._file.write(canonical_json(document) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise UsageError(
                f"{self._path} cannot be written: {error.strerror}",
                hint="nothing else is lost: free some space, or go on without --record",
            ) from error


def begin_recording(
    path: Path,
    project: Project,
    records: Sequence[VariantRecord],
    generator: Generator,
    options: SearchOptions,
    *,
    policy: str,
    backend: Backend,
) -> tuple[RecordingWriter, Generator, SearchOptions]:
    """The writer of a search that is about to begin, its generator, and its options: one thing after the other.

    Raises:
        UsageError: it is none of a language model, or something waits to be judged or mended; or see `RecordingWriter`.
    """
    if not isinstance(generator, LLMGenerator):
        raise UsageError("there is nothing to record", hint="only searches of a language model: --generator llm:...")
    study = Study(project, records, strategy=options.strategy)
    study.take_left_over(generator.left_over)
    # Those that were only asked for, by a process that is gone, come to nothing.
    left = [o for o in project.orders() if o.variant_id in study.tracks and not study.is_lost(o)]
    if left:
        raise UsageError(
            f"other searches have left {plural(len(left), 'work order')} to be judged or mended, of which a recording "
            "would not know",
            hint="finish them first, by the same command without --record",
        )
    nodes = sorted((n for track in study.tracks.values() for n in track.nodes), key=lambda n: (n.variant_id, n.number))
    binaries = {n.summary.binary for n in nodes}
    header = Header(
        project=project.model, device=project.device, model=generator.client.model, backend=backend.name,
        brief=backend.brief(), target=tuple(options.target), records=tuple(r for r in records if not r.forgeable),
        strategy=options.strategy.name, policy=policy, prior_floors=options.prior_floors,
        max_output_tokens=generator.client.max_output_tokens, usd=generator.account.usd,
        tokens=generator.account.tokens, before=tuple(map(recorded, nodes)),
        profiles={binary: found for binary, found in project.profiles().items() if binary in binaries},
    )  # fmt: skip

    def is_alone(trials: int) -> bool:
        """Nobody else has added a trial, or put an order in."""
        mine = ("", owner_of_this_process())
        for order in project.orders():
            by_hand = order.candidate is not None and order.candidate.generator != generator.name
            if order.variant_id in study.tracks and (order.owner not in mine or by_hand):
                return False
        return sum(len(project.nodes(variant)) for variant in study.tracks) == trials

    writer = RecordingWriter(path, header, is_alone=is_alone)
    made = replace(generator, account=replace(generator.account, listen=writer.exchange))
    one_by_one = replace(options, propose_threads=0, build_threads=0, prefetch=1, repairing=made)
    return writer, made, one_by_one


def read_recording(path: Path) -> Recording:
    """Read a recording; a last line that was cut off is left out.

    Raises:
        NotFound: no such file. ProjectError: it is none, or damaged. SchemaTooNew: of a newer kernelforge.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError as error:
        raise NotFound(
            f"no file at {path}", hint="make one with: kforge forge --generator llm:... --record FILE"
        ) from error
    except (OSError, ValueError) as error:
        raise ProjectError(f"{path} cannot be read: {error}") from error
    try:
        first, *rest = [_object(line) for line in lines[:-1]]
        if first.get("format") != FORMAT:
            raise ValueError("it is no recording")
        version = first.get("version")
        if not isinstance(version, int) or version < 1:
            raise ValueError("it names no version")
        if version > VERSION:
            raise SchemaTooNew(f"{path} is of a newer kernelforge", hint="upgrade kernelforge")
        header = _header_from_json(first)
        exchanges = tuple(_exchange(d) for d in rest if d["event"] == "exchange")
        trials = tuple(_trial_from_json(d) for d in rest if d["event"] == "trial")
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError, ArithmeticError) as error:
        raise ProjectError(f"{path} cannot be read: {error}", hint="record the search again") from error
    return Recording(header=header, exchanges=exchanges, trials=trials)


def recorded(node: Node) -> RecordedTrial:
    """The trial of a node."""
    trial = Trial(candidate=node.candidate, outcome=node.outcome, started=node.started, seconds=node.seconds)
    return RecordedTrial(node=node.id, parent=node.parent, trial=trial)


def _trial_to_json(recorded: RecordedTrial) -> dict[str, Json]:
    trial = recorded.trial
    return {
        "node": recorded.node, "parent": recorded.parent, "candidate": candidate_to_json(trial.candidate),
        "source": trial.candidate.source, "outcome": outcome_to_json(trial.outcome),
        "started": encode_float(trial.started), "seconds": encode_float(trial.seconds),
    }  # fmt: skip


def _trial_from_json(data: Json) -> RecordedTrial:
    fields = Fields(data)
    trial = Trial(
        candidate=candidate_from_json(fields.value("candidate"), fields.text("source")),
        outcome=outcome_from_json(fields.value("outcome")), started=fields.number("started"),
        seconds=fields.number("seconds"),
    )  # fmt: skip
    return RecordedTrial(node=fields.text("node"), parent=fields.text("parent"), trial=trial)


def _request_to_json(request: ChatRequest) -> Json:
    return {
        "system": request.system, "stable": request.stable, "max_output_tokens": request.max_output_tokens,
        "turns": [[turn.role, turn.text] for turn in request.turns],
    }  # fmt: skip


def _exchange(data: Mapping[str, Json]) -> Exchange:
    fields, asked = Fields(data), Fields(data["request"])
    turns = tuple(
        Turn(role=_role(role), text=checked_text(text, "turns")) for role, text in _pairs(asked.value("turns"))
    )
    reply = fields.value("reply")
    return Exchange(
        request=ChatRequest(
            system=asked.text("system"), stable=asked.text("stable"), turns=turns,
            max_output_tokens=asked.integer("max_output_tokens"),
        ),
        end=end_from_json(fields.value("end"), text=None if reply is None else fields.text("reply")),
    )  # fmt: skip


def _header_to_json(header: Header) -> dict[str, Json]:
    return {
        "project": header.project, "device": header.device, "model": header.model, "backend": header.backend,
        "brief": header.brief, "target": list(header.target), "strategy": header.strategy, "policy": header.policy,
        "prior_floors": {key: encode_float(floor) for key, floor in header.prior_floors.items()},
        "max_output_tokens": header.max_output_tokens, "usd": header.usd, "tokens": header.tokens,
        "variants": [record_to_json(record) for record in header.records],
        "before": [_trial_to_json(trial) for trial in header.before],
        "profiles": [profile_to_json(*each) for each in sorted(header.profiles.items())],
    }  # fmt: skip


def _header_from_json(data: Mapping[str, Json]) -> Header:
    fields = Fields(data)
    floors, tokens = _object_of(fields.value("prior_floors")), fields.integer_or_none("tokens")
    return Header(
        project=fields.text("project"), device=fields.text("device"), model=fields.text("model"),
        backend=_backend(fields.text("backend")), brief=fields.text("brief"), strategy=fields.text("strategy"),
        target=tuple(checked_text(line, "target") for line in _list(fields.value("target"))),
        policy=fields.text("policy"), prior_floors={key: decode_float(floor) for key, floor in floors.items()},
        max_output_tokens=fields.integer("max_output_tokens"), usd=fields.number_or_none("usd"), tokens=tokens,
        records=tuple(record_from_json(_object_of(record)) for record in _list(fields.value("variants"))),
        before=tuple(_trial_from_json(trial) for trial in _list(fields.value("before"))),
        profiles=dict(profile_from_json(profile) for profile in _list(fields.value("profiles"))),
    )  # fmt: skip


def _backend(name: str) -> str:
    if name not in ("cpp", "cuda"):
        raise ValueError(f"no backend {name!r}")
    return name


def _role(value: Json) -> Literal["user", "assistant"]:
    if value not in ("user", "assistant"):
        raise ValueError("a turn is nobody's")
    return "user" if value == "user" else "assistant"


def _pairs(value: Json) -> list[tuple[Json, Json]]:
    return [(first, second) for first, second in map(_list, _list(value))]


def _object(line: str) -> Mapping[str, Json]:
    return _object_of(parse_json(line))


def _object_of(value: Json) -> Mapping[str, Json]:
    if not isinstance(value, Mapping):
        raise ValueError("an object is missing")
    return value


def _list(value: Json) -> Sequence[Json]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError("a list is missing")
    return value
