"""The second ABI, `torch`: `torch::Tensor launch(torch::Tensor input, ...)` with torch's headers.

It is the form in which the original system writes kernels. A source is of it by its text: it includes torch's headers,
and its `launch` is not `extern "C"`. The generated glue makes `launch` callable from Python; which of the operator's
arguments it is given follows from its own parameters. docs/abi.md has the rules.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from kernelforge.capture.types import DimRef, DtypeRef, ScalarRef, TensorRef, Value
from kernelforge.cards.types import Variant
from kernelforge.generate.types import Candidate
from kernelforge.runner.protocol import TORCH_MODULE

TORCH_ABI = "torch"
"""`Artifact.backend` of a binary of this ABI."""

Kind: TypeAlias = Literal["tensor", "tensors", "dtype", "ints", "floats", "bool", "int", "float", "text", "other"]

_TOKEN = re.compile(r'("(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')|//(?:\\\n|[^\n])*|/\*.*?\*/', re.DOTALL)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"](torch|ATen|c10)/', re.MULTILINE)
_SCOPE = re.compile(r'\bextern\s*"C"(\s*\{)?|\blaunch\s*\(|[{};]')
MOST_LETTERS, MOST_LAUNCHES, MOST_TYPE = 10_000, 100, 200
"""Of a parameter list, and how many are looked at: the source may be hostile, and all of this takes linear time."""
_LAUNCH = re.compile(r"(?<![.:>\w])launch\s*\(")
_OWN_MODULE = re.compile(r"\bPYBIND11_MODULE\s*\(")
_KINDS: tuple[tuple[str, Kind], ...] = (
    (r"TensorList|<.*Tensor", "tensors"), (r"Tensor$", "tensor"), (r"ScalarType$", "dtype"),
    (r"IntArrayRef$|(vector|ArrayRef|array|tuple)<(int|long|u?int\d+_t|size_t)", "ints"),
    (r"(vector|ArrayRef|array|tuple)<(double|float)", "floats"), (r"^bool$", "bool"),
    (r"^(double|float|(at|c10|torch)::Scalar)$", "float"),
    (r"^(unsigned)?(int|long|longlong|size_t|u?int\d+_t)$", "int"),
    (r"string(_view)?$|char\*$", "text"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of `launch`.

    Attributes:
        type: as it is written. kind: what Python value it takes. optional: it takes None too. defaulted: it may be
            left out.
    """

    name: str
    type: str
    kind: Kind
    optional: bool = False
    defaulted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """What a parameter of `launch` is given: the operator's argument of that name."""

    argument: str
    parameter: Parameter


Call: TypeAlias = "tuple[Passed, ...]"


def is_torch_source(source: str) -> bool:
    """Whether a source is of the torch ABI, by its text."""
    bare = _bare(source)
    return _INCLUDE.search(bare) is not None and not _has_launch_of_c(bare)


def _has_launch_of_c(bare: str) -> bool:
    """Whether some `launch` is declared `extern "C"`, on its own or in a block of such declarations."""
    blocks: list[bool] = []
    declared = False
    for match in _SCOPE.finditer(bare):
        text = match[0]
        if text.startswith("extern"):
            declared = match[1] is None
            blocks += [True] if match[1] else []
        elif text.startswith("launch"):
            if declared or (blocks and blocks[-1]):
                return True
        elif text == "{":
            blocks.append(False)
            declared = False
        else:
            blocks[-1:] = [] if text == "}" else blocks[-1:]
            declared = False
    return False


def call_of(source: str, variant: Variant) -> Call | str:
    """What the `launch` of a source is called with, in its order; or why it cannot be called.

    A parameter with the name of an argument gets that one; each other the next argument, in the operator's order, that
    its type takes. Arguments for which there is no parameter are left out.
    """
    parameters = launch_parameters(source)
    if parameters is None:
        return "the source defines no `torch::Tensor launch(...)`"
    arguments = dict(variant.arguments)
    named = {p.name for p in parameters if p.name in arguments}
    left = [name for name in arguments if name not in named]
    call: list[Passed] = []
    for parameter in parameters:
        argument = parameter.name if parameter.name in named else ""
        if not argument:
            argument = next((name for name in left if _takes(parameter, arguments[name])), "")
            # The order is the operator's: what was stepped over stays out.
            left = left[left.index(argument) + 1 :] if argument else left
        if not argument or not _takes(parameter, arguments[argument]):
            if parameter.defaulted:
                break
            return _no_counterpart(parameter, variant)
        call.append(Passed(argument=argument, parameter=parameter))
    return tuple(call)


