"""A Python file in the KernelBench form.

The file defines
- `class Model(torch.nn.Module)`: the model;
- `get_inputs()`: a list of the arguments of `forward` (or a dict, by name);
- `get_init_inputs()` (optional): a list of the arguments of `Model` (or a dict, by name);
and may define
- `get_samples(n)`: a list of n sets of inputs of different sizes, each like what `get_inputs` returns. Without it the
  n samples are n calls of `get_inputs`;
- `run(model, *inputs)`: what to run instead of `model(*inputs)`, for example greedy decoding.

The file is imported, so it runs with the rights of this process.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelforge.capture.models._placing import place_model, sample_call
from kernelforge.capture.models.types import LoadedModel, ModelOptions, ModelSource
from kernelforge.errors import ModelError


class FileSource:
    """See the module's docstring."""

    def matches(self, text: str) -> bool:
        return text.endswith(".py")

    def load(self, text: str, options: ModelOptions) -> LoadedModel:
        import torch

        path = Path(text)
        if not path.is_file():
            raise ModelError(f"model file {text} does not exist", hint="check the path")
        module = _import(path)
        model_class = _required(module, "Model", path, "class Model(torch.nn.Module): ...")
        get_inputs = _required(module, "get_inputs", path, "def get_inputs(): return [tensor, ...]")
        torch.manual_seed(options.seed)
        with _blamed(path, "Model or get_init_inputs"):
            init: Any = getattr(module, "get_init_inputs", list)()
            built = model_class(**init) if isinstance(init, Mapping) else model_class(*init)
        model = place_model(built, options)
        with _blamed(path, "get_inputs or get_samples"):
            get_samples = getattr(module, "get_samples", None)
            if get_samples is not None:
                samples = list(get_samples(options.samples))
            else:
                samples = [get_inputs() for _ in range(options.samples)]
        run = getattr(module, "run", None)
        target = model if run is None else partial(run, model)
        return LoadedModel(
            name=path.stem, model=model, calls=tuple(sample_call(target, inputs, options) for inputs in samples)
        )


def _import(path: Path) -> ModuleType:
    name = f"kernelforge_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "a .py file always has a loader"
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    sys.modules[name] = module  # dataclasses and pickles of the file's classes look their module up
    sys.path.insert(0, folder)  # so that the file can import its neighbours
    try:
        with _blamed(path, "importing it"):
            spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module


@contextmanager
def _blamed(path: Path, where: str) -> Iterator[None]:
    """Report whatever the file raises as the file's."""
    try:
        yield
    except (Exception, SystemExit) as error:
        message = f"model file {path} raised {type(error).__name__} in {where}: {error}"
        raise ModelError(message, hint="run the file with python first") from error


def _required(module: ModuleType, name: str, path: Path, form: str) -> Any:
    found = getattr(module, name, None)
    if found is None:
        raise ModelError(f"model file {path} defines no {name}", hint=f"add it: {form}")
    return found


SOURCE: ModelSource = FileSource()
