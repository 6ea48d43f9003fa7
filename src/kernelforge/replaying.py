"""Runs a recorded search again without model, compiler and judge, and compares: nothing may differ, not a byte.

The real search, strategies and prompts run; replies and outcomes are those of the recording. So a recording is a test
of the search, and a way to show one to somebody who has neither key nor GPU.
"""

from __future__ import annotations

import difflib
import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kernelforge.build.abi import prelude
from kernelforge.build.types import BuildFailure
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import Variant, VariantRecord
from kernelforge.errors import ForgeError, HarnessError
from kernelforge.evaluate.types import Trial
from kernelforge.explain.profile import Profile
from kernelforge.generate.llm.account import Account, Failure, MemoryCalls
from kernelforge.generate.llm.generator import NAME as LLM_NAME
from kernelforge.generate.llm.generator import LLMGenerator
from kernelforge.generate.llm.types import ChatRequest, Completion, ProviderFailure, TokenUsage
from kernelforge.generate.types import Candidate, Exhausted, NoCandidate, Proposal, Request
from kernelforge.recording import RecordedTrial, Recording, read_recording
from kernelforge.report.replay import ReplayReport
from kernelforge.search.lineage import best_node
from kernelforge.search.loop import SearchOptions, run_search
from kernelforge.search.memory import MemoryStore
from kernelforge.search.scheduler import get_policy
from kernelforge.search.strategies import get_strategy
from kernelforge.search.types import Budget, Node, node_of


class ReplayDiffers(ForgeError):
    """A replay asks or stores something else than the recording."""

    exit_code = 4


def replay_file(path: Path) -> ReplayReport:
    """Replay a recording.

    Raises:
        NotFound, ProjectError, SchemaTooNew: see `read_recording`. ReplayDiffers: where it differs first, and how.
    """
    recording = read_recording(path)
    header = recording.header
    store, client = _ReplayStore(recording), _ReplayClient(recording)
    generator = LLMGenerator(
        client=client, account=Account(store=MemoryCalls(), run="replay", usd=header.usd, tokens=header.tokens)
    )
    options = SearchOptions(
        strategy=get_strategy(header.strategy), policy=get_policy(header.policy), prior_floors=header.prior_floors,
        build_threads=0, prefetch=1, repairing=generator, target=header.target,
    )  # fmt: skip
    run_search(
        store, generator, _ReplayBackend(header.backend, header.brief), _NoJudge(), Budget(),
        variants=header.records, prelude=lambda variant: prelude(variant, header.backend), on_event=lambda _: None,
        should_stop=lambda: store.is_complete, options=options,
    )  # fmt: skip
    if not store.is_complete:
        raise ReplayDiffers(f"the replay ends after {store.done} of {len(recording.trials)} trials")
    return ReplayReport(
        path=str(path), project=header.project, model=header.model, trials=store.done, calls=client.asked,
        calls_left=len(recording.exchanges) - client.asked,
        best={r.variant.label: _best(store.nodes(r.variant.id)) for r in header.records},
    )  # fmt: skip


def _best(nodes: Sequence[Node]) -> float | None:
    best = best_node(nodes)
    return None if best is None else best.summary.speedup


