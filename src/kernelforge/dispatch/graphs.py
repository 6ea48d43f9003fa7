"""A model whose calls are replayed from CUDA graphs wherever that is right. Owns `graphed` and `GraphedModel`.

The first call with a signature runs the model under observation (provenance.py) and looks at what of its Python state
the run changes (python_state.py). If a replay would do the same, the model is captured, with a package's kernels in it,
and one replay is compared with eager. Later calls with the signature copy their inputs in, replay, and copy the outputs
out. Everything else runs eagerly, and is counted with its reason.

What a forward does beside computing (printing, counting in an object that cannot be reached from the model) happens
while it is captured, some times more than eager would do it, and not in replays.
"""

from __future__ import annotations

import logging
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from operator import is_
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from kernelforge.dispatch.graph_capture import (
    CHANGES,
    Call,
    Contents,
    Graph,
    Input,
    Problems,
    Same,
    capture_checked,
    copy_of,
    output_problems,
    overlaps,
    state_problems,
)
from kernelforge.dispatch.provenance import Problem, observe
from kernelforge.dispatch.python_state import PythonState
from kernelforge.dispatch.signature import Key, Signature, UnsuitableArgument, memory_id, signature_of
from kernelforge.dispatch.state import call_problem
from kernelforge.dispatch.stream_graphs import CudaGraphs, GraphMachine
from kernelforge.errors import NotGraphable
from kernelforge.wording import plural

if TYPE_CHECKING:
    from kernelforge.dispatch.loading import LoadedPackage

_LOG = logging.getLogger(__name__)

