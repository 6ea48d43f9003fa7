"""`torchvision:NAME`: a torchvision classification model with random weights, on images of 224x224."""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Any

from kernelforge.capture.models._placing import place_model, sample_call
from kernelforge.capture.models.types import LoadedModel, ModelOptions, ModelSource
from kernelforge.errors import EnvironmentMissing, ModelError, UsageError
from kernelforge.wording import did_you_mean

_PREFIX = "torchvision:"


class TorchvisionSource:
    """Samples differ in batch size: 1, 2, 3 ..."""

    def matches(self, text: str) -> bool:
        return text.startswith(_PREFIX)

    def load(self, text: str, options: ModelOptions) -> LoadedModel:
        import torch

        name = text.removeprefix(_PREFIX)
        if not options.random_weights:
            with suppress(EnvironmentMissing):
                _require_known(_models(), name)
            raise UsageError(f"{text}: trained weights are not downloaded", hint="add --random-weights")
        torch.manual_seed(options.seed)
        model = place_model(_build(name), options)
        images = [torch.randn(n + 1, 3, 224, 224) for n in range(options.samples)]
        return LoadedModel(name=name, model=model, calls=tuple(sample_call(model, (x,), options) for x in images))


def _models() -> Any:
    try:
        return importlib.import_module("torchvision.models")
    except (ImportError, RuntimeError) as error:  # RuntimeError: built for another torch
        raise EnvironmentMissing(
            f"torchvision cannot be imported: {error}",
            hint="install the torchvision that belongs to your torch: pip install 'kernelforge[torchvision]'",
        ) from error


def _require_known(models: Any, name: str) -> None:
    known = models.list_models()
    if name.lower() not in known:
        hint = did_you_mean(name, known) or f"for example {', '.join(known[:8])}"
        raise ModelError(f"torchvision has no model {name!r}", hint=hint)


def _build(name: str) -> Any:
    models = _models()
    _require_known(models, name)
    return models.get_model(name, weights=None)


SOURCE: ModelSource = TorchvisionSource()
