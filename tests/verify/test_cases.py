"""Drawn cases: layouts, domains, dtypes; the set rejects null kernels; eager passes its own gate."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from kernelforge.capture.types import TensorRef
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import Dim, Extent, SizePoint, TensorPattern, Variant, VariantRecord
from kernelforge.runner.protocol import BufferSet
from kernelforge.verify.cases import CAPTURED, Case, CaseMaker, CasePlan, Level
from kernelforge.verify.checks.power import power_of
from kernelforge.verify.compare import Match, compare
from kernelforge.verify.draw import IN_WORDS
from kernelforge.verify.layout import from_bytes, to_bytes
from kernelforge.verify.prepare import named_values, prepare
from kernelforge.verify.reference import evaluate
from kernelforge.verify.sizes import SizeChoice

CPU = torch.device("cpu")


class InProcess:
    """Eager in this process, for speed; the judge uses the eager worker."""

    def outputs(self, variant: Variant, work: BufferSet) -> Sequence[memoryview]:
        dims, scalars = named_values(variant, work)
        specs = [p.spec(dims, "cpu") for p in variant.tensors]
        data = [b.data for b in work.buffers if b.data is not None]
        inputs = [from_bytes(d, s, CPU) for d, s in zip(data, specs, strict=True)]
        return [to_bytes(t) for t in evaluate(variant, dims, scalars, inputs)]


def fixed(*shape: int, dtype: str = "float32", stride: tuple[int, ...] = ()) -> TensorPattern:
    pattern = stride or tuple(torch.empty(shape, device="meta").stride())
    return TensorPattern(shape=tuple(map(Extent, shape)), stride=tuple(map(Extent, pattern)), dtype=dtype)


def maker_of(variant: Variant, folder: Path, *, rows: int = 0, example: str = "") -> CaseMaker:
    sizes = {"n0": rows} if variant.dims else {}
    point = SizePoint(dims=sizes, scalars={}, calls=1, eager_us=1.0, example=example)
    record = VariantRecord(variant=variant, points=(point,), share=1.0)
    return CaseMaker(record, ExampleStore(folder), CPU)


def softmax(dtype: str = "float32") -> Variant:
    pattern = TensorPattern(
        shape=(Extent(1, ("n0",)), Extent(300)), stride=(Extent(300), Extent(1)), dtype=dtype
    )  # fmt: skip
    return Variant(
        operator="softmax", arguments=(("input", TensorRef(0)), ("dim", 1), ("dtype", None)),
        tensors=(pattern,), outputs=(pattern,), dims=(Dim(name="n0", low=1, high=64),),
    )  # fmt: skip


def layer_norm(dtype: str = "float32") -> Variant:
    return Variant(
        operator="layer_norm",
        arguments=(("input", TensorRef(0)), ("normalized_shape", (96,)), ("weight", TensorRef(1)),
                   ("bias", TensorRef(2)), ("eps", 1e-5)),
        tensors=(fixed(20, 96, dtype=dtype), fixed(96, dtype=dtype), fixed(96, dtype=dtype)),
        outputs=(fixed(20, 96, dtype=dtype),),
    )  # fmt: skip


def relu(pattern: TensorPattern) -> Variant:
    return Variant(
        operator="relu", arguments=(("input", TensorRef(0)), ("inplace", False)), tensors=(pattern,), outputs=(pattern,)
    )


def batch_norm() -> Variant:
    channel = fixed(6)
    return Variant(
        operator="batch_norm",
        arguments=(("input", TensorRef(0)), ("running_mean", TensorRef(1)), ("running_var", TensorRef(2)),
                   ("weight", TensorRef(3)), ("bias", TensorRef(4)), ("training", False), ("momentum", 0.1),
                   ("eps", 1e-5)),
        tensors=(fixed(2, 6, 7, 7), channel, channel, channel, channel), outputs=(fixed(2, 6, 7, 7),),
    )  # fmt: skip


def embedding() -> Variant:
    return Variant(
        operator="embedding",
        arguments=(("input", TensorRef(0)), ("weight", TensorRef(1)), ("padding_idx", None), ("max_norm", None),
                   ("norm_type", 2.0), ("scale_grad_by_freq", False), ("sparse", False)),
        tensors=(fixed(9, dtype="int64"), fixed(31, 8)), outputs=(fixed(9, 8),),
    )  # fmt: skip


def draw(maker: CaseMaker, distribution: str) -> Case:
    point = maker.record.points[0]
    choice = SizeChoice(dims=point.dims, scalars=point.scalars, why="observed", example=point.example)
    return maker.draw(CasePlan(choice=choice, distribution=distribution))


@pytest.mark.parametrize("name", IN_WORDS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_drawn_values_fit_the_dtype(tmp_path: Path, name: str, dtype: str) -> None:
    (values,) = draw(maker_of(softmax(dtype), tmp_path, rows=16), name).inputs
    assert str(values.dtype) == f"torch.{dtype}"
    assert bool(values.isfinite().all()) == (name != "nonfinite")


def test_two_draws_differ_and_a_description_holds_no_seed(tmp_path: Path) -> None:
    maker = maker_of(softmax(), tmp_path, rows=16)
    first, second = draw(maker, "normal"), draw(maker, "normal")
    assert not torch.equal(first.inputs[0], second.inputs[0])
    assert first.description == second.description == "n0=16 (observed), normal values"


def test_strides_are_the_patterns_and_gaps_are_nan(tmp_path: Path) -> None:
    pattern = fixed(3, 4, stride=(10, 2))
    (values,) = draw(maker_of(relu(pattern), tmp_path), "normal").inputs
    assert values.stride() == (10, 2)
    whole = torch.frombuffer(bytearray(to_bytes(values)), dtype=torch.float32)
    assert whole.numel() == 27 and int(whole.isnan().sum()) == 27 - 12


def test_expanded_axes_repeat(tmp_path: Path) -> None:
    (values,) = draw(maker_of(relu(fixed(5, 4, stride=(0, 1))), tmp_path), "normal").inputs
    assert values.stride() == (0, 1) and len(to_bytes(values)) == 16 and torch.equal(values[0], values[4])


def test_domains_are_respected(tmp_path: Path) -> None:
    for name in IN_WORDS:
        assert bool((draw(maker_of(batch_norm(), tmp_path), name).inputs[2] > 0).all())
        indices = draw(maker_of(embedding(), tmp_path), name).inputs[0]
        assert int(indices.min()) >= 0 and int(indices.max()) < 31


def test_captured_values_are_a_case(tmp_path: Path) -> None:
    captured = torch.arange(8.0).reshape(2, 4)
    example = ExampleStore(tmp_path).put([captured])
    maker = maker_of(relu(fixed(2, 4)), tmp_path, example=example)
    plan = next(p for p in maker.plans(Level.GATE) if p.distribution == CAPTURED)
    assert torch.equal(maker.draw(plan).inputs[0], captured)


def test_a_certificate_has_more_cases_than_the_gate(tmp_path: Path) -> None:
    maker = maker_of(softmax(), tmp_path, rows=16)
    gate, certificate = maker.plans(Level.GATE), maker.plans(Level.CERTIFICATE)
    assert len(gate) <= 12 and len(certificate) > len(gate)
    assert sum(p.choice.why == "secret interior" for p in certificate) >= 3


@pytest.mark.parametrize("variant", [softmax(), softmax("bfloat16"), layer_norm(), batch_norm(), relu(fixed(8, 64))])
def test_the_set_rejects_kernels_that_do_not_compute(tmp_path: Path, variant: Variant) -> None:
    maker = maker_of(variant, tmp_path, rows=16)
    cases = [prepare(variant, maker.draw(plan), InProcess()) for plan in maker.plans(Level.GATE)]
    power = power_of(variant, [c for c in cases if c is not None])
    assert power.missing == ()
    assert {"zeros", "the mean", "half of the work", "the next lower precision"} <= set(power.rejected_by)


def test_empty_sizes_are_cases_where_the_guard_admits_them(tmp_path: Path) -> None:
    variant = dataclasses.replace(softmax(), dims=(Dim(name="n0", low=0, high=64),))
    maker = maker_of(variant, tmp_path, rows=16)
    plan = next(p for p in maker.plans(Level.GATE) if p.choice.dims["n0"] == 0)
    prepared = prepare(variant, maker.draw(plan), InProcess())
    assert prepared is not None and prepared.expected[0].eager.shape == (0, 300)
    assert isinstance(compare(prepared.expected[0], torch.empty(0, 300)), Match)
    assert all(p.choice.dims["n0"] > 0 for p in maker_of(softmax(), tmp_path, rows=16).plans(Level.GATE))


def test_a_truth_beyond_the_range_of_the_output_has_its_nulls_too() -> None:
    """exp(100) is a number in float64 and infinite in float32: its mean as a null output once ended a whole search."""
    pattern = fixed(4, 8)
    variant = Variant(
        operator="exp", arguments=(("input", TensorRef(0)), ("inplace", False)), tensors=(pattern,), outputs=(pattern,)
    )
    plan = CasePlan(choice=SizeChoice(dims={}, scalars={}, why="fixed"), distribution="normal")
    case = Case(plan=plan, inputs=(torch.full((4, 8), 100.0),), outputs=(pattern.spec({}, "cpu"),))
    prepared = prepare(variant, case, InProcess())
    assert prepared is not None
    assert "the mean" in power_of(variant, [prepared]).rejected_by


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_eager_passes_its_own_gate(tmp_path: Path, dtype: str) -> None:
    """Over every distribution, with eager in another thread split and memory layout than the one that was measured."""
    for variant in (softmax(dtype), layer_norm(dtype)):
        maker = maker_of(variant, tmp_path, rows=16)
        for name in IN_WORDS:
            for _ in range(6):
                prepared = prepare(variant, draw(maker, name), InProcess())
                assert prepared is not None
                case, expected = prepared.case, prepared.expected[0]
                again = evaluate(variant, case.dims, case.scalars, case.inputs)[0]
                assert isinstance(compare(expected, again), Match)
                honest = _in_float32(variant, case)
                assert isinstance(compare(expected, honest), Match), (variant.operator, name)


def _in_float32(variant: Variant, case: Case) -> torch.Tensor:
    """An honest kernel in other arithmetic than eager's: float32 inside, sums in the order of the elements."""
    values = case.inputs[0].float()
    if variant.operator == "softmax":
        powers = torch.exp(values - values.amax(1, keepdim=True))
        result = powers / powers.cumsum(1)[:, -1:]
    else:
        centred = values - values.cumsum(1)[:, -1:] / values.shape[1]
        deviation = (centred.square().cumsum(1)[:, -1:] / values.shape[1] + 1e-5).rsqrt()
        result = centred * deviation * case.inputs[1].float() + case.inputs[2].float()
    return result.to(case.inputs[0].dtype)


@pytest.mark.parametrize(("dtype", "most"), [("float32", 2.0**126), ("bfloat16", 2.0**126), ("float16", 2.0**14)])
def test_magnitudes_span_the_dtype_where_elements_stay_apart(tmp_path: Path, dtype: str, most: float) -> None:
    variant = relu(fixed(64, 64, dtype=dtype))
    (values,) = draw(maker_of(variant, tmp_path), "magnitudes").inputs
    sizes = values.double().abs()
    assert float(sizes.max()) > math.sqrt(most) and float(sizes.min()) < 1 / math.sqrt(most)
    assert float(sizes.max()) <= most and float(sizes.min()) >= 1 / most
    assert bool((values < 0).any()) and bool((values > 0).any())


def test_magnitudes_that_are_summed_up_do_not_overflow_when_squared(tmp_path: Path) -> None:
    case = draw(maker_of(layer_norm(), tmp_path, rows=64), "magnitudes")
    largest = case.inputs[0].abs().amax(1)
    assert 2.0**16 < float(largest.max()) <= 2.0**35 and float(largest.min()) < 2.0**-16
    assert float(case.inputs[1].abs().max()) < 10  # weights stay weights
