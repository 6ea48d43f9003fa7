"""What certifying a package again costs on this machine: wall seconds for each kernel, and for all.

    python -m benchmarks.recertify_cost --device cuda [--entries 20] [--modes eager,graphed] [--out FILE.json]

The package is one of template kernels that claims to have been made under another torch; nothing of it is kept.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness import write_record
from benchmarks.unjudged_packages import template_candidates, write_unjudged
from kernelforge import recertifying
from kernelforge.capture.facts import capability_of
from kernelforge.capture.types import TensorRef
from kernelforge.cards.types import Dim, Extent, SizePoint, TensorPattern, Variant, VariantRecord
from kernelforge.evaluate.judge import Judge
from kernelforge.package.reader import read_package
from kernelforge.package.writer import write_package
from kernelforge.report.certified import RecertifyReport
from kernelforge.report.grid import grid_text
from kernelforge.report.package_tables import recertify_grids
from kernelforge.settings import Settings, load_settings
from kernelforge.standing import Standing

OPERATORS = ("relu", "sigmoid", "tanh", "exp", "abs")
COLUMNS = (96, 256, 1024, 4096)


def records(device: str, count: int) -> list[VariantRecord]:
    """Elementwise operators and softmax on float32 [n0, columns], n0 in [1, 2048]."""
    found = []
    for columns in COLUMNS:
        pattern = TensorPattern(
            shape=(Extent(1, ("n0",)), Extent(columns)), stride=(Extent(columns), Extent(1)), dtype="float32"
        )
        made: dict[str, tuple[tuple[str, Any], ...]] = {
            name: (("input", TensorRef(0)), ("inplace", False)) for name in OPERATORS
        }
        made["softmax"] = (("input", TensorRef(0)), ("dim", 1), ("dtype", None))
        for operator, arguments in made.items():
            variant = Variant(
                operator=operator, arguments=arguments, tensors=(pattern,), outputs=(pattern,),
                dims=(Dim(name="n0", low=1, high=2048),), device=device,
                capability=capability_of("cuda") if device == "cuda" else "",
            )  # fmt: skip
            point = SizePoint(dims={"n0": 512}, scalars={}, calls=1, eager_us=10.0)
            found.append(VariantRecord(variant=variant, points=(point,), share=1.0 / count))
    return found[:count]


def measure(device: str, count: int, modes: Sequence[str] | None) -> tuple[RecertifyReport, dict[str, float]]:
    """The report, and wall seconds of each phase of the judge."""
    phases: defaultdict[str, float] = defaultdict(float)

    def add(name: str, seconds: float) -> None:
        phases[name] += seconds

    def judge(opened: Standing) -> Judge:
        return Judge(opened.settings, device=device, backend=recertifying.BuildsNothing(), on_phase=add)  # type: ignore[arg-type]

    recertifying.open_judge = judge  # so that the phases are heard of
    with tempfile.TemporaryDirectory(prefix="kforge-recertify-cost-") as folder:
        settings: Settings = replace(load_settings(), config_dir=Path(folder) / "config")
        path = write_unjudged(Path(folder) / "kernels.cast", template_candidates(records(device, count)), settings)
        package = read_package(path)
        write_package(path, package.entries, header=replace(package.header, torch="0.0.0"))
        trust = f"sha256:{read_package(path).digest}"
        report = recertifying.recertify(path, settings=settings, trust=trust, modes=modes, say=print)
    return report, dict(phases)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--entries", type=int, default=20)
    parser.add_argument("--modes", default="")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    modes = arguments.modes.split(",") if arguments.modes else None
    report, phases = measure(arguments.device, arguments.entries, modes)
    for grid in recertify_grids(report):
        print(grid_text(grid))
    for name, seconds in sorted(phases.items(), key=lambda item: -item[1]):
        print(f"{seconds:8.1f} s  {name}")
    print(f"{report.seconds:8.1f} s  in all, {report.seconds / max(len(report.entries), 1):.1f} s a kernel")
    if arguments.out:
        # Of paths only the names: the folder was a temporary one.
        shown = {k: Path(str(v)).name if k in {"path", "record"} else v for k, v in report.to_json().items()}
        write_record(arguments.out, {"benchmark": "recertify_cost", "report": shown, "phases_s": phases})


if __name__ == "__main__":
    main()
