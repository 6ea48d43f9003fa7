"""Packages of kernels that nobody judged or timed, for what looks at the run time and not at the kernels.

Never ship such a package: what its entries say of themselves is made up, so that they are in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kernelforge.audit.types import AuditKind, AuditLabel
from kernelforge.benchmark.types import Interval, Measurement
from kernelforge.build.abi import prelude
from kernelforge.build.backends import get_backend
from kernelforge.build.types import BuildFailure
from kernelforge.capture.types import TensorRef
from kernelforge.cards.types import Dim, Extent, TensorPattern, Variant, VariantRecord
from kernelforge.errors import HarnessError
from kernelforge.evaluate.types import Scored
from kernelforge.generate.generators.template import GENERATOR
from kernelforge.generate.types import Candidate, Exhausted, Request
from kernelforge.package.serial import make_entry
from kernelforge.package.types import Entry, Header, Off, Use
from kernelforge.package.writer import write_package
from kernelforge.settings import Settings
from kernelforge.verify.types import Accepted, ErrorStatistics

BACKEND_OF = {"cpu": "cpp", "cuda": "cuda"}

SOFTMAX = """
extern "C" int launch(const float* input, int64_t n0, float* out, void* workspace) {{
  (void)workspace;
  for (int64_t row = 0; row < n0; ++row) {{
    const float* x = input + {columns} * row;
    float* y = out + {columns} * row;
    float largest = x[0], sum = 0;
    for (int i = 1; i < {columns}; ++i) largest = std::max(largest, x[i]);
    for (int i = 0; i < {columns}; ++i) sum += y[i] = std::exp(x[i] - largest);
    for (int i = 0; i < {columns}; ++i) y[i] /= sum;
  }}
  return 0;
}}
"""


def softmax_variant(columns: int) -> Variant:
    """Softmax over the last axis of float32 [n0, columns], n0 in [1, 64]."""
    pattern = TensorPattern(
        shape=(Extent(1, ("n0",)), Extent(columns)), stride=(Extent(columns), Extent(1)), dtype="float32"
    )
    return Variant(
        operator="softmax", arguments=(("input", TensorRef(0)), ("dim", 1), ("dtype", None)), tensors=(pattern,),
        outputs=(pattern,), dims=(Dim(name="n0", low=1, high=64),),
    )  # fmt: skip


def write_softmax_package(path: Path, columns: Sequence[int], settings: Settings) -> Path:
    """Write a package with one handwritten CPU softmax for each number of columns; returns `path`.

    Raises:
        EnvironmentMissing: no C++ compiler. HarnessError: a kernel does not build.
    """
    variants = [softmax_variant(size) for size in columns]
    return write_unjudged(path, [
        (variant, Candidate(
            variant_id=variant.id, source=SOFTMAX.format(columns=size), backend="cpp", generator="manual"
        ))
        for size, variant in zip(columns, variants, strict=True)
    ], settings)  # fmt: skip


def template_candidates(records: Iterable[VariantRecord]) -> list[tuple[Variant, Candidate]]:
    """The template generator's first proposal for each variant for which it has one."""
    found = []
    for record in records:
        variant = record.variant
        backend = BACKEND_OF[variant.device]
        proposal = GENERATOR.propose(
            Request(variant=variant, backend=backend, prelude=prelude(variant, backend), brief="")
        )
        if not isinstance(proposal, Exhausted):
            found.append((variant, proposal))
    return found


def write_unjudged(path: Path, kernels: Sequence[tuple[Variant, Candidate]], settings: Settings) -> Path:
    """Build the candidates, two at a time, and write a package in which all are in use; returns `path`.

    Args:
        settings: its cache is where they are built.

    Raises:
        EnvironmentMissing: no compiler. HarnessError: one does not build.
    """
    import torch

    device = kernels[0][0].device if kernels else "cpu"
    with ThreadPoolExecutor(2) as pool:
        entries = list(pool.map(lambda kernel: _entry(kernel[0], kernel[1], 1 / len(kernels), settings), kernels))
    name = torch.cuda.get_device_name(0) if device == "cuda" else ""
    header = Header(
        name="unjudged", device=device, torch=torch.__version__.split("+", maxsplit=1)[0], created_by="benchmarks",
        device_name=name,
    )  # fmt: skip
    write_package(path, entries, header=header)
    return path


def _entry(variant: Variant, candidate: Candidate, share: float, settings: Settings) -> Entry:
    artifact = get_backend(candidate.backend, settings).build(candidate, variant)
    if isinstance(artifact, BuildFailure):
        raise HarnessError(f"{variant.label} does not build: {artifact.detail}")
    scored = Scored(
        verdict=Accepted(
            cases=1, worst=ErrorStatistics(max_abs=0.0, rms=0.0, eager_max_abs=0.0, eager_rms=0.0), bitwise=False,
            repeatable=True,
        ),
        measurement=Measurement(
            points=(), speedup=Interval(median=2.0, low=2.0, high=2.0), eager_us=2.0, candidate_us=1.0, floor_us=1.0,
            environment={},
        ),
        audit=AuditLabel(kind=AuditKind.GENERATED, evidence=()), artifact=artifact,
    )  # fmt: skip
    off = Off(reason="not measured")
    decisions: dict[str, Use | Off] = {"eager": Use(), "graphed": off, "compiled": off}
    return make_entry(variant=variant, candidate=candidate, scored=scored, share=share, decisions=decisions)
