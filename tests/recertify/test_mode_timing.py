"""Timing in each mode of dispatch: what is chosen, what decides, and that what cannot be timed is a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from kernelforge import compiled_timing, graph_timing, mode_timing
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import VariantRecord
from kernelforge.certification import DispatchTiming
from kernelforge.compiled_timing import time_compiled
from kernelforge.dispatch import stream_graphs
from kernelforge.dispatch.loading import load
from kernelforge.errors import UsageError
from kernelforge.graph_timing import NO_DEVICE, time_in_graphs
from kernelforge.mode_timing import Budgets, chosen_modes, time_in_modes
from kernelforge.package.types import Entry, Off, Use
from kernelforge.packed_variants import record_of
from kernelforge.settings import Settings

NONE = ExampleStore(Path("nowhere"))
BRIEF = Budgets(eager_s=0.05, graphed_s=0.05, compiled_s=0.05, patience_s=0.0)
HERE = torch.__version__.split("+")[0]
# torch's own, when Inductor is first imported.
INDUCTOR = pytest.mark.filterwarnings("ignore:.torch.jit.*. is", "ignore::DeprecationWarning")


def known(entry: Entry) -> VariantRecord:
    record = record_of(entry)
    assert record is not None
    return record


def test_modes_that_are_timed() -> None:
    assert chosen_modes(None, "cpu") == ("eager",)
    assert chosen_modes(None, "cuda") == ("eager", "graphed")
    assert chosen_modes(["compiled"], "cpu") == ("eager", "compiled")
    assert chosen_modes(["compiled", "graphed"], "cuda") == ("eager", "graphed", "compiled")
    with pytest.raises(UsageError, match="no mode of dispatch 'graph'"):
        chosen_modes(["graph"], "cuda")


@INDUCTOR
@pytest.mark.slow
def test_every_mode_of_a_right_and_of_a_wrong_kernel(
    write: Callable[..., Path], settings: Settings, entries: Mapping[str, Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor for real. A kernel that is wrong in eager mode is timed nowhere."""
    on = {"eager": Use(), "compiled": Use()}
    some = [replace(entries[name], decisions=on) for name in ("abs", "wrong")]
    path = write(*some, torch_version=HERE)
    said: list[str] = []
    right, wrong = time_in_modes(
        path, [known(e) for e in some], NONE, settings, modes=("eager", "graphed", "compiled"), say=said.append,
        budgets=BRIEF,
    )  # fmt: skip
    assert set(right.timed) == {"eager", "compiled"} and dict(right.untimed) == {"graphed": NO_DEVICE}
    assert all(len(t.points[0].eager_us) >= 12 and not t.wrong for t in right.timed.values())
    assert right.decisions()["graphed"] == Off(reason=NO_DEVICE)
    assert "elements are wrong" in wrong.wrong and set(wrong.timed) == {"eager"}
    assert [line.split(" ", 2)[2] for line in said] == ["through dispatch", "under torch.compile", "through dispatch"]
    # Wrong in compiled code alone, say for a stream of its own: off there, and no fault elsewhere.
    monkeypatch.setattr(compiled_timing, "wrong_output", lambda *_, **__: "1 of 4 elements are wrong")
    found = time_compiled(load(path, settings=settings), known(some[0]), NONE, settings, budget_s=0.05)
    assert isinstance(found, DispatchTiming) and found.wrong == "in compiled code: 1 of 4 elements are wrong"


