"""Properties of the limits, over draws of many operators: who must pass, passes; the next lower precision does not.

    python -m tests.adversarial.properties --draws 10000

A draw is one operator, one dtype, one distribution and secret values. Put before the gate are: eager again on another
number of threads, eager on copies of its inputs with other strides (float32: eager's 16-bit loops over other strides
round between their steps), and the float64 result rounded once, which is more accurate than eager; none may be
rejected. On operators that add up many terms the next lower precision must be rejected in at least 99 % of the draws:
inputs and outputs in 16 bits for float32, inputs in 8 bits for 16-bit types. A draw whose lower precision is as near to
the truth as eager, or whose results are all infinite either way, has nothing that could be told, and does not count.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
from tests.adversarial.variants import record_of, variant_of_call
from torch import Tensor

from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import Variant
from kernelforge.operators import get_operator
from kernelforge.runner.protocol import BufferSet
from kernelforge.verify.cases import EDGES, CaseMaker, CasePlan
from kernelforge.verify.compare import Mismatch, compare
from kernelforge.verify.draw import IN_WORDS
from kernelforge.verify.layout import from_bytes, to_bytes
from kernelforge.verify.prepare import PreparedCase, lower_precisions, named_values, prepare
from kernelforge.verify.reference import evaluate, evaluate_wide
from kernelforge.verify.sizes import SizeChoice

DTYPES = ("float32", "float16", "bfloat16")
CPU = torch.device("cpu")

ROWS, IMAGE, CHANNEL = (6, 130), (2, 6, 13, 16), (6,)
UNARY = (
    "abs", "cos", "erf", "exp", "gelu", "hardsigmoid", "hardswish", "log", "mish", "neg", "reciprocal", "relu",
    "rsqrt", "sigmoid", "silu", "sin", "sqrt", "square", "tanh", "softplus", "elu", "leaky_relu", "hardtanh",
)  # fmt: skip
SAMPLES: tuple[tuple[str, tuple[tuple[int, ...], ...], Mapping[str, object]], ...] = (
    *((name, (ROWS,), {}) for name in UNARY),
    *((name, (ROWS, ROWS), {}) for name in ("add", "sub", "mul", "div", "maximum", "minimum")),
    ("add", (ROWS, (130,)), {"alpha": 3}), ("pow", (ROWS,), {"exponent": 2}), ("clamp", (ROWS,), {"min": -1, "max": 1}),
    ("softmax", (ROWS,), {"dim": 1}), ("log_softmax", (ROWS,), {"dim": 0}), ("softmax", (IMAGE,), {"dim": 1}),
    ("layer_norm", (ROWS, (130,), (130,)), {"normalized_shape": (130,)}),
    ("rms_norm", (ROWS, (130,)), {"normalized_shape": (130,)}), ("batch_norm", (IMAGE, *[CHANNEL] * 4), {}),
    ("group_norm", (IMAGE, CHANNEL, CHANNEL), {"num_groups": 3}),
    ("sum", (ROWS,), {"dim": 1}), ("sum", (IMAGE,), {"dim": (0, 2)}), ("mean", (ROWS,), {"dim": 1}),
    ("mean", ((3, 5000),), {"dim": 1}), ("cumsum", (ROWS,), {"dim": 1}),
    ("max_pool2d", (IMAGE,), {"kernel_size": 3}), ("avg_pool2d", (IMAGE,), {"kernel_size": 3, "padding": 1}),
    ("adaptive_avg_pool2d", (IMAGE,), {"output_size": (3, 5)}), ("pad", (IMAGE,), {"pad": (1, 2)}),
    ("interpolate", (IMAGE,), {"size": (9, 20), "mode": "bilinear"}), ("interpolate", (IMAGE,), {"scale_factor": 2.0}),
    ("linear", (ROWS, (24, 130), (24,)), {}), ("matmul", ((9, 130), (130, 17)), {}),
    ("bmm", ((3, 9, 40), (3, 40, 17)), {}), ("addmm", ((17,), (9, 130), (130, 17)), {}),
    ("conv2d", (IMAGE, (8, 6, 3, 3), (8,)), {"padding": 1}), ("conv1d", ((2, 6, 40), (8, 6, 3)), {}),
    ("scaled_dot_product_attention", ((2, 3, 20, 16), (2, 3, 20, 16), (2, 3, 20, 16)), {}),
)  # fmt: skip
"""Operator, shapes of its tensors, further arguments."""
PRODUCTS = frozenset({"linear", "matmul", "bmm", "addmm", "conv2d", "conv1d", "scaled_dot_product_attention"})


class InProcess:
    """Eager in this process, for speed; the judge uses the eager worker."""

    def outputs(self, variant: Variant, work: BufferSet) -> Sequence[memoryview]:
        dims, scalars = named_values(variant, work)
        specs = [p.spec(dims, "cpu") for p in variant.tensors]
        data = [b.data for b in work.buffers if b.data is not None]
        inputs = [from_bytes(d, s, CPU) for d, s in zip(data, specs, strict=True)]
        return [to_bytes(t) for t in evaluate(variant, dims, scalars, inputs)]


@dataclass(slots=True)
class Report:
    """What was drawn and what went wrong.

    Attributes:
        rejected: sentences on honest results that were rejected. missed: draws in which the next lower precision
            passed, by operator and dtype; tried: draws in which it was put before the gate.
    """

    draws: int = 0
    rejected: list[str] = field(default_factory=list)
    tried: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)

    @property
    def caught(self) -> float:
        """Share of the draws in which the next lower precision was rejected, in [0, 1]."""
        return 1 - sum(self.missed.values()) / max(sum(self.tried.values()), 1)


@cache
def _maker(position: int, dtype: str) -> CaseMaker:
    operator, shapes, keywords = SAMPLES[position]
    tensors = [torch.ones(shape, dtype=getattr(torch, dtype)) for shape in shapes]
    scalars: dict[str, object] = dict(keywords)
    if operator.endswith("_norm") and operator != "batch_norm":
        scalars |= dict(zip(("weight", "bias"), tensors[1:], strict=False))
        tensors = tensors[:1]
    record = record_of(variant_of_call(operator, *tensors, **scalars))  # type: ignore[arg-type]
    return CaseMaker(record, ExampleStore(Path(tempfile.gettempdir())), CPU)


def run(draws: int) -> Report:
    """Draw, rotating over operators, dtypes and distributions."""
    report = Report()
    combinations = itertools.cycle(itertools.product(IN_WORDS, DTYPES, range(len(SAMPLES))))
    with torch.no_grad():
        for distribution, dtype, position in itertools.islice(combinations, draws):
            maker = _maker(position, dtype)
            choice = SizeChoice(dims={}, scalars={}, why="observed")
            case = maker.draw(CasePlan(choice=choice, distribution=distribution))
            prepared = prepare(maker.record.variant, case, InProcess())
            assert prepared is not None
            report.draws += 1
            _honest(report, maker.record.variant, prepared)
            if distribution not in EDGES:
                _lower(report, maker.record.variant, prepared, dtype)
    return report


def _honest(report: Report, variant: Variant, prepared: PreparedCase) -> None:
    for how, outputs in _other_ways(variant, prepared):
        for expected, got in zip(prepared.expected, outputs, strict=True):
            verdict = compare(expected, got)
            if isinstance(verdict, Mismatch):
                dtype = variant.tensors[0].dtype
                report.rejected.append(f"{variant.describe()} {dtype}, {prepared.case.description}, {how}: {verdict}")


def _other_ways(variant: Variant, prepared: PreparedCase) -> Iterator[tuple[str, Sequence[Tensor]]]:
    case = prepared.case
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if threads > 1 else 2)
    try:
        yield "another number of threads", evaluate(variant, {}, {}, case.inputs)
    finally:
        torch.set_num_threads(threads)
    if variant.tensors[0].dtype == "float32":
        yield "other strides", evaluate(variant, {}, {}, _turned(case.inputs))
    yield "float64 rounded once", [e.truth.to(e.eager.dtype) for e in prepared.expected]


def _turned(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Copies whose first axis is the fastest."""
    return [t.transpose(0, -1).contiguous().transpose(0, -1) if t.dim() > 1 else t for t in inputs]


