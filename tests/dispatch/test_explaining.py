"""`explain` and the call sites agree: the term of a refusal is the reason under which the call is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernelforge.dispatch.decide import Admitted, Refused
from kernelforge.dispatch.loading import LoadedPackage, load
from kernelforge.operators import resolve_target
from kernelforge.package.types import Entry, Off
from kernelforge.settings import Settings

Make = Callable[..., LoadedPackage]
State = Callable[[], AbstractContextManager[object]]


class Named(torch.Tensor):
    pass


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return func(*args, **(kwargs or {}))


@contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def reduced() -> Iterator[None]:
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


@dataclass(frozen=True)
class Staged:
    """A call and the state of torch in which it is made.

    Attributes:
        arguments: from a float32 tensor [4, 8] to the call's own.
    """

    kernel: str
    target: str
    arguments: Callable[[torch.Tensor], tuple[object, ...]]
    state: State = nullcontext


def shifted(x: torch.Tensor) -> torch.Tensor:
    """The same values at an address that only 4 divides."""
    return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)


def softmax(arguments: Callable[[torch.Tensor], tuple[object, ...]], state: State = nullcontext) -> Staged:
    return Staged("softmax", "torch.softmax", arguments, state)


SITUATIONS: Mapping[str, Staged] = {
    "dtype": softmax(lambda x: (x.double(), 1)),
    "rank": softmax(lambda x: (x[0], 0)),
    "size": softmax(lambda x: (x[:, :4].contiguous(), 1)),
    "stride": softmax(lambda x: (torch.cat([x, x], 1)[:, ::2], 1)),
    "dim": softmax(lambda x: (x.repeat(20, 1), 1)),
    "argument": softmax(lambda x: (x, 0)),
    "alignment": softmax(lambda x: (shifted(x), 1)),
    "layout": softmax(lambda x: (torch._neg_view(-x), 1)),
    "grad": softmax(lambda x: (x.clone().requires_grad_(), 1)),
    "subclass Named": softmax(lambda x: (x.as_subclass(Named), 1)),
    "autocast": softmax(lambda x: (x, 1), lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
    "function mode": softmax(lambda x: (x, 1), Functions),
    "dispatch mode": softmax(lambda x: (x, 1), Operators),
    "forward AD": softmax(lambda x: (x, 1), forward_ad.dual_level),
    "default dtype": softmax(lambda x: (x, 1), default_dtype),
    "deterministic": softmax(lambda x: (x, 1), deterministic),
    "precision": Staged("linear", "torch.nn.functional.linear", lambda x: (x, x[:1].repeat(8, 1)), reduced),
    "scalar": Staged("mul", "torch.mul", lambda x: (x, 8.0)),
    "alias": Staged("add_", "torch.Tensor.add_", lambda x: (x, x)),
    "inference tensor": Staged("relu_", "torch.relu_", lambda x: (inference(x),)),
    "call": softmax(lambda x: (x, "1")),
}  # fmt: skip
"""By the reason under which the call is counted."""


def inference(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return x.clone()


@pytest.mark.parametrize("reason", SITUATIONS)
def test_the_term_is_the_reason_under_which_the_call_is_counted(make: Make, x: torch.Tensor, reason: str) -> None:
    staged = SITUATIONS[reason]
    package = make(staged.kernel)
    arguments = staged.arguments(x)
    owner, attribute, _ = resolve_target(staged.target)
    with staged.state():
        answer = package.explain(staged.target, *arguments)
        with package.dispatch():
            for _ in range(2):
                try:
                    getattr(owner, attribute)(*arguments)
                except (RuntimeError, TypeError):
                    assert reason in {"alias", "inference tensor", "call"}  # eager's own words
    (row,) = package.stats()
    assert (row.hits, set(row.misses)) == (0, {reason})
    assert isinstance(answer, Refused)
    assert answer.term == reason
    assert answer.by_variant == {row.variant: reason}
    assert answer.detail


def test_transforms_are_told(make: Make, x: torch.Tensor) -> None:
    package, answers = make("softmax"), []

    def inner(t: torch.Tensor) -> torch.Tensor:
        answers.append(package.explain("softmax", t, 1))
        return torch.softmax(t, 1)

    with package.dispatch():
        torch.vmap(inner)(torch.stack([x, x]))
    (answer,) = answers
    assert isinstance(answer, Refused)
    assert answer.term == "functorch"
    assert package.stats()[0].misses == {"functorch": 1}


def test_what_is_admitted_is_served(make: Make, x: torch.Tensor) -> None:
    package = make("softmax", "log", "log_unaligned", "relu_", "add_")
    y = torch.rand(4, 8)
    with torch.no_grad():
        for operator, *arguments in (
            ("softmax", x, 1), ("log", x + 2), ("log", shifted(x + 2)), ("softmax", torch.nn.Parameter(x), -1),
            ("relu", x.clone(), True),
        ):  # fmt: skip
            assert isinstance(package.explain(str(operator), *arguments), Admitted), operator
        with package.dispatch():
            torch.softmax(x, 1)
            torch.log(x + 2)
            torch.log(shifted(x + 2))
            torch.softmax(torch.nn.Parameter(x), -1)
            y.add_(x)
    assert sum(row.hits for row in package.stats()) >= 5


def test_an_entry_that_is_off_says_why(
    write: Callable[..., Path], settings: Settings, entries: Mapping[str, Entry], x: torch.Tensor
) -> None:
    slow = replace(entries["softmax"], decisions={"eager": Off(reason="not faster than eager")})
    package = load(write(slow, "add"), settings=settings)
    answer = package.explain("softmax", x, 1)
    assert isinstance(answer, Refused)
    assert (answer.term, answer.detail) == ("off", f"{slow.variant.label} is off: not faster than eager")
    killed = load(write("softmax"), settings=replace(settings, disabled=True)).explain("softmax", x, 1)
    assert isinstance(killed, Refused)
    assert (killed.term, killed.detail.split(": ")[1]) == ("off", "disabled by KFORGE_DISABLE")
    absent = package.explain("gelu", x)
    assert isinstance(absent, Refused)
    assert absent.term == "operator"


def test_a_package_that_was_switched_off_serves_nothing_and_counts_nothing(make: Make, x: torch.Tensor) -> None:
    """The kill switch of a running process works inside of a block, and back."""
    package, plain = make("softmax"), torch.softmax(x, 1)
    with package.dispatch():
        assert not torch.equal(torch.softmax(x, 1), plain)
        package.enabled = False
        for _ in range(2):
            assert torch.equal(torch.softmax(x, 1), plain)
            assert torch.equal(torch.nn.functional.softmax(x, 1), plain)
            torch.softmax(x.double(), 1)
        refused = package.explain("softmax", x, 1)
        with package.dispatch():
            assert torch.equal(torch.softmax(x, 1), plain)
        package.enabled = True
        assert not torch.equal(torch.softmax(x, 1), plain)
    package.enabled = False
    with package.dispatch():
        assert torch.equal(torch.softmax(x, 1), plain)
    assert isinstance(refused, Refused)
    assert refused.term == "disabled"
    (row,) = package.stats()
    assert (row.hits, row.misses, package.enabled) == (2, {}, False)
