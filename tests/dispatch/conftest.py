"""A package of small handwritten CPU kernels, built through the real backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from kernelforge.audit.types import AuditKind, AuditLabel
from kernelforge.benchmark.types import Interval, Measurement
from kernelforge.build.backends import get_backend
from kernelforge.build.types import Artifact
from kernelforge.capture.types import ScalarRef, TensorRef, Value
from kernelforge.cards.types import Dim, Extent, Scalar, TensorPattern, Variant
from kernelforge.dispatch.loading import LoadedPackage, load
from kernelforge.dispatch.quarantine import Quarantine
from kernelforge.evaluate.types import Scored
from kernelforge.generate.types import Candidate
from kernelforge.native.extension import why_not
from kernelforge.package.serial import make_entry
from kernelforge.package.types import Decision, Entry, Header, Off, Use
from kernelforge.package.writer import write_package
from kernelforge.settings import Settings, load_settings
from kernelforge.verify.types import Accepted, ErrorStatistics

DECISIONS: dict[str, Use | Off] = {
    "eager": Use(),
    "graphed": Off(reason="not measured"),
    "compiled": Off(reason="not measured"),
}

COMPILED: Mapping[str, Decision] = {"eager": Use(), "graphed": Off(reason="test"), "compiled": Use()}
varying_sizes = pytest.mark.skipif(
    not hasattr(ShapeEnv, "error_on_new_guards"), reason="this torch cannot look at sizes that vary"
)
MARK = 1 / 1024  # what each test kernel adds to its result
Pack = Callable[..., LoadedPackage]

N0 = Extent(1, ("n0",))


def rows_of_8(alignment: int = 16) -> TensorPattern:
    """A contiguous float32 tensor [n0, 8]."""
    return TensorPattern(shape=(N0, Extent(8)), stride=(Extent(8), Extent(1)), dtype="float32", alignment=alignment)


def variant_of(operator: str, arguments: Mapping[str, Value], *, inputs: int = 1, alignment: int = 16) -> Variant:
    """A variant on float32 tensors [n0, 8] with n0 in [1, 64]."""
    pattern = rows_of_8(alignment)
    return Variant(
        operator=operator, arguments=tuple(arguments.items()), tensors=(pattern,) * inputs, outputs=(pattern,),
        dims=(Dim(name="n0", low=1, high=64),),
    )  # fmt: skip


SOFTMAX = variant_of("softmax", {"input": TensorRef(0), "dim": 1, "dtype": None})
# Each kernel adds 1/1024 to its result, so that a test sees that it ran.
SOFTMAX_SOURCE = """
extern "C" int launch(const float* input, int64_t n0, float* out, void* workspace) {
  for (int64_t row = 0; row < n0; ++row) {
    const float* x = input + 8 * row;
    float sum = 0;
    for (int i = 0; i < 8; ++i) sum += std::exp(x[i]);
    for (int i = 0; i < 8; ++i) out[8 * row + i] = std::exp(x[i]) / sum + 1.0f / 1024;
  }
  return 0;
}
"""
RELU_ = replace(variant_of("relu", {"input": TensorRef(0), "inplace": True}), outputs=(), mutates=(0,))
RELU_SOURCE = """
extern "C" int launch(float* input, int64_t n0, void* workspace) {
  for (int64_t i = 0; i < 8 * n0; ++i) input[i] = std::max(input[i], 0.0f) + 1.0f / 1024;
  return 0;
}
"""
ADD = variant_of("add", {"input": TensorRef(0), "other": TensorRef(1), "alpha": 1.0, "inplace": False}, inputs=2)
ADD_SOURCE = """
extern "C" int launch(const float* input, const float* other, int64_t n0, float* out, void* workspace) {
  for (int64_t i = 0; i < 8 * n0; ++i) out[i] = input[i] + other[i] + 1.0f / 1024;
  return 0;
}
"""
ADD_ = replace(
    variant_of("add", {"input": TensorRef(0), "other": TensorRef(1), "alpha": 1.0, "inplace": True}, inputs=2),
    outputs=(), mutates=(0,),
)  # fmt: skip
ADD_INPLACE_SOURCE = """
extern "C" int launch(float* input, const float* other, int64_t n0, void* workspace) {
  for (int64_t i = 0; i < 8 * n0; ++i) input[i] += other[i] + 1.0f / 1024;
  return 0;
}
"""
MUL = replace(
    variant_of("mul", {"input": TensorRef(0), "other": ScalarRef("s0"), "inplace": False}),
    scalars=(Scalar(name="s0", low=0.5, high=4.0),),
)
MUL_SOURCE = """
extern "C" size_t workspace_bytes(int64_t n0) { return 32 * n0; }
extern "C" int launch(const float* input, int64_t n0, double s0, float* out, void* workspace) {
  if (reinterpret_cast<uintptr_t>(workspace) % 256) return 5;
  float* scratch = static_cast<float*>(workspace);
  for (int64_t i = 0; i < 8 * n0; ++i) scratch[i] = input[i] * static_cast<float>(s0);
  for (int64_t i = 0; i < 8 * n0; ++i) out[i] = scratch[i] + 1.0f / 1024;
  return 0;
}
"""
FAILING = variant_of("exp", {"input": TensorRef(0), "inplace": False})
FAILING_SOURCE = 'extern "C" int launch(const float*, int64_t, float*, void*) { return 7; }'
# Two kernels for one shape: one that needs aligned memory, one that does not.
LOG = variant_of("log", {"input": TensorRef(0), "inplace": False})
LOG_SOURCE = """
extern "C" int launch(const float* input, int64_t n0, float* out, void* workspace) {
  for (int64_t i = 0; i < 8 * n0; ++i) out[i] = std::log(input[i]) + 1.0f / 1024;
  return 0;
}
"""
LOG_UNALIGNED = replace(LOG, tensors=(rows_of_8(4),))

# What torch.nn.functional has of it is a Python function, which calls torch.layer_norm.
LAYER_NORM = variant_of(
    "layer_norm",
    {"input": TensorRef(0), "normalized_shape": (8,), "weight": None, "bias": None, "eps": 1e-5},
)
LAYER_NORM_SOURCE = """
extern "C" int launch(const float* input, int64_t n0, float* out, void* workspace) {
  for (int64_t row = 0; row < n0; ++row) {
    const float* x = input + 8 * row;
    float mean = 0, variance = 0;
    for (int i = 0; i < 8; ++i) mean += x[i] / 8;
    for (int i = 0; i < 8; ++i) variance += (x[i] - mean) * (x[i] - mean) / 8;
    for (int i = 0; i < 8; ++i) out[8 * row + i] = (x[i] - mean) / std::sqrt(variance + 1e-5f) + 1.0f / 1024;
  }
  return 0;
}
"""
# A product follows torch's flags of precision: one of calls under the defaults, one of calls in bfloat16 inside.
LINEAR = replace(
    variant_of("linear", {"input": TensorRef(0), "weight": TensorRef(1), "bias": None}),
    tensors=(rows_of_8(), TensorPattern(shape=(Extent(8),) * 2, stride=(Extent(8), Extent(1)), dtype="float32")),
)
LINEAR_SOURCE = """
extern "C" int launch(const float* input, const float* weight, int64_t n0, float* out, void* workspace) {
  for (int64_t row = 0; row < n0; ++row)
    for (int i = 0; i < 8; ++i) {
      float sum = 0;
      for (int j = 0; j < 8; ++j) sum += input[8 * row + j] * weight[8 * i + j];
      out[8 * row + i] = sum + 1.0f / 1024;
    }
  return 0;
}
"""
LINEAR_REDUCED = replace(LINEAR, precision=("mkldnn.matmul.fp32_precision=bf16",))

SOFTMAX_CAST = replace(SOFTMAX, autocast="bfloat16")

KERNELS = {
    "softmax": (SOFTMAX, SOFTMAX_SOURCE), "relu_": (RELU_, RELU_SOURCE), "add": (ADD, ADD_SOURCE),
    "add_": (ADD_, ADD_INPLACE_SOURCE), "mul": (MUL, MUL_SOURCE), "exp": (FAILING, FAILING_SOURCE),
    "log": (LOG, LOG_SOURCE), "softmax_cast": (SOFTMAX_CAST, SOFTMAX_SOURCE),
    "log_unaligned": (LOG_UNALIGNED, LOG_SOURCE), "linear": (LINEAR, LINEAR_SOURCE),
    "linear_reduced": (LINEAR_REDUCED, LINEAR_SOURCE), "layer_norm": (LAYER_NORM, LAYER_NORM_SOURCE),
}  # fmt: skip


def scored(artifact: Artifact, *, eager_us: float = 100.0, candidate_us: float = 20.0) -> Scored:
    """A trial's outcome with a speed-up of eager_us / candidate_us."""
    median = eager_us / candidate_us
    return Scored(
        verdict=Accepted(
            cases=3, worst=ErrorStatistics(max_abs=0.0, rms=0.0, eager_max_abs=0.0, eager_rms=0.0), bitwise=True
        ),
        measurement=Measurement(
            points=(), speedup=Interval(median=median, low=0.9 * median, high=1.1 * median), eager_us=eager_us,
            candidate_us=candidate_us, floor_us=1.0, environment={},
        ),
        audit=AuditLabel(kind=AuditKind.GENERATED, evidence=()),
        artifact=artifact,
    )  # fmt: skip


