"""Profiles of stored kernels: by a stand-in for ncu, and on a GPU by the real one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.explain.conftest import backend, examples, make_scored, relu_record, settings  # noqa: F401 - fixtures
from tests.explain.test_ncu import RAW

from kernelforge import profiling
from kernelforge.build.backends import get_backend
from kernelforge.build.types import Artifact, Backend
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import OperatorCard, VariantRecord
from kernelforge.evaluate.types import Scored, Trial
from kernelforge.explain.ncu import METRICS, MOST_LAUNCHES
from kernelforge.explain.profile import KernelProfile, Profile
from kernelforge.generate.types import Candidate
from kernelforge.profiling import NotProfiled, profile_binary, profile_node, profile_trials
from kernelforge.runner.protocol import Buffer, BufferSet
from kernelforge.settings import Settings, load_settings
from kernelforge.store.project import Project

RELU = (
    'extern "C" int launch(const float* input, float* out, void* workspace) {\n'
    "  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];\n  return 0;\n}\n"
)
ON_GPU = (
    "__global__ void piece(const float* x, float* y, int from) {\n"
    "  const int i = from + blockIdx.x * blockDim.x + threadIdx.x;\n"
    "  if (i < 4000) y[i] = x[i] < 0 ? 0.0f : x[i];\n}\n"
    'extern "C" int launch(const float* input, float* out, void* workspace, cudaStream_t stream) {\n'
    "  piece<<<8, 256, 0, stream>>>(input, out, 0);\n  piece<<<8, 256, 0, stream>>>(input, out, 2048);\n"
    "  return cudaGetLastError();\n}\n"
)
STAND_IN = """#!/bin/bash
while [ "$1" != --artifact ]; do
  if [ "$1" = --log-file ]; then log=$2; fi
  if [ "$1" = --metrics ]; then echo "$2" >> {metrics}; fi
  program=$1; shift
