"""Examples on disk: exact tensors back, each content once, and damage is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernelforge.capture.snapshots import describe, redraw
from kernelforge.cards.examples import ExampleStore
from kernelforge.errors import NotFound, ProjectError

TENSORS = {
    "row-major": torch.randn(3, 4),
    "transposed": torch.randn(3, 4).T,
    "slice with gaps": torch.randn(6, 8)[::2, 1:4],
    "expanded": torch.randn(3, 1).expand(3, 5),
    "scalar": torch.tensor(2.0),
    "empty": torch.zeros(0, 3),
    "bfloat16": torch.randn(5).bfloat16(),
    "bool": torch.tensor([True, False]),
    "integers": torch.arange(5),
    "complex": torch.randn(3, dtype=torch.complex64),
    "special values": torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0]),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_back_with_its_values_shape_stride_and_dtype(tmp_path: Path, name: str) -> None:
    tensor = TENSORS[name]
    store = ExampleStore(tmp_path)
    (back,) = store.get(store.put([tensor]))
    assert (back.shape, back.stride(), back.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
    assert torch.equal(torch.nan_to_num(back.resolve_conj()), torch.nan_to_num(tensor))


def test_equal_content_is_stored_once(tmp_path: Path) -> None:
    store = ExampleStore(tmp_path)
    weight = torch.randn(10, 10)
    keys = {store.put([weight, torch.full((1,), float(n))]) for n in range(5)}
    assert len(keys) == 5
    assert store.put([weight, torch.zeros(1)]) in keys
    assert len(list(tmp_path.glob("tensors/*"))) == 6


def test_a_later_change_of_the_tensor_does_not_reach_the_example(tmp_path: Path) -> None:
    store, tensor = ExampleStore(tmp_path), torch.ones(3)
    key = store.put([tensor])
    tensor.zero_()
    assert store.get(key)[0].tolist() == [1, 1, 1]


def test_has_and_missing(tmp_path: Path) -> None:
    store = ExampleStore(tmp_path)
    assert not store.has("")
    assert store.has(store.put([torch.ones(1)]))
    with pytest.raises(NotFound, match="no example"):
        store.get("0" * 64)


def test_damaged_files_are_said(tmp_path: Path) -> None:
    store = ExampleStore(tmp_path)
    key = store.put([torch.ones(4)])
    (tensor_file,) = tmp_path.glob("tensors/*")
    tensor_file.write_bytes(tensor_file.read_bytes()[:10])
    with pytest.raises(ProjectError, match="cannot be read"):
        store.get(key)
    (example_file,) = tmp_path.glob("examples/*")
    example_file.write_text("{")
    with pytest.raises(ProjectError, match="damaged"):
        store.get(key)


def test_prune_keeps_what_is_named(tmp_path: Path) -> None:
    store = ExampleStore(tmp_path)
    shared = torch.randn(4)
    kept, dropped = store.put([shared, torch.ones(1)]), store.put([shared, torch.zeros(1)])
    store.prune({kept})
    assert store.has(kept) and not store.has(dropped)
    assert len(list(tmp_path.glob("tensors/*"))) == 2
    assert torch.equal(store.get(kept)[0], shared)


def test_a_described_tensor_is_redrawn_alike_and_repeatably() -> None:
    values = torch.randn(400, 50).mul_(2).add_(1)
    values[values < -1] = 0
    values[0, 0] = torch.inf
    drawn = redraw(describe(values), 7)
    assert torch.equal(drawn, redraw(describe(values), 7))
    assert not torch.equal(drawn, redraw(describe(values), 8))
    assert (drawn == 0).float().mean().item() == pytest.approx((values == 0).float().mean().item(), abs=0.02)
    finite = drawn[torch.isfinite(drawn)]
    assert finite.min() >= values.min() and finite.max() <= values[torch.isfinite(values)].max()


def test_redrawn_integers_stay_in_range() -> None:
    drawn = redraw(describe(torch.tensor([3, 9, 4] * 50)), 0)
    assert drawn.dtype == torch.int64
    assert drawn.min() >= 3 and drawn.max() <= 9


def test_a_large_tensor_is_described_in_parts() -> None:
    values = torch.linspace(0, 1, (1 << 22) + 5)
    for tensor in (values, values.expand(2, -1).T):
        found = describe(tensor)
        assert found.mean == pytest.approx(0.5, abs=1e-3)
        assert (found.low, found.high) == (0, 1)
