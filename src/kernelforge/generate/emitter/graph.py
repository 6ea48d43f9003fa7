"""The ATen graph of a variant's operator, as data: an allow-listed node list that can be written as JSON.

Sizes do not appear in the lowering of a node (they come from the variant's extents), so one trace at any admitted
dims stands for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from kernelforge.cards.types import Variant
from kernelforge.digest import Json, encode_float
from kernelforge.generate.types import Unforgeable

Argument: TypeAlias = "Ref | ScalarArg | bool | int | float | str | tuple[Argument, ...] | None"


@dataclass(frozen=True, slots=True)
class Ref:
    """The value of an earlier node or of an input, by name."""

    name: str


@dataclass(frozen=True, slots=True)
class ScalarArg:
    """A float scalar of the variant, known only at launch."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One ATen call, `op` without overload ("add", "native_layer_norm"), or "getitem" of a tuple.

    Attributes:
        dtype: of the result (of its first tensor).
        rank: of the result.
    """

    name: str
    op: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...] = ()
    dtype: str
    rank: int

    def argument(self, position: int, name: str, default: Argument = None) -> Argument:
        """A positional or keyword argument of the call, or its default."""
        return self.args[position] if position < len(self.args) else dict(self.kwargs).get(name, default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Nodes in order of execution. `inputs` name the variant's tensors in order; in-place nodes keep their "_"."""

    inputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]

    def to_json(self) -> Json:
        return {
            "inputs": list(self.inputs), "outputs": list(self.outputs),
            "nodes": [
                {"name": n.name, "op": n.op, "args": [_to_json(a) for a in n.args],
                 "kwargs": {k: _to_json(v) for k, v in n.kwargs}, "dtype": n.dtype, "rank": n.rank}
                for n in self.nodes
            ],
        }  # fmt: skip


def trace(variant: Variant, call: Callable[[Mapping[str, object]], object]) -> Graph:
    """Record the ATen calls of `call` on fake CPU tensors of the variant's shapes.

    Args:
        call: the operator's `Operator.call`.

    Raises:
        Unforgeable: the call cannot be traced, or holds something that is no ATen call.
    """
    import torch  # lazily: importing the generator must not load torch
    from torch.fx.experimental.proxy_tensor import make_fx

    from kernelforge.cards.bind import to_bound

    dims = {d.name: _sample(d.low, d.high, d.multiple_of) for d in variant.dims}
    # A value that no operator writes into its own graph, so that it is found again below.
    scalars = {s.name: s.low + (s.high - s.low) * (0.4142 + 0.0271 * i) for i, s in enumerate(variant.scalars)}

    def function(*tensors: torch.Tensor) -> object:
        return call(to_bound(variant, dims, scalars, tensors))

    fakes = [
        torch.empty_strided(
            [e.evaluate(dims) for e in p.shape], [e.evaluate(dims) for e in p.stride],
            dtype=getattr(torch, p.dtype), device="meta",
        )
        for p in variant.tensors
    ]  # fmt: skip
    try:
        with torch.no_grad():
            module = make_fx(function)(*fakes)
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        raise Unforgeable(f"the operator cannot be traced on fake tensors: {error}") from error
    return _Reader(scalars).read(module.graph)


def _sample(low: int, high: int, multiple: int) -> int:
    """A typical admitted size: not 0 and not 1 where the range allows, since eager treats those apart."""
    value = max((low + high) // 2, min(2, high))
    return max(low, value - value % multiple)


class _Reader:
    """Turns one torch.fx graph into a `Graph`."""

    def __init__(self, scalars: Mapping[str, float]) -> None:
        self._scalars = scalars
        self._found: set[str] = set()

    def read(self, graph: object) -> Graph:
        import torch

        assert isinstance(graph, torch.fx.Graph)
        inputs, nodes, outputs = [], [], []
        for node in graph.nodes:
            if node.op == "placeholder":
                inputs.append(node.name)
            elif node.op == "output":
                results = node.args[0]
                outputs = [r.name for r in (results if isinstance(results, tuple | list) else (results,))]
            elif node.op == "call_function":
                nodes.append(self._node(node))
            else:
                raise Unforgeable(f"the trace holds a {node.op} node, {node.target}")
        if self._found != set(self._scalars):
            raise Unforgeable("a varying scalar argument does not show in the operator's ATen graph")
        return Graph(inputs=tuple(inputs), nodes=tuple(nodes), outputs=tuple(outputs))

    def _node(self, node: object) -> Node:
        import torch

        assert isinstance(node, torch.fx.Node)
        packet = getattr(node.target, "overloadpacket", None)
        op = packet.__name__ if packet is not None else str(getattr(node.target, "__name__", node.target))
        value = node.meta.get("val")
        first = value[0] if isinstance(value, tuple | list) else value
        tensor = first if isinstance(first, torch.Tensor) else None
        return Node(
            name=node.name, op=op, args=tuple(self._argument(a) for a in node.args),
            kwargs=tuple((k, self._argument(v)) for k, v in node.kwargs.items()),
            dtype=str(tensor.dtype).removeprefix("torch.") if tensor is not None else "",
            rank=tensor.ndim if tensor is not None else 0,
        )  # fmt: skip

    def _argument(self, value: object) -> Argument:
        import torch

        if isinstance(value, torch.fx.Node):
            return Ref(value.name)
        if isinstance(value, tuple | list):
            return tuple(self._argument(v) for v in value)
        if isinstance(value, torch.dtype):
            return str(value).removeprefix("torch.")
        if isinstance(value, float):
            return self._scalar(value)
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, torch.device | torch.layout | torch.memory_format):
            return str(value)
        raise Unforgeable(f"the trace holds an argument of type {type(value).__name__}")

    def _scalar(self, value: float) -> Argument:
        for name, sentinel in self._scalars.items():
            # Some decompositions round a scalar to float32 on the way (rms_norm's eps).
            if abs(value - sentinel) <= 1e-7 * abs(sentinel):
                self._found.add(name)
                return ScalarArg(name)
        return value


def _to_json(argument: Argument) -> Json:
    match argument:
        case Ref(name):
            return {"ref": name}
        case ScalarArg(name):
            return {"scalar": name}
        case tuple():
            return [_to_json(a) for a in argument]
        case bool() | int() | str() | None:
            return argument
        case float():
            return {"number": encode_float(argument)}
