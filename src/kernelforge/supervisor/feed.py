"""What happens in a run, as lines of JSON that any process can follow. Owns `FeedWriter`, `Feed`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

from kernelforge.search.events import Event, PhaseChanged, SearchProgress, TrialFinished, VariantExhausted
from kernelforge.search.types import Node

Nodes: TypeAlias = Callable[[str, int], Node | None]
"""Variant id and number -> the stored node, None if it is not there."""


class FeedWriter:
    """Appends the events of one worker's process.

    Args:
        path: the file. trials: those of the worker's earlier processes, which the search does not count.
    """

    def __init__(self, path: Path, *, trials: int) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")
        self._trials = trials
        # A process that was killed may have left half a line.
        self._file.write("\n")
        self._write({"kind": "start"})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()

    def __call__(self, event: Event | str) -> None:
        match event:
            case str():
                self._write({"kind": "note", "text": event})
            case PhaseChanged():
                self._write({
                    "kind": "phase", "variant": event.variant, "trial": event.trial, "phase": event.phase
                })  # fmt: skip
            case TrialFinished():
                self._write({
                    "kind": "trial", "variant": event.variant, "variant_id": event.node.variant_id,
                    "number": event.node.number, "best": event.best_speedup,
                })  # fmt: skip
            case VariantExhausted():
                self._write({"kind": "exhausted", "variant": event.variant, "reason": event.reason})
            case SearchProgress():
                expected = None if event.expected is None else event.expected + self._trials
                self._write({
                    "kind": "progress", "done": event.done + self._trials, "expected": expected, "eta_s": event.eta_s
                })  # fmt: skip

    def _write(self, record: dict[str, object]) -> None:
        self._file.write(json.dumps(record) + "\n")


class Feed:
    """The events of all workers of a run, as if one search had sent them.

    Args:
        paths: the workers' files; they need not exist yet.
        nodes: where the nodes of finished trials are found.
    """

    def __init__(self, paths: list[Path], nodes: Nodes) -> None:
        self._paths, self._nodes = paths, nodes
        self._read = [0] * len(paths)
        self._open: list[dict[tuple[str, int], None]] = [{} for _ in paths]
        self._progress: dict[int, SearchProgress] = {}

    def poll(self) -> list[Event | str]:
        """What is new since the last call."""
        return [event for worker in range(len(self._paths)) for event in self._new(worker)]

    def _new(self, worker: int) -> Iterator[Event | str]:
        try:
            with self._paths[worker].open("rb") as file:
                file.seek(self._read[worker])
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._read[worker] += len(whole)
        for line in whole.splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue  # torn by a kill
            yield from self._events(worker, record)

    def _events(self, worker: int, record: dict[str, Any]) -> Iterator[Event | str]:
        match record:
            case {"kind": "start"}:
                # What a process that died had begun ends here.
                for variant, trial in self._open[worker]:
                    yield PhaseChanged(variant=variant, trial=trial, phase="done")
                self._open[worker].clear()
            case {"kind": "note", "text": text}:
                yield str(text)
            case {"kind": "phase", "variant": variant, "trial": trial, "phase": phase}:
                # Numbers of different workers must not meet.
                number = trial * len(self._paths) + worker
                self._open[worker][variant, number] = None
                if phase == "done":
                    self._open[worker].pop((variant, number))
                yield PhaseChanged(variant=variant, trial=number, phase=phase)
            case {"kind": "trial", "variant": variant, "variant_id": variant_id, "number": number, "best": best}:
                node = self._nodes(variant_id, number)
                if node is not None:
                    yield TrialFinished(variant=variant, node=node, best_speedup=best)
            case {"kind": "exhausted", "variant": variant, "reason": reason}:
                yield VariantExhausted(variant=variant, reason=reason)
            case {"kind": "progress", "done": done, "expected": expected, "eta_s": eta_s}:
                self._progress[worker] = SearchProgress(done=done, expected=expected, eta_s=eta_s)
                yield self._together()

    def _together(self) -> SearchProgress:
        each = self._progress.values()
        expected = [p.expected for p in each]
        etas = [p.eta_s for p in each if p.eta_s is not None]
        known = None not in expected and len(expected) == len(self._paths)
        return SearchProgress(
            done=sum(p.done for p in each), expected=sum(e or 0 for e in expected) if known else None,
            eta_s=max(etas, default=None),
        )  # fmt: skip
