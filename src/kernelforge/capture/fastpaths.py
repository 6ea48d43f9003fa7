"""Finds operator calls that happen only because the recorder is active.

Some torch code takes a fused path unless a torch-function mode is on: `nn.TransformerEncoderLayer` in evaluation is
one fused operator, and some 35 under a recorder. A kernel for those would never be reached. So the model also runs
once with no such mode, and the aten operators that ran then are compared with those of each recorded call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import nn

_autograd: Any = torch.autograd  # the light profiler is there, but not in its stubs
_MODULES = (nn.TransformerEncoderLayer, nn.MultiheadAttention)
_FUNCTIONS = ("_transformer_encoder_layer_fwd", "_native_multi_head_attention")
UNREACHABLE = "not reachable at run time"

WATCHED_MODULES = 250
"""So many module calls are watched; a long generation repeats itself, and names cost as much as the calls do."""


class OperatorNames:
    """The names of the aten operators that run in the body, on this thread, including those that others are made of.

    torch's light profiler (a list of names, no times, no trace) tells them at some 2 us each; a dispatch mode would
    cost ten times that. It leaves fused paths alone, as it is no mode. Where it cannot start (an own profiler of the
    model is on), `names` stays None.
    """

    def __init__(self) -> None:
        self.names: frozenset[str] | None = None
        self._running = False

    def __enter__(self) -> Self:
        try:
            _autograd._enable_profiler_legacy(_config())
            self._running = True
        except (RuntimeError, AttributeError, TypeError):  # already profiling, or another torch
            self._running = False
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the names so far; the rest of the body is not looked at."""
        if self._running:
            self._running = False
            threads = _autograd._disable_profiler_legacy()
            self.names = frozenset(event.name() for events in threads for event in events)


def _config() -> Any:
    options = torch._C._profiler._ExperimentalConfig()
    return _autograd.ProfilerConfig(_autograd.ProfilerState.CPU, False, False, False, False, False, options)


class FusedModules:
    """Which module with a fused path is running, and which of them took it in the plain run.

    Attributes:
        stack: ids of the modules that are running now, outermost first.
        fused: ids of those that took the fused path.
    """

    def __init__(self) -> None:
        self.stack: list[int] = []
        self.fused: set[int] = set()

    @contextmanager
    def tracked(self) -> Iterator[None]:
        """Keep `stack` up to date in the body."""
        originals = [(kind, kind.forward) for kind in _MODULES]
        for kind, forward in originals:
            kind.forward = self._tracking(forward)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for kind, forward in originals:
                kind.forward = forward  # type: ignore[method-assign]
            self.stack.clear()

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Fill `fused` in the body, which must run without a torch-function mode."""
        originals = [(name, getattr(torch, name)) for name in _FUNCTIONS]
        for name, function in originals:
            setattr(torch, name, self._noting(function))
        try:
            with self.tracked():
                yield
        finally:
            for name, function in originals:
                setattr(torch, name, function)

    def _tracking(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def tracking(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            self.stack.append(id(module))
            try:
                return forward(module, *args, **kwargs)
            finally:
                self.stack.pop()

        return tracking

    def _noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any, **kwargs: Any) -> Any:
            self.fused.update(self.stack[-1:])
            return function(*args, **kwargs)

        return noting


@contextmanager
def after_modules(count: int, then: Callable[[], None]) -> Iterator[None]:
    """Do something once when the body calls its `count`-th module. No hook: these would switch fused paths off."""
    original, left = nn.Module.__call__, count

    def counting(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        if left <= 0:
            nn.Module.__call__ = original  # type: ignore[method-assign]
            then()
        return original(module, *args, **kwargs)

    nn.Module.__call__ = counting  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]


def plain_run(call: Callable[[], object], modules: FusedModules) -> frozenset[str] | None:
    """Run the model once without a recorder: warms it up, notes fused modules, and tells the aten operators that run
    in its first `WATCHED_MODULES` module calls.
    """
    observer = OperatorNames()
    with modules.noted(), observer, after_modules(WATCHED_MODULES, observer.stop):
        call()
    return observer.names
