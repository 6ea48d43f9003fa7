"""Registered operators: total, differentiable as PyTorch's own, side by side, whatever calls them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.dispatch.conftest import handwritten
from torch.library import opcheck

from kernelforge.capture.types import TensorRef
from kernelforge.cards.types import Dim, Extent, TensorPattern, Variant
from kernelforge.dispatch.compiled import kernels_of
from kernelforge.dispatch.loading import LoadedPackage, load
from kernelforge.dispatch.registered import RegisteredOperator, can_be_registered
from kernelforge.errors import ForgeError
from kernelforge.package.types import Decision, Entry, Header, Off, Use
from kernelforge.package.writer import write_package
from kernelforge.settings import Settings

QUICK = ("test_schema", "test_autograd_registration", "test_faketensor")
MARK = 1 / 1024  # what each test kernel adds to its result
DECISIONS: dict[str, Decision] = {"eager": Off(reason="test"), "graphed": Off(reason="test"), "compiled": Use()}

N0, EIGHT, ONE = Extent(1, ("n0",)), Extent(8), Extent(1)


def pattern(*shape: Extent, stride: tuple[Extent, ...] = (EIGHT, ONE), dtype: str = "float32") -> TensorPattern:
    return TensorPattern(shape=shape, stride=stride, dtype=dtype)


def variants() -> dict[str, tuple[Variant, str]]:
    """Kernels that the other tests of dispatch have no need of."""
    rows = (Dim(name="n0", low=1, high=64),)
    product = Variant(  # float32 in, bfloat16 out: what autocast makes of a product
        operator="matmul", arguments=(("input", TensorRef(0)), ("other", TensorRef(1))),
        tensors=(pattern(N0, EIGHT), pattern(EIGHT, EIGHT)), outputs=(pattern(N0, EIGHT, dtype="bfloat16"),),
        dims=rows, autocast="bfloat16",
    )  # fmt: skip
    return {
        "matmul_cast": (product, """
extern "C" int launch(const float* input, const float* other, int64_t n0, uint16_t* out, void* workspace) {
  for (int64_t i = 0; i < n0; ++i) for (int j = 0; j < 8; ++j) {
    float sum = 0;
    for (int k = 0; k < 8; ++k) sum += input[8 * i + k] * other[8 * k + j];
    out[8 * i + j] = kf::float_to_bf16(sum + 1.0f);
  }
  return 0;
}
"""),
    }  # fmt: skip


@pytest.fixture(scope="module")
def compiled_entries(entries: Mapping[str, Entry], cache: Settings) -> Mapping[str, Entry]:
    """The entries of all tests of dispatch and two more, on in compiled mode alone."""
    made = {name: replace(entry, decisions=DECISIONS) for name, entry in entries.items()}
    made |= {
        name: handwritten(variant, source, cache, decisions=DECISIONS) for name, (variant, source) in variants().items()
    }
    return made


Pack = Callable[..., LoadedPackage]


@pytest.fixture(scope="module")
def pack(compiled_entries: Mapping[str, Entry], cache: Settings, tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """Load a package of entries, given themselves or by name; `native` as in the settings."""

    def load_some(
        *chosen: str | Entry, name: str = "test", native: bool = True, cache_dir: Path | None = None
    ) -> LoadedPackage:
        path = tmp_path_factory.mktemp("packages") / "kernels.cast"
        header = Header(name=name, device="cpu", torch=torch.__version__, created_by="test")
        write_package(path, [compiled_entries[c] if isinstance(c, str) else c for c in chosen], header=header)
        return load(path, settings=replace(cache, native=native, cache_dir=cache_dir or cache.cache_dir))

    return load_some


def operators(package: LoadedPackage) -> list[RegisteredOperator]:
    """All that the package registers."""
    kernels = kernels_of(package)
    fit = [e for e, _ in kernels.tables.guarded if not can_be_registered(e.variant)]
    return [kernels.namespace.operator(e) for e in fit]


def hits(package: LoadedPackage) -> int:
    return sum(row.hits for row in package.stats("compiled"))


def only(package: LoadedPackage) -> tuple[torch._ops.OpOverload, Callable[[], tuple[int, Mapping[str, int]]]]:
    """The one operator of a package of one entry, and what it has counted."""
    (operator,) = operators(package)

    def counted() -> tuple[int, Mapping[str, int]]:
        (row,) = package.stats("compiled")
        return row.hits, row.misses

    return operator.overload, counted


@pytest.fixture
def x() -> torch.Tensor:
    return torch.linspace(-1, 1, 32).reshape(4, 8)


def arguments(operator: RegisteredOperator, *, requires_grad: bool) -> tuple[Any, ...]:
    """Arguments that the operator's guard admits."""
    tensors = [torch.rand(4, 8) + 0.5 for _ in operator.variant.tensors]
    if operator.variant.operator == "matmul":
        tensors[1] = torch.rand(8, 8)
    return (*(t.requires_grad_(requires_grad) for t in tensors), *(2.0 for _ in operator.variant.scalars))


