"""Tensors that are more than memory, and gradients of every kind: right, or refused by a reason that names the type."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from kernelforge.dispatch.loading import LoadedPackage
from kernelforge.dispatch.types import StatRow

Make = Callable[..., LoadedPackage]
MARK = 1 / 1024  # what each test kernel adds to its result


def row(package: LoadedPackage) -> StatRow:
    (only,) = package.stats()
    return only


class Logged(torch.Tensor):
    """Sees the functions that are called on it."""

    seen: list[str] = []  # noqa: RUF012 - emptied by the tests

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        cls.seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


class Quantized(torch.Tensor):
    """Like torchao's: holds int8 and a scale, and computes where the operators arrive."""

    data_: torch.Tensor
    scale: float

    @staticmethod
    def __new__(cls, data: torch.Tensor, scale: float) -> Quantized:
        made: Quantized = torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.float32)
        made.data_, made.scale = data, scale
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        def plain(value: object) -> object:
            return value.data_.float() * value.scale if isinstance(value, Quantized) else value

        return func(*map(plain, args), **(kwargs or {}))


class Disabled(torch.Tensor):
    """Takes no part in the protocol: results are plain tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


class Weight(nn.Parameter):
    pass


def masked(x: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made: torch.Tensor = torch.masked.masked_tensor(x, x > -0.5)
    return made


SUBCLASSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Logged": lambda x: x.as_subclass(Logged),
    "Quantized": lambda x: Quantized((x * 100).to(torch.int8), 0.01),
    "Disabled": lambda x: x.as_subclass(Disabled),
    "Weight": lambda x: Weight(x, requires_grad=False),
    "MaskedTensor": masked,
    "NestedTensor": lambda x: torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", SUBCLASSES)
def test_a_subclass_is_refused_by_its_name(make: Make, x: torch.Tensor, name: str) -> None:
    """In every call form, and whatever the package has learnt of plain tensors of the same shape before."""
    package, tensor = make("softmax"), SUBCLASSES[name](x)
    dim = tensor.dim() - 1
    want = F.softmax(tensor, dim)
    Logged.seen.clear()
    with torch.no_grad(), package.dispatch():
        F.softmax(x, 1)
        results = [
            F.softmax(tensor, dim),
            torch.softmax(tensor, dim),
            tensor.softmax(dim),
            F.softmax(input=tensor, dim=dim),
        ]
    for result in results:
        assert type(result) is type(want)
        assert str(result) == str(want)
    assert (row(package).hits, row(package).misses) == (1, {f"subclass {name}": 4})
    if name == "Logged":
        assert Logged.seen.count("softmax") >= 4


def test_a_subclass_among_plain_inputs_is_named(make: Make, x: torch.Tensor) -> None:
    package = make("add")
    with package.dispatch():
        for pair in ((x, x.as_subclass(Logged)), (x.as_subclass(Logged), x)):
            assert type(torch.add(*pair)) is Logged
            assert type(pair[0] + pair[1]) is Logged
    assert row(package).misses == {"subclass Logged": 4}


class Handled(torch.Tensor):
    """Keeps a table of functions, as the documentation of PyTorch shows it."""

    table: ClassVar[dict[Any, str]] = {
        torch.add: "add", torch.Tensor.add: "add", F.softmax: "softmax", torch.softmax: "softmax",
        torch.Tensor.softmax: "softmax",
    }  # fmt: skip
    found: list[str] = []  # noqa: RUF012 - emptied by the tests

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        cls.found.append(cls.table.get(func, f"not found: {func}"))
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


def test_handlers_are_told_of_the_function_that_they_know(make: Make, x: torch.Tensor) -> None:
    """Torch looks the function up where our wrapper is, which is in no table that was made before."""
    tensor = x.as_subclass(Handled)

    def run() -> list[str]:
        Handled.found.clear()
        for result in (
            tensor + x, x + tensor, torch.add(tensor, x), tensor.add(x, alpha=2), F.softmax(tensor, 1),
            F.softmax(tensor, dim=1), torch.softmax(tensor, 1), tensor.softmax(1), torch.softmax(input=tensor, dim=1),
        ):  # fmt: skip
            assert type(result) is Handled
        return list(Handled.found)

    want = run()
    assert not any("not found" in name for name in want)
    with make("add", "softmax").dispatch() as package:
        got = run()
    assert got == want
    assert {r.operator: r.misses for r in package.stats()} == {
        "add": {"subclass Handled": 4}, "softmax": {"subclass Handled": 5},
    }  # fmt: skip


def test_function_modes_are_told_of_the_function_that_they_know(make: Make, x: torch.Tensor) -> None:
    class Names(TorchFunctionMode):
        seen: list[object] = []  # noqa: RUF012 - the class is used once

        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.seen.append(func)
            return func(*args, **(kwargs or {}))

    def run() -> list[object]:
        Names.seen.clear()
        with Names():
            x.softmax(1)
            F.softmax(x, 1)
            F.layer_norm(x, (8,))
            torch.softmax(x, 1)
            x + x
            1.0 + x
        return list(Names.seen)

    want = run()
    with make("add", "softmax", "layer_norm").dispatch() as package:
        assert run() == want
    assert {r.operator: r.misses for r in package.stats()} == {
        "add": {"function mode": 2}, "softmax": {"function mode": 2}, "layer_norm": {"function mode": 1},
    }  # fmt: skip
    hits = {r.operator: r.hits for r in package.stats()}
    assert hits == {"add": 0, "softmax": 1, "layer_norm": 0}, "what F.softmax calls inside, which the mode does not see"


def test_function_modes_are_told_of_calls_that_were_refused_before(make: Make) -> None:
    """What is known to be eager's is a call that the mode must see, too."""

    class Sevens(TorchFunctionMode):
        table = {F.layer_norm: 7.0, torch.Tensor.softmax: 5.0}  # noqa: RUF012 - made before the block

        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            return self.table[func] if func in self.table else func(*args, **(kwargs or {}))

    many = torch.ones(100, 8)
    with make("softmax", "layer_norm").dispatch() as package:
        for _ in range(3):
            F.layer_norm(many, (8,))
            many.softmax(1)
            with Sevens():
                told: tuple[Any, Any] = F.layer_norm(many, (8,)), many.softmax(1)
                assert told == (7.0, 5.0)
    assert [r.misses for r in package.stats()] == [{"dim": 3, "function mode": 3}] * 2


