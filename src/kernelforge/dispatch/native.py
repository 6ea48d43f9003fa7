"""The compiled call table (call_table.c) and its set-up. Owns `NativeDispatch`, `native_dispatch`.

It needs a C compiler and Python's headers on the machine that runs the model. Without them calls take the exact path in
callsite.py, which is right but costs some microseconds more per call.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import sysconfig
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch
from torch.autograd import forward_ad

from kernelforge.dispatch.plans import Hit, Miss
from kernelforge.errors import ForgeError
from kernelforge.hostbuild import compile_once, find_c_compiler
from kernelforge.settings import Settings

_LOG = logging.getLogger(__name__)
_MODULE = "kforge_call_table"
_MAX_PROTOTYPE_BYTES = 1 << 14


class CallTable(Protocol):
    """What call_table.c's `Table` offers."""

    active: bool

    def attempt(self, args: tuple[object, ...], kwargs: Mapping[str, object], /) -> object: ...

    def remember(
        self,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        plan: object,
        counter: list[int],
        portable: bool,
        /,
    ) -> bool: ...

    def clear(self) -> None: ...


class NativeDispatch:
    """The loaded extension."""

    def __init__(self, module: ModuleType) -> None:
        self._module: Any = module
        self.missed: object = module.MISSED
        self.unknown: object = module.UNKNOWN

    def table(self) -> CallTable:
        """A table for one call site."""
        table: CallTable = self._module.Table()
        return table

    def teach(
        self, table: CallTable, args: tuple[object, ...], kwargs: Mapping[str, object], plan: Hit | Miss,
        *, fail: Callable[[int], None],
    ) -> None:  # fmt: skip
        """Tell a table what the exact path found for a call, if it can hold that.

        Args:
            fail: called with the status of a launch that failed; raises.
        """
        if isinstance(plan, Miss):
            table.remember(args, kwargs, None, plan.counter, False)
            return
        made = self._plan(plan, fail)
        if made is not None:
            table.remember(args, kwargs, made, plan.counter, plan.portable)

    def _plan(self, hit: Hit, fail: Callable[[int], None]) -> object | None:
        """A plan in the table's form; None if it is of a kind that the table does not serve."""
        if hit.entry.variant.mutates or hit.workspace_bytes or len(hit.outputs) != 1:
            return None
        like, shape, stride, dtype = hit.outputs[0]
        prototype = allocate = None
        if like < 0:
            device = "cpu" if hit.device < 0 else torch.device("cuda", hit.device)
            allocate = partial(torch.empty_strided, shape, stride, dtype=dtype, device=device)
            made = allocate()
            # Making one like another tensor costs half of giving sizes, but that tensor has to be kept.
            small = made.untyped_storage().nbytes() <= _MAX_PROTOTYPE_BYTES
            if small and torch.empty_like(made).stride() == made.stride():
                prototype, allocate = made, None
        try:
            plan: object = self._module.Plan(
                launch=hit.address, order=hit.order, like=hit.order[like] if like >= 0 else -1, prototype=prototype,
                allocate=allocate, scalars=hit.scalars, counter=hit.counter, fail=fail, device=hit.device,
                by_default_dtype=not all(p.dtype.startswith(("float", "bfloat")) for p in hit.entry.variant.tensors),
            )  # fmt: skip
        except ValueError:
            return None
        return plan


def why_not_native(settings: Settings) -> str:
    """Why calls take the exact path on this machine, or ""."""
    return _load(settings)[1]


def native_dispatch(settings: Settings) -> NativeDispatch | None:
    """The extension, built and loaded at the first call; None where it cannot be had, with a line in the log."""
    return _load(settings)[0]


@cache
def _load(settings: Settings) -> tuple[NativeDispatch | None, str]:
    reason = _unfit(settings)
    if reason:
        return None, reason
    try:
        path = compile_once(
            "kernelforge.dispatch", "call_table.c", _command(settings), settings.cache_dir / "dispatch",
            f"{_MODULE}{sysconfig.get_config_var('EXT_SUFFIX')}",
        )  # fmt: skip
        module = _imported(path)
    except (ForgeError, ImportError, OSError) as error:
        reason = str(error).splitlines()[0]
        _LOG.info("calls are dispatched in Python: %s", error)
        return None, reason
    return NativeDispatch(module), ""


def _unfit(settings: Settings) -> str:
    if not settings.native_dispatch:
        return "switched off by KFORGE_NATIVE_DISPATCH"
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return "this Python runs without the global interpreter lock"
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        return f"torch {torch.__version__} has no DLPack exchange interface"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python.h is missing (install Python's development headers)"
    return ""


def _command(settings: Settings) -> tuple[str, ...]:
    spec = importlib.util.find_spec("tvm_ffi")
    assert spec is not None and spec.submodule_search_locations
    includes = (sysconfig.get_path("include"), str(Path(spec.submodule_search_locations[0], "include")))
    return (
        find_c_compiler(settings), "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror=incompatible-pointer-types",
        "-shared", "-fPIC", *(f"-I{folder}" for folder in includes), "{source}", "-o", "{output}",
    )  # fmt: skip


def _imported(path: Path) -> ModuleType:
    loader = ExtensionFileLoader(_MODULE, str(path))
    spec = importlib.util.spec_from_loader(_MODULE, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    forms: Any = module
    forms.configure(
        tensor=torch.Tensor, parameter=torch.nn.Parameter,
        constants=frozenset({str, torch.dtype, torch.memory_format, torch.layout}),
        sequences=frozenset({tuple, list, torch.Size}),
        none_of=(
            torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack, torch._C._is_tracing,
            torch._C._is_any_autocast_enabled,
        ),
        grad_enabled=torch.is_grad_enabled, default_dtype=torch.get_default_dtype, float32=torch.float32,
        is_neg=torch.Tensor.is_neg, empty_like=torch.empty_like, forward_ad=vars(forward_ad),
        exchange=vars(torch.Tensor)["__dlpack_c_exchange_api__"],
    )  # fmt: skip
    return module
