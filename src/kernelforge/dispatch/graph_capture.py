"""Capturing one call of a model as a CUDA graph, and what forbids it. Owns `Graph`, `capture_checked`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from kernelforge.dispatch.agreement import compare_outputs
from kernelforge.dispatch.provenance import Problem
from kernelforge.dispatch.python_state import PythonState
from kernelforge.dispatch.signature import Signature, memory_id, with_tensors
from kernelforge.dispatch.stream_graphs import GraphMachine

CHANGES = "forward changes "
"""How a problem begins that a second run may not have any more."""

Problems: TypeAlias = "tuple[Problem, ...]"
_CHUNK = 1 << 22
_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a model."""

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """One captured signature.

    Attributes:
        inputs: the memory that a replay reads. returned: those that the model writes.
        outputs: leaves of the result; a tensor is the memory that a replay fills.
        writes: the replay changes tensors that outlive it. kept: all memory that it reads beside its own.
    """

    inputs: tuple[torch.Tensor, ...]
    returned: tuple[int, ...]
    outputs: tuple[object, ...]
    spec: Any
    replay: Callable[[], None]
    writes: bool
    kept: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Input:
    """An output that is one of the inputs."""

    index: int


@dataclass(frozen=True, slots=True)
class Same:
    """An output that is a tensor of the model's own, which the model returned itself."""

    tensor: torch.Tensor


class Contents:
    """Sums over the memory of some tensors, to find what was written by operators that do not declare it.

    Batch normalisation in training mode is one: its running statistics are plain arguments in its schema.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        memories = {memory_id(t): t for t in tensors}
        self._tensors = tuple(memories.values())
        self._sums = self._now()

    def changed(self) -> list[torch.Tensor]:
        """Those whose memory holds something else than when this was made."""
        return [t for t, a, b in zip(self._tensors, self._sums, self._now(), strict=True) if a != b]

    def _now(self) -> list[int]:
        sums = [_sum_of(_whole(t)) for t in self._tensors]
        by_device = {t.device: t for t in sums}
        moved = {d: torch.stack([t for t in sums if t.device == d]).tolist() for d in by_device}
        supply = {d: iter(values) for d, values in moved.items()}
        return [next(supply[t.device]) for t in sums]


def capture_checked(
    call: Call,
    seen: object,
    written: Sequence[torch.Tensor],
    state: PythonState,
    *,
    machine: GraphMachine,
    dispatch: Callable[[], AbstractContextManager[object]],
) -> Graph | Problems:
    """Capture with inputs of our own, replay, and compare with eager; all that was written is put back.

    Args:
        seen: what an observed run of the call returned. written: what it wrote. state: the model's, as it left it.
        dispatch: the context in which the captured run finds its kernels.
    """
    tensors = call.signature.tensors
    changed = {memory_id(t): t for t in written}
    returned = tuple(i for i, memory in enumerate(call.signature.memories) if memory in changed)
    lasting = [t for memory, t in changed.items() if memory not in set(call.signature.memories)]
    inputs = tuple(copy_of(t).requires_grad_(t.requires_grad) for t in tensors)
    before = _Snapshot((*lasting, *inputs))

    def blank() -> None:
        # What is launched past the capture runs now, and once: on blank inputs, so that its output is surely wrong.
        for tensor in inputs:
            _whole(tensor).zero_()

    own_args, own_kwargs = with_tensors(call.args, call.kwargs, inputs)

    def run() -> Any:
        return call.model(*own_args, **own_kwargs)

    wrong: Problems = ()
    try:
        again = run()
        want = _effects(again, lasting, inputs, returned)
        before.put_back()
        if not changed:
            # The call itself, on the caller's own tensors: their identity, offsets or attributes may have decided.
            wrong = _difference(_effects(seen, (), (), ()), _effects(again, (), (), ()), "a run on copies differs")
        with dispatch():
            result, replay = machine.record(run, between=blank)
        before.put_back()
        replay()
        leaves, spec = pytree.tree_flatten(result)
        got = _effects(result, lasting, inputs, returned)
        wrong = wrong or _difference(want, got, "a replay differs from eager")
    except Exception as error:  # noqa: BLE001 - the model is anybody's code, and the call itself has succeeded
        first = str(error).strip().splitlines() or [type(error).__name__]
        return (Problem(what=f"cannot be captured: {first[0]}", where=""),)
    finally:
        before.put_back()
    if wrong:
        return wrong
    outputs = _described(leaves, inputs, [t for _, t in state.tensors])
    if outputs is None:
        return (Problem(what="an output is a view of an argument, of the model's own memory, or of another", where=""),)
    single = len(leaves) == 1 and leaves[0] is result
    storages = [t.untyped_storage() for _, t in state.tensors]
    return Graph(
        inputs=inputs, returned=returned, outputs=outputs, spec=None if single else spec, replay=replay,
        writes=bool(lasting), kept=(storages, lasting, result),
    )  # fmt: skip


class _Snapshot:
    """What some tensors held, to be put back."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._held = [(_whole(t), _whole(t).clone()) for t in tensors]

    def put_back(self) -> None:
        for memory, values in self._held:
            memory.copy_(values)


