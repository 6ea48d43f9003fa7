"""One replaced attribute of torch: the wrapper that every call passes. Owns `CallSite`.

There are two ways through a wrapper. The exact one looks up the call's signature (shapes, strides, dtypes, device, all
other arguments by value and type) in a dict: the guard decides each signature once. The quick one is the compiled call
table (call_table.c), where it can be had: it repeats what the exact way has found, and hands over whenever it does not
know. Grad mode, lazy bits and the state of torch are looked at in each call, on both.

Nothing is decided, loaded or launched for the first time while a CUDA stream is captured: such a call goes to PyTorch.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import torch
from torch._guards import TracingContext
from torch.compiler import is_dynamo_compiling
from torch.nn import Parameter

from kernelforge.capture.types import alignment_of
from kernelforge.dispatch.decide import Refused, decide, describe, of_signature
from kernelforge.dispatch.machine import torch_minor
from kernelforge.dispatch.overrides import call_overridden
from kernelforge.dispatch.patches import Function, Origin, genuine, origin_at
from kernelforge.dispatch.plans import Hit, Miss, hit_plan
from kernelforge.dispatch.state import (
    call_problem,
    foreign_modes,
    freeze,
    is_capturing,
    is_plain,
    questions,
    unreadable,
)
from kernelforge.dispatch.tables import Tables
from kernelforge.native.extension import Counter, autocast_state
from kernelforge.operators import Entry as CallForm
from kernelforge.operators import Operator

_LOG = logging.getLogger(__name__)
Key: TypeAlias = "tuple[object, ...]"
Call: TypeAlias = "tuple[Key, list[torch.Tensor], tuple[object, ...], Mapping[str, object]]"
"""Signature, tensors in the order of the call, arguments by position and by name."""
_MAX_SIGNATURES = 4096
_SETS: dict[frozenset[str], frozenset[str]] = {}
"""One object for equal sets of operators: the call table then compares them by identity."""
_ATOMS = frozenset({int, bool, str, type(None), torch.dtype})


class CallSite:
    """One replaced attribute of torch.

    Args:
        forms: what a call there may mean. origin: what is replaced.
    """

    def __init__(
        self,
        tables: Tables,
        target: str,
        forms: Sequence[tuple[Operator, CallForm]],
        origin: Origin,
    ) -> None:
        self.target = target
        self._tables, self._forms, self.origin = tables, forms, origin
        self.original = origin.function
        operators = frozenset(operator.name for operator, _ in forms)
        self._operators = _SETS.setdefault(operators, operators)
        own = [(entry, guard) for entry, guard in tables.guarded if entry.variant.operator in self._operators]
        self._guarded = own
        self._variants = tuple(entry.variant.id for entry, _ in own)
        self._by_autocast = any(entry.variant.autocast for entry, _ in own)
        self._state = questions(entry for entry, _ in own)
        self._is_python = inspect.isfunction(genuine(self.original))
        self._on = False
        self._plans: dict[Key, Hit | Miss] = {}
        self._decided: dict[Key, Hit | Miss] = {}
        self._table = tables.native.table() if tables.native is not None else None
        if self._table is not None:
            self._table.by_autocast, self._table.state = self._by_autocast, self._state
            self._table.original, self._table.package = self.original, tables
            self._table.operators, self._table.calls_others = self._operators, self._is_python
        self.resume()

    def close(self) -> None:
        """Make the wrapper a pass-through for good, until it is opened again."""
        with self._tables.lock:
            self.origin.active = False
            self.pause()

    def reopen(self) -> None:
        """Bring a closed wrapper back to life with what it had decided."""
        with self._tables.lock:
            self.origin.active = True
            self.resume()

    def pause(self) -> None:
        """Make the wrapper a pass-through that counts nothing."""
        with self._tables.lock:
            self._on = False
            if self._table is not None:
                self._table.active = False
            if self._plans:
                self._decided = dict(self._plans)
                self._plans.clear()

    def resume(self) -> None:
        """The opposite of `pause`; nothing while the package is switched off."""
        with self._tables.lock:
            if not self._tables.enabled:
                return
            self._plans.update(self._decided)
            self._on = True
            if self._table is not None:
                self._table.active = self._tables.shadow is None

    def still_fits(self) -> bool:
        """Whether the place holds what it held when the wrapper was made."""
        present = origin_at(self.origin.owner, self.origin.attribute)
        return present.function is self.origin.function and present.own == self.origin.own

    def wrapper(self) -> Function:
        """The function that takes the attribute's place: every call of torch pays for each of its steps."""
        original, exact = self.original, self._exact()
        if self._table is not None and self._tables.native is not None:
            if _dynamo_looks_through():
                # Else code that is being compiled as a call gets here would have our Python compiled, too.
                unseen: Any = torch._dynamo.disable(exact)  # type: ignore[no-untyped-call]
                stand_in = self._tables.native.stand_in(self._table, unseen, target=self.target)
                wrapper = functools.wraps(original)(stand_in)
                vars(wrapper)["_torchdynamo_inline"] = original
                return wrapper
            quick = self._tables.native.stand_in(self._table, exact, target=self.target)

            def call(*args: object, **kwargs: object) -> object:
                return original(*args, **kwargs) if is_dynamo_compiling() else quick(*args, **kwargs)

            return functools.wraps(original)(call)
        busy = self._tables.busy
        within = None if self._is_python else next(iter(self._operators))

        def call_in_python(*args: object, **kwargs: object) -> object:
            if is_dynamo_compiling() or (within is not None and within in busy.operators):
                return original(*args, **kwargs)
            return exact(args, kwargs)

        return functools.wraps(original)(call_in_python)

    def _exact(self) -> Callable[[tuple[object, ...], dict[str, object]], object]:
        """The exact way through. One long function, because each step is paid for."""
        plans, slow, state, by_autocast = self._plans, self._slow, self._state, self._by_autocast
        Tensor, atoms, function_modes = torch.Tensor, _ATOMS, torch._C._len_torch_function_stack

        def exact(args: tuple[object, ...], kwargs: dict[str, object]) -> object:
            # Before anything else: under a function mode even reading a shape is a call that the mode sees.
            if function_modes() and foreign_modes():
                return self._count("function mode", args, kwargs, overridden=True)
            values: tuple[Any, ...] = (*args, *kwargs.values()) if kwargs else args
            tensors: list[torch.Tensor] = []
            signature: list[object] = [tuple(kwargs)] if kwargs else []
            try:
                for value in values:
                    kind = type(value)
                    if kind is Tensor or kind is Parameter:
                        signature += (value.shape, value.stride(), value.dtype, value.get_device())
                        tensors.append(value)
                    elif kind in atoms:
                        signature += (kind, value)
                    else:
                        freeze(value, signature, tensors)
                if by_autocast:
                    signature.append(autocast_state())
                if state:
                    signature += [function(*arguments) for function, arguments in state]
                key = tuple(signature)
                plan = plans.get(key)
            except (TypeError, RuntimeError):
                # A subclass, a tracer's proxy, a tensor without strides, an unhashable argument.
                return self._count(unreadable(values), args, kwargs, overridden=True)
            if isinstance(plan, Miss):
                return self._follow(plan, (key, tensors, args, kwargs))
            return slow(plan, (key, tensors, args, kwargs))

        return exact

    def _slow(self, plan: Hit | None, call: Call) -> object:
        """A signature that a kernel serves, or one that is not in the table: decide it, remember it, do it."""
        key, tensors, args, kwargs = call
        if not self._on:
            return self.original(*args, **kwargs)
        problem = call_problem(by_autocast=self._by_autocast)
        if not problem and any(t.is_neg() if plan else not is_plain(t) for t in tensors):
            problem = "layout"
        if not problem and plan is None and any(is_capturing(t.get_device()) for t in tensors):
            problem = "capture"
        if problem:
            return self._count(problem, args, kwargs)
        return self._follow(plan or self._remember(key, self._plan(call, aligned=True)), call)

    def _follow(self, plan: Hit | Miss, call: Call, *, teach: bool = True) -> object:
        """Do what was decided. teach: it holds for every call of the signature, whatever its alignment."""
        if isinstance(plan, Hit):
            return self._run(plan, call, teach=teach)
        plan.counter[0] += 1
        if teach:
            self._teach(plan, call)
        return self._fall_back(call[2], call[3])

    def _run(self, plan: Hit, call: Call, *, teach: bool) -> object:
        """Check what differs between calls of one signature, then launch."""
        _, tensors, args, kwargs = call
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            if teach:
                self._teach(plan, call)
            return self._count("grad", args, kwargs)
        if not plan.launched and is_capturing(plan.device):
            return self._count("capture", args, kwargs)
        if plan.entry.variant.mutates:
            problem = plan.memory_problem(tensors)
            if problem:
                return self._count(problem, args, kwargs)
        shadowed = self._shadow_call(plan, call) if self._tables.shadow is not None else None
        try:
            status, result = plan.run(tensors)
        except RuntimeError:
            return self._not_passed(call)
        if status == 0:
            plan.counter[0] += 1
            plan.launched = True
            if shadowed is not None:
                self._compare(plan, result, shadowed)
            if teach:
                self._teach(plan, call)
            return result
        return self._not_launched(plan, status, call)

    def _not_passed(self, call: Call) -> object:
        """A tensor could not be handed to the binary, which therefore did not start. Call from an `except` block.

        A signature holds no layout and cannot tell a meta tensor from a CPU one: those, and only those, go to eager.
        """
        _, tensors, args, kwargs = call
        if all(map(is_plain, tensors)):
            raise  # noqa: PLE0704 - the caller's exception goes on: out of memory, say
        return self._count(call_problem(by_autocast=True) or "layout", args, kwargs)

    def _not_launched(self, plan: Hit, status: int, call: Call) -> object:
        """The binary refused the call, or its launch failed.

        Raises:
            ForgeError: the launch failed. Eager after a CUDA error would only fail elsewhere, and hide the cause.
        """
        key, tensors, args, kwargs = call
        if status < 0:
            raise self._tables.failure(plan, status)
        # Signatures take full alignment for granted; another entry may ask for less.
        exact = (key, tuple(alignment_of(t.data_ptr()) for t in tensors))
        second = self._plans.get(exact)
        if second is None:
            second = self._remember(exact, self._plan(call, aligned=False))
        if isinstance(second, Hit) and second.entry is plan.entry:
            refusals = plan.entry.binary.refusals
            return self._count(refusals[status - 1] if status <= len(refusals) else f"code {status}", args, kwargs)
        return self._follow(second, (exact, tensors, args, kwargs), teach=False)

    def _shadow_call(self, plan: Hit, call: Call) -> Call | None:
        """The call to make again without the kernel, with inputs of its own where they change; None: not this time."""
        shadow, variant = self._tables.shadow, plan.entry.variant
        if shadow is None or is_capturing(plan.device) or not shadow.is_due(plan.variant_id):
            return None
        key, tensors, args, kwargs = call
        if not variant.mutates:
            return call
        if variant.aliases:
            return None  # what shares memory cannot be copied tensor by tensor
        copies = iter([torch.ops.aten.clone.default(t) for t in tensors])
        return key, tensors, tuple(_swap(a, copies) for a in args), {k: _swap(v, copies) for k, v in kwargs.items()}

    def _compare(self, plan: Hit, result: object, shadowed: Call) -> None:
        assert self._tables.shadow is not None
        try:
            want = self._fall_back(shadowed[2], shadowed[3])
        except RuntimeError as error:
            # Memory for a second result, most likely. The call itself has been made.
            _LOG.warning("shadow: eager failed where the kernel of %s did not: %s", plan.entry.variant.label, error)
            return
        self._tables.shadow.compare(plan.variant_id, plan.entry.variant, result, want)

    def _teach(self, plan: Hit | Miss, call: Call) -> None:
        """Put what was decided for a call into the compiled table."""
        native, table = self._tables.native, self._table
        if native is None or table is None:
            return

        def fail(status: int) -> None:
            assert isinstance(plan, Hit)
            raise self._tables.failure(plan, status)

        with self._tables.lock:
            if self._on:
                native.teach(table, call[2], call[3], plan, refused=self._counter("grad"), fail=fail)

    def _plan(self, call: Call, *, aligned: bool) -> Hit | Miss:
        _, tensors, args, kwargs = call
        # One object given twice would be found twice at its first place; detached ones are all different.
        stand_ins = [t.detach() for t in tensors]
        supply = iter(stand_ins)
        swapped = tuple(_swap(a, supply) for a in args), {k: _swap(v, supply) for k, v in kwargs.items()}
        view = describe(self._forms, *swapped)
        positions = {id(t): i for i, t in enumerate(stand_ins)}
        if isinstance(view, str) or any(id(t) not in positions for t in view.tensors):
            return Miss(counter=self._counter("call"))
        answer = decide(self._guarded, of_signature(view.facts, aligned=aligned))
        if isinstance(answer, Refused):
            return Miss(counter=self._tables.miss_counter(answer.by_variant))
        order = tuple(positions[id(t)] for t in view.tensors)
        variant_id = answer.entry.variant.id
        return hit_plan(answer, self._tables.kernels[variant_id], tensors, order, self._tables.hits[variant_id])

    def _remember(self, key: Key, plan: Hit | Miss) -> Hit | Miss:
        with self._tables.lock:
            # After the end of the activation the table stays empty: a wrapper that somebody kept is a pass-through.
            if self._on:
                if len(self._plans) >= _MAX_SIGNATURES:
                    self._plans.clear()
                self._plans[key] = plan
        return plan

    def _counter(self, reason: str) -> Counter:
        return self._tables.miss_counter(dict.fromkeys(self._variants, reason))

    def _count(
        self, reason: str, args: tuple[object, ...], kwargs: Mapping[str, object], *, overridden: bool = False
    ) -> object:
        """Count a miss and make the original call. overridden: a mode or a subclass may take part in it."""
        # A compiler runs the model on fake tensors; those are no calls of the model.
        if self._on and TracingContext.try_get() is None:
            self._counter(reason)[0] += 1
        if not overridden:
            return self._fall_back(args, kwargs)
        original = self.original

        def call(*args: object, **kwargs: object) -> object:
            return call_overridden(original, args, kwargs)

        return self._within(call, args, kwargs)

    def _fall_back(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        """The original call."""
        if self._table is not None:
            return self._table.fall_back(*args, **kwargs)
        return self._within(self.original, args, kwargs) if self._is_python else self.original(*args, **kwargs)

    def _within(self, call: Function, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        """A call as the original one. A Python function of torch calls other call sites of the same operator: they
        must neither count the call again nor look at it again."""
        if self._table is not None:
            return self._table.within(call, *args, **kwargs)
        busy = self._tables.busy
        outer = busy.operators
        busy.operators = self._operators
        try:
            return call(*args, **kwargs)
        finally:
            busy.operators = outer


@cache
def _dynamo_looks_through() -> bool:
    """Whether Dynamo takes a function for what stands in its `_torchdynamo_inline`; else each call has to ask for it.

    That is torch's own affair, so it is relied on only in the versions that were tried. (2.10 breaks a graph where
    compiled code asks for the name of such a function, or whether it can be called.)
    """
    return torch_minor(torch.__version__) in {"2.10", "2.11", "2.12", "2.13"}


def _swap(value: object, supply: Iterator[torch.Tensor]) -> object:
    """The value with each tensor, in order, replaced by the next of the supply."""
    if isinstance(value, torch.Tensor):
        return next(supply)
    if type(value) is tuple or type(value) is list:
        return [_swap(item, supply) for item in value]
    return value
