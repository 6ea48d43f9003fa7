"""What a capture keeps of the flags under which products ran."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F

from kernelforge.capture.recorder import record
from kernelforge.cards.distill import distill
from kernelforge.cards.types import Variant


@pytest.fixture(autouse=True)
def flags_as_before() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")


def under(precision: str, call: Callable[[], object]) -> None:
    torch.set_float32_matmul_precision(precision)
    call()


def test_products_under_other_flags_are_other_calls() -> None:
    x, weight = torch.randn(4, 8), torch.randn(8, 8)

    def model() -> None:
        for precision, times in (("highest", 3), ("medium", 2), ("highest", 1)):
            for _ in range(times):
                under(precision, lambda: F.linear(x, weight))
                under(precision, lambda: F.softmax(x, 1))

    with torch.no_grad():
        recording = record(model)
    seen = [(o.call.operator, o.call.precision, o.calls) for o in recording.calls]
    reduced = ("mkldnn.matmul.fp32_precision=bf16",)
    assert seen == [("linear", (), 4), ("softmax", (), 6), ("linear", reduced, 2)]
    variants = {r.variant.precision: r.variant for c in distill(recording, model="m") for r in c.variants}
    assert set(variants) == {(), reduced}
    told = variants[reduced]
    assert Variant.from_json(told.to_json()) == told  # type: ignore[arg-type]
    assert told.id != Variant.from_json({**told.to_json(), "precision": []}).id  # type: ignore[dict-item]


def test_calls_under_torchs_defaults_are_written_as_ever() -> None:
    """Ids of what was captured before there were flags in it stay what they were."""
    with torch.no_grad():
        recording = record(lambda: F.linear(torch.ones(4, 8), torch.ones(8, 8)))
    (observed,) = recording.calls
    ((record_of,),) = (card.variants for card in distill(recording, model="m"))
    for data in (observed.call.to_json(), record_of.variant.to_json()):
        assert isinstance(data, dict)
        assert "precision" not in data
