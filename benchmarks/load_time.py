"""What `import kernelforge` takes, and what loading a package of 20 kernels takes beyond torch's own import.

    python -m benchmarks.load_time --out benchmarks/results/cpu_load_time.json

Each sample is a fresh process, wall time and the process's own CPU time. The phases of a load, each after the one
before it:

- torch: `import torch` and the run time that calls binaries; not counted.
- load: `kernelforge.load`, the import of what that needs included. This has a bar.
- first dispatch: the first `with package.dispatch()` of the process.
- first call: the first call that a kernel serves.

"cold" finds an empty cache of ours: binaries are extracted, and what we compile on this machine is compiled. "warm"
finds the cache that the cold process left. The operating system's own file cache is warm in both.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.harness import ROOT, write_record
from benchmarks.unjudged_packages import write_softmax_package
from kernelforge.benchmark.statistics import median
from kernelforge.errors import HarnessError
from kernelforge.settings import load_settings

IMPORT_BAR_S, LOAD_BAR_S = 0.3, 0.5
VARIANTS, SAMPLES = 20, 7
PHASES = ("torch", "load", "first dispatch", "first call")

_IMPORT = """
import sys, time
wall, cpu = time.perf_counter(), time.process_time()
import kernelforge
print([[time.perf_counter() - wall, time.process_time() - cpu]])
sys.exit("torch was loaded" if "torch" in sys.modules else 0)
"""
_LOAD = """
import sys, time
marks = [(time.perf_counter(), time.process_time())]
def mark():
    marks.append((time.perf_counter(), time.process_time()))
import torch, tvm_ffi
torch.set_num_threads(1)
mark()
import kernelforge
package = kernelforge.load(sys.argv[1])
mark()
with package.dispatch():
    mark()
    torch.nn.functional.softmax(torch.rand(4, int(sys.argv[2])), -1)
    mark()
hits = sum(row.hits for row in package.stats())
print([[b[i] - a[i] for a, b in zip(marks, marks[1:])] for i in (0, 1)])
sys.exit(0 if hits == 1 else f"{hits} hits: {package.stats()}")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """Seconds of each phase in each process: wall time, and CPU time of the process itself."""

    wall_s: dict[str, list[float]]
    cpu_s: dict[str, list[float]]

    @property
    def load_s(self) -> float:
        """The figure with a bar: the median wall time of a load."""
        return median(self.wall_s["load"])


def import_times(samples: int) -> tuple[list[float], list[float]]:
    """Wall and CPU seconds of `import kernelforge` in fresh processes.

    Raises:
        HarnessError: it failed, or loaded torch.
    """
    rows = [_run(_IMPORT)[0] for _ in range(1 + samples)][1:]
    return [wall for wall, _ in rows], [cpu for _, cpu in rows]


def load_times(samples: int, *, variants: int = VARIANTS) -> dict[str, Loads]:
    """Loading a package of so many variants, "cold" and "warm".

    Raises:
        EnvironmentMissing: no compiler. HarnessError: a process failed, or its call did not hit.
    """
    rows: dict[str, list[list[list[float]]]] = {"cold": [], "warm": []}
    with tempfile.TemporaryDirectory() as folder:
        columns = range(8, 8 + variants)
        package = write_softmax_package(
            Path(folder, "softmax.cast"), columns, replace(load_settings(), cache_dir=Path(folder, "builds"))
        )
        cache = Path(folder, "cache")
        _run(_LOAD, str(package), str(columns[-1]), KFORGE_CACHE_DIR=str(cache))
        for _ in range(samples):
            shutil.rmtree(cache, ignore_errors=True)
            for kind in ("cold", "warm"):
                rows[kind].append(_run(_LOAD, str(package), str(columns[-1]), KFORGE_CACHE_DIR=str(cache)))
    return {kind: Loads(wall_s=_by_phase([r[0] for r in found]), cpu_s=_by_phase([r[1] for r in found]))
            for kind, found in rows.items()}  # fmt: skip


def _by_phase(rows: list[list[float]]) -> dict[str, list[float]]:
    return {phase: [round(row[index], 5) for row in rows] for index, phase in enumerate(PHASES)}


def _run(code: str, *arguments: str, **environment: str) -> list[list[float]]:
    # As after an installation modules are compiled, which the unrecorded first process sees to.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, env={**inherited, **environment}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise HarnessError(f"a process that is timed failed:\n{done.stderr}")
    found: list[list[float]] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the record")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--variants", type=int, default=VARIANTS)
    options = parser.parse_args()
    wall, cpu = import_times(options.samples)
    said = "holds" if median(wall) < IMPORT_BAR_S else "MISSED"
    print(f"import kernelforge: {median(wall):.3f} s, CPU {median(cpu):.3f}; bar {IMPORT_BAR_S}: {said}")
    loads = load_times(options.samples, variants=options.variants)
    for kind, found in loads.items():
        for phase in PHASES:
            held = f"; bar {LOAD_BAR_S}: {'holds' if found.load_s < LOAD_BAR_S else 'MISSED'}"
            wall_s, cpu_s = median(found.wall_s[phase]), median(found.cpu_s[phase])
            print(f"{kind} cache, {phase}: {wall_s:.3f} s, CPU {cpu_s:.3f}{held if phase == 'load' else ''}")
    if options.out:
        write_record(options.out, {
            "benchmark": "load_time", "bars_s": {"import": IMPORT_BAR_S, "load": LOAD_BAR_S},
            "variants": options.variants, "import": {"wall_s": wall, "cpu_s": cpu},
            "loads": {kind: asdict(found) for kind, found in loads.items()},
        })  # fmt: skip


if __name__ == "__main__":
    main()
