"""ATen graph -> loop IR: the space of a graph and the walk over its nodes. Rules per ATen operator are in `rules`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernelforge.cards.types import Extent, TensorPattern, Variant
from kernelforge.generate.emitter.graph import Argument, Graph, Node, Ref, ScalarArg
from kernelforge.generate.emitter.ir import (
    Apply,
    Axis,
    Cast,
    Const,
    Count,
    Definition,
    Kind,
    Load,
    Parameter,
    Program,
    Reduce,
    ReduceKind,
    Store,
    Value,
    kind_of,
)
from kernelforge.generate.emitter.rules import REDUCTIONS, RULES
from kernelforge.generate.types import Unforgeable

_COMPUTABLE = frozenset(
    {"float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"}
)
_PREFERRED_NAMES = {"input": "x", "weight": "w", "self": "x"}


def lower(variant: Variant, graph: Graph) -> Program:
    """The loop IR of a variant.

    Raises:
        Unforgeable: an ATen operator has no rule, or the graph is not pointwise plus one row reduction.
    """
    builder = Builder(variant, graph)
    for node in graph.nodes:
        builder.run(node)
    return builder.finish()


class Builder:
    """Program under construction; what the rules of `rules` write to. A value is its position."""

    def __init__(self, variant: Variant, graph: Graph) -> None:
        self._variant = variant
        self._graph = graph
        self._names = dict(zip(graph.inputs, variant.tensor_names(), strict=True))
        self._patterns = dict(zip(graph.inputs, variant.tensors, strict=True))
        for pattern in (*variant.tensors, *variant.outputs):
            if pattern.dtype not in _COMPUTABLE:
                raise Unforgeable(f"no arithmetic on dtype {pattern.dtype}")
        self.shape = self._space()
        self._values: list[Value] = []
        self._known: dict[tuple[Definition, Kind], int] = {}
        self._results: dict[str, int | tuple[int, ...]] = {}
        self._reduced: tuple[int, ...] = ()

    def _space(self) -> tuple[Extent, ...]:
        """Reductions run over their input's shape (the first tensor's), everything else over the result's."""
        reducing = any(node.op in REDUCTIONS for node in self._graph.nodes)
        if reducing or not self._variant.outputs:
            return self._variant.tensors[0 if reducing else self._variant.mutates[0]].shape
        return self._variant.outputs[0].shape

    # ---- what rules use ----
    @property
    def rank(self) -> int:
        return len(self.shape)

    def add(self, definition: Definition, kind: Kind, name: str = "") -> int:
        known = self._known.get((definition, kind))
        if known is not None:
            return known
        self._values.append(Value(definition=definition, kind=kind, name=name))
        self._known[(definition, kind)] = len(self._values) - 1
        return len(self._values) - 1

    def kind(self, value: int) -> Kind:
        return self._values[value].kind

    def name(self, value: int, name: str) -> int:
        """Call a value by a name in the source."""
        self._values[value] = replace(self._values[value], name=name)
        return value

    def const(self, value: bool | int | float) -> int:
        kind: Kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "real"
        return self.add(Const(value), kind)

    def real(self, operation: str, *arguments: int, name: str = "") -> int:
        """A floating-point operation; integer and bool arguments are converted."""
        return self.add(Apply(operation, tuple(self.cast(a, "real") for a in arguments)), "real", name)

    def apply(self, operation: str, kind: Kind, *arguments: int) -> int:
        return self.add(Apply(operation, arguments), kind)

    def cast(self, value: int, kind: Kind) -> int:
        """A value as another kind."""
        if self.kind(value) == kind:
            return value
        definition = self._values[value].definition
        if isinstance(definition, Const):
            number = definition.value
            return self.const(float(number) if kind == "real" else bool(number) if kind == "bool" else int(number))
        return self.add(Cast({"real": "float32", "int": "int64", "bool": "bool"}[kind], value), kind)

    def reduce(self, reduce: ReduceKind, value: int, axes: Sequence[int], name: str) -> int:
        """Reduce a real value over axes of the space; all reductions of a program run over the same axes."""
        chosen = tuple(sorted(a % self.rank for a in axes))
        if self._reduced and self._reduced != chosen:
            raise Unforgeable("two reductions over different axes")
        if not chosen:
            raise Unforgeable("a reduction over no axis (a 0-dim tensor)")
        self._reduced = chosen
        return self.add(Reduce(reduce, self.cast(value, "real")), "real", name)

    def count(self) -> int:
        return self.add(Count(), "real", "count")

    def operand(self, argument: Argument) -> int:
        """The value of a node's argument: a number, a scalar of the variant, an earlier result or an input."""
        match argument:
            case Ref(name):
                if name in self._results:
                    result = self._results[name]
                    if isinstance(result, tuple):
                        raise Unforgeable(f"{name} is a tuple")
                    return result
                return self.load(name, align=None)
            case ScalarArg(name):
                return self.add(Parameter(name), "real")
            case bool() | int() | float():
                return self.const(argument)
            case _:
                raise Unforgeable(f"argument {argument!r} is no value")

    def load(self, name: str, *, align: int | None) -> int:
        """An input at the current point; its axis 0 lies at axis `align` of the space, or its last at the last."""
        if name not in self._patterns:
            raise Unforgeable(f"{name} is used before it is computed")
        pattern = self._patterns[name]
        strides = self._strides(pattern, self.rank - len(pattern.shape) if align is None else align)
        tensor = self._names[name]
        return self.add(
            Load(tensor, pattern.dtype, strides),
            kind_of(pattern.dtype),
            _PREFERRED_NAMES.get(tensor, f"{tensor}_value"),
        )

    def parameter_tensor(self, argument: Argument, align: int) -> int | None:
        """An optional per-channel input (weight, running_mean), or None if it is absent."""
        if argument is None:
            return None
        if not isinstance(argument, Ref) or argument.name in self._results:
            raise Unforgeable("a weight that is computed in the same graph")
        return self.load(argument.name, align=align)

    # ---- the walk ----
    def run(self, node: Node) -> None:
        if node.op == "getitem":
            source, position = node.args
            assert isinstance(source, Ref) and isinstance(position, int)
            results = self._results[source.name]
            if not isinstance(results, tuple):
                raise Unforgeable("getitem of something that is no tuple")
            # Results past those that a rule makes (a layer norm's mean, say) may be named but not used.
            if position < len(results):
                self._results[node.name] = results[position]
            return
        if node.op == "empty":
            return
        op = node.op.removesuffix("_") if node.op.endswith("_") else node.op
        rule = RULES.get(op)
        if rule is None:
            raise Unforgeable(f"no lowering rule for aten.{node.op}")
        result = rule(self, node)
        self._results[node.name] = result
        if node.op.endswith("_"):
            target = node.args[0]
            assert isinstance(target, Ref)
            self._results[target.name] = result

    def finish(self) -> Program:
        targets = [(self._graph.outputs[i], name, pattern) for i, (name, pattern) in enumerate(
            zip(self._variant.output_names(), self._variant.outputs, strict=True))]  # fmt: skip
        for index in self._variant.mutates:
            targets.append(
                (self._graph.inputs[index], self._variant.tensor_names()[index], self._variant.tensors[index])
            )
        stores = []
        for source, name, pattern in targets:
            if not isinstance(self._results.get(source), int):
                raise Unforgeable(f"{name} is not computed in the graph")
            value = self.cast(self.operand(Ref(source)), kind_of(pattern.dtype))
            stores.append(Store(tensor=name, dtype=pattern.dtype, strides=self._store_strides(pattern), value=value))
        axes = tuple(Axis(size=size, reduced=i in self._reduced) for i, size in enumerate(self.shape))
        dtypes = {p.dtype for p in (*self._variant.tensors, *self._variant.outputs)}
        return Program(
            title=self._variant.operator, axes=axes, values=tuple(self._values), stores=tuple(stores),
            compute="double" if "float64" in dtypes else "float",
        )  # fmt: skip

    def _strides(self, pattern: TensorPattern, offset: int) -> tuple[Extent, ...]:
        if offset < 0:
            raise Unforgeable("an input has more axes than the result")
        strides = [Extent(0)] * self.rank
        for i, (size, stride) in enumerate(zip(pattern.shape, pattern.stride, strict=True)):
            if size == Extent(1):
                continue
            if offset + i >= self.rank or size != self.shape[offset + i]:
                raise Unforgeable(f"an axis of size {size} does not fit the result's shape")
            strides[offset + i] = stride
        return tuple(strides)

    def _store_strides(self, pattern: TensorPattern) -> tuple[Extent, ...]:
        kept = [a for a in range(self.rank) if a not in self._reduced]
        if len(pattern.shape) == self.rank:
            return self._strides(pattern, 0)
        if self._reduced and len(pattern.shape) == len(kept):
            strides = [Extent(0)] * self.rank
            for axis, size, stride in zip(kept, pattern.shape, pattern.stride, strict=True):
                if size not in (self.shape[axis], Extent(1)):
                    raise Unforgeable("a reduction whose result has another shape")
                strides[axis] = Extent(0) if size == Extent(1) else stride
            return tuple(strides)
        raise Unforgeable("the result's rank is not that of the graph's space")
