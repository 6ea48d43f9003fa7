"""Which calls of Dynamo's graphs go to kernels, and which are left to the compiler. The graphs run without Inductor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.dispatch.conftest import COMPILED, MARK, Pack, varying_sizes
from torch import fx
from torch._dynamo.utils import counters

from kernelforge.capture.types import TensorRef
from kernelforge.cards.types import Dim, Extent, TensorPattern, Variant
from kernelforge.dispatch.compiled import kernels_of
from kernelforge.dispatch.loading import LoadedPackage
from kernelforge.dispatch.registered import namespace_of
from kernelforge.dispatch.rewrite import Kernels, rewrite
from kernelforge.dispatch.tables import Tables
from kernelforge.dispatch.types import EntryState, Kernel
from kernelforge.package.types import Entry, Off

# torch's own, when Inductor is first imported.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.*. is", "ignore::DeprecationWarning")

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing compiled by another test."""
    torch._dynamo.reset()


def hits(package: LoadedPackage) -> int:
    return sum(row.hits for row in package.stats("compiled"))


def misses(package: LoadedPackage) -> Mapping[str, int]:
    """By reason, of all entries together."""
    found: dict[str, int] = {}
    for row in package.stats("compiled"):
        for reason, count in row.misses.items():
            found[reason] = found.get(reason, 0) + count
    return found


def graphs() -> int:
    """How many graphs Dynamo has made."""
    return int(counters["stats"]["unique_graphs"])