def launch_parameters(source: str) -> tuple[Parameter, ...] | None:
    """The parameters of the definition of `launch`, or None if there is none."""
    bare = _bare(source)
    for match in itertools.islice(_LAUNCH.finditer(bare), MOST_LAUNCHES):
        end = _closing(bare, match.end())
        if end and re.match(r"\s*(noexcept\s*)?\{", bare[end:]):
            texts = [text.strip() for text in _split(bare[match.end() : end - 1])]
            return tuple(_parameter(text) for text in texts if text and text != "void")
    return None


def torch_unit(candidate: Candidate, variant: Variant) -> str:
    """The translation unit: the candidate, and below it the glue, which needs its types."""
    suffix = ".cu" if candidate.backend == "cuda" else ".cpp"
    call = call_of(candidate.source, variant)
    assert not isinstance(call, str), "whoever builds has looked"
    text = f'#line 1 "kernel{suffix}"\n{candidate.source}\n'
    if _OWN_MODULE.search(_bare(candidate.source)):
        return text
    declared = ", ".join(f"{p.parameter.type} a{i}" for i, p in enumerate(call))
    passed = ", ".join(f"a{i}" for i in range(len(call)))
    return (
        f'{text}#line 1 "glue{suffix}"\n#include <torch/extension.h>\n'
        f"PYBIND11_MODULE({TORCH_MODULE}, kforge_module) {{\n"
        f'  kforge_module.def("launch", []({declared}) {{ return launch({passed}); }});\n}}\n'
    )


def _bare(source: str) -> str:
    """Without comments; literals stay."""
    return _TOKEN.sub(lambda match: match[1] or " ", source)


def _closing(text: str, start: int) -> int:
    """Behind the parenthesis that closes the one before `start`; 0 if none does."""
    depth = 1
    for at in range(start, min(len(text), start + MOST_LETTERS)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at + 1
    return 0


def _split(text: str) -> Iterator[str]:
    """At commas that are in no brackets."""
    depth = begin = 0
    for at, letter in enumerate(text):
        depth += (letter in "(<[{") - (letter in ")>]}")
        if letter == "," and depth == 0:
            yield text[begin:at]
            begin = at + 1
    yield text[begin:]


def _parameter(text: str) -> Parameter:
    declared, default, _ = text.partition("=")
    declared = " ".join(declared.split())
    named = re.fullmatch(r"(.*[\s&*>])(\w+)", declared)
    type_, name = (named[1].strip(), named[2]) if named else (declared, "")
    plain = re.sub(r"\b(const|std::|c10::(?=optional))|[\s&]", "", type_)
    inner = re.fullmatch(r"(?:\w+::)*(?:optional|OptionalArrayRef)<(.*)>", plain)
    bare = (inner[1] if inner else plain)[:MOST_TYPE]
    kind: Kind = next((kind for pattern, kind in _KINDS if re.search(pattern, bare)), "other")
    return Parameter(name=name, type=type_, kind=kind, optional=inner is not None, defaulted=bool(default))


def _takes(parameter: Parameter, value: Value) -> bool:
    if value is None:
        return parameter.optional
    return parameter.kind in _kinds_of(value)


def _kinds_of(value: Value) -> Sequence[Kind]:
    """The kinds of parameters that take a value."""
    match value:
        case TensorRef():
            return ("tensor",)
        case DtypeRef():
            return ("dtype",)
        case bool():
            return ("bool",)
        case int() | DimRef():
            return ("int", "float")
        case float() | ScalarRef():
            return ("float",)
        case str():
            return ("text",)
        case tuple() if value and all(isinstance(v, TensorRef) for v in value):
            return ("tensors",)
        case tuple() if all(isinstance(v, int | DimRef) for v in value):
            # A stride of (2, 2), say, is mostly written as one number.
            return ("ints", "int") if len(set(value)) == 1 else ("ints",)
        case tuple() if all(isinstance(v, int | float | DimRef | ScalarRef) for v in value):
            return ("floats",)
    return ()


def _no_counterpart(parameter: Parameter, variant: Variant) -> str:
    names = ", ".join(name for name, _ in variant.arguments)
    return (
        f"parameter `{parameter.type} {parameter.name}` of launch has no counterpart: the operator's arguments are "
        f"{names}, here {variant.describe()}"
    )
