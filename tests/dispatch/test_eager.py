"""Eager dispatch: which calls a kernel serves, what happens to the others, and that torch is left as it was."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

from kernelforge.dispatch.loading import LoadedPackage
from kernelforge.dispatch.types import StatRow

Make = Callable[..., LoadedPackage]
MARK = 1 / 1024  # what each test kernel adds to its result


def row(package: LoadedPackage) -> StatRow:
    """The only row of a package of one kernel."""
    (only,) = package.stats()
    return only


@pytest.mark.parametrize(
    "call",
    [
        lambda t: F.softmax(t, 1), lambda t: F.softmax(t, dim=-1), lambda t: F.softmax(input=t, dim=1),
        lambda t: torch.softmax(t, 1), lambda t: t.softmax(-1), lambda t: t.softmax(dim=1),
        lambda t: torch.special.softmax(t, 1), torch.nn.Softmax(1),
    ],
)  # fmt: skip
def test_every_call_form_reaches_the_kernel(
    make: Make, x: torch.Tensor, call: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    package = make("softmax")
    want = call(x) + MARK
    with package.dispatch():
        for _ in range(3):
            torch.testing.assert_close(call(x), want)
    assert (row(package).hits, row(package).misses) == (3, {})


def test_another_size_hits_a_ranged_variant_until_the_range_ends(make: Make) -> None:
    package = make("softmax")
    with package.dispatch():
        for rows in (1, 2, 7, 64, 65, 0):
            x = torch.randn(rows, 8)
            want = torch.softmax(x.clone(memory_format=torch.contiguous_format), 1)
            assert want.shape == x.shape
    assert row(package).hits == 4
    assert row(package).misses == {"dim": 2}


REFUSED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dtype": lambda x: torch.softmax(x.double(), 1),
    "stride": lambda x: torch.softmax(torch.cat([x, x], 1)[:, ::2], 1),
    "size": lambda x: torch.softmax(x[:, :4].contiguous(), 1),
    "rank": lambda x: torch.softmax(x[0], 0),
    "argument": lambda x: torch.softmax(x, 0),
    "alignment": lambda x: torch.softmax(torch.cat([x.new_zeros(1), x.flatten()])[1:].view(4, 8), 1),
    "layout": lambda x: torch.softmax(torch._neg_view(-x), 1),
    "grad": lambda x: torch.softmax(x.clone().requires_grad_(), 1),
    "subclass Subclass": lambda x: torch.softmax(x.as_subclass(Subclass), 1),
}


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize("reason", REFUSED)
def test_a_call_outside_of_the_guard_gets_eager(make: Make, x: torch.Tensor, reason: str) -> None:
    package, call = make("softmax"), REFUSED[reason]
    want = call(x)
    with package.dispatch():
        got = [call(x) for _ in range(2)]
    for one in got:
        assert type(one) is type(want)
        assert torch.equal(one, want)
        assert one.requires_grad == want.requires_grad
    assert row(package).misses == {reason: 2}
    assert row(package).hits == 0


def test_the_same_signature_is_refused_and_admitted_call_by_call(make: Make, x: torch.Tensor) -> None:
    package = make("softmax")
    shifted = torch.cat([x.new_zeros(1), x.flatten()])[1:].view(4, 8)
    parameter = torch.nn.Parameter(x.clone())
    with package.dispatch():
        for tensor in (x, shifted, x, parameter, torch._neg_view(-x), x):
            torch.softmax(tensor, 1)
        with torch.no_grad():
            torch.softmax(parameter, 1)
        with torch.inference_mode():
            assert torch.softmax(x, 1).is_inference()
    assert row(package).hits == 5
    assert row(package).misses == {"alignment": 1, "grad": 1, "layout": 1}


def test_gradients_flow_as_in_eager(make: Make, x: torch.Tensor) -> None:
    with make().dispatch():
        leaf = x.clone().requires_grad_()
        F.softmax(leaf * 2.0, 1).square().sum().backward()  # type: ignore[no-untyped-call]
    plain = x.clone().requires_grad_()
    F.softmax(plain * 2.0, 1).square().sum().backward()  # type: ignore[no-untyped-call]
    assert plain.grad is not None
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, plain.grad)


def test_another_default_dtype_gets_eager(make: Make, x: torch.Tensor) -> None:
    """It decides what integers and numbers become; kernels were captured under float32."""
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad(), make().dispatch() as package:
            F.softmax(x, 1)
        rows = [row for row in package.stats() if row.operator == "softmax"]
        assert [row.hits for row in rows] == [0] * len(rows)
        assert any("default dtype" in row.misses for row in rows), rows
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.filterwarnings("ignore:.torch.jit.*. is")
def test_autocast_modes_and_transforms_get_eager(make: Make, x: torch.Tensor) -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    package = make("softmax")
    want = torch.softmax(x, 1)

    class Functions(TorchFunctionMode):
        seen: list[str] = []  # noqa: RUF012 - the class is used once

        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            Operators.seen += 1
            return func(*args, **(kwargs or {}))

    with package.dispatch():
        torch.softmax(x, 1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(torch.softmax(x, 1), want)
        with Functions():
            modal = torch.softmax(x, 1)
        assert Functions.seen == ["softmax"]
        assert torch.equal(modal, want)
        with Operators():  # type: ignore[no-untyped-call]
            seen_by_mode = torch.softmax(x, 1)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones_like(x))  # type: ignore[no-untyped-call]
            result = forward_ad.unpack_dual(torch.softmax(dual, 1))  # type: ignore[no-untyped-call]
            assert result.tangent is not None
        torch.testing.assert_close(torch.vmap(lambda t: torch.softmax(t, 1))(torch.stack([x, x]))[0], want)
        traced = torch.jit.trace(lambda t: torch.softmax(t, 1), x, check_trace=False)  # type: ignore[no-untyped-call]
        assert torch.equal(traced(x), want)
    assert Operators.seen == 1
    assert torch.equal(seen_by_mode, want)
    assert row(package).hits == 1
    misses = row(package).misses
    expected = ("autocast", "function mode", "dispatch mode", "forward AD", "tracing")
    assert {k: misses.get(k) for k in expected} == dict.fromkeys(expected, 1)
    assert misses["functorch"] >= 1


def test_a_variant_of_autocast_serves_under_that_autocast_only(make: Make, x: torch.Tensor) -> None:
    package = make("softmax_cast")
    want = torch.softmax(x, 1)
    with package.dispatch():
        for _ in range(3):
            assert torch.equal(torch.softmax(x, 1), want)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                torch.testing.assert_close(torch.softmax(x, 1), want + MARK)
                with torch.autocast("cpu", enabled=False):
                    assert torch.equal(torch.softmax(x, 1), want)
            with torch.autocast("cpu", dtype=torch.float16):
                assert torch.equal(torch.softmax(x, 1), want)
    assert row(package).hits == 3
    assert row(package).misses == {"autocast": 9}


def test_a_default_device_is_no_obstacle(make: Make, x: torch.Tensor) -> None:
    package = make("softmax")
    with package.dispatch(), torch.device("cpu"):
        torch.softmax(x, 1)
    assert row(package).hits == 1


@pytest.mark.parametrize("convert", [lambda t: t.to("meta"), lambda t: t.to_sparse()])
def test_tensors_without_plain_memory_get_eager(
    make: Make, x: torch.Tensor, convert: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    package = make("softmax")
    with package.dispatch():
        torch.softmax(x, 1)
        other = convert(x)
        result = torch.sparse.softmax(other, 1) if other.is_sparse else torch.softmax(other, 1)
        assert result.layout == other.layout
        assert result.device == other.device
        torch.softmax(x, 1)
    assert row(package).hits == 2


def test_an_error_of_the_call_is_eagers_own(make: Make, x: torch.Tensor) -> None:
    with pytest.raises(IndexError) as eager:
        torch.softmax(x, 5)
    with make("softmax").dispatch(), pytest.raises(IndexError) as dispatched:
        torch.softmax(x, 5)
    assert str(dispatched.value) == str(eager.value)


def test_arguments_that_compare_equal_stay_apart(make: Make, x: torch.Tensor) -> None:
    package = make("softmax")
    with package.dispatch():
        torch.softmax(x, 1)
        with pytest.raises(TypeError):
            torch.softmax(x, 1.0)  # type: ignore[arg-type]
    assert row(package).hits == 1


def test_one_tensor_given_twice_and_two_tensors_are_not_confused(make: Make, x: torch.Tensor) -> None:
    package = make("add")
    y = torch.rand(4, 8)
    with package.dispatch():
        twice, both, operator, named = x + x, x + y, torch.add(y, x), torch.add(other=y, input=x)
    torch.testing.assert_close(twice, 2 * x + MARK)
    for result in (both, operator, named):
        torch.testing.assert_close(result, x + y + MARK)
    assert row(package).hits == 4


def test_an_in_place_kernel_returns_its_target_and_counts_as_a_change(make: Make, x: torch.Tensor) -> None:
    package = make("relu_")
    want = x.relu() + MARK
    with package.dispatch():
        version = x._version
        assert F.relu(x, inplace=True) is x
        assert x._version == version + 1
        torch.testing.assert_close(x, want)
        for _ in range(2):
            version = x._version
            assert torch.relu_(x) is x
            assert x._version == version + 1
        torch.testing.assert_close(x, want + 2 * MARK)
        with torch.inference_mode():
            inner = x + 0
            assert torch.relu_(inner) is inner
            assert torch.relu_(x) is x
        with pytest.raises(RuntimeError, match="nference tensor"):
            torch.relu_(inner)
        with pytest.raises(RuntimeError, match="leaf Variable"):
            torch.relu_(x.clone().requires_grad_())
    assert row(package).hits == 5
    assert row(package).misses == {"grad": 1, "inference tensor": 1}


def test_an_in_place_kernel_refuses_shared_memory(make: Make) -> None:
    package = make("add_")
    x, y, base = torch.zeros(4, 8), torch.rand(4, 8), torch.arange(64.0)
    once, twice = y + MARK, 2 * (y + MARK)
    with package.dispatch():
        x.add_(y)
        torch.testing.assert_close(x, once)
        x.add_(x)
        torch.testing.assert_close(x, twice)
        for _ in range(2):
            x.add_(y)
        base[32:].view(4, 8).add_(base[:32].view(4, 8))  # side by side
        with pytest.raises(RuntimeError, match="single memory location"):  # eager's own words
            base[8:40].view(4, 8).add_(base[:32].view(4, 8))
    assert row(package).hits == 4
    assert row(package).misses == {"alias": 2}


def test_workspace_and_varying_scalars(make: Make, x: torch.Tensor) -> None:
    package = make("mul")
    with package.dispatch():
        for factor in (0.5, 2.0, 3.5):
            torch.testing.assert_close(x * factor, x / (1 / factor) + MARK)
        assert torch.equal(x * 8.0, x / 0.125)
    assert (row(package).hits, row(package).misses) == (3, {"scalar": 1})


def test_a_kernel_for_unaligned_memory_steps_in(make: Make) -> None:
    package = make("log", "log_unaligned")
    x = torch.rand(33)[1:].view(4, 8) + 1
    shifted = torch.cat([x.new_ones(1), x.flatten()])[1:].view(4, 8)
    with package.dispatch():
        for tensor in (x, shifted, x, shifted):
            torch.testing.assert_close(tensor.log(), x.log())
    rows = {r.variant: r for r in package.stats()}
    by_alignment = {e.variant.tensors[0].alignment: rows[e.variant.id] for e in package.package.entries}
    assert sum(r.hits for r in rows.values()) == 4 + 4
    assert by_alignment[4].hits >= 2
    assert all(r.misses == {} for r in rows.values())


def test_a_failing_launch_raises_and_names_the_variant(make: Make, x: torch.Tensor) -> None:
    from kernelforge.errors import ForgeError

    package = make("exp")
    label = package.package.entries[0].variant.label
    with package.dispatch(), pytest.raises(ForgeError, match=f"{label} failed with error 7"):
        x.exp()


def test_an_unhandled_argument_leaves_other_operators_alone(make: Make, x: torch.Tensor) -> None:
    package = make("softmax")
    with package.dispatch():
        torch.log_softmax(x, 1)
        x.exp()
    assert row(package).misses == {}


class Unhashable(type):
    """Its classes cannot be looked up in a set."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(cls, other: object) -> bool:
        return cls is other