def test_objects_that_are_no_tensors_are_told_of_the_function_that_they_know(make: Make) -> None:
    class Scalar:
        table = {F.layer_norm: 1.0, torch.Tensor.softmax: 2.0, torch.softmax: 3.0}  # noqa: RUF012

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            return cls.table.get(func, NotImplemented)

    scalar: Any = Scalar()
    with make("softmax", "layer_norm").dispatch():
        told: tuple[Any, Any] = F.layer_norm(scalar, (8,)), torch.softmax(scalar, dim=1)
    assert told == (1.0, 3.0)


def test_a_graph_of_torch_fx_holds_the_functions_of_torch(make: Make, x: torch.Tensor) -> None:
    with make("softmax").dispatch():
        traced = torch.fx.symbolic_trace(nn.Softmax(1))
    assert F.softmax in [node.target for node in traced.graph.nodes]


def test_a_call_with_overrides_switched_off_is_made_once(make: Make, x: torch.Tensor) -> None:
    tensor, want = x.as_subclass(Logged), x.relu()
    with make("relu_").dispatch(), torch._C.DisableTorchFunction():
        version = tensor._version
        torch.relu_(tensor)
        assert tensor._version == version + 1
    assert torch.equal(x, want)


def test_a_subclass_with_the_protocol_switched_off(make: Make, x: torch.Tensor) -> None:
    """`super().__torch_function__` and libraries do this; the type is still no plain tensor."""
    package = make("softmax")
    with package.dispatch(), torch._C.DisableTorchFunctionSubclass():
        result = torch.softmax(x.as_subclass(Logged), 1)
    assert type(result) is torch.Tensor
    assert row(package).misses == {"subclass Logged": 1}


def test_parameters_and_buffers_are_plain(make: Make, x: torch.Tensor) -> None:
    package = make("softmax")
    with torch.no_grad(), package.dispatch():
        for tensor in (nn.Parameter(x), nn.Buffer(x), x.detach(), x.data):
            torch.testing.assert_close(torch.softmax(tensor, 1), torch.softmax(x.double(), 1).float() + MARK)
    assert row(package).hits == 4


