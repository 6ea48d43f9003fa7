"""The demo: the whole pipeline on a ResNet-50 and a small Qwen3-like decoder with greedy decoding, on this machine."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import psutil

from kernelforge.capture.models import ModelOptions, load_model
from kernelforge.capturing import present_device
from kernelforge.errors import EnvironmentMissing
from kernelforge.package_run import run_package
from kernelforge.pipeline import run_pipeline
from kernelforge.report.demo import DemoReport
from kernelforge.report.package_run import PackageRunReport
from kernelforge.report.rows import OperatorRow, WholeModel
from kernelforge.settings import load_settings

MODELS = ("resnet50", "qwen3")
SAMPLES = 2
SECONDS_PER_MODEL = 80.0
SECONDS_PER_RUN = 10.0
"""To time a model with its package, in all ways together."""


def run_demo(
    *, max_time_s: float | None, work_dir: Path | None, device: str | None, on_event: Callable[[Any], None]
) -> DemoReport:
    """Run the demo.

    Args:
        max_time_s: for both models together.
        work_dir: keeps projects and packages; a temporary folder by default.
    """
    started = time.monotonic()
    rows: dict[str, tuple[OperatorRow, ...]] = {}
    whole: dict[str, WholeModel] = {}
    packages: dict[str, str] = {}
    runs: dict[str, PackageRunReport] = {}
    used = present_device(device)
    seconds = SECONDS_PER_MODEL if max_time_s is None else max_time_s / len(MODELS)
    with ExitStack() as stack:
        memory = stack.enter_context(PeakMemory())
        folder = work_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kernelforge-demo-")))
        for name in MODELS:
            options = ModelOptions(device=used, samples=SAMPLES, random_weights=True)
            source = str(example_models() / f"{name}.py")
            loaded = load_model(source, options)
            report = run_pipeline(
                loaded, device=used, project=folder / f"{name}.kforge", output=folder / f"{name}.cast",
                max_time_s=seconds, on_event=on_event, should_stop=lambda: False,
                library=False,  # it shows what a search finds, not what an earlier one found
            ).report  # fmt: skip
            rows[name] = report.rows
            assert report.whole_model is not None
            whole[name] = report.whole_model
            packages[name] = report.package if work_dir is not None else ""
            if report.package:
                # As a program that has only the package would: signature, trust, guards and all.
                runs[name] = run_package(
                    Path(report.package), source, options=options, settings=load_settings(),
                    max_time_s=SECONDS_PER_RUN, say=on_event,
                )  # fmt: skip
    return DemoReport(
        rows=rows, whole_model=whole, seconds=time.monotonic() - started, peak_rss_bytes=memory.bytes,
        device=used, packages=packages, runs=runs,
    )  # fmt: skip


def example_models() -> Path:
    """The folder of the example models: in the wheel beside the code, in a checkout at its root.

    Raises:
        EnvironmentMissing: neither is there.
    """
    here = Path(__file__).resolve().parent
    for folder in (here / "example_models", here.parent.parent / "examples" / "models"):
        if folder.is_dir():
            return folder
    raise EnvironmentMissing("the example models are not installed", hint="run the demo from a checkout")


class PeakMemory:
    """Largest resident memory of this process and its descendants together, sampled while the block runs.

    The kernel's own peaks do not add up to that: a child's counts from before its exec, when it is a copy of us.
    """

    def __init__(self, period_s: float = 0.1) -> None:
        self.bytes = 0
        self._period_s = period_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kforge-peak-memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        own = psutil.Process()
        while not self._done.is_set():
            self.bytes = max(self.bytes, _resident(own) + sum(map(_resident, own.children(recursive=True))))
            self._done.wait(self._period_s)


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:  # it has ended meanwhile
        return 0