class Odd(metaclass=Unhashable):
    pass


def test_an_argument_of_any_type_gets_eagers_own_error(make: Make, x: torch.Tensor) -> None:
    with make("softmax").dispatch():
        torch.softmax(x, 1)
        for odd in (Odd(), [1, [2, [3, [4, [5]]]]], 10**30, range(3), {"a": 1}):
            with pytest.raises((TypeError, RuntimeError, IndexError, ValueError)):
                torch.softmax(x, odd)  # type: ignore[arg-type]
        torch.softmax(x, 1)


def test_outputs_are_tensors_like_eagers(make: Make, x: torch.Tensor) -> None:
    """However they were allocated: own memory, resizable, in eager's layout, an inference tensor in inference mode."""
    package = make("softmax", "add")
    with package.dispatch():
        for _ in range(3):
            out = torch.softmax(x, 1)
            both = torch.add(x, x)
    assert sum(r.hits for r in package.stats()) == 6
    for made in (out, both):
        want = torch.empty_like(x)
        assert (made.stride(), made.dtype, made.device, made.layout) == (want.stride(), x.dtype, x.device, x.layout)
        assert not made.requires_grad and made.is_leaf and not made.is_inference() and made._version == 0
        assert made.untyped_storage().nbytes() == want.untyped_storage().nbytes()
        assert made.data_ptr() % 64 == 0
        made.resize_(64, 8)  # a borrowed storage would refuse
        made.requires_grad_().mul(2.0).sum().backward()  # type: ignore[no-untyped-call]
        assert made.grad is not None
    with package.dispatch(), torch.inference_mode():
        assert torch.softmax(x, 1).is_inference()
    dead = weakref.ref(out)
    del out, made
    assert dead() is None
