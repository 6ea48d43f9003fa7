"""Global flags of torch by which a product or a convolution computes. Owns `precision_of`, `applied`, `Flag`.

TF32, reduced-precision reductions and the like are part of what a call means: a kernel that was judged beside one
setting is no substitute under another. Flags that stand at torch's default are not told, so calls that nobody
configured look as they always did. Imports torch lazily.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

from kernelforge.operators import Operator

Kind: TypeAlias = Literal["product", "convolution"]
Question: TypeAlias = "tuple[Callable[..., object], tuple[object, ...]]"
"""A function of torch's C module and its arguments; the answer is a short text, a truth value or two of them."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One setting below `torch.backends`.

    Attributes:
        name: as people write it. ask: how torch is asked for it. write: sets it.
        kind, device, dtypes: the operators that follow it; no dtypes: whatever the dtype.
        default: as torch begins. known: the answers that mean something else; any other one means the default.
    """

    name: str
    ask: Question
    write: Callable[[Any], object]
    kind: Kind
    device: str
    dtypes: frozenset[str]
    default: object
    known: frozenset[object]

    def value(self) -> object:
        function, arguments = self.ask
        answer = function(*arguments)
        answer = "ieee" if answer == "none" else answer
        return answer if answer in self.known else self.default


def kind_of(operator: Operator) -> Kind | None:
    """Which flags an operator follows; None for those that compute the same under any."""
    if operator.provider != "vendor":
        return None
    return "convolution" if operator.name.startswith("conv") else "product"


def flags_of(operator: Operator, device: str, dtypes: Iterable[str]) -> tuple[Flag, ...]:
    """The flags that calls of an operator follow, on a device type and with inputs (and autocast) of these dtypes."""
    kind, present = kind_of(operator), frozenset(dtypes)
    if kind is None:
        return ()
    return tuple(f for f in _flags() if (f.kind, f.device) == (kind, device) and (not f.dtypes or f.dtypes & present))


def precision_of(operator: Operator, device: str, dtypes: Iterable[str]) -> tuple[str, ...]:
    """The flags that differ from torch's defaults: ("cuda.matmul.fp32_precision=tf32",)."""
    flags = flags_of(operator, device, dtypes)
    return tuple(f"{f.name}={_text(value)}" for f in flags if (value := f.value()) != f.default)


def all_flags() -> tuple[object, ...]:
    """The values of all flags, in a fixed order."""
    return tuple(flag.value() for flag in _flags())


@contextmanager
def applied(precision: Iterable[str]) -> Iterator[None]:
    """Run the body under the flags that `precision_of` told, all others at torch's defaults.

    Raises:
        ValueError: no flag of this torch has that name and value.
    """
    wanted = dict(text.split("=", 1) for text in precision)
    if unknown := set(wanted) - {f.name for f in _flags()}:
        raise ValueError(f"this torch has no setting {', '.join(sorted(unknown))}")
    before = [(flag, flag.value()) for flag in _flags()]
    try:
        for flag, present in before:
            value = _value(flag, wanted[flag.name]) if flag.name in wanted else flag.default
            if value != present:
                flag.write(value)
        yield
    finally:
        for flag, value in before:
            if flag.value() != value:
                flag.write(value)


@cache
def _flags() -> tuple[Flag, ...]:
    """The flags that this torch has."""
    import torch

    module: Any = torch._C
    matmul: Any = torch.backends.cuda.matmul
    single, half, on = frozenset({"float32"}), frozenset({"float16"}), frozenset[object]({True})
    lower = frozenset[object]({"tf32", "bf16"})
    less = frozenset[object]({False, (True, False), (False, True), (False, False)})

    def setter(function: str, *arguments: object) -> Callable[[Any], object]:
        return lambda v: getattr(module, function)(*arguments, v)

    def both(name: str) -> Callable[[Any], object]:
        return lambda v: setattr(matmul, name, True if v == (True, True) else v)

    reduction = "allow_{}_reduced_precision_reduction"
    flags = (
        # Written in the old way, which keeps what the new and the old way of asking say in step.
        ("cuda.matmul.fp32_precision", "_get_fp32_precision_getter", ("cuda", "matmul"),
         lambda v: module._set_cublas_allow_tf32(v == "tf32"), "product", "cuda", single, "ieee", lower),
        ("cudnn.conv.fp32_precision", "_get_fp32_precision_getter", ("cuda", "conv"),
         lambda v: module._set_cudnn_allow_tf32(v == "tf32"), "convolution", "cuda", single, "tf32",
         frozenset({"ieee"})),
        ("mkldnn.matmul.fp32_precision", "_get_fp32_precision_getter", ("mkldnn", "matmul"),
         setter("_set_fp32_precision_setter", "mkldnn", "matmul"), "product", "cpu", single, "ieee", lower),
        ("mkldnn.conv.fp32_precision", "_get_fp32_precision_getter", ("mkldnn", "conv"),
         setter("_set_fp32_precision_setter", "mkldnn", "conv"), "convolution", "cpu", single, "ieee", lower),
        (f"cuda.matmul.{reduction.format('fp16')}", f"_get_cublas_{reduction.format('fp16')}", (),
         both(reduction.format("fp16")), "product", "cuda", half, (True, True), less),
        (f"cuda.matmul.{reduction.format('bf16')}", f"_get_cublas_{reduction.format('bf16')}", (),
         both(reduction.format("bf16")), "product", "cuda", frozenset({"bfloat16"}), (True, True), less),
        ("cuda.matmul.allow_fp16_accumulation", "_get_cublas_allow_fp16_accumulation", (),
         setter("_set_cublas_allow_fp16_accumulation"), "product", "cuda", half, False, on),
        (f"cpu.{reduction.format('fp16')}", f"_get_cpu_{reduction.format('fp16')}", (),
         setter("_set_cpu_allow_fp16_reduced_precision_reduction"), "product", "cpu", half, False, on),
        # It changes which algorithm eager takes, and so what a kernel has to beat.
        ("cudnn.benchmark", "_get_cudnn_benchmark", (), setter("_set_cudnn_benchmark"), "convolution",
         "cuda", frozenset[str](), False, on),
    )  # fmt: skip
    return tuple(
        Flag(name, (getattr(module, function), arguments), *rest)  # type: ignore[arg-type]
        for name, function, arguments, *rest in flags
        if hasattr(module, function)
    )


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_text, value))
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _value(flag: Flag, text: str) -> object:
    for value in (flag.default, *flag.known):
        if _text(value) == text:
            return value
    raise ValueError(f"{flag.name} cannot be {text}")
