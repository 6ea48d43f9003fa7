"""`transformers:CONFIG`: a Hugging Face model with random weights, from a model type or a `config.json`.

CONFIG is a model type ("qwen3"), a path to a `config.json` or to its folder, and may change fields of the
configuration: `transformers:qwen3?num_hidden_layers=2&hidden_size=64`. Nothing is downloaded. Attention is eager, so
that its softmax is an operator of its own. Samples differ in length (text) or batch (images).
"""

from __future__ import annotations

import importlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from kernelforge.capture.models._placing import place_model, sample_call
from kernelforge.capture.models.types import LoadedModel, ModelOptions, ModelSource
from kernelforge.errors import EnvironmentMissing, ModelError, UsageError
from kernelforge.wording import did_you_mean

_PREFIX = "transformers:"
_FIRST_LENGTH = 16
_LENGTH_STEP = 7


class TransformersSource:
    """See the module's docstring."""

    def matches(self, text: str) -> bool:
        return text.startswith(_PREFIX)

    def load(self, text: str, options: ModelOptions) -> LoadedModel:
        import torch

        name, _, changes = text.removeprefix(_PREFIX).partition("?")
        _require_file(name)
        if not options.random_weights:
            with suppress(EnvironmentMissing):
                _require_known(_library(), name)
            raise UsageError(f"{text}: trained weights are not downloaded", hint="add --random-weights")
        library = _library()
        _require_known(library, name)
        torch.manual_seed(options.seed)
        try:
            config = _config(library, name, changes)
            model = place_model(_build(library, config), options)
        except (ValueError, KeyError, OSError, TypeError, AttributeError) as error:
            hint = "give a model type such as qwen3, or a path to a config.json"
            raise ModelError(f"transformers cannot build {name!r}: {error}", hint=hint) from error
        samples = [_inputs(model, config, index) for index in range(options.samples)]
        path = Path(name).resolve()
        stem = path.parent.name if path.name == "config.json" else path.name
        return LoadedModel(name=stem, model=model, calls=tuple(sample_call(model, s, options) for s in samples))


def _library() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        hint = "install it: pip install 'kernelforge[transformers]'"
        raise EnvironmentMissing(f"transformers cannot be imported: {error}", hint=hint) from error


def _require_file(name: str) -> None:
    """A name with a folder or an ending is a path, and a path must lead to a configuration."""
    path = Path(name)
    if path.is_dir():
        path = path / "config.json"
    if (path.suffix == ".json" or len(path.parts) > 1) and not path.is_file():
        raise ModelError(f"configuration file {path} does not exist", hint="check the path")


def _require_known(library: Any, name: str) -> None:
    """A model type must be one of the library's; its own message would list them all."""
    if not Path(name).exists() and name not in library.CONFIG_MAPPING:
        near = did_you_mean(name, library.CONFIG_MAPPING)
        hint = near or "give a model type such as qwen3, or a path to a config.json"
        raise ModelError(f"transformers has no model type {name!r}", hint=hint)


def _config(library: Any, name: str, changes: str) -> Any:
    overrides = {key: _parse(value) for key, value in parse_qsl(changes)}
    path = Path(name)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        fields = json.loads(path.read_text())
        return library.AutoConfig.for_model(fields.pop("model_type"), **{**fields, **overrides})
    return library.AutoConfig.for_model(name, **overrides)


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _build(library: Any, config: Any) -> Any:
    """A language model if there is one for the configuration, else the bare model."""
    try:
        return library.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    except ValueError:
        return library.AutoModel.from_config(config, attn_implementation="eager")


def _inputs(model: Any, config: Any, index: int) -> dict[str, Any]:
    import torch

    if model.main_input_name == "pixel_values":
        size, channels = config.image_size, getattr(config, "num_channels", 3)
        return {"pixel_values": torch.randn(index + 1, channels, size, size)}
    return {"input_ids": torch.randint(config.vocab_size, (1, _FIRST_LENGTH + _LENGTH_STEP * index))}


SOURCE: ModelSource = TransformersSource()
