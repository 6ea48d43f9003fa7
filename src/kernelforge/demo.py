"""The demo: the whole pipeline on a ResNet-50 and a small Qwen3-like decoder with greedy decoding, on this machine."""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kernelforge.capture.models import ModelOptions, load_model
from kernelforge.capturing import present_device
from kernelforge.errors import EnvironmentMissing
from kernelforge.pipeline import run_pipeline
from kernelforge.report.rows import DemoReport, OperatorRow, WholeModel

MODELS = ("resnet50", "qwen3")
SAMPLES = 2
SECONDS_PER_MODEL = 90.0


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
    used = present_device(device)
    seconds = SECONDS_PER_MODEL if max_time_s is None else max_time_s / len(MODELS)
    with ExitStack() as stack:
        folder = work_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kernelforge-demo-")))
        for name in MODELS:
            options = ModelOptions(device=used, samples=SAMPLES, random_weights=True)
            loaded = load_model(str(example_models() / f"{name}.py"), options)
            report = run_pipeline(
                loaded, device=used, project=folder / f"{name}.kforge", output=folder / f"{name}.cast",
                max_time_s=seconds, on_event=on_event, should_stop=lambda: False,
            ).report  # fmt: skip
            rows[name] = report.rows
            assert report.whole_model is not None
            whole[name] = report.whole_model
            packages[name] = report.package if work_dir is not None else ""
    return DemoReport(
        rows=rows, whole_model=whole, seconds=time.monotonic() - started, peak_rss_bytes=peak_rss_bytes(),
        device=used, packages=packages,
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


def peak_rss_bytes() -> int:
    """Largest resident memory so far: of this process plus the largest of its children, which ran one at a time."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return (own + children) * 1024