MAX_GRAPHS = 8
_ATTEMPTS = 3
"""A first run may fill caches of the model's own, so that a later one changes nothing any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphStats:
    """What a graphed model has done so far.

    Attributes:
        graphs: captured and in use. replays: calls that one served.
        eager: calls that ran eagerly, by reason; the first call of each signature is one.
    """

    graphs: int
    replays: int
    eager: Mapping[str, int]

    def __str__(self) -> str:
        lines = [f"{plural(self.graphs, 'graph')}, {plural(self.replays, 'replay')}"]
        lines += [f"{plural(count, 'eager call')}: {reason}" for reason, count in self.eager.items()]
        return "\n".join(lines)


def graphed(
    model: Callable[..., Any],
    package: LoadedPackage | str | Path | None = None,
    *,
    static_outputs: bool = False,
    max_graphs: int = MAX_GRAPHS,
    strict: bool = False,
) -> GraphedModel:
    """Replay a model from CUDA graphs: no Python and no launch overhead in between.

    Args:
        model: a module or a function of tensors on one CUDA device.
        package: its kernels are captured where they are faster in a graph; a path is loaded.
        static_outputs: return the graph's own memory, which the next call overwrites, instead of a copy.
        max_graphs: signatures (shapes, other arguments, modes of torch) beyond that many run eagerly.
        strict: raise `NotGraphable` instead of running eagerly where a signature cannot be captured.

    Raises:
        NotFound, PackageError, UntrustedPackage: as `load` does.
    """
    if isinstance(package, str | Path):
        from kernelforge.dispatch.loading import load

        package = load(package)
    return GraphedModel(model, package, static_outputs=static_outputs, max_graphs=max_graphs, strict=strict)


class GraphedModel:
    """Calls like the model's, replayed where that is right. Thread-safe: replays take turns."""

    def __init__(
        self,
        model: Callable[..., Any],
        package: LoadedPackage | None = None,
        *,
        static_outputs: bool = False,
        max_graphs: int = MAX_GRAPHS,
        strict: bool = False,
        machine: GraphMachine | None = None,
    ) -> None:
        """Args: machine: what captures and replays; CUDA by default. The others: see `graphed`."""
        self.model, self.package = model, package
        self._static_outputs, self._max_graphs, self._strict = static_outputs, max_graphs, strict
        self._machine = CudaGraphs() if machine is None else machine
        self._lock = threading.RLock()
        self._graphs: dict[Key, Graph] = {}
        self._refused: dict[Key, Problems] = {}
        self._attempts: Counter[Key] = Counter()
        self._state: PythonState | None = None
        self._memories: frozenset[int] = frozenset()
        self._outdated: Counter[str] = Counter()
        self._replays, self._eager = 0, Counter[str]()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's result.

        Raises:
            NotGraphable: with `strict`, where the call cannot be replayed.
        """
        problem = _problem_of_torch()
        try:
            signature = signature_of(args, kwargs) if not problem else None
        except UnsuitableArgument as error:
            signature, problem = None, str(error)
        if not problem and self._machine.busy():
            problem = "the stream is being captured"
        if problem or signature is None:
            return self._run_eagerly(args, kwargs, (Problem(what=problem, where=""),))
        with self._lock:
            graph = self._graphs.get(signature.key)
            if graph is not None and not self._shares_state(signature):
                served, result = self._replay(graph, signature)
                if served:
                    return result
            if signature.key not in self._refused:
                return self._meet(signature, args, kwargs)
            problems = self._refused[signature.key]
        return self._run_eagerly(args, kwargs, problems)

    def stats(self) -> GraphStats:
        """Graphs, replays and eager calls so far."""
        with self._lock:
            return GraphStats(graphs=len(self._graphs), replays=self._replays, eager=dict(self._eager))

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """What a call with these arguments would be, in words; runs nothing."""
        problem = _problem_of_torch()
        if problem:
            return f"runs eagerly: {problem}"
        try:
            key = signature_of(args, kwargs).key
        except UnsuitableArgument as error:
            return f"runs eagerly: {error}"
        with self._lock:
            if key in self._graphs:
                return "replayed from a graph"
            if key in self._refused:
                return "runs eagerly:\n" + "\n".join(f"  {problem}" for problem in self._refused[key])
        return "not met yet: the first call with this signature observes the model, and captures it if it can be"

    def _replay(self, graph: Graph, signature: Signature) -> tuple[bool, Any]:
        """Whether the graph still stands, and then its result."""
        # What a replay of a graph without lasting writes leaves behind is its own memory. So it may run while we look:
        # all memory that it reads is held by `kept`, and its result is thrown away if something has changed.
        if graph.writes and not self._holds():
            return False, None
        with self._on(signature):
            self._machine.order(signature.tensors[0].get_device())
            if graph.inputs:
                torch._foreach_copy_(graph.inputs, signature.tensors)
            graph.replay()
            if not graph.writes and not self._holds():
                return False, None
            for index in graph.returned:
                signature.tensors[index].copy_(graph.inputs[index])
            result = self._outputs(graph, signature)
        self._replays += 1
        return True, result

    def _outputs(self, graph: Graph, signature: Signature) -> Any:
        copies: dict[int, torch.Tensor] = {}
        leaves: list[object] = []
        for leaf in graph.outputs:
            if isinstance(leaf, Input):
                leaves.append(signature.tensors[leaf.index])
            elif isinstance(leaf, Same):
                leaves.append(leaf.tensor)
            elif isinstance(leaf, torch.Tensor) and not self._static_outputs:
                if id(leaf) not in copies:
                    copies[id(leaf)] = copy_of(leaf)
                leaves.append(copies[id(leaf)])
            else:
                leaves.append(leaf)
        return leaves[0] if graph.spec is None else pytree.tree_unflatten(leaves, graph.spec)

    def _shares_state(self, signature: Signature) -> bool:
        """Whether an argument is, or is a view of, what the model holds: a graph has memory of its own for it."""
        return not self._memories.isdisjoint(signature.memories)

    def _holds(self) -> bool:
        """Whether the model is what it was when it was captured; if not, all graphs are dropped."""
        assert self._state is not None
        if self._state.unchanged():
            return True
        change = self._state.change()
        if not change:
            return True
        self._outdated[change] += 1
        self._memories = frozenset()
        self._machine.wait()
        self._graphs.clear()
        self._refused.clear()
        self._attempts.clear()
        self._state = None
        return False

    def _meet(self, signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The first calls with a signature: run the model once, and capture it if it can be replayed."""
        problems = self._unsuitable(signature)
        if problems:
            self._refuse(signature, problems)
            return self._run_eagerly(args, kwargs, problems)
        state = PythonState(self.model)
        if not state.memories.isdisjoint(signature.memories):
            # Not remembered: the next call with this signature may have tensors of its own.
            problems = (Problem(what="an argument shares memory with the model", where=""),)
            return self._run_eagerly(args, kwargs, problems)
        self._attempts[signature.key] += 1
        with self._on(signature):
            result, answer = self._capture(signature, args, kwargs, state)
        if isinstance(answer, Graph):
            # Under the state of torch in which it was captured: the first attention on a GPU settles a switch, say.
            self._graphs[signature_of(args, kwargs).key] = answer
            self._eager["first call of a signature"] += 1
        elif self._attempts[signature.key] < _ATTEMPTS and any(p.what.startswith(CHANGES) for p in answer):
            self._eager[answer[0].what] += 1
        else:
            self._refuse(signature, answer)
            self._eager[answer[0].what] += 1
        return result

    def _unsuitable(self, signature: Signature) -> Problems:
        changed = [name for name, count in self._outdated.items() if count >= self._max_graphs]
        if changed:
            return (Problem(what=f"{changed[0]} changes again and again between calls", where=""),)
        if len(self._graphs) >= self._max_graphs:
            return (Problem(what=f"more than {self._max_graphs} signatures", where=""),)
        if not signature.tensors:
            return (Problem(what="no argument is a tensor", where=""),)
        devices = {t.device for t in signature.tensors}
        named = zip(signature.names, signature.tensors, strict=True)
        wrong = [name for name, tensor in named if tensor.device.type != self._machine.device]
        if wrong:
            return (Problem(what=f"{wrong[0]} is not on a {self._machine.device} device", where=""),)
        if len(devices) > 1:
            return (Problem(what=f"arguments are on {len(devices)} devices", where=""),)
        if len(set(signature.memories)) != len(signature.memories):
            return (Problem(what="two arguments share memory", where=""),)
        if any(t.is_neg() or t.is_conj() or overlaps(t) for t in signature.tensors):
            return (Problem(what="an argument overlaps itself, or is negated or conjugated lazily", where=""),)
        return ()

    def _refuse(self, signature: Signature, problems: Problems) -> None:
        """Remember, and say once, why a signature runs eagerly."""
        if self._strict:
            raise _not_graphable(problems)
        _LOG.warning("runs eagerly, not from a CUDA graph: %s", "; ".join(map(str, problems)))
        if len(self._refused) < 64 * self._max_graphs:
            self._refused[signature.key] = problems

    def _run_eagerly(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], problems: Problems) -> Any:
        if self._strict:
            raise _not_graphable(problems)
        with self._lock:
            self._eager[problems[0].what] += 1
        with self._dispatch("eager"):
            return self.model(*args, **kwargs)

    def _dispatch(self, mode: str) -> AbstractContextManager[object]:
        return nullcontext() if self.package is None else self.package.dispatch(mode=mode)

    def _on(self, signature: Signature) -> AbstractContextManager[object]:
        if self._machine.device != "cuda" or signature.tensors[0].get_device() == torch.cuda.current_device():
            return nullcontext()
        return torch.cuda.device(signature.tensors[0].device)

    def _capture(
        self, signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any], state: PythonState
    ) -> tuple[Any, Graph | Problems]:
        """What the model returned for this call, and its graph or why there is none."""
        draws = _random_states()
        known = [*zip(signature.names, signature.tensors, strict=True), *state.tensors]
        contents = Contents([tensor for _, tensor in known])
        seen = observe(lambda: self.model(*args, **kwargs), device=self._machine.device, known=known)
        written = (*seen.written, *contents.changed())
        problems = [*seen.problems, *state_problems(state), *_argument_problems(signature, args, kwargs)]
        if draws != _random_states():
            problems.append(Problem(what="draws random numbers (Python's or NumPy's)", where=""))
        if self._static_outputs and not set(signature.memories).isdisjoint(map(memory_id, written)):
            problems.append(Problem(what="writes an argument, which static outputs may be", where=""))
        leaves, _ = pytree.tree_flatten(seen.result)
        problems += output_problems(leaves, {id(tensor) for _, tensor in known})
        if problems:
            return seen.result, tuple(problems)
        if self._state is None or not self._holds():
            self._state, self._memories = state, state.memories
        call = Call(self.model, args, kwargs, signature)
        return seen.result, capture_checked(
            call,
            seen.result,
            written,
            self._state,
            machine=self._machine,
            dispatch=lambda: self._dispatch("graphed"),
        )