def test_fake_tensors_are_named(make: Make, x: torch.Tensor) -> None:
    from torch._subclasses import FakeTensorMode

    package = make("softmax")
    mode = FakeTensorMode()
    fake = mode.from_tensor(x)
    with package.dispatch():
        torch.softmax(x, 1)
        outside = torch.softmax(fake, 1)
        with mode:
            inside = torch.softmax(fake, 1)
            made = torch.softmax(torch.empty(4, 8), 1)
    for result in (outside, inside, made):
        assert type(result) is type(fake)
        assert result.shape == (4, 8)
    assert row(package).hits == 1
    assert row(package).misses == {"subclass FakeTensor": 3}


PLAIN_TYPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "meta": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
    "csr": lambda x: x.to_sparse_csr(),
    "nested": lambda x: torch.nested.nested_tensor([x, x[:2]]),
    "mkldnn": lambda x: x.to_mkldnn(),
    "negative": lambda x: torch._neg_view(-x),
    "zero": lambda x: torch._efficientzerotensor(x.shape),
    "functional": torch._to_functional_tensor,
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8),
}


@pytest.mark.filterwarnings("ignore:.*(nested tensors|Sparse CSR|quantiz|Quantiz)")
@pytest.mark.parametrize("name", PLAIN_TYPES)
def test_a_tensor_without_plain_memory_gets_what_eager_gives(make: Make, x: torch.Tensor, name: str) -> None:
    """Their type is torch.Tensor, so that only what is behind it tells."""
    package, tensor = make("exp", "log", "softmax", "relu_"), PLAIN_TYPES[name](x)

    def run(call: Callable[[torch.Tensor], torch.Tensor]) -> tuple[str, str]:
        try:
            result = call(tensor)
            shown = torch._from_functional_tensor(result) if torch._is_functional_tensor(result) else result
            return type(result).__name__, str(shown)
        except (RuntimeError, NotImplementedError) as error:
            return type(error).__name__, str(error).splitlines()[0]

    calls = (lambda t: torch.softmax(t, 1), torch.log, lambda t: t.softmax(-1))
    want = [run(call) for call in calls]
    with package.dispatch():
        torch.softmax(x, 1)
        torch.log(x)
        got = [run(call) for call in calls]
    assert got == want
    assert sum(r.hits for r in package.stats()) == 2


