"""TF32, reduced precision and determinism: a kernel stands in for a product only under the flags of its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from kernelforge.capture.precision import applied, precision_of
from kernelforge.dispatch.decide import Admitted, Refused
from kernelforge.dispatch.loading import LoadedPackage, load
from kernelforge.operators import get_operator
from kernelforge.package.types import Entry
from kernelforge.settings import Settings

Make = Callable[..., LoadedPackage]
MARK = 1 / 1024  # what each test kernel adds to its result
REDUCED = "mkldnn.matmul.fp32_precision=bf16"


@pytest.fixture(autouse=True)
def flags_as_before() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)
    torch.use_deterministic_algorithms(False)
    assert precision_of(get_operator("linear"), "cpu", ["float32"]) == ()


def counts(package: LoadedPackage) -> dict[str, tuple[int, Mapping[str, int]]]:
    """Hits and misses of each entry, by its flags and operator."""
    found = {}
    for entry, row in zip(package.package.entries, package.stats(), strict=True):
        found[entry.variant.operator + "".join(entry.variant.precision)] = (row.hits, row.misses)
    return found


def test_a_product_under_other_flags_gets_eager_and_back(make: Make, x: torch.Tensor) -> None:
    """allow_tf32 and its like say how exact a product must be, and so which kernel may make it."""
    package, weight = make("linear"), torch.randn(8, 8)
    want = F.linear(x, weight)
    with torch.no_grad(), package.dispatch():
        for _ in range(3):
            torch.testing.assert_close(F.linear(x, weight), want + MARK)
        torch.set_float32_matmul_precision("medium")
        for _ in range(3):
            assert not torch.allclose(F.linear(x, weight), want + MARK, atol=MARK / 2)
        refused = package.explain("linear", x, weight)
        torch.set_float32_matmul_precision("highest")
        torch.testing.assert_close(F.linear(x, weight), want + MARK)
    assert counts(package) == {"linear": (4, {"precision": 3})}
    assert isinstance(refused, Refused)
    assert (refused.term, refused.detail) == ("precision", f"flags: {REDUCED}, not as torch begins")


def test_calls_captured_under_flags_are_served_under_those_only(make: Make, x: torch.Tensor) -> None:
    package, weight = make("linear", "linear_reduced"), torch.randn(8, 8)
    with torch.no_grad(), package.dispatch():
        for precision in ("highest", "medium", "high", "medium"):
            torch.set_float32_matmul_precision(precision)
            for _ in range(2):
                F.linear(x, weight)
    assert counts(package) == {
        "linear": (2, {"precision": 2}), "linear" + REDUCED: (4, {"precision": 2}),
    }  # fmt: skip


def test_an_operator_without_products_does_not_look_at_the_flags(make: Make, x: torch.Tensor) -> None:
    package = make("softmax")
    with package.dispatch():
        for precision in ("highest", "medium", "high"):
            torch.set_float32_matmul_precision(precision)
            torch.softmax(x, 1)
    assert counts(package) == {"softmax": (3, {})}


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_kernel_that_may_not_repeat_itself_is_off_in_deterministic_mode(
    write: Callable[..., Path], settings: Settings, entries: Mapping[str, Entry], x: torch.Tensor, repeatable: bool
) -> None:
    """torch.use_deterministic_algorithms(True) is a promise that only a kernel seen to repeat itself keeps."""
    entry = entries["softmax"]
    package = load(write(replace(entry, verdict={**entry.verdict, "repeatable": repeatable})), settings=settings)
    with package.dispatch():
        for deterministic in (False, True, False, True):
            torch.use_deterministic_algorithms(deterministic)
            torch.softmax(x, 1)
            torch.softmax(x, 1)
        answer = package.explain("softmax", x, 1)
    if repeatable:
        assert counts(package) == {"softmax": (8, {})}
        assert isinstance(answer, Admitted)
    else:
        assert counts(package) == {"softmax": (4, {"deterministic": 4})}
        assert isinstance(answer, Refused)
        assert answer.term == "deterministic"


def test_flags_are_told_by_what_follows_them() -> None:
    linear, convolution, softmax = map(get_operator, ("linear", "conv2d", "softmax"))
    with applied(["cuda.matmul.fp32_precision=tf32", "cudnn.conv.fp32_precision=ieee", "cudnn.benchmark=on"]):
        assert precision_of(linear, "cuda", ["float32"]) == ("cuda.matmul.fp32_precision=tf32",)
        assert precision_of(linear, "cuda", ["float16"]) == ()
        assert precision_of(linear, "cpu", ["float32"]) == ()
        assert precision_of(softmax, "cuda", ["float32"]) == ()
        assert precision_of(convolution, "cuda", ["float32"]) == (
            "cudnn.conv.fp32_precision=ieee",
            "cudnn.benchmark=on",
        )
        assert torch.backends.cuda.matmul.allow_tf32
    assert precision_of(convolution, "cuda", ["float32"]) == ()
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_reduction_in_reduced_precision_is_a_flag_of_its_dtype(dtype: str) -> None:
    name = f"allow_{'fp16' if dtype == 'float16' else 'bf16'}_reduced_precision_reduction"
    setattr(torch.backends.cuda.matmul, name, False)
    try:
        told = precision_of(get_operator("bmm"), "cuda", [dtype])
    finally:
        setattr(torch.backends.cuda.matmul, name, True)
    assert [t.split("=")[0] for t in told] == [f"cuda.matmul.{name}"]
    with applied(told):
        assert getattr(torch.backends.cuda.matmul, name) is False
    assert getattr(torch.backends.cuda.matmul, name) is True


def test_flags_that_no_torch_has_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"cuda\.matmul\.fp8"), applied(["cuda.matmul.fp8=on"]):
        pass
    with pytest.raises(ValueError, match="cannot be"), applied(["cudnn.benchmark=perhaps"]):
        pass
    assert precision_of(get_operator("conv2d"), "cuda", ["float32"]) == ()
