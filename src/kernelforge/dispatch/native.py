"""The compiled call table as dispatch uses it: plans in its form. Owns `NativeDispatch`, `native_dispatch`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import torch

from kernelforge.capture.precision import Question
from kernelforge.dispatch.plans import Hit, Miss
from kernelforge.native.extension import Counter, dtype_number, extension
from kernelforge.settings import Settings

_MAX_PROTOTYPE_BYTES = 1 << 14


class CallTable(Protocol):
    """What call_table.c's `Table` offers."""

    active: bool
    by_autocast: bool
    state: tuple[Question, ...]
    original: Callable[..., object]
    calls_others: bool
    package: object
    operators: frozenset[str]

    def attempt(self, *args: object, **kwargs: object) -> object: ...

    def fall_back(self, *args: object, **kwargs: object) -> object: ...

    def within(self, function: Callable[..., object], /, *args: object, **kwargs: object) -> object: ...

    def remember(
        self,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        plan: object,
        counter: Counter,
        portable: bool,
        /,
    ) -> bool: ...


class NativeDispatch:
    """The loaded extension."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.unknown: object = module.UNKNOWN

    def table(self) -> CallTable:
        """A table for one call site."""
        table: CallTable = self._module.Table()
        return table

    def stand_in(
        self, table: CallTable, exact: Callable[[tuple[object, ...], dict[str, object]], object], *, target: str
    ) -> Any:
        """What can take the original's place: it asks the table, and `exact` what that does not know.

        Args:
            target: dotted name of the place.
        """
        return self._module.stand_in(table, exact, target, hasattr(type(table.original), "__get__"))

    def teach(
        self, table: CallTable, args: tuple[object, ...], kwargs: Mapping[str, object], plan: Hit | Miss,
        *, refused: Counter, fail: Callable[[int], None],
    ) -> None:  # fmt: skip
        """Tell a table what the exact path found for a call, if it can hold that.

        Args:
            refused: counts the calls that only the wish for a gradient keeps from the kernel.
            fail: called with the status of a launch that failed; raises.
        """
        if isinstance(plan, Miss):
            table.remember(args, kwargs, None, plan.counter, False)
            return
        made = self._plan(plan, refused, fail)
        if made is not None:
            table.remember(args, kwargs, made, plan.counter, plan.portable)

    def _plan(self, hit: Hit, refused: Counter, fail: Callable[[int], None]) -> object | None:
        """A plan in the table's form; None if it is of a kind that the table does not serve."""
        variant = hit.entry.variant
        changes = variant.mutates[0] if variant.mutates else -1
        if hit.workspace_bytes or len(hit.outputs) + len(variant.mutates) != 1:
            return None
        partners = [i for pair in variant.aliases if changes in pair for i in pair if i != changes]
        like, shape, stride, dtype = hit.outputs[0] if hit.outputs else (changes, (), (), torch.float32)
        prototype = allocate = None
        if self._module.makes_outputs and not hit.portable and changes < 0:
            like = -1
        if like < 0:
            device = "cpu" if hit.device < 0 else torch.device("cuda", hit.device)
            allocate = partial(torch.empty_strided, shape, stride, dtype=dtype, device=device)
        if allocate is not None and not self._module.makes_outputs:
            made = allocate()
            # Making one like another tensor costs half of giving sizes, but that tensor has to be kept.
            small = made.untyped_storage().nbytes() <= _MAX_PROTOTYPE_BYTES
            if small and torch.empty_like(made).stride() == made.stride():
                prototype, allocate = made, None
        try:
            plan: object = self._module.Plan(
                launch=hit.address, order=hit.order, like=hit.order[like] if like >= 0 else -1, prototype=prototype,
                allocate=allocate, scalars=hit.scalars, counter=hit.counter, fail=fail, device=hit.device,
                by_default_dtype=not all(p.dtype.startswith(("float", "bfloat")) for p in variant.tensors),
                changes=changes, may_overlap=sum(1 << i for i in set(partners)), shape=shape, stride=stride,
                dtype=dtype_number(dtype), refused=refused, launched=hit.launched,
            )  # fmt: skip
        except ValueError:
            return None
        return plan


def native_dispatch(settings: Settings) -> NativeDispatch | None:
    """The compiled tables; None where they cannot be had: calls then take the exact path."""
    module = extension(settings)
    return None if module is None else NativeDispatch(module)


def native_dispatch_soon(settings: Settings) -> Callable[[], NativeDispatch | None]:
    """The compiled tables, made meanwhile: what is returned waits for them.

    The first package on a machine would else wait for a compiler as it is loaded.
    """
    made: list[NativeDispatch | None] = []
    thread = threading.Thread(target=lambda: made.append(native_dispatch(settings)), name="kforge-native", daemon=True)
    thread.start()

    def wait() -> NativeDispatch | None:
        thread.join()
        return made[0] if made else native_dispatch(settings)

    return wait