@pytest.mark.filterwarnings("ignore:.torch.jit.*. is")
def test_transforms_are_what_they_are_in_eager(make: Make, x: torch.Tensor) -> None:
    """vmap, grad, jvp, jacobians and hessians: the wrapped tensors are of type torch.Tensor."""
    from torch.func import functional_call, functionalize, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

    def total(t: torch.Tensor) -> torch.Tensor:
        return (torch.softmax(t, -1) * F.relu(t).add(t)).square().sum()

    batch, layer = torch.stack([x, 2 * x, -x]), nn.Linear(8, 8)
    parameters = dict(layer.named_parameters())

    def loss(weights: Any, t: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.softmax(functional_call(layer, weights, (t,)), -1).square().sum()
        return result

    calls: dict[str, Callable[[], Any]] = {
        "vmap": lambda: vmap(total)(batch), "grad": lambda: grad(total)(x),
        "vmap of grad": lambda: vmap(grad(total))(batch),
        "jvp": lambda: jvp(total, (x,), (torch.ones_like(x),)), "vjp": lambda: vjp(total, x)[1](torch.tensor(1.0)),
        "jacrev": lambda: jacrev(lambda t: torch.softmax(t, -1))(x[0]), "jacfwd": lambda: jacfwd(total)(x[:2]),
        "hessian": lambda: hessian(total)(x[:1]), "functionalize": lambda: functionalize(total)(x),
        "functional_call": lambda: grad(loss)(parameters, x), "randomness": lambda: vmap(total, in_dims=1)(x),
    }  # fmt: skip
    want = {name: call() for name, call in calls.items()}
    with torch.no_grad(), make("softmax", "add", "relu_", "mul", "linear").dispatch() as package:
        torch.softmax(x, -1)
        torch.add(x, x)
    with package.dispatch():
        got = {name: call() for name, call in calls.items()}
    for name in calls:
        torch.testing.assert_close(got[name], want[name], rtol=1e-5, atol=1e-6)
    assert all("functorch" in r.misses or r.operator in {"relu"} for r in package.stats() if r.misses), package.stats()


class Doubled(torch.autograd.Function):
    """A forward in which grad mode is off: a kernel may run there, and the backward is its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.softmax(x, 1) * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        s = torch.softmax(x, 1)
        return 2 * s * (grad - (grad * s).sum(1, keepdim=True))


def stopped(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return torch.softmax(x, 1)


def enabled(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad(), torch.enable_grad():
        return torch.softmax(x, 1).square().sum()


def hooked(x: torch.Tensor) -> torch.Tensor:
    x.register_hook(lambda g: g * 3)  # type: ignore[no-untyped-call]
    return x


def saved(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.save_on_cpu():
        return torch.softmax(x.exp(), 1).square().sum()


GRADIENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda x: (torch.softmax(x * 2.0, 1) + x).square().sum(),
    "double backward": lambda x: (
        torch.autograd.grad(torch.softmax(x, 1).pow(3).sum(), x, create_graph=True)[0].square().sum()
    ),
    "checkpoint": lambda x: checkpoint(lambda t: torch.softmax(t, 1).pow(2), x, use_reentrant=False).sum(),
    "reentrant checkpoint": lambda x: checkpoint(lambda t: torch.softmax(t, 1).pow(2), x, use_reentrant=True).sum(),
    "no_grad inside": lambda x: (x * stopped(x)).sum(),
    "enable_grad in no_grad": enabled,
    "autograd function": lambda x: Doubled.apply(x).square().sum(),  # type: ignore[no-untyped-call]
    "gradient hooks": lambda x: hooked(torch.softmax(x, 1)).square().sum(),
    "saved on the CPU": saved,
    "in place": lambda x: (x * 1.0).add_(x).log_softmax(1).square().sum(),
    "view": lambda x: torch.softmax(x.view(2, 2, 8)[0:1].reshape(2, 8).expand(2, 8), 1).square().sum(),
}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("name", GRADIENTS)
def test_no_gradient_is_dropped(make: Make, x: torch.Tensor, name: str) -> None:
    """A kernel that ignores autograd gives a result without a gradient, or a wrong one, and no error."""

    def gradient() -> tuple[torch.Tensor, torch.Tensor]:
        leaf = x.clone().requires_grad_()
        loss = GRADIENTS[name](leaf)
        assert loss.requires_grad
        loss.backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        return loss.detach(), leaf.grad

    want = gradient()
    with torch.no_grad(), make("softmax", "add", "add_", "mul", "log").dispatch() as package:
        torch.softmax(x, 1)  # signatures that kernels serve
        torch.add(x, x)
        x.mul(2.0)
    with package.dispatch():
        got = gradient()
    # Where grad mode is off a kernel ran, which adds its mark; the gradient's own path is eager's.
    tolerance = 8 * MARK
    torch.testing.assert_close(
        got[1], want[1], rtol=1e-6 if name in EXACT else 0.05, atol=1e-7 if name in EXACT else tolerance
    )


EXACT = {"plain", "enable_grad in no_grad", "gradient hooks", "saved on the CPU"}
"""Every call needs a gradient, so that no kernel serves any."""


def test_a_parameter_under_inference_mode_is_served_and_differentiable_outside(make: Make, x: torch.Tensor) -> None:
    package, parameter = make("softmax"), nn.Parameter(x)
    with package.dispatch():
        for _ in range(2):
            with torch.inference_mode():
                inside = torch.softmax(parameter, 1)
                assert inside.is_inference() and not inside.requires_grad
            outside = torch.softmax(parameter, 1)
            assert outside.requires_grad and not outside.is_inference()
            with torch.inference_mode(), torch.inference_mode(mode=False):
                assert torch.softmax(parameter, 1).requires_grad
    assert (row(package).hits, row(package).misses) == (2, {"grad": 4})


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    distributed: Any = torch.distributed
    distributed.init_process_group(
        "gloo", store=distributed.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without torch.distributed")
@pytest.mark.usefixtures("one_rank")
def test_a_distributed_tensor_is_named_and_its_local_part_served(make: Make, x: torch.Tensor) -> None:
    """Unwrapping it silently would skip its collectives."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

    package = make("softmax")
    spread: Any = distribute_tensor(x, init_device_mesh("cpu", (1,)), [Replicate()])
    want: Any = torch.softmax(spread, 1)
    with package.dispatch():
        result: Any = torch.softmax(spread, 1)
        local = torch.softmax(spread.to_local(), 1)
    assert type(result) is DTensor
    assert torch.equal(result.to_local(), want.to_local())
    torch.testing.assert_close(local, want.to_local() + MARK)
    assert row(package).misses["subclass DTensor"] == 1
    assert row(package).hits == 1
