"""The table of operators: names, targets, flags, what torch functions a mode sees, and no torch at import."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from kernelforge.errors import NotFound
from kernelforge.operators import entry_table, get_operator, operator_names, resolve_target


class Seen(TorchFunctionMode):
    """Notes the operator of each torch function that the mode reports; "" where none has it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = entry_table()
        self.names: list[str] = []

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        self.names.append(self.table[func][0].name if func in self.table else "")
        return func(*args, **(kwargs or {}))


X = torch.rand(2, 4, 6, 8)
MODULES: dict[str, nn.Module] = {
    "softmax": nn.Softmax(-1), "log_softmax": nn.LogSoftmax(-1), "relu": nn.ReLU(), "silu": nn.SiLU(),
    "mish": nn.Mish(), "gelu": nn.GELU(), "hardtanh": nn.ReLU6(), "hardswish": nn.Hardswish(), "elu": nn.ELU(),
    "hardsigmoid": nn.Hardsigmoid(), "leaky_relu": nn.LeakyReLU(), "softplus": nn.Softplus(), "tanh": nn.Tanh(),
    "sigmoid": nn.Sigmoid(), "layer_norm": nn.LayerNorm(8), "rms_norm": nn.RMSNorm(8), "group_norm": nn.GroupNorm(2, 4),
    "batch_norm": nn.BatchNorm2d(4).eval(), "max_pool2d": nn.MaxPool2d(2), "avg_pool2d": nn.AvgPool2d(2),
    "adaptive_avg_pool2d": nn.AdaptiveAvgPool2d(1), "pad": nn.ZeroPad2d(1), "interpolate": nn.Upsample(scale_factor=2),
    "linear": nn.Linear(8, 3), "conv2d": nn.Conv2d(4, 2, 3), "conv_transpose2d": nn.ConvTranspose2d(4, 2, 3),
    "dropout": nn.Dropout(), "flatten": nn.Flatten(), "unflatten": nn.Unflatten(1, (2, 2)),
}  # fmt: skip
EXPRESSIONS: dict[str, tuple[str, Callable[[], object]]] = {
    "x + y": ("add", lambda: X + X), "1 + x": ("add", lambda: 1 + X), "x - y": ("sub", lambda: X - X),
    "1 - x": ("sub", lambda: 1 - X), "x * y": ("mul", lambda: X * X), "2 * x": ("mul", lambda: 2 * X),
    "x / y": ("div", lambda: X / X), "1 / x": ("div", lambda: 1 / X), "-x": ("neg", lambda: -X),
    "x ** 2": ("pow", lambda: X**2), "2 ** x": ("pow", lambda: 2**X), "x @ y": ("matmul", lambda: X @ X.mT),
    "x[0]": ("getitem", lambda: X[0]), "x[..., :2]": ("getitem", lambda: X[..., :2]), "abs": ("abs", lambda: abs(X)),
    "F.sigmoid": ("sigmoid", lambda: functional.sigmoid(X)), "F.tanh": ("tanh", lambda: functional.tanh(X)),
    "indices": ("max_pool2d", lambda: functional.max_pool2d(X, 2, return_indices=True)),
    "torch.mm": ("matmul", lambda: torch.mm(X[0, 0], X[0, 0].mT)), "x.float()": ("to", lambda: X.half().float()),
    "sdpa": ("scaled_dot_product_attention", lambda: functional.scaled_dot_product_attention(X, X, X)),
    "embedding": ("embedding", lambda: functional.embedding(torch.tensor([0, 1]), X[0, 0])),
    "torch.split": ("split", lambda: torch.split(X, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_a_mode_sees_the_operator_of_a_module(name: str) -> None:
    with torch.no_grad(), Seen() as seen:
        MODULES[name](X)
    assert [n for n in seen.names if n] == [name]


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_a_mode_sees_the_operator_of_an_expression(text: str) -> None:
    name, run = EXPRESSIONS[text]
    with Seen() as seen:
        run()
    assert seen.names[-1] == name


@pytest.mark.parametrize("symbol", ["+", "-", "*", "/", "**"])
def test_a_mode_sees_augmented_assignment(symbol: str) -> None:
    names = {"+": "add", "-": "sub", "*": "mul", "/": "div", "**": "pow"}
    scope = {"x": X.clone()}
    with Seen() as seen:
        exec(f"x {symbol}= 2", scope)
    assert seen.names[-1] == names[symbol]


@pytest.mark.parametrize(
    ("target", "run"),
    [
        ("torch.nn.functional.max_pool2d", lambda: nn.MaxPool2d(2)(X)),
        ("torch.nn.functional.softmax", lambda: nn.Softmax(-1)(X)),
        ("torch.nn.functional.linear", lambda: nn.Linear(8, 2)(X)),
        ("torch.nn.functional.layer_norm", lambda: nn.LayerNorm(8)(X)),
        ("torch.Tensor.__add__", lambda: X + X),
        ("torch.Tensor.__rsub__", lambda: 1 - X),
        ("torch.Tensor.add_", lambda: X.clone().add_(X)),
        ("torch.ops.aten.relu.default", lambda: torch.ops.aten.relu.default(X)),
    ],
)
def test_a_resolved_target_can_be_replaced(
    target: str, run: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, attribute, original = resolve_target(target)
    calls = []

    def replacement(*args: object, **kwargs: object) -> object:
        calls.append(args)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, attribute, replacement)
    run()
    assert len(calls) == 1


def test_an_unknown_target_is_not_found() -> None:
    with pytest.raises(NotFound, match=r"torch\.no\.such"):
        resolve_target("torch.no.such")


def test_an_unknown_operator_is_not_found() -> None:
    with pytest.raises(NotFound):
        get_operator("types")


def test_operator_files_load_without_torch() -> None:
    code = (
        "import sys; from kernelforge.operators import get_operator, operator_names;"
        "[get_operator(n) for n in operator_names()]; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", operator_names())
def test_a_file_defines_the_operator_of_its_name(name: str) -> None:
    operator = get_operator(name)
    assert operator.name == name
    assert operator.entries
    assert set(operator.varying_ints) | set(operator.domains) <= set(operator.arguments)
    assert {d.of for d in operator.domains.values()} - {""} <= set(operator.arguments)


@pytest.mark.parametrize("name", operator_names())
def test_entries_name_callables_of_this_torch(name: str) -> None:
    for entry in get_operator(name).entries:
        owner, attribute, function = resolve_target(entry.target)
        assert getattr(owner, attribute) == function
        assert callable(function)


def test_no_callable_means_two_operators() -> None:
    owners: dict[object, str] = {}
    for name in operator_names():
        for entry in get_operator(name).entries:
            assert owners.setdefault(resolve_target(entry.target)[2], name) == name, entry.target


def test_flags() -> None:
    views = {name for name in operator_names() if get_operator(name).view}
    assert views >= {"view", "reshape", "transpose", "permute", "expand", "getitem", "split"}
    assert views.isdisjoint({"contiguous", "clone", "cat", "to"})
    assert [name for name in operator_names() if get_operator(name).random] == ["dropout"]
    vendor = {name for name in operator_names() if get_operator(name).provider == "vendor"}
    assert vendor == {
        "linear", "matmul", "bmm", "addmm", "baddbmm", "conv1d", "conv2d", "conv_transpose2d",
        "scaled_dot_product_attention",
    }  # fmt: skip


PASSING_ON: dict[str, Sequence[Callable[[], object]]] = {
    "torch.nn.functional.softmax": (
        lambda: functional.softmax(X, 1), lambda: functional.softmax(X, dim=1, dtype=torch.float64),
        lambda: functional.softmax(X[0, 0], _stacklevel=5, dim=-1),
    ),
    "torch.nn.functional.log_softmax": (
        lambda: functional.log_softmax(X, 1), lambda: functional.log_softmax(X, dim=1, dtype=torch.float64),
    ),
    "torch.nn.functional.relu": (lambda: functional.relu(X), lambda: functional.relu(X.clone(), inplace=True)),
    "torch.nn.functional.sigmoid": (lambda: functional.sigmoid(X),),
    "torch.nn.functional.tanh": (lambda: functional.tanh(X),),
}  # fmt: skip


def test_all_functions_that_pass_calls_on_are_looked_at_below() -> None:
    entries = [entry for name in operator_names() for entry in get_operator(name).entries]
    assert {entry.target for entry in entries if entry.passes_on} == set(PASSING_ON)


@pytest.mark.parametrize("target", PASSING_ON)
def test_a_function_that_passes_a_call_on_calls_one_other_form(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dispatch replaces that one: a call that reached neither would be lost to the kernels without a word."""
    reached: list[str] = []

    def note(name: str, original: Callable[..., object]) -> Callable[..., object]:
        def noted(*args: object, **kwargs: object) -> object:
            reached.append(name)
            return original(*args, **kwargs)

        return noted

    for entry in entry_table()[resolve_target(target)[2]][0].entries:
        if not entry.passes_on and not entry.target.startswith("torch.ops."):
            owner, attribute, function = resolve_target(entry.target)
            monkeypatch.setattr(owner, attribute, note(entry.target, function))
    for call in PASSING_ON[target]:
        reached.clear()
        call()
        assert len(reached) == 1, reached
