"""CUDA graphs as `graphs.py` needs them: warmed up, captured, replayed in order. Owns `CudaGraphs`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

WARM_UPS = 2


class GraphMachine(Protocol):
    """What records a run and repeats it. Another one than `CudaGraphs` serves tests without a GPU."""

    device: str

    def busy(self) -> bool:
        """Whether the current stream is being captured, so that nothing may be captured or replayed by us."""

    def record(self, run: Callable[[], Any], *, between: Callable[[], None]) -> tuple[Any, Callable[[], None]]:
        """Warm `run` up, capture it once; its result, which holds nothing yet, and what fills it at every call.

        Args:
            between: called when the next run is the captured one.
        """

    def order(self, index: int) -> None:
        """Let the current stream of that device wait for what an earlier replay does on another stream."""

    def wait(self) -> None:
        """Wait until no replay runs any more."""


class CudaGraphs:
    """CUDA graphs that share one pool of memory: replayed one after the other, never at once."""

    device = "cuda"

    def __init__(self) -> None:
        self._pool: Any = None
        self._last: torch.cuda.Stream | None = None

    def busy(self) -> bool:
        return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()

    def record(self, run: Callable[[], Any], *, between: Callable[[], None]) -> tuple[Any, Callable[[], None]]:
        """Raises RuntimeError: something in the run cannot be captured."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()

        def warm_up() -> None:
            for _ in range(WARM_UPS):
                run()

        result, graph = capture_graph(run, warm_up=warm_up, between=between, pool=self._pool)
        return result, graph.replay

    def order(self, index: int) -> None:
        stream = self._last
        if stream is not None and stream.cuda_stream == torch._C._cuda_getCurrentRawStream(index):
            return
        current = torch.cuda.current_stream(index)
        if stream is not None:
            current.wait_stream(stream)
        self._last = current

    def wait(self) -> None:
        torch.cuda.synchronize()


def capture_graph(
    run: Callable[[], Any],
    *,
    warm_up: Callable[[], object],
    between: Callable[[], None] | None = None,
    pool: Any = None,
) -> tuple[Any, torch.cuda.CUDAGraph]:
    """What the captured run returns, which holds nothing yet, and its graph.

    Args:
        warm_up: called first, on the stream of the capture: libraries allocate, load and choose at their first calls,
            none of which can be captured. between: called after that. pool: of memory, to share it with other graphs.

    Raises:
        RuntimeError: something in the run cannot be captured.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with _no_cast_cache():
        with torch.cuda.stream(side):
            warm_up()
        torch.cuda.current_stream().wait_stream(side)
        if between is not None:
            between()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with warnings.catch_warnings(), _own_workspaces():
            # It is where a model launches nothing, or all of it past the capture, which is found by what it computes.
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            # Other threads may go on with their own work on the device.
            with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
                result = run()
    return result, graph


@contextmanager
def _no_cast_cache() -> Iterator[None]:
    """Autocast keeps copies of weights until its block ends: a graph must not hold their addresses."""
    before = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """Have cuBLAS ask for its scratch memory inside of the capture, where it comes from the graph's own pool.

    It keeps what it has, and whoever clears that (torch.compile with mode="reduce-overhead" does) would leave the graph
    with an address that belongs to others, or to nobody.
    """
    clear = torch._C._cuda_clearCublasWorkspaces
    clear()
    try:
        yield
    finally:
        clear()
