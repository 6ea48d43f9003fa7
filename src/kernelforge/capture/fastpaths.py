"""Finds operator calls that happen only because the recorder is active.

Some torch code takes a fused path unless a torch-function mode is on: `nn.TransformerEncoderLayer` in evaluation is
one fused operator, and some 35 under a recorder. A kernel for those would never be reached. So the model also runs
once with no such mode, while a dispatch mode (which leaves the fused paths alone) counts the aten operators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

_MODULES = (nn.TransformerEncoderLayer, nn.MultiheadAttention)
_FUNCTIONS = ("_transformer_encoder_layer_fwd", "_native_multi_head_attention")
UNREACHABLE = "not reachable at run time"


class OperatorCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the aten operators below autograd that run while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


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


def plain_run(call: Callable[[], object], modules: FusedModules) -> Counter[str]:
    """Run the model once without a recorder: warms it up, notes fused modules, and counts its aten operators."""
    counter = OperatorCounter()
    with modules.noted(), counter:
        call()
    return counter.counts


def missing_operators(observed: Mapping[str, int], plain: Mapping[str, int]) -> list[str]:
    """Aten operators of a recorded call that the plain run never ran."""
    return sorted(name for name in observed if not plain.get(name))