def _lower(report: Report, variant: Variant, prepared: PreparedCase, dtype: str) -> None:
    if not (get_operator(variant.operator).reduction or variant.operator in PRODUCTS):
        return
    name = f"{variant.operator} {dtype}"
    for outputs in _lower_outputs(variant, prepared):
        pairs = [(e, o.to(e.eager.dtype)) for e, o in zip(prepared.expected, outputs, strict=True)]
        if not any(_is_worse(e.truth, e.eager, o) for e, o in pairs):
            continue
        report.tried[name] += 1
        if not any(isinstance(compare(e, o), Mismatch) for e, o in pairs):
            report.missed[f"{name}, {prepared.case.plan.distribution}"] += 1


def _is_worse(truth: Tensor, eager: Tensor, got: Tensor) -> bool:
    """Whether a result is farther from the truth than eager, in its worst element or in the mean."""
    finite = truth.to(eager.dtype).isfinite() & eager.isfinite()
    if not bool(finite.any()):
        return False
    own, other = ((t.double() - truth)[finite].abs() for t in (eager, got))
    return bool(other.max() > own.max()) or bool(other.mean() > own.mean()) or bool(other.isnan().any())


def _lower_outputs(variant: Variant, prepared: PreparedCase) -> Sequence[Sequence[Tensor]]:
    if variant.tensors[0].dtype == "float32":
        return lower_precisions(variant, prepared)
    low = [t.double().clamp(-448, 448).to(torch.float8_e4m3fn).double() for t in prepared.case.inputs]
    return [evaluate_wide(variant, {}, {}, low)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, and print what failed; 0 if nothing honest was rejected and enough of the rest was."""
    parser = argparse.ArgumentParser(description="draw cases of many operators and check the limits with them")
    parser.add_argument("--draws", type=int, default=10_000)
    report = run(parser.parse_args(arguments).draws)
    print("\n".join(report.rejected[:40]))
    for name, count in report.missed.most_common():
        print(f"the next lower precision passed: {name}: {count}")
    tried = sum(report.tried.values())
    print(f"{report.draws} draws, {len(report.rejected)} honest results rejected; "
          f"the next lower precision was rejected in {report.caught:.2%} of {tried}")  # fmt: skip
    return 0 if not report.rejected and report.caught >= 0.99 else 1


if __name__ == "__main__":
    sys.exit(main())
