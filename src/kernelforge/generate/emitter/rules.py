"""Lowering rules: ATen operator -> values of the loop IR. One function, or one line of a table, per operator.

"quotient" is a division by at least 1 whose result may flush to 0 where it is below 1e-37; "div" is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from kernelforge.generate.emitter.graph import Argument, Node, ScalarArg
from kernelforge.generate.emitter.ir import Kind, kind_of
from kernelforge.generate.types import Unforgeable

if TYPE_CHECKING:
    from kernelforge.generate.emitter.lowering import Builder

Rule: TypeAlias = "Callable[[Builder, Node], int | tuple[int, ...]]"
_ORDER: Mapping[Kind, int] = {"bool": 0, "int": 1, "real": 2}


def _promoted(b: Builder, values: Sequence[int]) -> Kind:
    return max((b.kind(v) for v in values), key=lambda kind: _ORDER[kind])


def _unary(operation: str) -> Rule:
    """A floating-point function of one argument."""
    return lambda b, node: b.real(operation, b.operand(node.args[0]))


def _arithmetic(operation: str) -> Rule:
    """An operation in the kind of its result: add, sub, mul, minimum, maximum, neg, abs."""

    def rule(b: Builder, node: Node) -> int:
        kind = kind_of(node.dtype)
        if kind == "bool":
            raise Unforgeable(f"aten.{node.op} on bool")
        alpha = node.argument(2, "alpha", 1) if node.op.rstrip("_") in {"add", "sub", "rsub"} else 1
        arguments = [b.cast(b.operand(a), kind) for a in node.args[:2]]
        if alpha != 1:
            scaled = 0 if node.op.startswith("rsub") else 1
            arguments[scaled] = b.apply("mul", kind, arguments[scaled], b.cast(b.operand(alpha), kind))
        if node.op.startswith("rsub"):
            arguments.reverse()
        return b.apply(operation, kind, *arguments)

    return rule


def _comparison(operation: str) -> Rule:
    def rule(b: Builder, node: Node) -> int:
        values = [b.operand(a) for a in node.args[:2]]
        kind = _promoted(b, values)
        return b.apply(operation, "bool", *(b.cast(v, kind) for v in values))

    return rule


def _logical(operation: str) -> Rule:
    def rule(b: Builder, node: Node) -> int:
        return b.apply(operation, "bool", *(b.cast(b.operand(a), "bool") for a in node.args))

    return rule


def _number(node: Node, position: int, name: str, default: float) -> float:
    value = node.argument(position, name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unforgeable(f"{name} of aten.{node.op} is not a fixed number")
    return float(value)


def _scalar(b: Builder, node: Node, position: int, name: str, default: float) -> int:
    return b.cast(b.operand(node.argument(position, name, default)), "real")


def _round(b: Builder, node: Node) -> int:
    if node.kwargs or len(node.args) > 1:
        raise Unforgeable("rounding to decimals")
    return b.real("rint", b.operand(node.args[0]))


def _div(b: Builder, node: Node) -> int:
    if node.argument(2, "rounding_mode") is not None:
        raise Unforgeable("division with a rounding mode")
    return b.real("div", b.operand(node.args[0]), b.operand(node.args[1]))


def _clamp(b: Builder, node: Node) -> int:
    kind = kind_of(node.dtype)
    value = b.cast(b.operand(node.args[0]), kind)
    names = {"clamp_min": ("clamp_min",), "clamp_max": ("clamp_max",)}.get(
        node.op.rstrip("_"), ("clamp_min", "clamp_max")
    )
    for position, operation in enumerate(names, start=1):
        bound = node.argument(position, operation.removeprefix("clamp_"))
        if bound is not None:
            value = b.apply(operation, kind, value, b.cast(b.operand(bound), kind))
    return value


def _hardtanh(b: Builder, node: Node) -> int:
    low = b.apply("clamp_min", "real", b.operand(node.args[0]), _scalar(b, node, 1, "min_val", -1.0))
    return b.apply("clamp_max", "real", low, _scalar(b, node, 2, "max_val", 1.0))


def _sigmoid(b: Builder, x: int) -> int:
    return b.real("quotient", b.const(1.0), b.real("add", b.const(1.0), b.real("exp", b.real("neg", x))))


def _silu(b: Builder, node: Node) -> int:
    x = b.cast(b.operand(node.args[0]), "real")
    return b.real("quotient", x, b.real("add", b.const(1.0), b.real("exp", b.real("neg", x))))


def _gelu(b: Builder, node: Node) -> int:
    x = b.cast(b.operand(node.args[0]), "real")
    if node.argument(1, "approximate", "none") == "none":
        inner = b.real("erf", b.real("mul", x, b.const(math.sqrt(0.5))))
        return b.real("mul", b.real("mul", b.const(0.5), x), b.real("add", b.const(1.0), inner))
    # 0.5*x*(1 + tanh(u)) = x / (1 + exp(-2u)): one exponential, and no cancellation for negative x.
    cube = b.real("mul", b.real("mul", x, x), x)
    inner = b.real("add", x, b.real("mul", b.const(0.044715), cube), name="inner")
    exponential = b.real("exp", b.real("mul", b.const(-2.0 * math.sqrt(2.0 / math.pi)), inner))
    return b.real("quotient", x, b.real("add", b.const(1.0), exponential))


def _leaky_relu(b: Builder, node: Node) -> int:
    x = b.cast(b.operand(node.args[0]), "real")
    slope = _scalar(b, node, 1, "negative_slope", 0.01)
    positive = b.apply("gt", "bool", x, b.const(0.0))
    return b.apply("select", "real", positive, x, b.real("mul", x, slope))


def _elu(b: Builder, node: Node) -> int:
    x = b.cast(b.operand(node.args[0]), "real")
    alpha = _scalar(b, node, 1, "alpha", 1.0)
    scale = _scalar(b, node, 2, "scale", 1.0)
    input_scale = _scalar(b, node, 3, "input_scale", 1.0)
    negative = b.real("mul", alpha, b.real("expm1", b.real("mul", x, input_scale)))
    chosen = b.apply("select", "real", b.apply("gt", "bool", x, b.const(0.0)), x, negative)
    return b.real("mul", scale, chosen)


def _softplus(b: Builder, node: Node) -> int:
    x = b.cast(b.operand(node.args[0]), "real")
    beta, threshold = _scalar(b, node, 1, "beta", 1.0), _scalar(b, node, 2, "threshold", 20.0)
    scaled = b.real("mul", x, beta, name="scaled")
    soft = b.real("div", b.real("log1p", b.real("exp", scaled)), beta)
    return b.apply("select", "real", b.apply("gt", "bool", scaled, threshold), x, soft)


def _mish(b: Builder, node: Node) -> int:
    x = b.cast(b.operand(node.args[0]), "real")
    return b.real("mul", x, b.real("tanh", b.real("log1p", b.real("exp", x))))


def _hard_gate(b: Builder, x: int) -> int:
    low = b.apply("clamp_min", "real", b.real("add", x, b.const(3.0)), b.const(0.0))
    return b.apply("clamp_max", "real", low, b.const(6.0))


def _hardswish(b: Builder, node: Node) -> int:
    x = b.cast(b.operand(node.args[0]), "real")
    return b.real("mul", b.real("mul", x, _hard_gate(b, x)), b.const(1.0 / 6.0))


def _hardsigmoid(b: Builder, node: Node) -> int:
    x = b.cast(b.operand(node.args[0]), "real")
    return b.real("mul", _hard_gate(b, x), b.const(1.0 / 6.0))


def _pow(b: Builder, node: Node) -> int:
    base, exponent = b.operand(node.args[0]), node.args[1]
    if exponent in (2, 3) and not isinstance(exponent, bool):
        kind = kind_of(node.dtype)
        base = b.cast(base, kind)
        square = b.apply("mul", kind, base, base)
        return square if exponent == 2 else b.apply("mul", kind, square, base)
    if exponent == 0.5:
        return b.real("sqrt", base)
    if kind_of(node.dtype) != "real":
        raise Unforgeable("an integer power")
    return b.real("pow", base, b.operand(exponent))


def _where(b: Builder, node: Node) -> int:
    kind = kind_of(node.dtype)
    condition, yes, no = (b.operand(a) for a in node.args)
    return b.apply("select", kind, b.cast(condition, "bool"), b.cast(yes, kind), b.cast(no, kind))


def _masked_fill(b: Builder, node: Node) -> int:
    kind = kind_of(node.dtype)
    x, mask, filler = (b.operand(a) for a in node.args)
    return b.apply("select", kind, b.cast(mask, "bool"), b.cast(filler, kind), b.cast(x, kind))


def _lerp(b: Builder, node: Node) -> int:
    start, end, weight = (b.operand(a) for a in node.args)
    return b.real("add", start, b.real("mul", weight, b.real("sub", end, start)))


def _addcmul(b: Builder, node: Node) -> int:
    x, first, second = (b.operand(a) for a in node.args[:3])
    return b.real("add", x, b.real("mul", _scalar(b, node, 3, "value", 1.0), b.real("mul", first, second)))


def _convert(b: Builder, node: Node) -> int:
    """_to_copy, clone, copy: floats stay in the accumulation type, so only a change of kind does anything."""
    source = node.args[1] if node.op == "copy_" else node.args[0]
    return b.cast(b.operand(source), kind_of(node.dtype))


def _softmax(b: Builder, node: Node) -> int:
    x, axis = _row(b, node)
    shifted = b.real("sub", x, b.reduce("max", x, (axis,), "row_max"), name="shifted")
    exponential = b.real("exp", shifted, name="e")
    scale = b.real("reciprocal", b.reduce("sum", exponential, (axis,), "row_sum"), name="scale")
    return b.real("mul", exponential, scale)


def _log_softmax(b: Builder, node: Node) -> int:
    x, axis = _row(b, node)
    shifted = b.real("sub", x, b.reduce("max", x, (axis,), "row_max"), name="shifted")
    row_sum = b.reduce("sum", b.real("exp", shifted), (axis,), "row_sum")
    return b.real("sub", shifted, b.real("log", row_sum, name="log_sum"))


def _row(b: Builder, node: Node) -> tuple[int, int]:
    axis = node.args[1]
    assert isinstance(axis, int)
    if node.rank != b.rank:
        raise Unforgeable("a softmax of a tensor of lower rank than the result")
    return b.cast(b.operand(node.args[0]), "real"), axis


def _moments(b: Builder, x: int, axes: Sequence[int]) -> tuple[int, int]:
    """Mean and biased variance of a row, in two passes: no cancellation for a mean far from 0."""
    mean = b.real("div", b.reduce("sum", x, axes, "row_sum"), b.count(), name="mean")
    centred = b.real("sub", x, mean, name="centred")
    square_sum = b.reduce("sum", b.real("mul", centred, centred), axes, "square_sum")
    return centred, b.real("div", square_sum, b.count(), name="variance")


def _layer_norm(b: Builder, node: Node) -> tuple[int, ...]:
    normalized = node.args[1]
    assert isinstance(normalized, tuple)
    first = b.rank - len(normalized)
    x = b.cast(b.operand(node.args[0]), "real")
    centred, variance = _moments(b, x, range(first, b.rank))
    eps = _scalar(b, node, 4, "eps", 1e-5)
    scale = b.real("rsqrt", b.real("add", variance, eps), name="scale")
    result = b.real("mul", centred, scale)
    weight, bias = (b.parameter_tensor(node.argument(i, ""), first) for i in (2, 3))
    return (_affine(b, result, weight, bias),)


def _affine(b: Builder, value: int, weight: int | None, bias: int | None) -> int:
    if weight is not None:
        value = b.real("mul", value, weight)
    return value if bias is None else b.real("add", value, bias)


def _rms_norm(b: Builder, node: Node) -> tuple[int, ...]:
    """_fused_rms_norm(input, normalized_shape, weight, eps)."""
    normalized = node.args[1]
    assert isinstance(normalized, tuple)
    axes = range(b.rank - len(normalized), b.rank)
    x = b.cast(b.operand(node.args[0]), "real")
    square_sum = b.reduce("sum", b.real("mul", x, x), axes, "square_sum")
    mean_square = b.real("div", square_sum, b.count(), name="mean_square")
    eps = _scalar(b, node, 3, "eps", 1e-5)
    scale = b.real("rsqrt", b.real("add", mean_square, eps), name="scale")
    return (_affine(b, b.real("mul", x, scale), b.parameter_tensor(node.argument(2, "weight"), axes.start), None),)


def _batch_norm(b: Builder, node: Node) -> tuple[int, ...]:
    """native_batch_norm and its inference forms, over running statistics only: a scale and a shift per channel."""
    op = node.op.lstrip("_")
    inference_only = op.endswith("no_training")
    if not inference_only and node.args[5] is not False:
        raise Unforgeable("batch norm in training mode")
    x, (weight, bias) = b.operand(node.args[0]), (b.parameter_tensor(a, 1) for a in node.args[1:3])
    mean, variance = (b.parameter_tensor(a, 1) for a in node.args[3:5])
    if mean is None or variance is None:
        raise Unforgeable("batch norm without running statistics")
    eps = b.cast(b.operand(node.args[6 if inference_only else 7]), "real")
    scale = b.real("rsqrt", b.real("add", variance, eps), name="scale")
    if weight is not None:
        scale = b.name(b.real("mul", weight, scale), "scale")
    # Not folded into x * scale + shift: that loses digits where the mean is far from 0, and memory is the limit anyway.
    return (_affine(b, b.real("mul", b.real("sub", x, mean), scale), None, bias),)


def _axes_of(b: Builder, node: Node) -> tuple[int, ...]:
    axes = node.argument(1, "dim")
    if node.rank not in (b.rank, 0) and not isinstance(axes, int | tuple):
        raise Unforgeable("a reduction of a tensor of lower rank than the space")
    if axes is None or axes == ():
        return tuple(range(b.rank))
    chosen = axes if isinstance(axes, tuple) else (axes,)
    return tuple(int(a) for a in chosen if isinstance(a, int))


def _sum(b: Builder, node: Node) -> int:
    if kind_of(node.dtype) != "real":
        raise Unforgeable("a sum of integers")
    return b.reduce("sum", b.operand(node.args[0]), _axes_of(b, node), "row_sum")


def _mean(b: Builder, node: Node) -> int:
    return b.real("div", _sum(b, node), b.count(), name="mean")


def _extremum(reduce: str) -> Rule:
    def rule(b: Builder, node: Node) -> int:
        if kind_of(node.dtype) != "real":
            raise Unforgeable("an extremum of integers")
        kind = "amax" if reduce == "amax" else "amin"
        return b.reduce(kind, b.operand(node.args[0]), _axes_of(b, node), f"row_{reduce}")  # type: ignore[arg-type]

    return rule


def _logical_not(b: Builder, node: Node) -> int:
    if node.op.startswith("bitwise") and kind_of(node.dtype) != "bool":
        raise Unforgeable("a bitwise operation on integers")
    return _logical("logical_not")(b, node)  # type: ignore[return-value]


def _scalar_tensor(b: Builder, node: Node) -> int:
    value: Argument = node.args[0]
    if isinstance(value, ScalarArg | bool | int | float):
        return b.cast(b.operand(value), kind_of(node.dtype))
    raise Unforgeable("a scalar tensor of unknown value")


REDUCTIONS = frozenset({"sum", "mean", "amax", "amin"})
"""ATen operators that make a smaller tensor of their input."""

RULES: Mapping[str, Rule] = {
    **{name: _unary(name) for name in (
        "exp", "expm1", "log", "log1p", "log2", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tanh", "erf", "floor",
        "ceil", "trunc", "exp2",
    )},
    **{name: _arithmetic(name) for name in ("add", "sub", "mul", "minimum", "maximum", "neg", "abs")},
    **{name: _comparison(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{name: _logical(name) for name in ("logical_and", "logical_or")},
    "rsub": _arithmetic("sub"),
    "round": _round,
    "relu": lambda b, node: b.apply("relu", kind_of(node.dtype), b.operand(node.args[0])),
    "sigmoid": lambda b, node: _sigmoid(b, b.operand(node.args[0])),
    "square": lambda b, node: b.real("mul", b.operand(node.args[0]), b.operand(node.args[0])),
    "logical_not": _logical_not, "bitwise_not": _logical_not,
    "div": _div, "clamp": _clamp, "clamp_min": _clamp, "clamp_max": _clamp, "hardtanh": _hardtanh,
    "silu": _silu, "gelu": _gelu, "leaky_relu": _leaky_relu, "elu": _elu, "softplus": _softplus, "mish": _mish,
    "hardswish": _hardswish, "hardsigmoid": _hardsigmoid, "pow": _pow,
    "where": _where, "masked_fill": _masked_fill, "lerp": _lerp, "addcmul": _addcmul,
    "scalar_tensor": _scalar_tensor,
    "_to_copy": _convert, "clone": _convert, "copy": _convert, "detach": _convert, "alias": _convert,
    "_softmax": _softmax, "_log_softmax": _log_softmax,
    "native_layer_norm": _layer_norm, "_fused_rms_norm": _rms_norm,
    "native_batch_norm": _batch_norm, "_native_batch_norm_legit": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm, "_batch_norm_no_update": _batch_norm,
    "sum": _sum, "mean": _mean, "amax": _extremum("amax"), "amin": _extremum("amin"),
}  # fmt: skip