def _difference(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor], what: str) -> Problems:
    """What is wrong if two runs do not leave the same behind."""
    _, relative, matches, _ = compare_outputs(first, second)
    return () if matches else (Problem(what=f"{what} by {relative:.2g} of the largest value", where=""),)


def state_problems(state: PythonState) -> list[Problem]:
    problems = [Problem(what=f"{name} has hooks around its forward", where="") for name in state.hooks[:3]]
    problems += [Problem(what=f"{name} is an iterator, which a replay does not move", where="")
                 for name in state.iterators[:3]]  # fmt: skip
    if not state.complete:
        problems.append(Problem(what="the model holds more objects than can be watched", where=""))
    change = state.change()
    if change:
        problems.append(Problem(what=f"{CHANGES}{change}, which a replay would not", where=""))
    return problems


def output_problems(leaves: Sequence[object], known: Collection[int]) -> list[Problem]:
    """Args: known: ids of the arguments and of the model's own tensors, which may be returned as they are."""
    problems = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if type(leaf) not in {torch.Tensor, torch.nn.Parameter} or leaf.layout is not torch.strided:
                problems.append(Problem(what=f"an output is a {type(leaf).__name__} of layout {leaf.layout}", where=""))
            elif leaf.requires_grad and id(leaf) not in known:
                problems.append(Problem(what="an output needs grad: call under torch.no_grad()", where=""))
        elif not isinstance(leaf, _CONSTANTS):
            problems.append(Problem(what=f"an output holds a {type(leaf).__name__}", where=""))
    return problems[:3]


def _effects(
    result: Any, lasting: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], returned: Sequence[int]
) -> list[torch.Tensor]:
    """Copies of all that a run leaves behind: its outputs and what it wrote."""
    leaves, _ = pytree.tree_flatten(result)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return [t.detach().clone() for t in (*tensors, *lasting, *(inputs[i] for i in returned))]


def _described(
    leaves: Sequence[object], inputs: Sequence[torch.Tensor], own: Sequence[torch.Tensor]
) -> tuple[object, ...] | None:
    """The outputs as `Graph` holds them; None if one is a view of what is not the graph's."""
    inputs_by_id = {id(t): i for i, t in enumerate(inputs)}
    own_by_id = {id(t) for t in own}
    foreign = set(map(memory_id, (*inputs, *own)))
    tensors = {id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}
    shared = Counter(map(memory_id, tensors.values()))
    detached: dict[int, torch.Tensor] = {}
    described: list[object] = []
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            described.append(leaf)
        elif id(leaf) in inputs_by_id:
            described.append(Input(inputs_by_id[id(leaf)]))
        elif id(leaf) in own_by_id:
            described.append(Same(leaf))
        elif memory_id(leaf) in foreign or shared[memory_id(leaf)] > 1:
            return None
        else:
            described.append(detached.setdefault(id(leaf), leaf.detach()))
    return tuple(described)


def overlaps(tensor: torch.Tensor) -> bool:
    """Whether two elements may have one address, so that nothing can be copied into such a tensor."""
    reach = 1
    for size, stride in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda axis: axis[1]):
        if size > 1:
            if stride < reach:
                return True
            reach += (size - 1) * stride
    return False


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the very strides."""
    tensor = tensor.detach()
    if overlaps(tensor):
        extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        return tensor.as_strided((extent,), (1,)).clone().as_strided(tensor.shape, tensor.stride())
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(tensor)


def _sum_of(memory: torch.Tensor) -> torch.Tensor:
    """Of a tensor of bytes, as one integer that wraps around; the same bytes in another order give another one."""
    even = memory.numel() // 8 * 8
    total = 3 * memory[even:].sum(dtype=torch.int64)
    weights = torch.arange(1, 2 * min(even // 8, _CHUNK) + 1, 2, device=memory.device)
    for index, words in enumerate(torch.split(memory[:even].view(torch.int64), _CHUNK)):
        total = total + (2 * index + 1) * (words * weights[: len(words)]).sum()
    return total


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """All memory that a tensor's view is a part of, as bytes: what was written through any view of it is in there."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))
