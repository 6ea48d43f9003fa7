"""Edges of `canonical_call`: what is refused, and what varies without meaning."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from kernelforge.operators import (
    Entry,
    Operator,
    Unsupported,
    canonical_call,
    entry_table,
    get_operator,
    resolve_target,
)

X = torch.ones(2, 4, 6, 8)
ROW = torch.ones(8)
CHANNEL = torch.ones(4)
F = "torch.nn.functional."


@cache
def _table() -> dict[object, tuple[Operator, Entry]]:
    return entry_table()


def canonical(target: str, *args: object, **kwargs: object) -> dict[str, object] | Unsupported:
    operator, entry = _table()[resolve_target(target)[2]]
    return canonical_call(operator, entry, args, kwargs)


def described(target: str, *args: object, **kwargs: object) -> dict[str, object]:
    result = canonical(target, *args, **kwargs)
    assert not isinstance(result, Unsupported), result
    return result


REFUSED: dict[str, tuple[str, tuple[object, ...], dict[str, object]]] = {
    "training statistics": (f"{F}batch_norm", (X, CHANNEL, CHANNEL), {"training": True}),
    "return_indices": (f"{F}max_pool2d", (X, 2), {"return_indices": True}),
    "dropout_p": (f"{F}scaled_dot_product_attention", (X, X, X), {"dropout_p": 0.1}),
    "max_norm": (f"{F}embedding", (torch.tensor([0]), torch.ones(2, 2)), {"max_norm": 1.0}),
    "`out`": ("torch.add", (X, X), {"out": torch.empty_like(X)}),
    "no change of dtype": ("torch.Tensor.float", (X,), {}),
    "another device": ("torch.Tensor.to", (X, "meta", torch.float16), {}),
    "contiguous already": ("torch.Tensor.contiguous", (X,), {}),
    "different devices": ("torch.add", (X, X.to("meta")), {}),
    "expected a tensor, got int": ("torch.mul", (2, 3), {}),
    "rounds otherwise": ("torch.div", (2, X), {}),
    "indexing by a tensor": ("torch.Tensor.__getitem__", (X, torch.tensor([0])), {}),
    "condition alone": ("torch.where", (X > 0,), {}),
    "half_to_float": ("torch.ops.aten._softmax.default", (X, 1, True), {}),
    "dim 4 of a tensor of rank 4": ("torch.softmax", (X, 4), {}),
    "unexpected keyword": ("torch.softmax", (X,), {"dim": 1, "colour": 2}),
    "expected a sequence": ("torch.cat", (X,), {}),
    "expected 2 integers, got 3": (f"{F}max_pool2d", (X, (2, 2, 2)), {}),
    "expected an integer": ("torch.Tensor.view", (X, torch.int32), {}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_call_outside_the_contract_is_refused_with_the_reason(reason: str) -> None:
    target, args, kwargs = REFUSED[reason]
    result = canonical(target, *args, **kwargs)
    assert isinstance(result, Unsupported)
    assert reason in result.reason


def test_a_bool_for_alpha_is_torch_s_to_refuse() -> None:
    for target in ("torch.add", "torch.sub", "torch.Tensor.add_"):
        assert isinstance(canonical(target, X, X, alpha=True), Unsupported)


def test_an_out_of_none_is_no_out() -> None:
    assert described("torch.add", X, X, out=None)["alpha"] == 1.0


@pytest.mark.parametrize(("rank", "dim"), [(0, 0), (1, 0), (2, 1), (3, 0), (4, 1)])
def test_softmax_without_dim_takes_the_dim_that_torch_takes(rank: int, dim: int) -> None:
    value = torch.arange(2.0**rank).reshape((2,) * rank)
    found = described(f"{F}softmax", value)
    assert found["dim"] == dim
    with pytest.warns(UserWarning, match="Implicit dimension"):
        assert torch.equal(torch.nn.functional.softmax(value), get_operator("softmax").call(found))  # type: ignore[arg-type]


def test_gradient_only_arguments_of_embedding_do_not_matter() -> None:
    ids, table = torch.tensor([1]), torch.ones(3, 2)
    plain = described(f"{F}embedding", ids, table)
    assert described(f"{F}embedding", ids, table, padding_idx=0, scale_grad_by_freq=True).keys() == plain.keys()
    assert set(plain) == {"input", "weight"}


def test_an_integer_beside_an_integer_tensor_keeps_its_type() -> None:
    integers = torch.arange(3)
    assert type(described("torch.mul", integers, 2)["other"]) is int
    assert type(described("torch.mul", integers, 2.0)["other"]) is float
    assert type(described("torch.mul", X, 2)["other"]) is float


def test_an_integer_that_no_float_holds_stays_an_integer() -> None:
    assert described("torch.add", X.double(), 2**53 + 1)["other"] == 2**53 + 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rms_norm_without_eps_is_as_eager_has_it(dtype: torch.dtype) -> None:
    value = (ROW * 1e-3).to(dtype)
    got = get_operator("rms_norm").call(described(f"{F}rms_norm", value, (8,)))
    assert isinstance(got, torch.Tensor)
    assert torch.equal(got, torch.nn.functional.rms_norm(value, (8,)))


def test_scale_and_size_of_interpolate_are_kept_apart() -> None:
    by_scale, by_size = described(f"{F}interpolate", X, scale_factor=2), described(f"{F}interpolate", X, (12, 16))
    assert (by_scale["size"], by_scale["scale_factor"]) == (None, (2.0, 2.0))
    assert (by_size["size"], by_size["scale_factor"]) == ((12, 16), None)


def test_sizes_that_vary_with_the_input_leave_the_scale_alone() -> None:
    small, large = (described(f"{F}interpolate", torch.ones(1, 1, n, n), scale_factor=2) for n in (4, 9))
    assert {k: v for k, v in small.items() if k != "input"} == {k: v for k, v in large.items() if k != "input"}


def test_same_padding_is_numbers_where_both_sides_are_equal() -> None:
    weight = torch.ones(1, 4, 3, 5)
    assert described("torch.conv2d", X, weight, padding="same", dilation=(2, 1))["padding"] == (2, 2)
    assert described("torch.conv2d", X, torch.ones(1, 4, 2, 2), padding="same")["padding"] == "same"


def test_strided_windows_read_a_part_of_the_input() -> None:
    from kernelforge.operators import TensorShape

    image, weight = TensorShape(shape=(1, 4, 8, 8), dtype="float32"), TensorShape(shape=(2, 4, 1, 1), dtype="float32")
    read = get_operator("conv2d").bytes_read
    assert read is not None
    assert read({"input": image, "weight": weight, "bias": None, "stride": (2, 2)}) == 4 * 4 * 4 * 4 + 2 * 4 * 4


def test_embedding_reads_no_more_rows_than_the_table_has() -> None:
    from kernelforge.operators import TensorShape

    table = TensorShape(shape=(3, 2), dtype="float32")
    read = get_operator("embedding").bytes_read
    assert read is not None
    assert read({"input": TensorShape(shape=(100,), dtype="int64"), "weight": table}) == 800 + table.size_bytes
    assert read({"input": TensorShape(shape=(2,), dtype="int64"), "weight": table}) == 16 + 2 * 2 * 4


def test_binding_fills_defaults_and_applies_the_preset() -> None:
    entry = Entry(target="torch.relu_", parameters="(input, slope=0.5)", preset={"inplace": True})
    assert entry.bind((1,), {}) == {"input": 1, "slope": 0.5, "inplace": True}
    with pytest.raises(TypeError):
        entry.bind((1, 2, 3), {})
