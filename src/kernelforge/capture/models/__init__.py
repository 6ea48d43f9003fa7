"""How a model is named and loaded: one file per kind of source, found by what the text looks like."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from kernelforge.capture.models.types import LoadedModel, ModelOptions, ModelSource, SampleCall
from kernelforge.errors import EnvironmentMissing, ModelError
from kernelforge.plugins import load_plugin, plugin_names

__all__ = ["LoadedModel", "ModelOptions", "ModelSource", "SampleCall", "load_model"]


def load_model(text: str, options: ModelOptions) -> LoadedModel:
    """Load the model that the text names.

    Args:
        text: "FILE.py", "package.module:factory", "torchvision:NAME" or "transformers:CONFIG".

    Raises:
        ModelError: no source knows such a name, or the model cannot be loaded.
        EnvironmentMissing: no GPU although CUDA is asked for, or an optional dependency is missing.
    """
    if options.device == "cuda":
        _require_cuda()
    for name in plugin_names(__name__):
        source = cast("ModelSource", load_plugin(__name__, name, "SOURCE"))
        if source.matches(text):
            return source.load(text, options)
    if Path(f"{text}.py").is_file():
        raise ModelError(f"{text!r} names no model", hint=f"did you mean {text}.py?")
    raise ModelError(
        f"{text!r} names no model",
        hint="give a Python file with Model and get_inputs, package.module:factory, torchvision:NAME or "
        "transformers:CONFIG",
    )


def _require_cuda() -> None:
    import torch

    if not torch.cuda.is_available():
        raise EnvironmentMissing(
            "CUDA was asked for, but torch sees no CUDA device",
            hint="use --device cpu, or install a CUDA build of torch and check nvidia-smi",
        )