@pytest.mark.parametrize("native", [True, False])
def test_every_operator_passes_torchs_own_checks_with_gradients_too(pack: Pack, native: bool) -> None:
    package = pack("softmax", "add", "mul", "log", "log_unaligned", "softmax_cast", "matmul_cast", native=native)
    for operator in operators(package):
        for requires_grad in (False, True):
            before = hits(package)
            # Tracing through AOT autograd does not reach what differs without the native table.
            checks: dict[str, Any] = {} if native else {"test_utils": QUICK}
            opcheck(operator.overload, arguments(operator, requires_grad=requires_grad), **checks)
            assert (hits(package) == before) == requires_grad, operator.variant.label
    assert {o.variant.id for o in operators(package)} == {e.variant.id for e in package.package.entries}


@pytest.mark.parametrize("native", [True, False])
def test_a_call_that_the_guard_refuses_gets_eager_and_is_counted(pack: Pack, x: torch.Tensor, native: bool) -> None:
    softmax, counted = only(pack("softmax", native=native))
    shifted = torch.cat([x.new_zeros(1), x.flatten()])[1:].view(4, 8)
    refused = {
        "alignment": shifted, "dtype": x.double(), "size": x[:, :4].contiguous(), "stride": x.t().contiguous().t(),
        "rank": x[None], "dim": torch.rand(65, 8),
    }  # fmt: skip
    torch.testing.assert_close(softmax(x), torch.softmax(x, 1) + MARK)
    for tensor in refused.values():
        for _ in range(2):
            assert torch.equal(softmax(tensor), torch.softmax(tensor, 1))
    assert softmax(x.to("meta")).shape == x.shape
    torch.testing.assert_close(softmax(x), torch.softmax(x, 1) + MARK)
    assert counted() == (2, {**dict.fromkeys(refused, 2), "device": 1})


@pytest.mark.parametrize("native", [True, False])
def test_a_lazy_negative_bit_is_never_overlooked(pack: Pack, x: torch.Tensor, native: bool) -> None:
    softmax, counted = only(pack("softmax", native=native))
    softmax(x)
    lazy = torch._neg_view(-x)
    assert lazy.is_neg()
    for _ in range(2):
        torch.testing.assert_close(softmax(lazy), torch.softmax(x, 1), atol=2 * MARK, rtol=0)
    assert sum((counted()[0], *counted()[1].values())) == 3


def test_memory_that_one_kernel_refuses_goes_to_another(pack: Pack, x: torch.Tensor) -> None:
    package = pack("log", "log_unaligned")
    aligned = next(o for o in operators(package) if o.variant.tensors[0].alignment == 16)
    shifted = torch.cat([x.new_zeros(1), x.flatten() + 3])[1:].view(4, 8)
    for tensor in (x + 2, shifted, x + 2, shifted):
        torch.testing.assert_close(aligned.overload(tensor), tensor.log() + MARK)
    assert hits(package) == 4


@pytest.mark.parametrize("native", [True, False])
def test_a_gradient_is_never_dropped(pack: Pack, x: torch.Tensor, native: bool) -> None:
    softmax, counted = only(pack("softmax", native=native))
    softmax(x)
    grads = []
    for function in (softmax, lambda t: torch.softmax(t, 1)):
        leaf = x.clone().requires_grad_()
        function(leaf).square().sum().backward()
        assert leaf.grad is not None
        grads.append(leaf.grad)
    assert torch.equal(grads[0], grads[1])
    assert counted() == (1, {"grad": 1})
    with torch.no_grad():
        softmax(x.clone().requires_grad_())
    with torch.inference_mode():
        assert softmax(x).is_inference()
    assert counted() == (3, {"grad": 1})


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is")
@pytest.mark.parametrize("native", [True, False])
def test_transforms_see_through_the_operator(pack: Pack, x: torch.Tensor, native: bool) -> None:
    softmax, _ = only(pack("softmax", native=native))
    softmax(x)

    def eager(t: torch.Tensor) -> torch.Tensor:
        return torch.softmax(t, 1)

    def both(transformed: Callable[[Callable[..., Any]], Any]) -> None:
        torch.testing.assert_close(transformed(softmax), transformed(eager), atol=2 * MARK, rtol=0)

    both(lambda f: torch.vmap(f)(torch.stack([x, 2 * x])))
    both(lambda f: torch.func.grad(lambda t: f(t).square().sum())(x))
    both(lambda f: torch.func.jvp(f, (x,), (x.cos(),)))
    both(lambda f: torch.func.vmap(torch.func.grad(lambda t: f(t).square().sum()))(torch.stack([x, 2 * x])))


