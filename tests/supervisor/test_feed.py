"""Events as lines of JSON: of several workers, torn by a kill, and after a restart."""

from __future__ import annotations

from pathlib import Path

from kernelforge.build.types import BuildFailure
from kernelforge.evaluate.types import Trial
from kernelforge.generate.types import Candidate
from kernelforge.search.events import Event, PhaseChanged, SearchProgress, TrialFinished, VariantExhausted
from kernelforge.search.types import Node, node_of
from kernelforge.supervisor.feed import Feed, FeedWriter

TRIAL = Trial(
    candidate=Candidate(variant_id="v", source="x", backend="cpp", generator="template"),
    outcome=BuildFailure(reason="compile_error", detail=""), started=0, seconds=1,
)  # fmt: skip
NODE = node_of(id="ab" * 32, number=7, parent="", trial=TRIAL)


def find(variant_id: str, number: int) -> Node | None:
    return NODE if (variant_id, number) == ("v", 7) else None


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    events: list[Event | str] = [
        "a note",
        SearchProgress(done=0, expected=4, eta_s=None),
        PhaseChanged(variant="relu-1", trial=1, phase="build"),
        PhaseChanged(variant="relu-1", trial=1, phase="done"),
        TrialFinished(variant="relu-1", node=NODE, best_speedup=1.5),
        VariantExhausted(variant="relu-1", reason="parked"),
    ]
    feed = Feed([tmp_path / "feed"], find)
    assert feed.poll() == []
    with FeedWriter(tmp_path / "feed", trials=0) as write:
        for event in events:
            write(event)
        assert feed.poll() == events
        write("another")
    assert feed.poll() == ["another"] and feed.poll() == []


def test_workers_are_added_up(tmp_path: Path) -> None:
    paths = [tmp_path / "0", tmp_path / "1"]
    feed = Feed(paths, find)
    with FeedWriter(paths[0], trials=10) as first, FeedWriter(paths[1], trials=0) as second:
        first(SearchProgress(done=1, expected=5, eta_s=3.0))
        assert feed.poll() == [SearchProgress(done=11, expected=None, eta_s=3.0)]
        second(SearchProgress(done=2, expected=9, eta_s=7.0))
        assert feed.poll() == [SearchProgress(done=13, expected=24, eta_s=7.0)]
        first(PhaseChanged(variant="a", trial=1, phase="build"))
        second(PhaseChanged(variant="a", trial=1, phase="build"))
        assert len({e.trial for e in feed.poll() if isinstance(e, PhaseChanged)}) == 2


def test_a_killed_process_leaves_half_a_line_and_open_phases(tmp_path: Path) -> None:
    path = tmp_path / "feed"
    feed = Feed([path], find)
    with FeedWriter(path, trials=0) as write:
        write(PhaseChanged(variant="a", trial=1, phase="verify"))
    with path.open("a") as file:
        file.write('{"kind": "no')
    (begun,) = feed.poll()
    assert isinstance(begun, PhaseChanged)
    with FeedWriter(path, trials=0) as write:
        write("again")
    assert feed.poll() == [PhaseChanged(variant="a", trial=begun.trial, phase="done"), "again"]
