"""How busy the lanes of a search are: a model is captured and forged with the template generator for some time.

    python -m benchmarks.lanes --device cuda --model resnet50_fp16_b64 --seconds 90 --out FILE.json

A GPU is the scarce thing: its slot, in which candidates are judged, is to be busy while others are proposed and built.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import write_record
from benchmarks.main_job import jobs
from kernelforge import forge
from kernelforge.capturing import capture_calls
from kernelforge.search.types import Budget


def main(arguments: Sequence[str] | None = None) -> int:
    """Capture, forge, write the record."""
    parser = argparse.ArgumentParser(description="how busy the lanes of a search are")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--model", required=True)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="kernelforge-bench-") as folder:
        project = Path(folder) / "model.kforge"
        loaded = jobs(options.device)[options.model]()
        capture_calls(
            loaded.calls, model=options.model, device=options.device, project=project, shapes="auto", overwrite=False
        )
        del loaded
        report = forge.forge_project(project, budget=Budget(seconds=options.seconds), library=False)
    result = report.to_json()
    lanes = result["lanes"]
    print(f"{options.model}: {report.trials} trials in {report.seconds:.0f} s, {lanes}")
    if options.out:
        write_record(
            options.out,
            {"benchmark": "lanes", "model": options.model, "device": options.device, "trials": report.trials,
             "seconds": report.seconds, "stopped": report.stopped, "lanes": lanes},
        )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