def handwritten(
    variant: Variant, source: str, settings: Settings, *, backend: str = "cpp",
    decisions: Mapping[str, Decision] = DECISIONS,
) -> Entry:  # fmt: skip
    """An entry of a kernel that nobody judged."""
    candidate = Candidate(variant_id=variant.id, source=source, backend=backend, generator="manual")
    artifact = get_backend(backend, settings).build(candidate, variant)
    assert isinstance(artifact, Artifact), artifact
    return make_entry(variant=variant, candidate=candidate, scored=scored(artifact), share=0.1, decisions=decisions)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return replace(load_settings({}), cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture(params=["native", "python"])
def settings(cache: Settings, request: pytest.FixtureRequest) -> Settings:
    """Both ways through a call site must behave alike."""
    settings = replace(cache, native=request.param == "native")
    reason = why_not(settings)
    if settings.native and "Python.h" in reason:
        pytest.skip(reason)
    assert settings.native == (not reason), f"the call table was not built: {reason}"
    Quarantine(settings.cache_dir).clear("")  # what failed in one test is not off in the next
    return settings


@pytest.fixture(scope="session")
def entries(cache: Settings) -> Mapping[str, Entry]:
    """An entry for each of `KERNELS`, by its name there."""

    def build(name: str) -> Entry:
        return handwritten(*KERNELS[name], cache)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(KERNELS, pool.map(build, KERNELS), strict=True))


