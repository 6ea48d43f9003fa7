"""Values of the loop IR as C expressions. Owns the table of operations and the naming of values in the source."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from kernelforge.cards.types import Extent
from kernelforge.generate.emitter.ir import Apply, Cast, Const, Count, Kind, Load, Parameter, Program, Reduce

Backend: TypeAlias = Literal["cpp", "cuda"]

# Operations that read the same everywhere. {0}, {1}, ... are the arguments, already in parentheses where needed.
_COMMON: Mapping[str, str] = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "quotient": "{0} / {1}",
    "neg": "-{0}", "reciprocal": "1 / {0}", "relu": "{0} < 0 ? 0 : {0}",
    "eq": "{0} == {1}", "ne": "{0} != {1}",
    "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}",
    "logical_and": "{0} && {1}", "logical_or": "{0} || {1}", "logical_not": "!{0}",
    "select": "{0} ? {1} : {2}",
    # Written so that a NaN in {0} stays.
    "clamp_min": "{0} < {1} ? {1} : {0}", "clamp_max": "{0} > {1} ? {1} : {0}",
    "minimum": "({1} < {0} || {1} != {1}) ? {1} : {0}", "maximum": "({1} > {0} || {1} != {1}) ? {1} : {0}",
    "abs": "{0} < 0 ? -{0} : {0}",
}  # fmt: skip
_FUNCTIONS = ("exp", "expm1", "log", "log1p", "log2", "sqrt", "sin", "cos", "tanh", "erf", "floor", "ceil", "trunc",
              "exp2", "rint", "pow", "fabs")  # fmt: skip
# CPU functions that vectorise; texts are in `functions`.
_VECTORISED = frozenset({"exp", "tanh", "erf"})
# With 16-bit results the hardware's exponential and division are exact enough: 2 ulp of float32 plus |x| * 2**-23.
_FAST: Mapping[str, str] = {"exp": "__expf({0})", "quotient": "__fdividef({0}, {1})"}


def c_extent(extent: Extent) -> str:
    """An extent as C: "64 * n0"."""
    names = " * ".join(extent.dims)
    if not names:
        return str(extent.coefficient)
    return names if extent.coefficient == 1 else f"{extent.coefficient} * {names}"


def scaled(index: str, stride: Extent) -> str:
    """`index * stride` as C, without a factor of 1."""
    if stride == Extent(1):
        return index
    return f"{atom(index)} * {atom(c_extent(stride))}"


def c_number(value: float, compute: str) -> str:
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "-INFINITY" if value < 0 else "INFINITY"
    text = repr(float(value))
    return text + "f" if compute == "float" else text


class Writer:
    """Writes the values of a program as statements, each value once per scope.

    Args:
        fast: hardware approximations are exact enough (CUDA, all stores of 16 bits).
        load: how a load is written in this source, for example "input_row[col]".
    """

    def __init__(
        self, program: Program, backend: Backend, *, fast: bool = False, taken: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.program = program
        self._backend = backend
        self._fast = fast
        self._uses = [0] * len(program.values)
        for index in range(len(program.values)):
            for argument in program.arguments(index):
                self._uses[argument] += 1
        for store in program.stores:
            self._uses[store.value] += 1
        self.names = self._name_all(set(taken))
        self.functions: set[str] = set()

    def _name_all(self, taken: set[str]) -> tuple[str, ...]:
        names = []
        for value in self.program.values:
            base = value.name or ("total" if isinstance(value.definition, Reduce) else "t")
            name, number = base, 2
            while name in taken:
                name, number = f"{base}{number}", number + 1
            taken.add(name)
            names.append(name)
        return tuple(names)

    def c_type(self, kind: Kind) -> str:
        return {"real": self.program.compute, "int": "int64_t", "bool": "bool"}[kind]

    def zero_point(self, kind: str) -> str:
        return {"max": "-INFINITY", "amax": "-INFINITY", "amin": "INFINITY", "sum": "0"}[kind]

    def combine(self, kind: str, total: str, item: str) -> str:
        """The statement that adds one item to a running reduction."""
        if kind == "sum":
            return f"{total} += {item};"
        if kind == "max":
            return f"{total} = {item} > {total} ? {item} : {total};"
        sign = ">" if kind == "amax" else "<"
        return f"{total} = ({item} {sign} {total} || {item} != {item}) ? {item} : {total};"

    def value(self, index: int, known: dict[int, str], lines: list[str], load: Callable[[Load], str]) -> str:
        """The C expression of a value; statements that it needs first go to `lines`, and into `known`.

        A value with a name, or used more than once, becomes a statement; everything else is written inline.
        """
        if index in known:
            return known[index]
        value = self.program.values[index]
        match value.definition:
            case Const(number):
                return self._constant(number, value.kind)
            case Parameter(name):
                return f"{self.program.compute}({name})"
            case Reduce() | Count():
                raise AssertionError(f"{self.names[index]} is used before its loop")
            case Load() as access:
                text = load(access)
            case Cast(dtype, argument):
                text = self._cast(dtype, self.value(argument, known, lines, load), value.kind)
            case Apply(operation, arguments):
                kind = self.program.values[arguments[0]].kind
                texts = [self.value(a, known, lines, load) for a in arguments]
                text = self.operation(operation, kind, texts)
        if value.name or self._uses[index] > 1:
            lines.append(f"const {self.c_type(value.kind)} {self.names[index]} = {text};")
            known[index] = self.names[index]
            return known[index]
        return text

    def _constant(self, number: bool | int | float, kind: Kind) -> str:
        if kind == "bool":
            return "true" if number else "false"
        if kind == "int":
            return f"int64_t({number})"
        return c_number(float(number), self.program.compute)

    def _cast(self, dtype: str, text: str, kind: Kind) -> str:
        if dtype == "bool":
            return f"{atom(text)} != 0"
        return f"static_cast<{self.c_type(kind)}>({text})"

    def operation(self, operation: str, kind: Kind, texts: Sequence[str]) -> str:
        """One operation of the table on C expressions."""
        single = self.program.compute == "float"
        if self._fast and single and operation in _FAST:
            return _FAST[operation].format(*texts)
        arguments = [atom(t) for t in texts]
        if operation in _COMMON:
            text = _COMMON[operation].format(*arguments)
            if operation == "relu" and kind == "real":
                text = text.replace("? 0 :", "? 0.0f :" if single else "? 0.0 :")
            return text.replace("1 /", "1.0f /" if single else "1.0 /") if operation == "reciprocal" else text
        if operation == "rsqrt":
            if self._backend == "cuda":
                return f"{'rsqrtf' if single else 'rsqrt'}({texts[0]})"
            return f"{'1.0f' if single else '1.0'} / std::sqrt({texts[0]})"
        if operation not in _FUNCTIONS:
            raise AssertionError(f"no C text for {operation}")
        if self._backend == "cpp":
            if single and operation in _VECTORISED:
                self.functions.add(operation)
                return f"fast_{operation}({', '.join(texts)})"
            return f"std::{operation}({', '.join(texts)})"
        return f"{operation}{'f' if single else ''}({', '.join(texts)})"


def atom(text: str) -> str:
    """A C expression in parentheses, unless it already is a name, a number, or a call."""
    if re.fullmatch(r"[\w.]+|[\d.]+e[-+]\d+f?", text):
        return text
    depth = 0
    for position, character in enumerate(text):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        if depth == 0 and not (character.isalnum() or character in "_.:)]<>"):
            return f"({text})"
        if depth == 0 and character in "<>" and "static_cast<" not in text[: position + 1]:
            return f"({text})"
    return text