def test_a_compiler_that_fails_is_a_reason(
    write: Callable[..., Path], settings: Settings, entries: Mapping[str, Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernelforge.dispatch import compiled

    def broken(*_: object, **__: object) -> object:
        raise RuntimeError("InvalidCxxCompiler: no compiler\nthe rest")

    monkeypatch.setattr(compiled, "compiled_pair", broken)
    loaded = load(write("abs", torch_version=HERE), settings=settings)
    found = time_compiled(loaded, known(entries["abs"]), NONE, settings)
    assert found == "does not compile: InvalidCxxCompiler: no compiler"
    in_place = replace(entries["abs"].variant, mutates=(0,), outputs=())
    monkeypatch.setattr(compiled, "compiled_pair", lambda *_, **__: "changes an input in place")
    record = replace(known(entries["abs"]), variant=in_place)
    assert time_compiled(loaded, record, NONE, settings) == "changes an input in place"


def test_graphs_need_a_gpu(entries: Mapping[str, Entry], settings: Settings) -> None:
    assert time_in_graphs(cast(Any, None), known(entries["abs"]), NONE, settings) == NO_DEVICE


@dataclass
class FakeLoaded:
    """A package whose entry serves every `serves`-th call; `taken` tells who is at work."""

    variant: str
    serves: bool = True
    hits: int = 0
    inside: bool = False
    events: list[str] = field(default_factory=list)

    @contextmanager
    def dispatch(self, *, mode: str) -> Iterator[None]:
        assert mode == "graphed"
        self.inside = True
        yield
        self.inside = False

    def stats(self, mode: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(variant=self.variant, hits=self.hits)]

    def call(self, bound: Mapping[str, torch.Tensor]) -> torch.Tensor:
        self.hits += self.inside and self.serves
        return bound["input"]


@pytest.fixture
def graphs(entries: Mapping[str, Entry], monkeypatch: pytest.MonkeyPatch) -> tuple[FakeLoaded, VariantRecord]:
    """Graphs that are lists of calls, each taking 10 us without the package and 8 with it."""
    record = known(entries["abs"])
    loaded = FakeLoaded(variant=record.variant.id)

    def captured(run: Callable[[], object], *, warm_up: Callable[[], object]) -> tuple[object, str]:
        warm_up()
        return run(), "dispatched" if loaded.inside else "eager"

    def replay_us(graph: str, renew: Callable[[], None], count: int) -> float:
        renew()
        loaded.events.append(graph)
        return {"eager": 10.0, "dispatched": 8.0}[graph] + 0.01 * len(loaded.events)

    monkeypatch.setattr(stream_graphs, "capture_graph", captured)
    monkeypatch.setattr(graph_timing, "_replay_us", replay_us)
    monkeypatch.setattr(graph_timing, "get_operator", lambda name: loaded)
    return loaded, record


def time_point(loaded: FakeLoaded, record: VariantRecord) -> Any:
    return graph_timing._time_point(
        cast(Any, loaded), record, record.points[0], NONE, calls=3, budget_s=0.01
    )  # fmt: skip


def test_replays_alternate_in_abba_order(graphs: tuple[FakeLoaded, VariantRecord]) -> None:
    loaded, record = graphs
    point = time_point(loaded, record)
    assert 1.1 < point.speedup.median < 1.3 and point.calls == 3
    assert len(point.eager_us) == len(point.dispatched_us) >= 12 and point.flow_eager_us == ()
    turns = loaded.events[loaded.events.index("eager") + 2 :]
    assert turns[:6] == ["eager", "dispatched", "dispatched", "eager", "eager", "dispatched"]


def test_a_graph_without_the_kernel_in_it_is_not_timed(graphs: tuple[FakeLoaded, VariantRecord]) -> None:
    loaded, record = graphs
    loaded.serves = False
    assert time_point(loaded, record) == "its calls were not served when they were captured"


def test_what_cannot_be_captured_is_a_reason(
    graphs: tuple[FakeLoaded, VariantRecord], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, record = graphs

    def fails(*_: object, **__: object) -> object:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nhints of torch")

    monkeypatch.setattr(graph_timing, "wrong_output", fails)
    on_gpu = replace(record, variant=replace(record.variant, device="cuda"))
    assert time_in_graphs(cast(Any, loaded), on_gpu, NONE, settings) == (
        "cannot be captured in a CUDA graph: CUDA error: operation not permitted when stream is capturing"
    )
    monkeypatch.setattr(graph_timing, "wrong_output", lambda *_: "1 of 4 elements are wrong")
    found = time_in_graphs(cast(Any, loaded), on_gpu, NONE, settings)
    assert isinstance(found, DispatchTiming) and found.wrong == "in a CUDA graph: 1 of 4 elements are wrong"
    decision = mode_timing.ModeTimings(timed={"graphed": found}, untimed={}).decisions()["graphed"]
    assert decision == Off(reason="wrong: in a CUDA graph: 1 of 4 elements are wrong")
