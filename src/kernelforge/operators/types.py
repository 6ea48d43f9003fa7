"""What every stage needs to know of an operator, as one value. Owns `Operator`, `Entry`, `Domain`; imports no torch.

Arguments appear in two forms. *Bound*: a mapping from canonical argument name to a real value (torch tensors, numbers,
strings, None, tuples), as in an eager call. *Concrete*: the same with each tensor replaced by a `TensorShape`, which is
all that the traffic formulas need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, TypeAlias

DTYPE_BYTES: Mapping[str, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
FLOATING = frozenset({"float64", "float32", "float16", "bfloat16"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorShape:
    """Shape and dtype of a tensor: what byte and FLOP formulas need."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def size_bytes(self) -> int:
        return self.elements * DTYPE_BYTES[self.dtype]


Concrete: TypeAlias = "TensorShape | bool | int | float | str | tuple[Concrete, ...] | None"
ConcreteArguments: TypeAlias = "Mapping[str, Concrete]"
Bound: TypeAlias = "Mapping[str, object]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One call form that means the operator.

    Attributes:
        target: dotted name of the callable, for example "torch.nn.functional.softmax" or "torch.Tensor.softmax".
        parameters: its Python signature as text, for example "(input, dim=None, _stacklevel=3, dtype=None)".
        preset: canonical arguments that this form fixes, for example {"inplace": True} for `torch.Tensor.relu_`.
        passes_on: it is a Python function of torch that does little else than call another form of this operator.
            Dispatch leaves it in place and serves the inner call: else a call that no kernel is for would be looked at
            twice. (Longer ones, `torch.nn.functional.batch_norm` for example, are replaced: a hit skips them.)
    """

    target: str
    parameters: str
    preset: Mapping[str, object] = field(default_factory=dict)
    passes_on: bool = False

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
        """Bind a call to parameter names with defaults filled in.

        Raises:
            TypeError: the call does not fit the signature.
        """
        return {**_binder(self.parameters)(*args, **kwargs), **self.preset}


@lru_cache(maxsize=1024)
def _binder(parameters: str) -> Callable[..., dict[str, object]]:
    # A function of that very signature binds ten times faster than inspect.Signature.bind; dispatch binds each call.
    namespace: dict[str, object] = {}
    exec(f"def f{parameters}: return locals()", {}, namespace)  # noqa: S102 - text of our operator files, no package's
    function = namespace["f"]
    assert callable(function)
    return function


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """What values an input tensor may take, so that drawn cases stay within the operator's contract.

    kind: "real" any float; "positive" > 0; "unit" in [0, 1]; "index" integers in [0, size of `of` along `axis`).
    """

    kind: Literal["real", "positive", "unit", "index"] = "real"
    of: str = ""
    axis: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsupported:
    """This call of the operator is recorded but not forged, and why."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator. Each file of `kernelforge/operators/` exports one as `OPERATOR`.

    Attributes:
        name: canonical name, also the file's name.
        arguments: canonical argument names, in the order of the ABI.
        entries: the call forms that mean this operator.
        normalise: bound arguments of an entry -> canonical arguments (drop what has no meaning, resolve negative
            dims, scalars to tuples), or `Unsupported`. Must accept torch tensors, and only look at their metadata.
        call: canonical bound arguments -> eager output. May import torch lazily.
        flops: concrete arguments and outputs -> floating-point operations of the plain algorithm.
        least_flops: the part of `flops` that even the fastest known algorithm does (Strassen's for products, Winograd's
            for convolutions); 0.0 where bytes bound the operator whatever its arithmetic.
        bytes_read: concrete arguments -> bytes that must be read; None means every input tensor once.
        provider: "native" (framework kernels) or "vendor" (cuBLAS, cuDNN, oneDNN, MKL, SDPA do the work).
        family: how the template generator makes it: "emitter", a template's name, or "" (recorded, never forged yet).
        domains: per tensor argument; missing means `Domain()`.
        random: draws random numbers: recorded, never forged.
        view: returns a view of its input and does no work: recorded, never forged.
        varying_ints: integer arguments that may become named dims (output sizes of interpolate, say).
        reduction: an error of the output grows with a reduction (tolerances and case sets look at it).
    """

    name: str
    arguments: tuple[str, ...]
    entries: tuple[Entry, ...]
    normalise: Callable[[dict[str, object]], dict[str, object] | Unsupported]
    call: Callable[[Bound], object]
    flops: Callable[[ConcreteArguments, tuple[TensorShape, ...]], int]
    provider: Literal["native", "vendor"] = "native"
    family: str = ""
    bytes_read: Callable[[ConcreteArguments], int] | None = None
    domains: Mapping[str, Domain] = field(default_factory=dict)
    random: bool = False
    view: bool = False
    varying_ints: tuple[str, ...] = ()
    least_flops: float = 0.0
    reduction: bool = False
