"""What a capture costs against plain runs of the same samples, paired in one process; one record.

    python -m benchmarks.capture_cost --out FILE.json

CPU time of this process, so that neighbours on the machine do not count. Example writing is left out (no store), and
so are the repeats that only time: they are bounded in seconds, whatever the model takes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import write_record
from benchmarks.main_job import jobs
from kernelforge.capture.recorder import record

PAIRS = 15


def cpu_seconds(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)  # two threads would spin while they wait, and count it as work
    results = {}
    for name, load in jobs("cpu").items():
        calls = load().calls

        def plain(calls: tuple[Callable[[], object], ...] = calls) -> None:
            for call in calls:
                call()

        def captured(calls: tuple[Callable[[], object], ...] = calls) -> None:
            record(calls, device="cpu")

        plain()
        pairs = [(cpu_seconds(plain), cpu_seconds(captured)) for _ in range(PAIRS)]
        ratio = sorted(c / p for p, c in pairs)[PAIRS // 2]
        results[name] = {"plain_s": [p for p, _ in pairs], "capture_s": [c for _, c in pairs], "ratio": ratio}
        print(f"{name}: a capture costs {ratio:.2f} times the plain runs")
    write_record(options.out, {"benchmark": "capture_cost", "models": results})


if __name__ == "__main__":
    main()
