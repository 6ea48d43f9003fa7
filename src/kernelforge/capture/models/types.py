"""How a model is asked for and handed over.

Owns `ModelOptions`, `LoadedModel`, `SampleCall` and the `ModelSource` protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """What the user asked for.

    Attributes:
        device: "cpu" or "cuda".
        dtype: torch's name of the dtype to cast floating parameters and inputs to, or "" to leave them.
        samples: how many sets of inputs to make.
        random_weights: weights may be random; sources that would otherwise download need it.
        seed: of weights and inputs.
    """

    device: str = "cpu"
    dtype: str = ""
    samples: int = 1
    random_weights: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleCall:
    """One sample of a model: called without arguments, it runs without gradients.

    Attributes:
        run: the model, or what runs it. args, kwargs: of this sample, on its device.
    """

    run: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __call__(self) -> object:
        import torch

        with torch.no_grad():
            return self.run(*self.args, **self.kwargs)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to run.

    Attributes:
        name: for people, and for file names.
        model: the model itself, as the user gave it; None when there are only callables.
        calls: one callable without arguments per sample; each runs without gradients. A model that was named, not
            given as an object, has `SampleCall`s.
    """

    name: str
    model: object
    calls: tuple[Callable[[], object], ...]


class ModelSource(Protocol):
    """One way to name a model. Each file of `capture/models/` exports one as `SOURCE`."""

    def matches(self, text: str) -> bool:
        """Whether the text names a model of this kind."""
        ...

    def load(self, text: str, options: ModelOptions) -> LoadedModel:
        """Make the model and its samples.

        Raises:
            ModelError: it cannot be named or loaded.
            EnvironmentMissing: an optional dependency is not installed.
        """
        ...
