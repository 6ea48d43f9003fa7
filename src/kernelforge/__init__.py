"""Kernel Forge: makes a PyTorch model run faster on the hardware you have, without anyone writing CUDA by hand.

The Python API is a handful of verbs; each is imported when first used, so that `import kernelforge` loads no torch.

    fast = kernelforge.optimize(model, inputs, max_time="3m")
    project = kernelforge.capture(model, args, kwargs, project="model.kforge")
    package = kernelforge.load("model.cast")
    with package.dispatch(model):
        model(x)
    replayed = kernelforge.graphed(model, package)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelforge.dispatch.compiled import use as use
    from kernelforge.dispatch.graphs import graphed as graphed
    from kernelforge.dispatch.loading import load as load
    from kernelforge.forge import capture as capture
    from kernelforge.forge import optimize as optimize

__all__ = ["__version__", "capture", "graphed", "load", "optimize", "use"]
__version__ = "0.1.0"

_HOMES = {
    "capture": "kernelforge.forge", "optimize": "kernelforge.forge", "load": "kernelforge.dispatch.loading",
    "graphed": "kernelforge.dispatch.graphs", "use": "kernelforge.dispatch.compiled",
}  # fmt: skip


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'kernelforge' has no attribute {name!r}")
