"""Every operator against eager: its call forms agree, its call reproduces eager, its formulas make sense."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import pytest
import torch

from kernelforge.operators import (
    Concrete,
    Entry,
    Operator,
    TensorShape,
    Unsupported,
    canonical_call,
    entry_table,
    get_operator,
    operator_names,
    resolve_target,
)

Form = tuple[str, tuple[object, ...], dict[str, object]]


@dataclass(frozen=True, slots=True)
class Group:
    """Call forms that must have equal canonical arguments.

    Attributes:
        operator: canonical name.
        forms: target, positional and keyword arguments.
        expected: canonical arguments that are checked by value.
    """

    operator: str
    forms: tuple[Form, ...]
    expected: dict[str, object] = field(default_factory=dict)


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


X = _random(2, 4, 6, 8)
Y = _random(2, 4, 6, 8, seed=1)
P = X.abs() + 0.1
ROW = _random(8)
CHANNEL = _random(4)
A = _random(3, 5, 7)
B = _random(3, 7, 2)
M1 = _random(5, 7)
M2 = _random(7, 2)
BIAS = _random(2)
ONE = _random(1, 4, 8)
MASK = X > 0
IDS = torch.tensor([[1, 0], [4, 2]])
TABLE = _random(5, 3)
INTEGERS = torch.arange(6).reshape(2, 3)
SWAPPED = X.transpose(1, 2)
F = "torch.nn.functional."
T = "torch.Tensor."
ATEN = "torch.ops.aten."


def call(target: str, *args: object, **kwargs: object) -> Form:
    return target, args, kwargs


def same(operator: str, *forms: Form, **expected: object) -> Group:
    return Group(operator, forms, expected)


def _unary(name: str, value: torch.Tensor, *extra: Form, functional: bool = False) -> list[Group]:
    plain = [call(f"torch.{name}", value), call(f"{T}{name}", value), call(f"torch.{name}", input=value)]
    plain += [call(f"{ATEN}{name}.default", value), *extra]
    if functional:
        plain.append(call(f"{F}{name}", value))
    inplace = [call(f"{T}{name}_", value), call(f"torch.{name}_", value), call(f"{ATEN}{name}_.default", value)]
    return [same(name, *plain, inplace=False), same(name, *inplace, inplace=True)]


UNARY = [
    *_unary("neg", X, call(f"{T}__neg__", X)), *_unary("rsqrt", P), *_unary("sqrt", P), *_unary("log", P),
    *_unary("exp", X), *_unary("tanh", X, functional=True), *_unary("cos", X), *_unary("sin", X),
    *_unary("sigmoid", X, call("torch.special.expit", X), functional=True), *_unary("abs", X, call(f"{T}__abs__", X)),
    *_unary("reciprocal", P), *_unary("square", X), *_unary("erf", X),
    *_unary("relu", X, call(f"{F}relu", X, inplace=False), functional=True),
    same("relu", call(f"{F}relu", X, inplace=True), call(f"{F}relu_", X), call(f"{F}relu", X, True)),
]  # fmt: skip

ACTIVATIONS = [
    *(
        group
        for name in ("silu", "mish", "hardswish", "hardsigmoid")
        for group in (
            same(name, call(F + name, X), call(F + name, input=X, inplace=False), call(f"{ATEN}{name}.default", X)),
            same(name, call(F + name, X, True), call(F + name, X, inplace=True), call(f"{ATEN}{name}_.default", X)),
        )
    ),
    same("leaky_relu", call(f"{F}leaky_relu", X, 0.2), call(f"{F}leaky_relu", X, negative_slope=0.2)),
    same("leaky_relu", call(f"{F}leaky_relu", X, inplace=True), call(f"{F}leaky_relu_", X), negative_slope=0.01),
    same("elu", call(f"{F}elu", X), call(f"{F}elu", X, 1), call(f"{ATEN}elu.default", X), alpha=1.0),
    same("elu", call(f"{F}elu", X, 0.5, True), call(f"{F}elu_", X, alpha=0.5)),
    same("hardtanh", call(f"{F}hardtanh", X), call(f"{F}hardtanh", X, min_val=-1, max_val=1), min_val=-1.0),
    same("hardtanh", call(f"{F}relu6", X), call(f"{F}hardtanh", X, 0, 6), call(f"{ATEN}relu6.default", X)),
    same("hardtanh", call(f"{F}relu6", X, inplace=True), call(f"{F}hardtanh_", X, 0.0, 6.0)),
    same("softplus", call(f"{F}softplus", X), call(f"{F}softplus", X, beta=1.0, threshold=20), beta=1.0),
    same("gelu", call(f"{F}gelu", X), call(f"{F}gelu", X, approximate="none"), call(f"{ATEN}gelu.default", X)),
    same("gelu", call(f"{F}gelu", X, approximate="tanh"), approximate="tanh"),
    same("clamp", call("torch.clamp", X, -1, 1), call(f"{T}clip", X, min=-1.0, max=1.0), min=-1.0, max=1.0),
    same("clamp", call(f"{T}clamp_min", X, 0), call("torch.clamp", X, min=0), call("torch.clamp_min", X, 0), max=None),
    same("clamp", call(f"{T}clamp_", X, max=1), call(f"{T}clamp_max_", X, 1), inplace=True),
    same("clamp", call("torch.clamp", X, Y, Y + 1)),
    same("clamp", call("torch.clamp", INTEGERS, 1, 3), min=1),
    same("dropout", call(f"{F}dropout", X, 0.5, False), call("torch.dropout", X, 0.5, train=False), training=False),
]

ARITHMETIC = [
    same("add", call("torch.add", X, Y), call(f"{T}add", X, other=Y), call(f"{T}__add__", X, Y), alpha=1.0),
    same("add", call("torch.add", X, 1), call(f"{T}__radd__", X, 1.0), call("torch.add", 1, X), other=1.0),
    same("add", call("torch.add", input=X, other=ROW, alpha=2), call(f"{T}add", X, ROW, alpha=2.0), alpha=2.0),
    same("add", call(f"{T}add_", X, ROW), call(f"{T}__iadd__", X, ROW), call(f"{ATEN}add_.Tensor", X, ROW)),
    same("add", call("torch.add", INTEGERS, 2), call(f"{T}__add__", INTEGERS, 2), other=2),
    same("sub", call("torch.sub", X, Y), call(f"{T}__sub__", X, Y), call("torch.subtract", X, Y), alpha=1.0),
    same("sub", call(f"{T}__rsub__", X, 1), call("torch.rsub", X, 1), call("torch.sub", 1, X), input=1.0),
    same("sub", call("torch.rsub", Y, X, alpha=2), call("torch.sub", X, Y, alpha=2)),
    same("sub", call(f"{T}sub_", X, 3), call(f"{T}__isub__", X, 3.0), inplace=True),
    same("mul", call("torch.mul", X, Y), call(f"{T}__mul__", X, Y), call(f"{T}multiply", X, Y)),
    same("mul", call("torch.mul", X, 2), call(f"{T}__rmul__", X, 2.0), call("torch.mul", 2, X), other=2.0),
    same("mul", call(f"{T}mul_", X, Y), call(f"{T}__imul__", X, Y), inplace=True),
    same("div", call("torch.div", X, Y), call(f"{T}__truediv__", X, Y), call("torch.true_divide", X, Y)),
    same("div", call("torch.div", X, 3, rounding_mode="floor"), call(f"{T}divide", X, 3.0, rounding_mode="floor")),
    same("div", call(f"{T}__rtruediv__", P, 3), call(f"{T}__rdiv__", P, 3.0), input=3.0),
    same("div", call(f"{T}div_", X, 3), call(f"{T}__itruediv__", X, 3), inplace=True),
    same("pow", call("torch.pow", X, 2), call(f"{T}__pow__", X, 2.0), call(f"{T}pow", X, exponent=2), exponent=2),
    same("pow", call("torch.pow", P, 0.3), call(f"{T}__pow__", P, 0.3), exponent=0.3),
    same("pow", call("torch.pow", P, X), call(f"{T}__pow__", P, X)),
    same("pow", call("torch.pow", 2, X), call(f"{T}__rpow__", X, 2), input=2.0),
    same("pow", call(f"{T}pow_", X, 3), call(f"{T}__ipow__", X, 3), inplace=True),
    same("maximum", call("torch.maximum", X, Y), call(f"{T}maximum", X, other=Y)),
    same("minimum", call("torch.minimum", X, Y), call(f"{T}minimum", X, other=Y)),
    same("where", call("torch.where", MASK, X, Y), call(f"{T}where", X, MASK, Y)),
    same("where", call("torch.where", MASK, X, 0), call(f"{T}where", X, MASK, 0.0), other=0.0),
    same("where", call("torch.where", MASK, 0, X), input=0.0),
    same("masked_fill", call("torch.masked_fill", X, MASK, 0), call(f"{T}masked_fill", X, mask=MASK, value=0.0)),
    same("masked_fill", call(f"{T}masked_fill_", X, MASK, 1), value=1.0, inplace=True),
]

NORMS = [
    same("softmax", call(f"{F}softmax", X, -1), call("torch.softmax", X, dim=3), call(f"{T}softmax", X, -1),
         call(f"{F}softmax", X, dim=3, _stacklevel=5), call("torch.special.softmax", X, 3),
         call("torch.softmax", X, axis=3),
         call(f"{ATEN}softmax.int", X, -1), call(f"{ATEN}_softmax.default", X, -1, False), dim=3, dtype=None),
    same("softmax", call(f"{F}softmax", X.bfloat16(), 1, dtype=torch.float32), dtype=torch.float32),
    same("log_softmax", call(f"{F}log_softmax", X, 1), call("torch.log_softmax", X, -3), call(f"{T}log_softmax", X, 1)),
    same("layer_norm", call(f"{F}layer_norm", X, (8,), ROW, ROW),
         call("torch.layer_norm", X, [8], bias=ROW, weight=ROW),
         call(f"{F}layer_norm", X, torch.Size([8]), ROW, ROW, 1e-5), normalized_shape=(8,), eps=1e-5),
    same("layer_norm", call(f"{F}layer_norm", X, (6, 8)), weight=None),
    same("rms_norm", call(f"{F}rms_norm", X, (8,), ROW), call("torch.rms_norm", X, [8], weight=ROW), eps=2.0**-23),
    same("rms_norm", call(f"{F}rms_norm", X.bfloat16() * 1e-3, (8,)), eps=2.0**-23),
    same("batch_norm", call(f"{F}batch_norm", X, CHANNEL, CHANNEL.abs(), CHANNEL, CHANNEL), eps=1e-5),
    same("batch_norm", call("torch.batch_norm", X, None, None, CHANNEL, CHANNEL.square(), False, 0.1, 1e-3, True)),
    same("group_norm", call(f"{F}group_norm", X, 2, CHANNEL, CHANNEL),
         call("torch.group_norm", X, 2, CHANNEL, CHANNEL)),
    same("mean", call("torch.mean", X), call(f"{T}mean", X), call("torch.mean", X, dim=(0, 1, 2, 3)), dim=(0, 1, 2, 3)),
    same("mean", call(f"{T}mean", X, (-1, -2), True), call("torch.mean", X, axis=[2, 3], keepdims=True), dim=(2, 3)),
    same("sum", call("torch.sum", X, -1), call(f"{T}sum", X, dim=3), call(f"{ATEN}sum.dim_IntList", X, [3]), dim=(3,)),
    same("cumsum", call("torch.cumsum", X, -1), call(f"{T}cumsum", X, dim=3), dim=3),
    same("argmax", call("torch.argmax", X, -1), call(f"{T}argmax", X, dim=3), dim=3),
    same("argmax", call("torch.argmax", X), dim=None),
]  # fmt: skip

WINDOWS = [
    same("max_pool2d", call(f"{F}max_pool2d", X, 2), call("torch.max_pool2d", X, (2, 2)),
         call(f"{F}max_pool2d", X, kernel_size=2, stride=2), call(f"{ATEN}max_pool2d.default", X, [2, 2]),
         call("torch.max_pool2d", X, 2, []), kernel_size=(2, 2), stride=(2, 2), padding=(0, 0), ceil_mode=False),
    same("max_pool2d", call(f"{F}max_pool2d", X, (3, 2), 1, padding=1, ceil_mode=True), stride=(1, 1)),
    same("avg_pool2d", call(f"{F}avg_pool2d", X, 2), call(f"{F}avg_pool2d", X, kernel_size=[2, 2], stride=(2, 2))),
    same("avg_pool2d", call(f"{F}avg_pool2d", X, 3, 2, 1, False, False), count_include_pad=False),
    same("adaptive_avg_pool2d", call(f"{F}adaptive_avg_pool2d", X, 1), call(f"{F}adaptive_avg_pool2d", X, (1, 1)),
         call(f"{F}adaptive_avg_pool2d", input=X, output_size=[1, 1]), output_size=(1, 1)),
    same("adaptive_avg_pool2d", call(f"{F}adaptive_avg_pool2d", X, (3, None)), output_size=(3, 8)),
    same("pad", call(f"{F}pad", X, (1, 2)), call(f"{F}pad", X, [1, 2], mode="constant", value=0),
         call("torch.constant_pad_nd", X, (1, 2)), pad=(1, 2), value=0.0),
    same("pad", call(f"{F}pad", X, (-1, 2, 0, 1), "constant", 3), value=3.0),
    same("pad", call(f"{F}pad", X, (1, 2, 1, 1), "reflect"), mode="reflect", value=None),
    same("interpolate", call(f"{F}interpolate", X, scale_factor=2), call(f"{F}interpolate", X, None, (2.0, 2.0)),
         size=None, scale_factor=(2.0, 2.0)),
    same("interpolate", call(f"{F}interpolate", X, scale_factor=1.7, mode="bilinear"), align_corners=False),
    same("interpolate", call(f"{F}interpolate", X, scale_factor=1.7, mode="bilinear", recompute_scale_factor=True)),
    same("interpolate", call(f"{F}interpolate", X, 5), call(f"{F}interpolate", X, size=(5, 5)), size=(5, 5)),
    same("interpolate", call(f"{F}interpolate", X, (9, 5), mode="bilinear", align_corners=True), size=(9, 5)),
    same("conv1d", call(f"{F}conv1d", A, _random(6, 5, 3)), stride=(1,)),
    same("conv2d", call(f"{F}conv2d", X, _random(6, 4, 3, 3), CHANNEL.repeat(2)[:6], 2, padding=1), stride=(2, 2)),
    same("conv2d", call("torch.conv2d", X, _random(6, 4, 3, 3), padding="same"), padding=(1, 1)),
    same("conv2d", call("torch.conv2d", X, _random(6, 4, 2, 3), padding="same"), padding="same"),
    same("conv2d", call("torch.conv2d", X, _random(4, 1, 2, 3), padding="valid", groups=4), padding=(0, 0)),
    same("conv_transpose2d", call(f"{F}conv_transpose2d", X, _random(4, 3, 2, 2), stride=2), stride=(2, 2)),
]  # fmt: skip

PRODUCTS = [
    same("linear", call(f"{F}linear", X, TABLE.new_ones(3, 8), TABLE[0])),
    same("linear", call(f"{F}linear", X, TABLE.new_ones(3, 8)), bias=None),
    same("matmul", call("torch.matmul", A, B), call(f"{T}__matmul__", A, B), call(f"{T}__rmatmul__", B, A)),
    same("matmul", call("torch.mm", M1, M2), call("torch.matmul", M1, other=M2), call(f"{T}mm", M1, M2)),
    same("bmm", call("torch.bmm", A, B), call(f"{T}bmm", A, mat2=B), call("torch.bmm", input=A, mat2=B)),
    same("addmm", call("torch.addmm", BIAS, M1, M2), call(f"{T}addmm", BIAS, M1, M2, beta=1, alpha=1.0)),
    same("baddbmm", call("torch.baddbmm", B[:, :1], A, B, alpha=0.5), beta=1.0, alpha=0.5),
    same("scaled_dot_product_attention", call(f"{F}scaled_dot_product_attention", X, Y, X),
         call(f"{F}scaled_dot_product_attention", query=X, key=Y, value=X, dropout_p=0.0), scale=None),
    same("scaled_dot_product_attention", call(f"{F}scaled_dot_product_attention", X, Y, X, is_causal=True, scale=2)),
    same("embedding", call(f"{F}embedding", IDS, TABLE), call("torch.embedding", TABLE, IDS),
         call(f"{F}embedding", IDS, TABLE, padding_idx=0)),
]  # fmt: skip

LAYOUTS = [
    same("cat", call("torch.cat", [X, Y], -1), call("torch.concat", (X, Y), dim=3), dim=3),
    same("stack", call("torch.stack", [X, Y], -1), call("torch.stack", (X, Y), dim=4), dim=4),
    same("to", call(f"{T}to", X, torch.bfloat16), call(f"{T}bfloat16", X), call(f"{T}to", X, dtype=torch.bfloat16),
         call(f"{T}to", X, "cpu", torch.bfloat16), call(f"{T}type", X, torch.bfloat16), call(f"{T}to", X, X.bfloat16()),
         call(f"{T}type_as", X, X.bfloat16()), call(f"{ATEN}_to_copy.default", X, dtype=torch.bfloat16),
         dtype=torch.bfloat16),
    same("to", call(f"{T}half", X), dtype=torch.float16),
    same("to", call(f"{T}float", INTEGERS), dtype=torch.float32),
    same("contiguous", call(f"{T}contiguous", SWAPPED), memory_format="contiguous_format"),
    same("contiguous", call(f"{T}contiguous", X, memory_format=torch.channels_last), memory_format="channels_last"),
    same("clone", call(f"{T}clone", SWAPPED), call("torch.clone", SWAPPED, memory_format=torch.preserve_format)),
    same("view", call(f"{T}view", X, 2, -1), call(f"{T}view", X, (2, 192)), shape=(2, 192)),
    same("reshape", call("torch.reshape", X, (2, -1)), call(f"{T}reshape", X, 2, 192), shape=(2, 192)),
    same("flatten", call("torch.flatten", X, 1), call(f"{T}flatten", X, start_dim=1, end_dim=3), end_dim=3),
    same("transpose", call("torch.transpose", X, -1, 1), call(f"{T}transpose", X, 1, 3), dim0=1, dim1=3),
    same("transpose", call(f"{T}t", M1), call("torch.transpose", M1, 0, 1)),
    same("permute", call("torch.permute", X, (0, 2, 3, 1)), call(f"{T}permute", X, 0, 2, -1, 1), dims=(0, 2, 3, 1)),
    same("unsqueeze", call("torch.unsqueeze", X, -1), call(f"{T}unsqueeze", X, 4), dim=4),
    same("squeeze", call("torch.squeeze", ONE), call(f"{T}squeeze", ONE, 0)),
    same("expand", call(f"{T}expand", ROW, 3, -1), call(f"{T}expand", ROW, (3, 8)), size=(3, 8)),
    same("unflatten", call("torch.unflatten", X, 1, (2, -1)), call(f"{T}unflatten", X, -3, (2, 2)), sizes=(2, 2)),
    same("chunk", call("torch.chunk", X, 2, -1), call(f"{T}chunk", X, 2, dim=3), dim=3),
    same("split", call("torch.split", X, 3, -1), call(f"{T}split", X, 3, dim=3), split_size=3),
    same("split", call("torch.split", X, [3, 5], 3), call(f"{T}split_with_sizes", X, (3, 5), -1), split_size=(3, 5)),
    same("select", call("torch.select", X, -1, -2), call(f"{T}select", X, 3, 6), index=6),
    same("narrow", call("torch.narrow", X, -1, -3, 2), call(f"{T}narrow", X, 3, 5, 2), start=5),
    same("unbind", call("torch.unbind", X, -1), call(f"{T}unbind", X, dim=3), dim=3),
    same("detach", call("torch.detach", X), call(f"{T}detach", X)),
    same("getitem", call(f"{T}__getitem__", X, (0, ..., slice(1, None, 2), None)), index=(0, "...", "1::2", None)),
    same("getitem", call(f"{T}__getitem__", X, slice(None, -1)), index=(":-1:",)),
]  # fmt: skip

GROUPS = (*UNARY, *ACTIVATIONS, *ARITHMETIC, *NORMS, *WINDOWS, *PRODUCTS, *LAYOUTS)


def _label(group: Group) -> str:
    return f"{group.operator}-{group.forms[0][0].removeprefix('torch.')}"


def _copy(value: object, copies: dict[int, torch.Tensor]) -> object:
    """The value with each tensor replaced by a copy of the same strides; equal tensors stay one."""
    if isinstance(value, torch.Tensor):
        if id(value) not in copies:
            copies[id(value)] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value)
        return copies[id(value)]
    if isinstance(value, tuple | list) and any(isinstance(v, torch.Tensor) for v in value):
        return type(value)(_copy(v, copies) for v in value)
    return value


def _run(form: Form) -> object:
    target, args, kwargs = form
    copies: dict[int, torch.Tensor] = {}
    arguments = [_copy(a, copies) for a in args]
    return resolve_target(target)[2](*arguments, **{k: _copy(v, copies) for k, v in kwargs.items()})


def _canonical(form: Form) -> dict[str, object]:
    target, args, kwargs = form
    operator, entry = _table()[resolve_target(target)[2]]
    result = canonical_call(operator, entry, args, kwargs)
    assert not isinstance(result, Unsupported), result
    return result


def _call(operator: Operator, canonical: dict[str, object]) -> object:
    copies: dict[int, torch.Tensor] = {}
    return operator.call({k: _copy(v, copies) for k, v in canonical.items()})


def _outputs(value: object) -> list[torch.Tensor]:
    items = value if isinstance(value, tuple | list) else (value,)
    assert all(isinstance(item, torch.Tensor) for item in items)
    return [item for item in items if isinstance(item, torch.Tensor)]


def _same(left: object, right: object) -> bool:
    """Equal values and types; tensors by identity."""
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        return left is right
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    return type(left) is type(right) and left == right


def _concrete(value: object) -> Concrete:
    if isinstance(value, torch.Tensor):
        return TensorShape(shape=tuple(value.shape), dtype=str(value.dtype).removeprefix("torch."))
    if isinstance(value, tuple):
        return tuple(_concrete(v) for v in value)
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    assert value is None or isinstance(value, bool | int | float | str)
    return value


def _raised(value: object) -> object:
    """The value with floating tensors and dtypes as float64: how the true result is computed."""
    if isinstance(value, torch.Tensor) and value.dtype.is_floating_point:
        return value.double()
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    if isinstance(value, tuple):
        return tuple(_raised(v) for v in value)
    return value


@cache
def _table() -> dict[object, tuple[Operator, Entry]]:
    return entry_table()


def test_every_operator_has_samples() -> None:
    assert {group.operator for group in GROUPS} == set(operator_names())


@pytest.mark.parametrize("group", GROUPS, ids=_label)
def test_call_forms_agree(group: Group) -> None:
    first = _canonical(group.forms[0])
    operator = get_operator(group.operator)
    assert tuple(first) == operator.arguments
    for name, value in group.expected.items():
        assert _same(first[name], value), (name, first[name])
    for form in group.forms:
        assert _table()[resolve_target(form[0])[2]][0].name == group.operator
        other = _canonical(form)
        different = {k: (first[k], other[k]) for k in first if not _same(first[k], other[k])}
        assert not different, form[0]


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("group", [g for g in GROUPS if not get_operator(g.operator).random], ids=_label)
def test_call_reproduces_eager_bit_for_bit(group: Group) -> None:
    for form in group.forms:
        wanted, got = _outputs(_run(form)), _outputs(_call(get_operator(group.operator), _canonical(form)))
        for left, right in zip(wanted, got, strict=True):
            assert (left.dtype, left.shape, left.stride()) == (right.dtype, right.shape, right.stride()), form[0]
            assert torch.equal(left.nan_to_num(), right.nan_to_num()), form[0]


@pytest.mark.parametrize("group", GROUPS, ids=_label)
def test_call_in_float64_is_near_eager(group: Group) -> None:
    operator, canonical = get_operator(group.operator), _canonical(group.forms[0])
    eager = _outputs(_call(operator, canonical))
    true = _outputs(operator.call({k: _raised(_copy(v, {})) for k, v in canonical.items()}))
    for got, want in zip(eager, true, strict=True):
        assert want.dtype in (torch.float64, torch.int64, torch.float16, torch.bfloat16) or not want.is_floating_point()
        torch.testing.assert_close(got.double(), want.double(), rtol=2e-2, atol=2e-2, equal_nan=True)


@pytest.mark.parametrize("group", GROUPS, ids=_label)
def test_traffic_is_sane(group: Group) -> None:
    operator, canonical = get_operator(group.operator), _canonical(group.forms[0])
    outputs = tuple(TensorShape(shape=tuple(t.shape), dtype="float32") for t in _outputs(_call(operator, canonical)))
    arguments = {k: _concrete(v) for k, v in canonical.items()}
    tensors = [t for v in arguments.values() for t in (v if isinstance(v, tuple) else (v,))]
    total = sum(t.size_bytes for t in tensors if isinstance(t, TensorShape))
    flops = operator.flops(arguments, outputs)
    assert type(flops) is int
    assert flops == 0 if operator.view else flops > 0
    if operator.bytes_read is not None:
        read = operator.bytes_read(arguments)
        assert type(read) is int
        assert 0 <= read <= total
        assert (read == 0) == operator.view


def test_in_place_calls_change_and_return_their_input() -> None:
    for group in GROUPS:
        canonical = _canonical(group.forms[0])
        if canonical.get("inplace") and not get_operator(group.operator).random:
            target = _copy(canonical["input"], {})
            assert get_operator(group.operator).call({**canonical, "input": target}) is target
