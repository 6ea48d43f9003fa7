"""Puts registered operators into Dynamo's graph, where a guard admits a call by its metadata. Owns `rewrite`.

Dynamo's graph holds the functions that the model calls, so a call means here what it means to eager dispatch. Alignment
and aliasing are taken for granted; the operator looks at them. A symbolic size satisfies only what is known of it:
nothing here adds a condition to the graph, so none is compiled that would not be compiled without kernels.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast

from kernelforge.capture.facts import autocast_dtype, capability_of, describe_call, dtype_name, layout_name
from kernelforge.capture.precision import precision_of
from kernelforge.capture.types import TensorSpec
from kernelforge.cards.guard import CallFacts
from kernelforge.dispatch.decide import Admitted, decide
from kernelforge.dispatch.patches import genuine
from kernelforge.dispatch.registered import Namespace, can_be_registered
from kernelforge.dispatch.state import must_repeat
from kernelforge.dispatch.symbolic import known
from kernelforge.dispatch.tables import Tables
from kernelforge.errors import NotFound
from kernelforge.operators import Entry as CallForm
from kernelforge.operators import Operator, Unsupported, canonical_call, get_operator, resolve_target
from kernelforge.package.types import Entry

_LOG = logging.getLogger(__name__)

Forms: TypeAlias = "Sequence[tuple[Operator, CallForm]]"

# After these, the metadata that the graph keeps of a tensor is no longer that of the calls before them.
_RESHAPING = frozenset({
    "unsqueeze_", "squeeze_", "t_", "transpose_", "swapaxes_", "swapdims_", "resize_", "resize_as_", "set_",
    "as_strided_", "swap_tensors", "set_data",
})  # fmt: skip
# Python functions of torch that Dynamo looks into, and what it finds there with the same parameters.
_INSIDE = {"torch.nn.functional.pad": "torch._C._nn.pad"}
_NOT_FOR_GRAPHS = "left to Inductor: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """What one package offers to a graph."""

    tables: Tables
    namespace: Namespace


class CallForms:
    """The call forms of a package's operators, as a graph names them."""

    def __init__(self, operators: Iterable[str]) -> None:
        self._functions: dict[object, list[tuple[Operator, CallForm]]] = {}
        self._methods: dict[str, list[tuple[Operator, CallForm]]] = {}
        for operator in map(get_operator, sorted(set(operators))):
            for form in operator.entries:
                try:
                    owner, attribute, function = resolve_target(_INSIDE.get(form.target, form.target))
                except NotFound:
                    continue
                if owner is torch.Tensor:
                    self._methods.setdefault(attribute, []).append((operator, form))
                else:
                    # Dispatch may be active: the graph holds what stands below its wrappers.
                    self._functions.setdefault(genuine(function), []).append((operator, form))

    def of(self, node: fx.Node) -> tuple[Forms, tuple[Any, ...]]:
        """What a node's call may mean, and its arguments by position."""
        if node.op == "call_method":
            return self._methods.get(str(node.target), ()), node.args
        if node.op != "call_function":
            return (), ()
        target = node.target
        if getattr(target, "__module__", "") != "_operator":
            return self._functions.get(target, ()), node.args
        # `2.0 - x` is operator.sub(2.0, x) here, and Tensor.__rsub__(x, 2.0) in eager.
        name = getattr(target, "__name__", "").rstrip("_")
        if len(node.args) == 2 and not isinstance(node.args[0], fx.Node):
            return self._methods.get(f"__r{name}__", ()), node.args[::-1]
        return self._methods.get(f"__{name}__", ()), node.args


class _State:
    """Grad mode and autocast at a node. Both are switched by nodes of the graph itself."""

    def __init__(self) -> None:
        self.grad = torch.is_grad_enabled()
        self.autocast = {device: autocast_dtype(device) for device in ("cpu", "cuda")}
        self._before: dict[fx.Node, tuple[str, str]] = {}

    def follow(self, node: fx.Node) -> None:
        """Take over what a node changes."""
        if node.op != "call_function":
            return
        if node.target is torch._C._set_grad_enabled:
            self.grad = bool(node.args[0])
        elif node.target is _enter_autocast:
            device, dtype, enabled, *_ = (*node.args, None, True)
            if device in self.autocast:
                self._before[node] = str(device), self.autocast[str(device)]
                given = dtype if isinstance(dtype, torch.dtype) else torch.get_autocast_dtype(str(device))
                self.autocast[str(device)] = dtype_name(given) if enabled else ""
        elif node.target is _exit_autocast:
            entered = node.args[0]
            if isinstance(entered, fx.Node) and entered in self._before:
                device, before = self._before[entered]
                self.autocast[device] = before


def rewrite(graph_module: fx.GraphModule, packages: Sequence[Kernels]) -> int:
    """Replace the calls that a kernel serves, in place; returns how many.

    Args:
        packages: the first one whose guard admits a call serves it.
    """
    if torch.get_default_dtype() is not torch.float32:
        return 0  # it decides the dtype of results of integers and numbers; kernels were captured under float32
    forms = CallForms(e.variant.operator for kernels in packages for e, _ in kernels.tables.guarded)
    reshaped = {id(_value(a)) for n in graph_module.graph.nodes if _name(n) in _RESHAPING for a in n.all_input_nodes}
    state, replaced = _State(), 0
    for node in list(graph_module.graph.nodes):
        state.follow(node)
        meant, args = forms.of(node)
        if meant and not any(id(_value(n)) in reshaped for n in (node, *node.all_input_nodes)):
            replaced += _serve(node, meant, args, packages, state)
    if replaced:
        graph_module.graph.lint()
        graph_module.recompile()
    _LOG.info("%d calls of a graph of %d nodes go to kernels", replaced, len(graph_module.graph.nodes))
    return replaced