done
echo "$log" >> {seen}
"$program" "$@"
code=$?
cat {text} > "$log"
exit $code
"""
SETS = [
    BufferSet(buffers=(Buffer(kind="input", data=bytes(16000), size_bytes=16000),
                       Buffer(kind="output", data=None, size_bytes=16000)))
]  # fmt: skip
KNOWN = Profile(
    device="GPU", dims={}, cold=False, kernels=(KernelProfile(name="k", grid=1, block=32, duration_us=2.0),),
    recorded=1.0,
)  # fmt: skip


@pytest.fixture
def ncu(tmp_path: Path) -> Callable[[str], Path]:
    """A program in the place of ncu, which writes that text into its log."""

    def make(text: str) -> Path:
        (tmp_path / "text").write_text(text)
        script = tmp_path / "ncu"
        names = {name: shlex.quote(str(tmp_path / name)) for name in ("text", "seen", "metrics")}
        script.write_text(STAND_IN.format(**names))
        script.chmod(0o755)
        return script

    return make


@pytest.fixture
def on_cpu(
    ncu: Callable[[str], Path], backend: Backend, settings: Settings, relu_record: VariantRecord  # noqa: F811
) -> Callable[..., Any]:  # fmt: skip
    """Profile a relu of the CPU, or another source."""

    def run(text: str, source: str = RELU) -> Any:
        made = backend.build(candidate_of(relu_record, source, "cpp"), relu_record.variant)
        assert isinstance(made, Artifact)
        return profile_binary(made.path, SETS, profiler=ncu(text), cold=True, device="cpu", settings=settings)

    return run


def candidate_of(record: VariantRecord, source: str, backend_name: str) -> Candidate:
    return Candidate(variant_id=record.variant.id, source=source, backend=backend_name, generator="manual")


def launches(count: int) -> str:
    head, _, row = RAW.partition('"0","4711"')
    row = row[: row.index('"1","4711"')]
    return head + "".join(f'"{i}","4711"{row.replace("group_norm", f"k{i}")}' for i in range(count))


def test_the_kernels_of_the_second_call_are_told(on_cpu: Callable[..., Any], tmp_path: Path) -> None:
    assert [k.name for k in on_cpu(launches(4))] == ["k2", "k3"]
    assert [k.name for k in on_cpu(launches(1))] == ["k0"]
    assert len(on_cpu(launches(MOST_LAUNCHES))) == MOST_LAUNCHES, "it is not known where the second call begins"
    logs = (tmp_path / "seen").read_text().split()
    assert len(set(logs)) == 3 and not any(Path(log).exists() for log in logs)


@pytest.mark.parametrize(
    ("said", "reason", "fix"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have", "may not read the GPU's counters", "as root"),
        ("==ERROR== Failed to initialize the profiler: LibraryNotLoaded", "cannot reach the GPU's counters", "direct"),
        ("==ERROR== Something unheard of", "ncu: it measured no kernel: ==ERROR== Something unheard of", ""),
        ("", "ncu: it measured no kernel", ""),
    ],
)  # fmt: skip
def test_why_there_is_no_profile(on_cpu: Callable[..., Any], said: str, reason: str, fix: str) -> None:
    found = on_cpu(said)
    assert isinstance(found, NotProfiled)
    assert reason in found.reason and fix in found.fix and (bool(fix) == bool(found.fix))


def test_a_metric_that_ncu_does_not_know_is_left_out(on_cpu: Callable[..., Any], tmp_path: Path) -> None:
    unknown = f"==ERROR== Failed to find metric '{METRICS[4]}'"
    assert isinstance(on_cpu(unknown), NotProfiled)
    first, second = (line.split(",") for line in (tmp_path / "metrics").read_text().splitlines())
    assert first == [*METRICS] and second == [m for m in METRICS if m != METRICS[4]], "and it is not asked for ever"


def test_a_kernel_that_fails_under_the_profiler_has_no_profile(on_cpu: Callable[..., Any]) -> None:
    found = on_cpu(launches(2), RELU.replace("return 0;", "return 7;"))
    assert isinstance(found, NotProfiled) and "7" in found.reason
    died = on_cpu(launches(2), RELU.replace("return 0;", "__builtin_trap();"))
    assert isinstance(died, NotProfiled)


@pytest.fixture
def project(tmp_path: Path, relu_record: VariantRecord, make_scored: Callable[..., Scored]) -> Project:  # noqa: F811
    """A project of CUDA with an accepted node and a binary."""
    record = replace(relu_record, variant=replace(relu_record.variant, device="cuda"))
    card = OperatorCard(operator="relu", model="tiny", device="cuda", variants=(record,))
    made = Project.create(tmp_path / "p.kforge", model="tiny", device="cuda", cards=(card,), capture_info={})
    binary = tmp_path / "kernel.so"
    binary.write_bytes(b"\x7fELF")
    scored = make_scored(5.0, backend="cuda", regime="cold")
    artifact = replace(scored.artifact, path=binary, digest=made.put_binary(binary))
    trial = Trial(
        candidate=candidate_of(record, "// k", "cuda"), outcome=replace(scored, artifact=artifact), started=1.0,
        seconds=1.0,
    )  # fmt: skip
    made.append(trial)
    return made


def of_relu(project: Project) -> tuple[VariantRecord, Any]:
    record = project.record("relu")
    return record, project.nodes(record.variant.id)[0]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """There is a GPU with a profiler; the list holds whether the caches were cold in what was measured."""
    measured: list[bool] = []

    def profiled(*_: object, cold: bool, **__: object) -> tuple[KernelProfile, ...]:
        measured.append(cold)
        return KNOWN.kernels

    monkeypatch.setattr(profiling, "_gpu", lambda: "GPU")
    monkeypatch.setattr(profiling, "find_profiler", lambda _: Path("/x/ncu"))
    monkeypatch.setattr(profiling, "_buffers", lambda *_: SETS)
    monkeypatch.setattr(profiling, "timing_slot", lambda *_: nullcontext())
    monkeypatch.setattr(profiling, "profile_binary", profiled)
    return measured


def test_a_profile_is_measured_once_and_kept(project: Project, gpu: list[bool], settings: Settings) -> None:  # noqa: F811
    record, node = of_relu(project)
    found = profile_node(project, record, node, settings=settings)
    assert isinstance(found, Profile) and (found.device, found.cold, found.kernels) == ("GPU", True, KNOWN.kernels)
    assert Project.open(project.path).profile_of(node) == found
    assert profile_node(project, record, node, settings=settings) == found and len(gpu) == 1
    profile_node(project, record, node, again=True, settings=settings)
    assert len(gpu) == 2


def test_another_gpu_measures_anew_and_none_takes_what_there_is(
    project: Project, gpu: list[bool], settings: Settings, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    record, node = of_relu(project)
    project.keep_profile(node.summary.binary, replace(KNOWN, device="another GPU"))
    monkeypatch.setattr(profiling, "_gpu", lambda: "")
    there = profile_node(project, record, node, again=True, settings=settings)
    assert isinstance(there, Profile) and there.device == "another GPU" and not gpu
    monkeypatch.setattr(profiling, "_gpu", lambda: "GPU")
    here = profile_node(project, record, node, settings=settings)
    assert isinstance(here, Profile) and here.device == "GPU" and len(gpu) == 1


def test_what_stands_in_the_way_is_told(
    project: Project, gpu: list[bool], settings: Settings, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    def reason() -> str:
        (row,) = profile_trials(project, "relu", ["1"], on_event=lambda _: None, settings=settings).rows
        assert row.profile is None and row.lines == () and "not available: " in "\n".join(row.text())
        return row.why

    monkeypatch.setattr(profiling, "profile_binary", lambda *_, **__: NotProfiled(reason="no", fix="do"))
    assert reason() == "no" and project.profiles() == {}
    monkeypatch.setattr(profiling, "find_profiler", lambda _: None)
    assert reason() == "ncu was not found"
    monkeypatch.setattr(profiling, "_gpu", lambda: "")
    assert reason() == "no CUDA device is available to torch"
    monkeypatch.setattr(project, "device", "cpu")
    assert reason() == "only kernels of a GPU are profiled"
    assert not gpu


def test_the_best_trial_is_profiled_by_default(project: Project, gpu: list[bool], settings: Settings) -> None:  # noqa: F811
    report = profile_trials(project, "relu", (), on_event=lambda _: None, settings=settings)
    (row,) = report.rows
    assert row.number == 1 and row.lines[0].startswith("profiled: 1 kernel a call on GPU")
    document = json.loads(json.dumps(report.to_json()))
    assert document["trials"][0]["profile"]["kernels"][0]["duration_us"] == 2.0


@pytest.mark.gpu
@pytest.mark.nvcc
def test_a_real_kernel_on_a_gpu(
    tmp_path: Path, relu_record: VariantRecord, examples: ExampleStore, settings: Settings,  # noqa: F811
    make_scored: Callable[..., Scored],  # noqa: F811
) -> None:  # fmt: skip
    """Or a reason, and what to do: not every machine lets its counters be read."""
    record = replace(relu_record, variant=replace(relu_record.variant, device="cuda"))
    card = OperatorCard(operator="relu", model="tiny", device="cuda", variants=(record,))
    made = Project.create(tmp_path / "p.kforge", model="tiny", device="cuda", cards=(card,), capture_info={})
    built = get_backend("cuda", settings).build(candidate_of(record, ON_GPU, "cuda"), record.variant)
    assert isinstance(built, Artifact)
    scored = replace(make_scored(5.0, backend="cuda"), artifact=built)
    made.append(Trial(candidate=candidate_of(record, ON_GPU, "cuda"), outcome=scored, started=1.0, seconds=1.0))
    found = profile_node(made, *of_relu(made), settings=replace(load_settings(), cache_dir=settings.cache_dir))
    if isinstance(found, NotProfiled):
        assert found.reason and found.fix, found
        return
    assert found.device == torch.cuda.get_device_name()
    assert [(k.name, k.grid, k.block) for k in found.kernels] == [("piece", 8, 256)] * 2
    for kernel in found.kernels:
        assert 0.5 < kernel.duration_us < 100 and kernel.registers and kernel.sms
        assert {"dram", "l2", "l1", "issue", "fma", "alu"} <= {*kernel.units} and kernel.stalls and kernel.cycles
        assert None not in (kernel.occupancy, kernel.l2_bytes, kernel.instructions, kernel.lanes, kernel.load_sectors)
