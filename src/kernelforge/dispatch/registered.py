"""Kernels as operators of torch, so that compiled code can hold calls of them. Owns `RegisteredOperator`, `Namespace`.

A variant's operator takes its input tensors, then the integers and floats that vary, and returns one new tensor. It is
total: where the guard refuses a call, it does what PyTorch does, under the variant's state of autocast. Whoever puts
it into a graph has decided by metadata; alignment and lazy bits are known only here. Gradients are PyTorch's own: a
call that needs one never reaches a kernel.

The names hold the digest of the package: two versions of one kernel live side by side, and code in a compiler's cache
fits the next process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch._guards import TracingContext
from torch.autograd import forward_ad
from torch.nn import Parameter

from kernelforge.capture.facts import autocast_dtype, capability_of, tensor_spec
from kernelforge.capture.precision import precision_of
from kernelforge.capture.types import Arguments, DimRef, ScalarRef, Value, alignment_of
from kernelforge.cards.bind import to_bound
from kernelforge.cards.guard import CallFacts, Guard
from kernelforge.cards.types import Variant
from kernelforge.dispatch.decide import Refused, decide, of_signature
from kernelforge.dispatch.plans import Hit, Miss, hit_plan
from kernelforge.dispatch.state import is_capturing, is_plain, must_repeat, questions
from kernelforge.dispatch.tables import Tables
from kernelforge.native.extension import Counter, new_counter
from kernelforge.operators import get_operator
from kernelforge.package.types import Entry

_MAX_SIGNATURES = 4096
_PLAIN_TYPES = frozenset({torch.Tensor, Parameter})
_DEVICES = frozenset({"cpu", "cuda"})
# Inductor must hand over tensors in the very strides that the guard admitted.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)


def can_be_registered(variant: Variant) -> str:
    """Why no operator stands for a variant, or "". A graph holds calls that return one new tensor."""
    if variant.mutates:
        return "changes an input in place"
    return "" if len(variant.outputs) == 1 else "has several outputs"


class RegisteredOperator:
    """The operator of one variant of a package. Thread-safe.

    Attributes:
        overload: what a graph calls, with the variant's input tensors and `numbers`.
    """

    overload: torch._ops.OpOverload

    def __init__(self, tables: Tables, entry: Entry) -> None:
        variant = entry.variant
        self.variant = variant
        self._tables = tables
        self._operator = get_operator(variant.operator)
        self._inputs = len(variant.tensors)
        self._ints, self._floats = varying(variant)
        # The entry that was chosen for the graph comes first; another one may ask for less alignment.
        own = [p for p in tables.guarded if p[0].variant.operator == variant.operator]
        own = [p for p in own if not can_be_registered(p[0].variant)]
        self._guarded: list[tuple[Entry, Guard]] = sorted(own, key=lambda p: p[0] is not entry)
        self._state = questions(entry for entry, _ in self._guarded)
        self._plans: dict[tuple[object, ...], Hit | Miss] = {}
        self._table = tables.native.table() if tables.native is not None else None
        if self._table is not None:
            self._table.active, self._table.state = True, self._state

    @property
    def schema(self) -> str:
        """The operator's parameters and result, as torch writes them."""
        parameters = [f"Tensor t{i}" for i in range(self._inputs)]
        parameters += [f"SymInt {name}" for name in self._ints] + [f"float {name}" for name in self._floats]
        return f"({', '.join(parameters)}) -> Tensor"

    def numbers(self, arguments: Arguments) -> tuple[int | float, ...]:
        """What an admitted call with these arguments passes after its tensors."""
        seen: dict[str, Any] = {}
        for (_, wanted), (_, value) in zip(self.variant.arguments, arguments, strict=True):
            _collect(wanted, value, seen)
        return tuple(seen[name] for name in (*self._ints, *self._floats))

    def original(self, args: Sequence[Any]) -> torch.Tensor:
        """What PyTorch does for the operator's arguments."""
        tensors, numbers = args[: self._inputs], args[self._inputs :]
        values = dict(zip((*self._ints, *self._floats), numbers, strict=True))
        bound = to_bound(self.variant, values, values, tensors)
        with self._autocast(tensors[0].device.type):
            result = self._operator.call(bound)
        assert isinstance(result, torch.Tensor)
        return result

    def fake(self, *args: Any) -> torch.Tensor:
        """Shape, strides and dtype of the result: PyTorch's own."""
        return self.original(args)

    def enter(self) -> Callable[..., torch.Tensor]:
        """The kernel of the Autograd keys: the first that a call meets. One lookup in C, where that knows the call."""
        if self._table is None or self._tables.native is None:
            return self._differentiable
        tables, differentiable = self._tables, self._differentiable
        attempt, unknown = self._table.attempt, self._tables.native.unknown

        def enter(keyset: torch._C.DispatchKeySet, *args: Any) -> torch.Tensor:
            # It looks at gradients, modes and transforms too.
            result: Any = attempt(*args) if tables.enabled else unknown
            return differentiable(keyset, *args) if result is unknown else result

        return enter

    def run(self, *args: Any) -> torch.Tensor:
        """The kernel of all backends: no gradient is needed here."""
        if not self._tables.enabled:
            return self.original(args)
        tensors, numbers = args[: self._inputs], args[self._inputs :]
        if torch.get_default_dtype() is not torch.float32:
            return self._count("default dtype", args)
        signature: list[object] = [n or repr(n) for n in numbers]  # 0.0 and -0.0 are equal, but not the same argument
        try:
            for tensor in tensors:
                signature += (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        except RuntimeError:
            return self._count("layout", args)  # it has no strides
        signature += [function(*arguments) for function, arguments in self._state]
        key = tuple(signature)
        plan = self._plans.get(key)
        # Nothing is decided or launched for the first time while a stream is captured.
        if not (plan.launched if isinstance(plan, Hit) else plan) and is_capturing(tensors[0].get_device()):
            return self._count("capture", args)
        plan = plan or self._remember(key, self._plan(tensors, numbers, aligned=True))
        if isinstance(plan, Miss):
            return self._miss(plan, args)
        return self._launch(plan, key, args)

    def _differentiable(self, keyset: torch._C.DispatchKeySet, *args: Any) -> torch.Tensor:
        tensors = args[: self._inputs]
        if forward_ad._current_level >= 0 or (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)):
            self._count_only("grad")
            return self.original(args)
        if (
            torch._C._len_torch_dispatch_stack()
            or torch._C._functorch.peek_interpreter_stack() is not None
            or any(type(t) not in _PLAIN_TYPES for t in tensors)
        ):
            with torch._C._AutoDispatchBelowAutograd():
                result = self.overload.redispatch(keyset & torch._C._after_autograd_keyset, *args)
            assert isinstance(result, torch.Tensor)
            return result
        return self.run(*args)

    def _launch(self, plan: Hit, key: tuple[object, ...], args: tuple[Any, ...]) -> torch.Tensor:
        tensors = args[: self._inputs]
        if not all(map(is_plain, tensors)):
            return self._count("layout", args)
        status, result = plan.run(tensors)
        if status == 0:
            plan.counter[0] += 1
            plan.launched = True
            self._teach(args, plan)
            assert isinstance(result, torch.Tensor)
            return result
        if status < 0:
            raise self._tables.failure(plan, status)
        exact = (*key, *(alignment_of(t.data_ptr()) for t in tensors))
        second = self._plans.get(exact)
        if second is None:
            second = self._remember(exact, self._plan(tensors, args[self._inputs :], aligned=False))
        if isinstance(second, Miss):
            return self._miss(second, args)
        if second.entry is plan.entry:
            refusals = plan.entry.binary.refusals
            return self._count(refusals[status - 1] if status <= len(refusals) else f"code {status}", args)
        return self._launch_second(second, args)

    def _launch_second(self, plan: Hit, args: tuple[Any, ...]) -> torch.Tensor:
        """Another entry, for memory that the first one refused."""
        status, result = plan.run(args[: self._inputs])
        if status < 0:
            raise self._tables.failure(plan, status)
        if status > 0:
            return self._count("alignment", args)
        plan.counter[0] += 1
        plan.launched = True
        assert isinstance(result, torch.Tensor)
        return result

    def _plan(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int | float], *, aligned: bool) -> Hit | Miss:
        device = tensors[0].device
        if device.type not in _DEVICES or any(t.device != device for t in tensors):
            return Miss(counter=self._counter("device"))
        values = dict(zip((*self._ints, *self._floats), numbers, strict=True))
        specs = tuple(map(tensor_spec, tensors))
        facts = CallFacts(
            operator=self.variant.operator, tensors=specs,
            arguments=tuple((name, _filled(value, values)) for name, value in self.variant.arguments),
            autocast=self.variant.autocast, device=device.type,
            precision=precision_of(self._operator, device.type, {self.variant.autocast, *(t.dtype for t in specs)}),
            deterministic=must_repeat(self._operator, device.type),
            capability=capability_of(device.type, device.index or 0),
        )  # fmt: skip
        answer = decide(self._guarded, of_signature(facts, aligned=aligned))
        if isinstance(answer, Refused):
            return Miss(counter=self._tables.miss_counter(answer.by_variant))
        served = answer.entry.variant.id
        order = tuple(range(self._inputs))
        return hit_plan(answer, self._tables.kernels[served], tensors, order, self._tables.hits[served])

    def _remember(self, key: tuple[object, ...], plan: Hit | Miss) -> Hit | Miss:
        with self._tables.lock:
            if len(self._plans) >= _MAX_SIGNATURES:
                self._plans.clear()
            self._plans[key] = plan
        return plan

    def _teach(self, args: tuple[Any, ...], plan: Hit) -> None:
        """Put what was decided for a call into the compiled table."""
        native, table = self._tables.native, self._table
        if native is None or table is None:
            return

        def fail(status: int) -> None:
            raise self._tables.failure(plan, status)

        with self._tables.lock:
            # This table has no original: calls that want gradients come back from it, uncounted.
            native.teach(table, args, {}, plan, refused=new_counter(), fail=fail)

    def _miss(self, plan: Miss, args: tuple[Any, ...]) -> torch.Tensor:
        plan.counter[0] += 1
        return self.original(args)

    def _count(self, reason: str, args: tuple[Any, ...]) -> torch.Tensor:
        self._count_only(reason)
        return self.original(args)

    def _count_only(self, reason: str) -> None:
        # A compiler runs the operator on fake tensors; those are no calls of the model.
        if self._tables.enabled and TracingContext.try_get() is None:
            self._counter(reason)[0] += 1

    def _counter(self, reason: str) -> Counter:
        return self._tables.miss_counter({entry.variant.id: reason for entry, _ in self._guarded})

    def _autocast(self, device: str) -> Any:
        """Compiled code runs without autocast, which its graph holds already; the original needs it again."""
        wanted = self.variant.autocast
        if device not in _DEVICES or autocast_dtype(device) == wanted:
            return nullcontext()
        return torch.autocast(device, dtype=getattr(torch, wanted) if wanted else None, enabled=bool(wanted))


