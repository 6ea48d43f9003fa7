"""One run of a model under observation: what it reads on the host, draws, and writes. Owns `observe`.

A CUDA graph holds what the device did. Whatever the host decided from a value, a random draw or a tensor on the CPU is
frozen in it, and a replay with other inputs is silently wrong. So the run is watched below autograd and autocast, and
each such act is a `Problem` with the line of the model that did it and what the value came from.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernelforge.dispatch.signature import memory_id

_MAX_PROBLEMS = 16
_INDEXING = frozenset({"index", "index_put", "index_put_", "_unsafe_index", "_unsafe_index_put", "_index_put_impl_"})
_COLLECTIVES = frozenset({"c10d", "_c10d_functional", "_dtensor"})
_OUTSIDE = "a tensor from outside of the model"
_QUIET_PLACES = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a run cannot be replayed.

    Attributes:
        what: what was done, in words. where: "file.py:12 in forward: if mask.all():", or "" where no line is known.
    """

    what: str
    where: str

    def __str__(self) -> str:
        return f"{self.what} ({self.where})" if self.where else self.what


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one run returned and did.

    Attributes:
        result: what the call returned. problems: empty if the run can be replayed.
        written: tensors that existed before the run and whose memory it wrote.
    """

    result: Any
    problems: tuple[Problem, ...]
    written: tuple[torch.Tensor, ...]


def observe(call: Callable[[], Any], *, device: str, known: Iterable[tuple[str, torch.Tensor]]) -> Observation:
    """Run `call` once and watch what it does.

    Args:
        device: where the graph will run, "cuda" ("cpu" watches a run on the CPU in the same way).
        known: tensors with their names for people: arguments, parameters, buffers.
    """
    watch = _Watch(device, known)
    with watch:
        result = call()
    return Observation(result=result, problems=tuple(watch.problems), written=tuple(watch.written.values()))


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows by memory which of the known tensors each value was made from."""

    def __init__(self, device: str, known: Iterable[tuple[str, torch.Tensor]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device, self._grad = device, torch.is_grad_enabled()
        self.problems: list[Problem] = []
        self.written: dict[int, torch.Tensor] = {}
        self._made: set[int] = set()
        self._origins: dict[int, frozenset[str]] = {}
        for name, tensor in known:
            memory = memory_id(tensor)
            self._origins[memory] = self._origins.get(memory, frozenset()) | {name}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = list(_tensors_of((*args, *kwargs.values())))
        origins = frozenset[str]().union(*(self._origin(t) for t in given))
        self._note_writes(func, args, kwargs)
        result = func(*args, **kwargs)
        made = list(_tensors_of((result,)))
        if len(self.problems) < _MAX_PROBLEMS:
            what = self._problem(func, args, kwargs, origins) or self._place_problem(func, given, made, origins)
            if what:
                problem = Problem(what=what, where=_line_of_the_model())
                if problem not in self.problems:
                    self.problems.append(problem)
        shared = {memory_id(t) for t in given}
        for tensor in made:
            memory = memory_id(tensor)
            if memory not in shared:
                self._made.add(memory)
                self._origins[memory] = origins
            else:
                self._origins[memory] = self._origins.get(memory, frozenset()) | origins
        return result

    def _origin(self, tensor: torch.Tensor) -> frozenset[str]:
        memory = memory_id(tensor)
        if memory in self._origins:
            return self._origins[memory]
        return frozenset() if memory in self._made else frozenset({_OUTSIDE})

    def _note_writes(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = kwargs.get(argument.name, args[position] if position < len(args) else None)
            for tensor in _tensors_of((value,)):
                if memory_id(tensor) not in self._made:
                    self.written.setdefault(memory_id(tensor), tensor)

    def _problem(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], origins: frozenset[str]) -> str:
        """What this call does that a replay would not do again, or ""."""
        name = func._schema.name.split("::")[-1]
        source = f" of {_listed(origins)}" if origins else ""
        if torch.Tag.data_dependent_output in func.tags:
            return f"reads a value{source} on the host"
        if name in _INDEXING:
            return f"selects by a mask{source} ({name})" if _by_mask(args) else ""
        if torch.Tag.dynamic_output_shape in func.tags:
            return f"makes a tensor whose size depends on values{source} ({name})"
        if name == "lift_fresh":
            return "makes a tensor of the host's values (torch.tensor)"
        if torch.Tag.nondeterministic_seeded in func.tags and _dropout(func, args, kwargs) != 0.0:
            return f"draws random numbers ({name})"
        # Autocast turns gradients on for its own casts of weights.
        if torch.is_grad_enabled() and not self._grad and name != "_to_copy":
            return "asks for gradients (torch.enable_grad)"
        if func.namespace in _COLLECTIVES:
            return f"talks to other processes ({name})"
        return ""

    def _place_problem(
        self, func: Any, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor], origins: frozenset[str]
    ) -> str:
        """What is wrong with where the call's tensors are, or ""."""
        name = func._schema.name.split("::")[-1]
        if self._device != "cpu":
            if any(t.device.type == "cpu" for t in given):
                return f"uses a tensor on the CPU ({name})"
            if any(t.device.type == "cpu" for t in made):
                return f"copies {_listed(origins)} to the host" if given else f"makes a tensor on the CPU ({name})"
        if _OUTSIDE in origins and any(self._is_outside(t) for t in given):
            return f"uses a tensor that cannot be reached from the model ({name})"
        return ""

    def _is_outside(self, tensor: torch.Tensor) -> bool:
        return memory_id(tensor) not in self._made and self._origins.get(memory_id(tensor), {_OUTSIDE}) == {_OUTSIDE}


def _by_mask(args: Sequence[Any]) -> bool:
    indices = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ()
    return any(isinstance(i, torch.Tensor) and i.dtype in {torch.bool, torch.uint8} for i in indices)


def _dropout(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float | None:
    """The call's `dropout_p`; None if it has none."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = kwargs.get("dropout_p", args[position] if position < len(args) else argument.default_value)
            return float(given)
    return None


def _listed(names: frozenset[str]) -> str:
    ordered = sorted(names, key=lambda n: (not n.startswith("argument"), n))
    return ", ".join(ordered[:3]) + (f" and {len(ordered) - 3} more" if len(ordered) > 3 else "")


def _tensors_of(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors_of(value)


def _line_of_the_model() -> str:
    """The innermost line on the stack that is neither torch's nor ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_QUIET_PLACES):
        frame = frame.f_back
    if frame is None:
        return ""
    import linecache

    path, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(path, line).strip()
    return f"{Path(path).name}:{line} in {frame.f_code.co_name}" + (f": {text}" if text else "")