class _ReplayStore(MemoryStore):
    """Takes the recorded trial in place of the one that it is told, if the candidate is the same to the byte."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(Path())  # no examples: nothing is judged
        self._recording = recording
        self.done = 0
        for each in recording.header.before:
            self._keep(each)

    @property
    def is_complete(self) -> bool:
        return self.done == len(self._recording.trials)

    def append(self, trial: Trial, *, parent: str = "") -> Node:
        if self.is_complete:
            raise ReplayDiffers(f"the replay goes on after the last of {self.done} trials")
        expected = self._recording.trials[self.done]
        if expected.trial.candidate != trial.candidate or expected.parent != parent:
            difference = _candidates(expected.trial.candidate, trial.candidate)
            raise ReplayDiffers(f"trial {self.done + 1} has another candidate:\n{difference}")
        self.done += 1
        return self._keep(expected)

    def profiles(self) -> Mapping[str, Profile]:
        return self._recording.header.profiles

    def _keep(self, each: RecordedTrial) -> Node:
        number = len(self.nodes(each.trial.candidate.variant_id)) + 1
        node = node_of(id=each.node, number=number, parent=each.parent, trial=each.trial)
        self.stored.append(node)
        return node


class RecordedProposals:
    """A generator that proposes a recording's candidates again, by their position: to have them judged somewhere else.

    Whatever the judge says now: a repair is proposed when one is wanted and the recording has it. Thread-safe.
    """

    name = LLM_NAME

    def __init__(self, recording: Recording) -> None:
        self._lock = threading.Lock()
        self._repair_of: dict[str, Candidate] = {}
        self._proposals: dict[str, deque[Candidate]] = {}
        for each in recording.trials:
            candidate = each.trial.candidate
            if candidate.repairs:
                self._repair_of.setdefault(candidate.repairs, candidate)
            else:
                self._proposals.setdefault(candidate.variant_id, deque()).append(candidate)
        self.most_repairs = len(self._repair_of)

    def propose(self, request: Request) -> Proposal:
        """The next one of the variant, or the repair of the last attempt."""
        if request.attempts:
            repair = self._repair_of.get(request.attempts[-1].candidate.id)
            return _free(repair) if repair else NoCandidate(reason="the recording has no repair of it")
        with self._lock:
            waiting = self._proposals.get(request.variant.id)
            if not waiting:
                return Exhausted(reason=f"the recording has no more kernels of {request.variant.label}")
            return _free(waiting.popleft())

    def left_over(self, orders: Collection[str]) -> Sequence[tuple[str, Candidate]]:
        """None: nothing is paid for."""
        del orders
        return ()


def _free(candidate: Candidate) -> Candidate:
    """Nobody is paid for it now."""
    return replace(candidate, tokens_in=0, tokens_out=0, cost_usd=0.0)


class _ReplayClient:
    """Gives the recorded ends, one after the other, if the requests are the same to the byte."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.asked = 0

    @property
    def model(self) -> str:
        return self._recording.header.model

    @property
    def max_output_tokens(self) -> int:
        return self._recording.header.max_output_tokens

    @property
    def has_price(self) -> bool:
        return True

    def cost_usd(self, usage: TokenUsage) -> float | None:
        raise AssertionError(f"completions have their cost: {usage}")

    def bound_usd(self, request: ChatRequest) -> float | None:
        """The limits were held when it was recorded."""
        del request
        return 0.0

    def complete(self, request: ChatRequest) -> Completion:
        if self.asked == len(self._recording.exchanges):
            raise ReplayDiffers(f"the replay asks once more after all {self.asked} calls")
        expected = self._recording.exchanges[self.asked]
        if expected.request != request:
            raise ReplayDiffers(
                f"call {self.asked + 1} has another prompt:\n{_diff(_text(expected.request), _text(request))}"
            )
        self.asked += 1
        if isinstance(expected.end, Failure):
            end = expected.end
            raise ProviderFailure(end.kind, end.detail, seconds=end.seconds, attempts=end.attempts)
        return expected.end


class _ReplayBackend:
    """Builds nothing: what came of each candidate is in the recording."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text

    def brief(self) -> str:
        return self.text

    def build(self, candidate: Candidate, variant: Variant, *, timeout_s: float = 120.0) -> BuildFailure:
        return BuildFailure(reason="replayed", detail=f"{candidate.id} {variant.id} {timeout_s}")


class _NoJudge:
    def evaluate(
        self, candidate: Candidate, record: VariantRecord, examples: ExampleStore, *, built: object = None
    ) -> Trial:
        raise HarnessError(f"nothing is built in a replay: {candidate.id} {record} {examples} {built}")


def _text(request: ChatRequest) -> str:
    turns = [f"[{turn.role}]\n{turn.text}" for turn in request.turns]
    return "\n".join((request.system, request.stable, *turns, f"[at most {request.max_output_tokens} tokens]"))


def _candidates(expected: Candidate, got: Candidate) -> str:
    return _diff("\n".join(_lines(expected)), "\n".join(_lines(got)))


def _lines(candidate: Candidate) -> list[str]:
    names = [name for name in candidate.__slots__ if name != "source"]
    return [*(f"{name}: {getattr(candidate, name)}" for name in names), candidate.source]


def _diff(expected: str, got: str, *, most: int = 40) -> str:
    lines = difflib.unified_diff(expected.splitlines(), got.splitlines(), "recorded", "replayed", lineterm="", n=1)
    return "\n".join(list(lines)[:most])