class Subclass(torch.Tensor):
    pass


def test_a_subclass_stays_one(pack: Pack, x: torch.Tensor) -> None:
    softmax, _ = only(pack("softmax"))
    assert type(softmax(x.as_subclass(Subclass))) is Subclass


def test_an_operator_of_autocast_computes_as_under_it_wherever_it_is_called(pack: Pack, x: torch.Tensor) -> None:
    """Compiled code runs without autocast, which its graph holds already."""
    product, counted = only(pack("matmul_cast"))
    other = torch.rand(8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        want = x @ other
        strided = x @ other.t()
    assert want.dtype == torch.bfloat16
    torch.testing.assert_close(product(x, other), want + 1, atol=0.05, rtol=0.0)
    assert torch.equal(product(x, other.t()), strided)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(product(x, other.t()), strided)
    assert torch.get_autocast_dtype("cpu") == torch.bfloat16 and not torch.is_autocast_enabled("cpu")
    assert counted() == (1, {"stride": 2})


def test_an_operator_of_no_autocast_is_not_cast(pack: Pack, x: torch.Tensor) -> None:
    add, _ = only(pack("add"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert add(x, x).dtype == torch.float32
        assert add(x[:, :4], x[:, :4]).dtype == torch.float32


def test_another_default_dtype_gets_eager(pack: Pack, x: torch.Tensor) -> None:
    mul, counted = only(pack("mul", native=False))
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(mul(x, 2.0), 2.0 * x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert counted() == (0, {"default dtype": 1})


def test_numbers_that_vary_are_arguments(pack: Pack, x: torch.Tensor) -> None:
    mul, counted = only(pack("mul"))
    for factor in (0.5, 2.0, 3.5):
        torch.testing.assert_close(mul(x, factor), x * factor + MARK)
    assert torch.equal(mul(x, 8.0), x * 8.0)
    assert counted() == (3, {"scalar": 1})


@pytest.mark.parametrize("native", [True, False])
def test_a_failing_launch_names_the_variant_and_the_package(
    pack: Pack, x: torch.Tensor, native: bool, tmp_path: Path
) -> None:
    package = pack("exp", native=native, cache_dir=tmp_path)  # it is off in the next process that has the same cache
    exp, _ = only(package)
    label = package.package.entries[0].variant.label
    for _ in range(2):
        with pytest.raises(ForgeError, match=f"{package.package.path}.*{label} failed with error 7"):
            exp(x)


def test_what_changes_an_input_is_not_registered(pack: Pack) -> None:
    package = pack("relu_", "add_", "softmax")
    assert [o.variant.operator for o in operators(package)] == ["softmax"]
    assert can_be_registered(next(e for e in package.package.entries if e.variant.mutates).variant)


def test_two_versions_of_one_kernel_live_side_by_side(
    pack: Pack, compiled_entries: Mapping[str, Entry], cache: Settings, x: torch.Tensor
) -> None:
    softmax = compiled_entries["softmax"]
    other = handwritten(softmax.variant, softmax.source.replace("/ 1024", "/ 256"), cache, decisions=DECISIONS)
    first, second = pack("softmax"), pack(other)
    want = torch.softmax(x, 1)
    torch.testing.assert_close(only(first)[0](x), want + MARK)
    torch.testing.assert_close(only(second)[0](x), want + 4 * MARK)
    assert (hits(first), hits(second)) == (1, 1)


def test_the_same_package_loaded_twice_counts_apart(pack: Pack, x: torch.Tensor) -> None:
    first, second = pack("softmax", "add", name="twice"), pack("softmax", "add", name="twice")
    assert first.package.digest == second.package.digest
    names = [[str(o.overload) for o in operators(p)] for p in (first, second)]
    assert all(first.package.digest[:8] in name for name in names[0] + names[1])
    operators(first)[0].overload(*arguments(operators(first)[0], requires_grad=False))
    assert (hits(first), hits(second)) == (1, 0)
    assert [[str(o.overload) for o in operators(p)] for p in (first, second)] == names


def test_threads_define_each_operator_once(pack: Pack, x: torch.Tensor) -> None:
    package = pack("softmax", "mul", name="threads")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: [o.overload for o in operators(package)], range(32)))
        assert all(f == found[0] for f in found)
        softmax = next(o.overload for o in operators(package) if o.variant.operator == "softmax")
        results = list(pool.map(lambda n: softmax(torch.full((n, 8), 1.0)), [1, 2, 3, 4] * 25))
    for result in results:
        torch.testing.assert_close(result, torch.full_like(result, 1 / 8 + MARK))