class Namespace:
    """The operators of one loaded package, each defined when it is first asked for. Thread-safe.

    Use `namespace_of`.
    """

    def __init__(self, tables: Tables, name: str) -> None:
        self.name = name
        self._tables = tables
        self._library: Any = torch.library.Library(name, "DEF")  # type: ignore[no-untyped-call]
        self._operators: dict[str, RegisteredOperator] = {}
        self._lock = threading.Lock()

    def operator(self, entry: Entry) -> RegisteredOperator:
        """The operator of one of the package's entries, which is on and `can_be_registered`."""
        with self._lock:
            known = self._operators.get(entry.variant.id)
            if known is None:
                known = self._operators[entry.variant.id] = self._define(entry)
        return known

    def _define(self, entry: Entry) -> RegisteredOperator:
        operator = RegisteredOperator(self._tables, entry)
        name = f"{entry.variant.operator}_{entry.variant.id[:8]}"
        self._library.define(f"{name}{operator.schema}", tags=_TAGS)
        self._library.impl(name, operator.run, "CompositeExplicitAutograd")
        self._library.impl(name, operator.enter(), "Autograd", with_keyset=True)
        torch.library.register_fake(f"{self.name}::{name}", operator.fake, lib=self._library)
        operator.overload = getattr(getattr(torch.ops, self.name), name).default
        return operator