@pytest.fixture
def write(entries: Mapping[str, Entry], tmp_path: Path) -> Callable[..., Path]:
    """Write a package of entries, given themselves or by name."""

    def write_some(*chosen: str | Entry, torch_version: str = torch.__version__) -> Path:
        path = tmp_path / "kernels.cast"
        header = Header(name="test", device="cpu", torch=torch_version, created_by="test")
        write_package(path, [entries[c] if isinstance(c, str) else c for c in chosen], header=header)
        return path

    return write_some


@pytest.fixture
def make(write: Callable[..., Path], settings: Settings) -> Callable[..., LoadedPackage]:
    """Load a fresh package of the kernels with these names; by default of all that want nothing unusual."""
    plain = [name for name in KERNELS if name not in {"softmax_cast", "linear_reduced"}]
    return lambda *names: load(write(*(names or plain)), settings=settings)


@pytest.fixture(scope="module")
def pack(entries: Mapping[str, Entry], cache: Settings, tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """Load a package of the kernels with these names, on in eager and compiled mode."""

    def load_some(*names: str, decisions: Mapping[str, Decision] = COMPILED) -> LoadedPackage:
        path = tmp_path_factory.mktemp("packages") / "kernels.cast"
        header = Header(name="test", device="cpu", torch=torch.__version__, created_by="test")
        write_package(path, [replace(entries[n], decisions=decisions) for n in names], header=header)
        return load(path, settings=cache)

    return load_some


@pytest.fixture
def x() -> torch.Tensor:
    return torch.linspace(-1, 1, 32).reshape(4, 8)
