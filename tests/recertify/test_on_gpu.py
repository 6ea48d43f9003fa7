"""On a GPU: times inside of CUDA graphs, and certifying a package that was made on another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelforge.audit.types import AuditKind, AuditLabel
from kernelforge.benchmark.types import Interval, Measurement
from kernelforge.build.backends import get_backend
from kernelforge.build.types import Artifact
from kernelforge.capture.facts import capability_of
from kernelforge.capture.models import ModelOptions
from kernelforge.capture.types import TensorRef
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import Dim, Extent, TensorPattern, Variant
from kernelforge.certification import DispatchTiming
from kernelforge.dispatch.loading import load
from kernelforge.dispatch.machine import driver_version
from kernelforge.evaluate.types import Scored
from kernelforge.generate.types import Candidate
from kernelforge.graph_timing import time_in_graphs
from kernelforge.package.serial import make_entry
from kernelforge.package.signing import local_signer
from kernelforge.package.types import Entry, Header, Use
from kernelforge.package.writer import write_package
from kernelforge.package_run import run_package
from kernelforge.packed_variants import record_of
from kernelforge.recertifying import recertify
from kernelforge.settings import Settings
from kernelforge.verify.types import Accepted, ErrorStatistics

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc]

NONE = ExampleStore(Path("nowhere"))
PATTERN = TensorPattern(shape=(Extent(1, ("n0",)), Extent(256)), stride=(Extent(256), Extent(1)), dtype="float32")
BODY = """
__global__ void body(const float* input, float* out, int64_t count) {{
  const int64_t i = 256 * (int64_t)blockIdx.x + threadIdx.x;
  float v = input[i];
  {work}
  out[i] = {result};
}}
extern "C" int launch(const float* input, int64_t n0, float* out, void* workspace, cudaStream_t stream) {{
  body<<<(unsigned)n0, 256, 0, {stream}>>>(input, out, 256 * n0);
  return (int)cudaGetLastError();
}}
"""
SOURCES = {
    "abs": BODY.format(work="", result="fabsf(v)", stream="stream"),
    "slow": BODY.format(work="for (int k = 0; k < 400; ++k) __nanosleep(200);", result="fabsf(v)", stream="stream"),
    "other stream": BODY.format(work="", result="fabsf(v)", stream="0"),
    "wrong": BODY.format(work="", result="v > 3.0f ? v : -v", stream="stream"),
}


@pytest.fixture(scope="session")
def gpu_entries(cache: Settings) -> Mapping[str, Entry]:
    """An entry for each of `SOURCES`, on in every mode, as if each had passed the judge."""
    made = {}
    for name, source in SOURCES.items():
        operator = "neg" if name == "wrong" else "abs"
        variant = Variant(
            operator=operator, arguments=(("input", TensorRef(0)), ("inplace", False)), tensors=(PATTERN,),
            outputs=(PATTERN,), dims=(Dim(name="n0", low=1, high=1 << 14),), device="cuda",
            capability=capability_of("cuda"),
        )  # fmt: skip
        candidate = Candidate(variant_id=variant.id, source=source, backend="cuda", generator="manual")
        artifact = get_backend("cuda", cache).build(candidate, variant)
        assert isinstance(artifact, Artifact), artifact
        scored = Scored(
            verdict=Accepted(
                cases=1, worst=ErrorStatistics(max_abs=0.0, rms=0.0, eager_max_abs=0.0, eager_rms=0.0), bitwise=True
            ),
            measurement=Measurement(
                points=(), speedup=Interval(median=2.0, low=1.9, high=2.1), eager_us=2.0, candidate_us=1.0,
                floor_us=1.0, environment={},
            ),
            audit=AuditLabel(kind=AuditKind.GENERATED, evidence=()), artifact=artifact,
        )  # fmt: skip
        on: Any = dict.fromkeys(("eager", "graphed"), Use())
        made[name] = make_entry(variant=variant, candidate=candidate, scored=scored, share=0.1, decisions=on)
    return made


@pytest.fixture
def pack(gpu_entries: Mapping[str, Entry], settings: Settings, tmp_path: Path) -> Callable[..., Path]:
    def write(*names: str, **header: str) -> Path:
        path = tmp_path / "gpu.cast"
        here = Header(
            name="gpu", device="cuda", torch=torch.__version__.split("+")[0], created_by="test",
            device_name=torch.cuda.get_device_name(), driver=driver_version(),
        )  # fmt: skip
        changed: Any = header
        some = [gpu_entries[name] for name in names]
        write_package(path, some, header=replace(here, **changed), signer=local_signer(settings.config_dir))
        return path

    return write


def in_graphs(path: Path, entry: Entry, settings: Settings) -> DispatchTiming | str:
    record = record_of(entry)
    assert record is not None
    return time_in_graphs(load(path, settings=settings), record, NONE, settings, budget_s=0.3)


def test_times_in_graphs_are_the_devices_alone(
    pack: Callable[..., Path], gpu_entries: Mapping[str, Entry], settings: Settings
) -> None:
    found = in_graphs(pack("abs"), gpu_entries["abs"], settings)
    assert isinstance(found, DispatchTiming), found
    assert not found.wrong
    (point,) = found.points
    assert len(point.eager_us) == len(point.dispatched_us) >= 12
    # A pass over so little memory; a launch from Python would cost more than that.
    assert 0.3 < min(point.eager_us) < 10 and 0.5 < found.interval.median < 2.0, found.interval


def test_a_slow_kernel_loses_in_graphs(
    pack: Callable[..., Path], gpu_entries: Mapping[str, Entry], settings: Settings
) -> None:
    found = in_graphs(pack("slow"), gpu_entries["slow"], settings)
    assert isinstance(found, DispatchTiming) and found.interval.high < 0.5, found


def test_a_kernel_on_another_stream_is_in_no_graph(
    pack: Callable[..., Path], gpu_entries: Mapping[str, Entry], settings: Settings
) -> None:
    found = in_graphs(pack("other stream"), gpu_entries["other stream"], settings)
    assert isinstance(found, str) or found.wrong, found
    torch.cuda.synchronize()
    assert torch.ones(3, device="cuda").sum().item() == 3.0, "the device is as it was"


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"device_name": "NVIDIA H100 of elsewhere"}, "judged on NVIDIA H100 of elsewhere"),
        ({"driver": "1.0"}, "judged under driver 1.0"),
        ({"torch": "2.4.1"}, "judged under torch 2.4.1"),
    ],
)
def test_on_another_gpu_driver_or_torch_kernels_are_off_until_certified(
    pack: Callable[..., Path], settings: Settings, header: dict[str, str], reason: str
) -> None:
    path = pack("abs", "wrong", **header)
    assert all(state.reason.startswith(reason) for state in load(path, settings=settings).states)
    report = recertify(path, settings=settings, say=print)
    states = {e.label.split("-")[0]: e.state for e in report.entries}
    assert states == {"abs": "certified", "neg": "rejected"}, report
    package = load(path, settings=settings)
    found = {s.entry.variant.operator: s for s in package.states}
    assert found["neg"].reason.startswith("rejected here: wrong_value")
    assert "certify it again" not in str(found["abs"])
    assert set(report.entries[0].speedups) | set(report.entries[1].speedups) == {"eager", "graphed"}
    print({e.label: round(e.seconds, 1) for e in report.entries}, "seconds of each")


def test_a_model_with_and_without_in_every_way(pack: Callable[..., Path], settings: Settings, tmp_path: Path) -> None:
    model = tmp_path / "net.py"
    model.write_text(
        "import torch\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return torch.abs(x) + 1\n\n"
        "def get_inputs():\n    return [torch.rand(64, 256)]\n"
    )
    report = run_package(
        pack("abs"), str(model), options=ModelOptions(device="cuda"), settings=settings, say=print, max_time_s=4.0
    )
    eager, graphed = report.runs
    assert (eager.why_not, graphed.why_not) == ("", "")
    assert eager.matches and graphed.matches
    assert [e.hits for e in eager.entries] == [1] and [e.hits > 0 for e in graphed.entries] == [True]