def traced(package: LoadedPackage) -> tuple[Callable[..., Any], list[list[str]]]:
    """A backend without Inductor, and the package's operators in each graph that it has seen."""
    seen: list[list[str]] = []

    def run(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        rewrite(graph_module, [kernels_of(package)])
        names = [str(n.target) for n in graph_module.graph.nodes if "kernelforge" in str(n.target)]
        seen.append([name.split(".")[1].split("_")[0] for name in names])
        made: Callable[..., Any] = graph_module.forward
        return made

    return run, seen


def operators_in(package: LoadedPackage, function: Function, *args: Any, dynamic: bool | None = None) -> list[str]:
    """The package's operators in the one graph of a function; its results are eager's, but for what kernels add."""
    run, seen = traced(package)
    got = torch.compile(function, backend=run, fullgraph=True, dynamic=dynamic)(*args)
    torch.testing.assert_close(got, function(*args), atol=0.05, rtol=0.0)
    assert len(seen) == 1
    return seen[0]


FORMS: dict[str, tuple[Function, str]] = {
    "functional": (lambda x: F.softmax(x, -1), "softmax"),
    "torch": (lambda x: torch.softmax(x, dim=1), "softmax"),
    "method": (lambda x: x.softmax(1), "softmax"),
    "module": (torch.nn.Softmax(1), "softmax"),
    "operator": (lambda x: x + x, "add"),
    "named": (lambda x: torch.add(other=x, input=x), "add"),
    "reflected": (lambda x: 2.0 * x, "mul"),
    "aten": (lambda x: torch.ops.aten.exp.default(x).mul(2.0), "mul"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_call_form_becomes_an_operator(pack: Pack, x: torch.Tensor, form: str) -> None:
    function, operator = FORMS[form]
    package = pack("softmax", "add", "mul")
    assert operators_in(package, function, x) == [operator]
    assert hits(package) == 1


def under_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return torch.softmax(x, 1)


REFUSED: dict[str, Function] = {
    "dtype": lambda x: torch.softmax(x.double(), 1),
    "stride": lambda x: torch.softmax(torch.cat([x, x], 1)[:, ::2], 1),
    "size": lambda x: torch.softmax(x[:, :4].contiguous(), 1),
    "argument": lambda x: torch.softmax(x, 0),
    "grad": lambda x: torch.softmax(x.clone().requires_grad_(), 1),
    "autocast": under_autocast,
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_call_outside_of_the_guard_is_left_to_the_compiler(pack: Pack, x: torch.Tensor, reason: str) -> None:
    package = pack("softmax")
    run, seen = traced(package)
    got = torch.compile(REFUSED[reason], backend=run)(x)
    assert torch.equal(got, REFUSED[reason](x))
    assert not any(seen)
    assert misses(package) == {f"left to Inductor: {reason}": 1}
    assert hits(package) == 0


def test_a_lazy_negative_bit_makes_another_graph_that_no_kernel_serves(pack: Pack, x: torch.Tensor) -> None:
    package = pack("softmax")
    run, seen = traced(package)
    compiled = torch.compile(lambda x: torch.softmax(x, 1), backend=run, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), torch.softmax(x, 1) + MARK)
        torch.testing.assert_close(compiled(torch._neg_view(-x)), torch.softmax(x, 1))
    assert seen == [["softmax"], []]
    assert misses(package) == {"left to Inductor: layout": 1}


def test_an_entry_that_is_off_in_compiled_mode_is_not_used(pack: Pack, x: torch.Tensor) -> None:
    package = pack("softmax", decisions={**COMPILED, "compiled": Off(reason="slower than Inductor's")})
    assert operators_in(package, lambda x: torch.softmax(x, 1), x) == []
    assert [row.state for row in package.stats("compiled")] == ["slower than Inductor's"]


def test_what_changes_an_input_is_left_to_the_compiler_and_counted(pack: Pack, x: torch.Tensor) -> None:
    package = pack("relu_", "add_")

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y += x
        return F.relu(y, inplace=True)

    assert operators_in(package, function, x) == []
    assert misses(package) == {"left to Inductor: changes an input in place": 2}


def test_grad_mode_and_autocast_are_those_at_the_call(pack: Pack, x: torch.Tensor) -> None:
    package = pack("softmax", "softmax_cast", "mul")
    parameter = torch.nn.Parameter(x.clone())

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            first = torch.softmax(parameter, 1)
        second = torch.softmax(parameter, 1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            third = torch.softmax(x, 1)
            fourth = x * 2.0
        return first, second, third, fourth, x * 2.0

    got = operators_in(package, function, x)
    assert got == ["softmax", "softmax", "mul"]
    by_label = {row.variant: row.hits for row in package.stats("compiled")}
    cast = next(e.variant.id for e in package.package.entries if e.variant.autocast)
    assert by_label[cast] == 1

    with torch.autocast("cpu", dtype=torch.bfloat16):  # around the compiled code
        assert operators_in(package, lambda x: torch.softmax(x, 1), x) == ["softmax"]
    assert {row.variant: row.hits for row in package.stats("compiled")}[cast] == 2


def test_a_tensor_that_is_reshaped_in_place_is_not_taken_for_what_it_becomes(pack: Pack) -> None:
    """A graph keeps the metadata that a tensor has in the end: a dim counted from there would be another one."""
    package = pack("softmax")

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.clone()
        z = y.softmax(-1)
        y.squeeze_(0)
        return y, z

    assert operators_in(package, function, torch.rand(1, 4, 8)) == []


def test_transforms_inside_of_compiled_code_see_pytorchs_own_operators(pack: Pack, x: torch.Tensor) -> None:
    package = pack("softmax")
    stacked = torch.stack([x, x])

    def loss(t: torch.Tensor) -> torch.Tensor:
        return torch.softmax(t, 1).square().sum()

    assert operators_in(package, torch.vmap(loss), stacked) == []
    assert operators_in(package, torch.func.grad(loss), x) == []


def test_a_default_dtype_that_kernels_were_not_captured_under(pack: Pack, x: torch.Tensor) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert operators_in(pack("softmax"), lambda x: torch.softmax(x, 1), x) == []
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_first_of_several_packages_that_admits_a_call_serves_it(pack: Pack, x: torch.Tensor) -> None:
    packages = pack("add"), pack("softmax", "add"), pack("softmax")

    def run(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        assert rewrite(graph_module, [kernels_of(p) for p in packages]) == 2
        made: Callable[..., Any] = graph_module.forward
        return made

    torch.compile(lambda x: torch.softmax(x + x, 1), backend=run, fullgraph=True)(x)
    assert [hits(p) for p in packages] == [1, 1, 0]


# --- Symbolic sizes ---


def test_a_size_of_which_nothing_is_known_leaves_the_operator_to_the_compiler(pack: Pack, x: torch.Tensor) -> None:
    package = pack("softmax")
    run, seen = traced(package)
    function = torch.compile(lambda x: torch.softmax(x, 1), backend=run, fullgraph=True, dynamic=True)
    for rows in (4, 64, 65, 300):
        tensor = torch.rand(rows, 8)
        assert torch.equal(function(tensor), torch.softmax(tensor, 1))
    assert seen == [[]]
    assert misses(package) == {"left to Inductor: size": 1}


@varying_sizes
@pytest.mark.parametrize(("least", "most", "served"), [(2, 64, True), (5, 60, True), (2, 65, False)])
def test_a_size_that_is_known_to_stay_in_the_range_is_served(pack: Pack, least: int, most: int, served: bool) -> None:
    package = pack("softmax")
    run, seen = traced(package)
    function = torch.compile(lambda x: torch.softmax(x, 1), backend=run, fullgraph=True)
    for rows in (least, 17, most):
        tensor = torch.rand(rows, 8)
        torch._dynamo.mark_dynamic(tensor, 0, min=least, max=most)
        torch.testing.assert_close(function(tensor), torch.softmax(tensor, 1) + served * MARK)
    assert seen == [["softmax"] if served else []]
    assert hits(package) == 3 * served


def test_growing_lengths_make_no_graph_more_than_plain_torch_compile(pack: Pack) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x + x, 1) * 2.0

    package = pack("softmax", "add", "mul")
    run, seen = traced(package)
    for served in (False, True):
        torch._dynamo.reset()
        before = graphs()
        compiled = torch.compile(function, backend=run if served else "eager", fullgraph=True)
        for rows in range(2, 40):
            compiled(torch.rand(rows, 8))
        if not served:
            plain = graphs() - before
    assert graphs() - before == plain == 2  # the first length, then any
    assert seen == [["add", "softmax", "mul"], []]


def test_describing_a_call_makes_no_condition(pack: Pack) -> None:
    """Some operators look at sizes to say what a call means: a symbolic one must not be pinned by that."""
    package = pack("softmax")
    from kernelforge.dispatch import rewrite as module

    def conditional(*args: Any) -> Any:
        tensor = args[2][0]
        if tensor.shape[0] == 7:
            return {}
        return original(*args)

    original = vars(module)["canonical_call"]
    run, seen = traced(package)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "canonical_call", conditional)
        function = torch.compile(lambda x: torch.softmax(x, 1), backend=run, fullgraph=True, dynamic=True)
        for rows in (4, 7, 9):
            function(torch.rand(rows, 8))
    assert seen == [[]]


@varying_sizes
def test_the_largest_tensor_is_looked_for_among_all_where_none_is_known_to_be(entries: Mapping[str, Entry]) -> None:
    """64 elements, or 8 times a size in [2, 16]: which of the two is more is not known."""
    wide = TensorPattern(shape=(Extent(8), Extent(1, ("n0",))), stride=(Extent(1, ("n0",)), Extent(1)), dtype="float32")
    square = replace(wide, shape=(Extent(8), Extent(8)), stride=(Extent(8), Extent(1)))
    seen = {}
    for most in (127, 128):
        variant = Variant(
            operator="matmul", arguments=(("input", TensorRef(0)), ("other", TensorRef(1))), tensors=(square, wide),
            outputs=(wide,), dims=(Dim(name="n0", low=1, high=64),), max_elements=most,
        )  # fmt: skip
        entry = replace(entries["softmax"], variant=variant, decisions=COMPILED)
        kernel = Kernel(launch=lambda *_: 1, address=0, workspace_bytes=lambda _: 0)
        tables = Tables(
            (EntryState(entry=entry, kernel=kernel, reasons={}),), name="", native=lambda: None, mode="compiled"
        )
        kernels = Kernels(tables=tables, namespace=namespace_of(tables, f"largest{most}"))

        def run(graph_module: fx.GraphModule, inputs: Any, most: int = most, kernels: Kernels = kernels) -> Any:
            seen[most] = rewrite(graph_module, [kernels])
            return graph_module.forward

        y = torch.rand(8, 12)
        torch._dynamo.mark_dynamic(y, 1, min=2, max=16)
        torch.compile(torch.matmul, backend=run, fullgraph=True)(torch.rand(8, 8), y)
        torch._dynamo.reset()
    assert seen == {127: 0, 128: 1}