def _problem_of_torch() -> str:
    """Why nothing may be captured or replayed in the present state of torch, or ""."""
    if torch.is_grad_enabled():
        return "grad mode is on: call under torch.no_grad()"
    problem = call_problem(by_autocast=True)
    return "" if problem == "default dtype" else problem  # which is part of the signature


def _argument_problems(signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Problem]:
    """Whether the run has changed a container among its arguments."""
    try:
        after = signature_of(args, kwargs)
    except UnsuitableArgument:
        after = None
    same = after is not None and after.arguments == signature.arguments and len(after.tensors) == len(signature.tensors)
    if after is not None and same and all(map(is_, after.tensors, signature.tensors)):
        return []
    return [Problem(what="forward changes a list, a dict or the shape of a tensor among its arguments", where="")]


def _random_states() -> tuple[object, ...]:
    """Where the generators of Python and, if it is loaded, NumPy stand."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return (random.getstate(),)
    name, keys, *rest = numpy.random.get_state(legacy=True)
    return (random.getstate(), name, keys.tobytes(), *rest)


def _not_graphable(problems: Problems) -> NotGraphable:
    return NotGraphable(
        "cannot be replayed from a CUDA graph: " + "; ".join(map(str, problems)),
        hint="change the lines named, or leave strict=True out to run such calls eagerly",
    )