def _serve(node: fx.Node, forms: Forms, args: tuple[Any, ...], packages: Sequence[Kernels], state: _State) -> bool:
    call = _describe(node, forms, args, state)
    if isinstance(call, str):
        names = {operator.name for operator, _ in forms}
        for kernels in packages if call else ():
            _count(kernels, {e.variant.id: call for e, _ in kernels.tables.guarded if e.variant.operator in names})
        return False
    facts, inputs = call
    for kernels in packages:
        answer = decide(kernels.tables.guarded, facts)
        if isinstance(answer, Admitted) and _fits_in_memory(answer.entry, facts, answer.dims):
            reason = can_be_registered(answer.entry.variant)
            if not reason:
                _replace(node, kernels.namespace, answer.entry, facts, inputs)
                return True
            refusals: Mapping[str, str] = {answer.entry.variant.id: reason}
        else:
            refusals = {answer.entry.variant.id: "elements"} if isinstance(answer, Admitted) else answer.by_variant
        _count(kernels, refusals)
    return False


def _count(kernels: Kernels, refusals: Mapping[str, str]) -> None:
    """Count a call that is left to the compiler, with the reason of each variant."""
    reasons = {variant: _NOT_FOR_GRAPHS + reason for variant, reason in refusals.items()}
    kernels.tables.miss_counter(reasons)[0] += 1


def _replace(node: fx.Node, namespace: Namespace, entry: Entry, facts: CallFacts, inputs: Sequence[fx.Node]) -> None:
    operator = namespace.operator(entry)
    graph = node.graph
    with graph.inserting_before(node):
        new = graph.call_function(operator.overload, (*inputs, *operator.numbers(facts.arguments)))
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    graph.erase_node(node)


def _describe(
    node: fx.Node, forms: Forms, args: tuple[Any, ...], state: _State
) -> tuple[CallFacts, list[fx.Node]] | str:
    """What a guard looks at of a node's call, and the nodes of its tensors.

    "" if no guard could admit it, "size" if sizes vary and this torch cannot look at such ones.
    """
    tensors = [_value(n) for n in node.all_input_nodes if isinstance(_value(n), torch.Tensor)]
    if not tensors or not all(map(_is_plain, tensors)):
        return ""
    given = fx.map_arg((tuple(args), dict(node.kwargs)), _value)
    nodes = {id(_value(n)): n for n in node.all_input_nodes}
    quiet = _without_new_conditions(tensors)
    if quiet is None:
        return "size"
    with quiet:
        for operator, form in forms:
            try:
                canonical = canonical_call(operator, form, given[0], given[1])
                if isinstance(canonical, Unsupported):
                    continue
                arguments, inputs = describe_call(operator.name, canonical)
            except (TypeError, RuntimeError):
                continue  # a symbolic argument, or a description that would ask for the value of one
            device, specs = inputs[0].device, tuple(map(_spec, inputs))
            cast = state.autocast[device.type]
            facts = CallFacts(
                operator=operator.name, arguments=arguments, tensors=specs, autocast=cast, grad_enabled=state.grad,
                precision=precision_of(operator, device.type, {cast, *(t.dtype for t in specs)}),
                deterministic=must_repeat(operator, device.type), device=device.type,
                capability=capability_of(device.type, device.index or 0),
            )  # fmt: skip
            found = [nodes.get(id(t)) for t in inputs]
            return (facts, [n for n in found if n is not None]) if None not in found else ""
    return ""


def _spec(fake: torch.Tensor) -> TensorSpec:
    return TensorSpec(
        shape=tuple(map(known, fake.shape)), stride=tuple(map(known, fake.stride())), dtype=dtype_name(fake.dtype),
        device=fake.device.type, layout=layout_name(fake), requires_grad=fake.requires_grad,
    )  # fmt: skip


def _fits_in_memory(entry: Entry, facts: CallFacts, dims: Mapping[str, int]) -> bool:
    """The guard compared the largest tensor only, and among symbolic sizes which one that is may be unknown."""
    specs = (*facts.tensors, *(p.spec(dims, facts.device) for p in entry.variant.outputs))
    return all(spec.elements <= entry.variant.max_elements for spec in specs)


def _is_plain(tensor: Any) -> bool:
    """Whether it is what its metadata says. Within vmap, grad and the like it is of another type, as subclasses are."""
    return (
        type(tensor) is FakeTensor and tensor.layout is torch.strided and tensor.device.type in {"cpu", "cuda"}
    )  # fmt: skip


def _without_new_conditions(tensors: Sequence[torch.Tensor]) -> AbstractContextManager[object] | None:
    """Have torch raise a RuntimeError where describing a call would make the graph depend on a size.

    None if this torch cannot.
    """
    for tensor in tensors:
        for size in (*tensor.shape, *tensor.stride()):
            if isinstance(size, torch.SymInt):
                make = getattr(size.node.shape_env, "error_on_new_guards", None)
                return None if make is None else cast("AbstractContextManager[object]", make())
    return nullcontext()


def _value(node: Any) -> Any:
    return node.meta.get("example_value", node) if isinstance(node, fx.Node) else node


def _name(node: fx.Node) -> str:
    target: str | Callable[..., Any] = node.target
    return target if isinstance(target, str) else getattr(target, "__name__", "")
