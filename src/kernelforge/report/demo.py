"""What the demo reports: plain data. Owns `DemoReport`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelforge.digest import Json
from kernelforge.report.package_run import PackageRunReport
from kernelforge.report.rows import OperatorRow, WholeModel, finite


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """The demo's result.

    Attributes:
        rows: model name -> its operator table. whole_model: model name -> its A/B.
        runs: model name -> its package, read back and run with the model in each way that the device allows.
        seconds: wall time of all. peak_rss_bytes: largest resident memory of the process tree.
    """

    rows: Mapping[str, tuple[OperatorRow, ...]]
    whole_model: Mapping[str, WholeModel]
    seconds: float
    peak_rss_bytes: int
    device: str = "cpu"
    packages: Mapping[str, str] = field(default_factory=dict)
    runs: Mapping[str, PackageRunReport] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        return {
            "device": self.device,
            "operators": {name: [r.to_json() for r in rows] for name, rows in self.rows.items()},
            "whole_model": {name: whole.to_json() for name, whole in self.whole_model.items()},
            "packages": dict(self.packages), "package_runs": {name: run.to_json() for name, run in self.runs.items()},
            "seconds": finite(self.seconds), "peak_rss_bytes": self.peak_rss_bytes,
        }  # fmt: skip
