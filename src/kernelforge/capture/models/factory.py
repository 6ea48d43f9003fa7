"""`package.module:factory`: a function without arguments that makes the model.

It returns one of
- a callable to run without arguments;
- `(model, args)` or `(model, args, kwargs)`;
- a list of those, one per sample.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelforge.capture.models._placing import place_inputs, place_model, sample_call
from kernelforge.capture.models.types import LoadedModel, ModelOptions, ModelSource
from kernelforge.errors import ModelError

_FORMS = "return a callable, (model, args), (model, args, kwargs), or a list of those"


class FactorySource:
    """See the module's docstring."""

    def matches(self, text: str) -> bool:
        module, colon, name = text.partition(":")
        named = all(part.isidentifier() for part in module.split("."))
        return bool(colon) and named and name.isidentifier() and module not in {"torchvision", "transformers"}

    def load(self, text: str, options: ModelOptions) -> LoadedModel:
        import torch

        torch.manual_seed(options.seed)
        try:
            made = _resolve(text)()
        except ModelError:
            raise
        except Exception as error:
            message = f"factory {text} raised {type(error).__name__}: {error}"
            raise ModelError(message, hint="call it from Python first") from error
        samples = made if isinstance(made, list) else [made]
        pairs = [_sample(item, text, options) for item in samples]
        if not pairs:
            raise ModelError(f"factory {text} returned no sample", hint=_FORMS)
        return LoadedModel(name=text.rpartition(":")[2], model=pairs[0][0], calls=tuple(call for _, call in pairs))


def _resolve(text: str) -> Callable[[], Any]:
    module_name, _, name = text.partition(":")
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ModelError(f"module {module_name} cannot be imported: {error}", hint="check PYTHONPATH") from error
    finally:
        sys.path.remove(folder)
    factory = getattr(module, name, None)
    if not callable(factory):
        raise ModelError(f"module {module_name} has no function {name}", hint="name it as package.module:function")
    made: Callable[[], Any] = factory
    return made


def _sample(item: Any, text: str, options: ModelOptions) -> tuple[object, Callable[[], object]]:
    if callable(item):
        model = place_model(item, options)
        return model, sample_call(model, (), options)
    if isinstance(item, tuple) and len(item) in {2, 3} and callable(item[0]):
        model = place_model(item[0], options)
        kwargs = place_inputs(dict(item[2]), options) if len(item) == 3 else {}
        args = item[1] if isinstance(item[1], tuple | list) else (item[1],)
        return model, replace(sample_call(model, args, options), kwargs=kwargs)
    raise ModelError(f"factory {text} returned a {type(item).__name__}", hint=_FORMS)


SOURCE: ModelSource = FactorySource()
