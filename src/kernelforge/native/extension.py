"""The compiled extension (call_table.c): built, loaded and told about torch at the first use. Owns `extension`.

It makes what is done at every call of a model cheap: looking the call up, in dispatch and while capturing. It needs a C
compiler and Python's headers on the machine that runs the model. Without them the same is done in Python, at some
microseconds more per call.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import sys
import sysconfig
from functools import cache
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.autograd import forward_ad

from kernelforge.errors import ForgeError
from kernelforge.hostbuild import compile_once, find_c_compiler
from kernelforge.settings import Settings

_LOG = logging.getLogger(__name__)
_MODULE = "kforge_call_table"
Counter: TypeAlias = "memoryview[int]"
"""Of one element. Both ways through a call site add to it: the compiled one where it lies, without making an object."""


def new_counter() -> Counter:
    """One that stands at 0."""
    return memoryview(bytearray(8)).cast("q")


def extension(settings: Settings) -> Any:
    """The module; None where it cannot be had, with a line in the log."""
    return _load(settings)[0]


def why_not(settings: Settings) -> str:
    """Why it cannot be had on this machine, or ""."""
    return _load(settings)[1]


@cache
def _load(settings: Settings) -> tuple[Any, str]:
    reason = _unfit(settings)
    if reason:
        return None, reason
    try:
        path = compile_once(
            "kernelforge.native", "call_table.c", _command(settings), settings.cache_dir / "native",
            f"{_MODULE}{sysconfig.get_config_var('EXT_SUFFIX')}",
        )  # fmt: skip
        module = _imported(path)
    except (ForgeError, ImportError, OSError) as error:
        _LOG.info("calls are looked up in Python: %s", error)
        return None, str(error).splitlines()[0]
    return module, ""


def _unfit(settings: Settings) -> str:
    if not settings.native:
        return "switched off by KFORGE_NATIVE"
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
        find_c_compiler(settings), "-std=gnu11", "-O3", "-Wall", "-Wextra", "-Werror=incompatible-pointer-types",
        "-shared", "-fPIC", *(f"-I{folder}" for folder in includes), "{source}", "-o", "{output}",
    )  # fmt: skip


def _imported(path: Path) -> Any:
    loader = ExtensionFileLoader(_MODULE, str(path))
    spec = importlib.util.spec_from_loader(_MODULE, loader)
    assert spec is not None
    module: Any = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    module.makes_outputs = module.configure(
        tensor=torch.Tensor, parameter=torch.nn.Parameter,
        constants=frozenset({str, torch.dtype, torch.memory_format, torch.layout}),
        sequences=frozenset({tuple, list, torch.Size}),
        none_of=(torch._C._len_torch_dispatch_stack, torch._C._is_tracing),
        autocast_state=autocast_state,
        grad_enabled=torch.is_grad_enabled, autocast=torch._C._is_any_autocast_enabled,
        default_dtype=torch.get_default_dtype, float32=torch.float32, is_neg=torch.Tensor.is_neg,
        empty_like=torch.empty_like, is_inference=torch.Tensor.is_inference,
        inference_mode=torch.is_inference_mode_enabled, increment_version=torch._C._increment_version,
        capturing=torch.cuda.is_current_stream_capturing, function_modes=torch._C._len_torch_function_stack,
        forward_ad=vars(forward_ad), exchange=vars(torch.Tensor)["__dlpack_c_exchange_api__"],
        empty_strided=_symbol("libtorch_cpu.so", "aoti_torch_empty_strided"),
        delete_tensor=_symbol("libtorch_cpu.so", "aoti_torch_delete_tensor_object"),
        wrap=_symbol("libtorch_python.so", "_Z16THPVariable_WrapRKN2at10TensorBaseE"),
        count_function_modes=_symbol("libtorch_cpu.so", "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv"),
    )  # fmt: skip
    return module


def autocast_state() -> tuple[torch.dtype | None, ...]:
    """What of autocast belongs to a signature."""
    return tuple(torch.get_autocast_dtype(d) if torch.is_autocast_enabled(d) else None for d in ("cpu", "cuda"))


def dtype_number(dtype: torch.dtype) -> int:
    """torch's number of a dtype in its C shim."""
    name = str(dtype).removeprefix("torch.")
    try:
        function = _library("libtorch_cpu.so")[f"aoti_torch_dtype_{name}"]
    except (OSError, AttributeError):
        return -1
    function.restype = ctypes.c_int32
    return int(function())


def _symbol(library: str, name: str) -> int:
    """The address of a function of torch; 0 if this torch has none of that name and signature."""
    try:
        return ctypes.cast(_library(library)[name], ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0


@cache
def _library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