_NAMESPACES: dict[Tables, Namespace] = {}
_TAKEN: dict[str, int] = {}
_LOCK = threading.Lock()


def namespace_of(tables: Tables, digest: str) -> Namespace:
    """The operators of a loaded package; the same object for the same tables.

    Args:
        digest: of the package's file. When the same content is loaded again, its operators get names of their own, so
            that each `LoadedPackage` counts what it serves.
    """
    with _LOCK:
        known = _NAMESPACES.get(tables)
        if known is None:
            name = f"kernelforge_{digest[:8]}"
            times = _TAKEN[name] = _TAKEN.get(name, 0) + 1
            known = _NAMESPACES[tables] = Namespace(tables, name if times == 1 else f"{name}_{times}")
    return known


def varying(variant: Variant) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the integer and of the float arguments that vary, in the variant's order."""
    named: set[str] = set()
    for _, value in variant.arguments:
        _names(value, named)
    ints = tuple(d.name for d in variant.dims if d.name in named)
    return ints, tuple(s.name for s in variant.scalars if s.name in named)


def _names(value: Value, into: set[str]) -> None:
    if isinstance(value, tuple):
        for item in value:
            _names(item, into)
    elif isinstance(value, DimRef | ScalarRef):
        into.add(value.name)


def _collect(wanted: Value, seen: Value, into: dict[str, Any]) -> None:
    if isinstance(wanted, tuple) and isinstance(seen, tuple):
        for first, second in zip(wanted, seen, strict=True):
            _collect(first, second, into)
    elif isinstance(wanted, DimRef | ScalarRef):
        into[wanted.name] = seen


def _filled(value: Value, numbers: dict[str, int | float]) -> Value:
    if isinstance(value, tuple):
        return tuple(_filled(item, numbers) for item in value)
    return numbers[value.name] if isinstance(value, DimRef | ScalarRef) else value
