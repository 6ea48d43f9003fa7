"""The guard admits unseen sizes within a variant's rules, and says which term refuses anything else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from kernelforge.capture.facts import autocast_dtype, describe_call, memory_aliases, tensor_spec
from kernelforge.capture.recorder import record
from kernelforge.cards.distill import distill
from kernelforge.cards.guard import Admitted, CallFacts, Guard, Refused
from kernelforge.cards.types import Variant


def variant_of(model: Callable[[], object], operator: str) -> Variant:
    cards = {c.operator: c for c in distill(record(model), model="m")}
    (found,) = cards[operator].variants
    return found.variant


def facts(operator: str, **canonical: Any) -> CallFacts:
    arguments, tensors = describe_call(operator, canonical)
    return CallFacts(
        operator=operator,
        arguments=arguments,
        tensors=tuple(map(tensor_spec, tensors)),
        aliases=memory_aliases(tensors),
        autocast=autocast_dtype("cpu"),
        grad_enabled=torch.is_grad_enabled(),
    )


@pytest.fixture(scope="module")
def softmax() -> Guard:
    def model() -> None:
        for batch, length in ((1, 17), (2, 17), (1, 21)):
            torch.randn(batch, 4, length, 16).softmax(-1)

    return Guard.of(variant_of(model, "softmax"))


def call(x: torch.Tensor, dim: object = 3, dtype: object = None) -> CallFacts:
    return facts("softmax", input=x, dim=dim, dtype=dtype)


def test_unseen_length_and_batch_are_admitted_with_their_dims(softmax: Guard) -> None:
    decision = softmax.check(call(torch.randn(3, 4, 50, 16)))
    assert decision == Admitted(dims={"n0": 3, "n1": 50}, scalars={})


@pytest.mark.parametrize(
    ("made", "term", "detail"),
    [
        (lambda: call(torch.randn(1, 4, 17, 16).half()), "dtype", "dtype of input: float16, not float32"),
        (lambda: call(torch.randn(4, 17, 16)), "rank", "rank of input: 3, not 4"),
        (lambda: call(torch.randn(1, 5, 17, 16)), "size", "size of input axis 1: 5, not 4"),
        (lambda: call(torch.randn(1, 4, 16, 17).mT), "stride", "stride of input axis 2: 1, not 16"),
        (
            lambda: call(torch.randn(4353)[1:].view(1, 4, 17, 64)[..., :16]),
            "alignment",
            "alignment of input: 4, not 16",
        ),
        (lambda: call(torch.randn(1, 4, 2000, 16)), "dim", r"dim n1: 2000, not in [1, 128]"),
        (lambda: call(torch.randn(1, 4, 17, 16), dim=2), "argument", "argument dim: 2, not 3"),
        (lambda: call(torch.randn(1, 4, 17, 16), dim=3.0), "argument", "argument dim: 3.0, not 3"),
        (lambda: call(torch.randn(1, 4, 17, 16), dtype=torch.float32), "argument", "float32"),
        (lambda: call(torch.randn(1, 4, 17, 16, requires_grad=True)), "grad", "requires grad"),
        (lambda: call(torch.view_as_real(torch.randn(1, 4, 17, 16, 2)[..., 0] + 0j)[..., 0]), "stride", "stride"),
        (lambda: facts("relu", input=torch.ones(2), inplace=False), "operator", "operator: relu, not softmax"),
    ],
)
def test_the_term_that_refuses_is_named(softmax: Guard, made: Callable[[], CallFacts], term: str, detail: str) -> None:
    decision = softmax.check(made())
    assert isinstance(decision, Refused)
    assert decision.term == term
    assert detail in decision.detail


def test_a_lazily_negated_tensor_is_refused(softmax: Guard) -> None:
    x = torch._neg_view(torch.randn(1, 4, 17, 16))
    decision = softmax.check(call(x))
    assert isinstance(decision, Refused) and decision.term == "layout"


def test_strides_of_axes_of_size_one_do_not_matter(softmax: Guard) -> None:
    x = torch.randn(4 * 16).as_strided((1, 4, 1, 16), (7, 16, 3, 1))
    assert isinstance(softmax.check(call(x)), Admitted)


def test_gradients_are_fine_when_grad_mode_is_off(softmax: Guard) -> None:
    with torch.no_grad():
        assert isinstance(softmax.check(call(torch.randn(1, 4, 17, 16, requires_grad=True))), Admitted)


def test_autocast_device_and_capability(softmax: Guard) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        decision = softmax.check(call(torch.randn(1, 4, 17, 16)))
    assert isinstance(decision, Refused) and decision.detail == "autocast: bfloat16, not off"
    other = Guard.of(replace(softmax.variant, device="cuda", capability="sm_90"))
    decision = other.check(call(torch.randn(1, 4, 17, 16)))
    assert isinstance(decision, Refused) and decision.term == "device"
    decision = other.check(replace(call(torch.randn(1, 4, 17, 16)), device="cuda", capability="sm_80"))
    assert isinstance(decision, Refused) and decision.term == "capability"


def test_a_shared_dim_must_agree() -> None:
    def model() -> None:
        for n in (3, 4):
            torch.randn(n, 8) + torch.randn(n, 8)

    guard = Guard.of(variant_of(model, "add"))

    def adding(a: int, b: int) -> CallFacts:
        return facts("add", input=torch.randn(a, 8), other=torch.randn(b, 8), alpha=1.0, inplace=False)

    assert guard.check(adding(6, 6)) == Admitted(dims={"n0": 6}, scalars={})
    decision = guard.check(adding(6, 1))
    assert isinstance(decision, Refused) and decision.detail == "size of other axis 0: 1, not 6 (n0)"


def test_divisibility_products_and_integers() -> None:
    def model() -> None:
        for n in (4, 6):
            F.interpolate(torch.randn(1, 2, n, n), size=(3 * n + 1, 3 * n + 1))

    guard = Guard.of(variant_of(model, "interpolate"))
    dims = [d.name for d in guard.variant.dims]
    assert len(dims) == 2

    def resize(n: int, out: tuple[int, int]) -> Admitted | Refused:
        (variant_arguments, _) = (guard.variant.arguments, None)
        canonical = {
            name: torch.randn(1, 2, n, n) if name == "input" else out if name == "size" else value
            for name, value in variant_arguments
        }
        return guard.check(facts("interpolate", **canonical))

    assert resize(5, (9, 9)) == Admitted(dims=dict(zip(dims, (5, 9), strict=True)), scalars={})
    assert isinstance(resize(5, (9, 10)), Refused)


def test_halved_sizes_must_be_even() -> None:
    def model() -> None:
        for n in (8, 12):
            F.max_pool2d(torch.randn(1, 2, n, n), 2)

    guard = Guard.of(variant_of(model, "max_pool2d"))
    known = dict(guard.variant.arguments)

    def pool(n: int) -> Admitted | Refused:
        return guard.check(facts("max_pool2d", **{**known, "input": torch.randn(1, 2, n, n)}))

    assert pool(10) == Admitted(dims={"n0": 5}, scalars={})
    assert isinstance(pool(9), Refused)


def test_scalars_are_bound_and_ranged() -> None:
    def model() -> None:
        torch.ones(3) * 0.5, torch.ones(3) * 0.25

    guard = Guard.of(variant_of(model, "mul"))
    known = dict(guard.variant.arguments)

    def scaled(by: object) -> Admitted | Refused:
        return guard.check(facts("mul", **{**known, "input": torch.ones(3), "other": by}))

    assert scaled(0.3) == Admitted(dims={}, scalars={"s0": 0.3})
    for wrong, term in ((100.0, "scalar"), (float("nan"), "scalar"), (1, "argument")):
        decision = scaled(wrong)
        assert isinstance(decision, Refused) and decision.term == term


def test_the_element_limit_refuses_what_each_dim_would_admit(softmax: Guard) -> None:
    small = Guard.of(replace(softmax.variant, max_elements=5000))
    decision = small.check(call(torch.randn(8, 4, 17, 16)))
    assert isinstance(decision, Refused) and decision.term == "elements"


def test_an_input_that_is_changed_must_not_be_another_one_too() -> None:
    def model() -> None:
        torch.ones(4).add_(torch.ones(4))

    guard = Guard.of(variant_of(model, "add"))
    known = dict(guard.variant.arguments)
    x = torch.ones(4)
    assert isinstance(guard.check(facts("add", **{**known, "input": x, "other": torch.ones(4)})), Admitted)
    decision = guard.check(facts("add", **{**known, "input": x, "other": x}))
    assert isinstance(decision, Refused) and decision.term == "alias"


def test_every_captured_call_is_admitted_by_its_own_variant() -> None:
    def model() -> None:
        for n in (2, 3):
            x = torch.randn(n, 6, 4)
            torch.relu(x).softmax(1)
            x.transpose(1, 2) + 1.0
            F.layer_norm(x, (4,), torch.ones(4), torch.ones(4))
            torch.cat([x, x], dim=1)

    recording = record(model)
    guards = [Guard.of(v.variant) for c in distill(recording, model="m") for v in c.variants]
    for observed in recording.calls:
        c = observed.call
        seen = CallFacts(operator=c.operator, arguments=c.arguments, tensors=c.tensors, autocast=c.autocast)
        assert any(isinstance(g.check(seen), Admitted) for g in guards), c.operator
