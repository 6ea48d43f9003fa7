"""Nsight Compute's command line, and its CSV as `KernelProfile`s. Pure.

Of its metrics only those are collected that a sentence is made of: each pass runs the kernel once more. Their names are
those of the sections that it ships; one that it does not know on a GPU comes as "n/a" or not at all, and is left out.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from kernelforge.explain.profile import WAITS, KernelProfile

MOST_LAUNCHES = 32
"""Of two calls together. A kernel is run some twenty times for its metrics."""

_PEAK = "avg.pct_of_peak_sustained_elapsed"
_UNITS: Mapping[str, str] = {
    "dram": f"dram__throughput.{_PEAK}", "l2": f"lts__throughput.{_PEAK}", "l1": f"l1tex__throughput.{_PEAK}",
    "issue": f"sm__inst_issued.{_PEAK}", "tensor": f"sm__pipe_tensor_cycles_active.{_PEAK}",
    "fma": f"sm__pipe_fma_cycles_active.{_PEAK}", "alu": f"sm__pipe_alu_cycles_active.{_PEAK}",
    "xu": f"sm__inst_executed_pipe_xu.{_PEAK}",
}  # fmt: skip
_STALLS: Mapping[str, str] = {r: f"smsp__average_warps_issue_stalled_{r}_per_issue_active.ratio" for r in WAITS}
_SINGLE: Mapping[str, str] = {
    "duration": "gpu__time_duration.sum", "grid": "launch__grid_size", "block": "launch__block_size",
    "registers": "launch__registers_per_thread", "sms": "launch__sm_count", "waves": "launch__waves_per_multiprocessor",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "read": "dram__bytes_read.sum", "written": "dram__bytes_write.sum",
    "l2_sectors": "lts__t_sectors_srcunit_tex.sum", "l2_hit": "lts__t_sector_hit_rate.pct",
    "cycles": "smsp__average_warp_latency_per_inst_issued.ratio",
    "load_sectors": "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    "store_sectors": "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio",
    "load_use": "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    "store_use": "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",
    "conflicts_ld": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "conflicts_st": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "passes": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "local_ld": "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
    "local_st": "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",
    "instructions": "smsp__inst_executed.sum",
    "lanes": "smsp__thread_inst_executed_per_inst_executed.ratio",
}  # fmt: skip
METRICS = (*_SINGLE.values(), *_UNITS.values(), *_STALLS.values())

_SECTOR = 32
_TO_US = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_NAMES = ("Kernel Name", "Function Name")


def ncu_command(profiler: Path, log: Path, *, cold: bool, without: Collection[str] = ()) -> tuple[str, ...]:
    """`ncu`, to be put before a program's own command line.

    Args:
        log: where its CSV goes, so that what the program prints is not taken for it.
        cold: empty the caches before every pass; else each pass finds what the one before left there.
        without: metrics that it does not know.
    """
    metrics = ",".join(metric for metric in METRICS if metric not in without)
    return (
        str(profiler), "--csv", "--page", "raw", "--print-units", "base", "--print-kernel-base", "function",
        "--metrics", metrics, "--clock-control", "none", "--cache-control", "all" if cold else "none",
        "--launch-count", str(MOST_LAUNCHES), "--log-file", str(log),
    )  # fmt: skip


def unknown_metrics(output: str) -> frozenset[str]:
    """The metrics that a version of ncu refuses to collect, by its errors."""
    errors = [line for line in output.splitlines() if "ERROR" in line and "metric" in line.lower()]
    words = {word.strip("\"',.:;") for line in errors for word in re.split(r"[\s,]+", line)}
    return frozenset(words.intersection(METRICS))


def parse_ncu(text: str) -> tuple[KernelProfile, ...]:
    """The kernels in its CSV, in the order of their launches, between whatever else stands there.

    A column a metric with the units in the row below, as the raw page has it; or a row a metric, as the others have.
    """
    lines = text.splitlines()
    start = next(
        (i for i, line in enumerate(lines) if line.startswith('"ID",') and any(n in line for n in _NAMES)), None
    )
    if start is None:
        return ()
    rows = list(csv.DictReader(line for line in lines[start:] if line.startswith('"')))
    found = _long(rows) if rows and "Metric Name" in rows[0] else _wide(rows)
    return tuple(kernel for each in found if (kernel := _kernel(*each)) is not None)


Metrics = Mapping[str, float]


def _wide(rows: Sequence[Mapping[str, str]]) -> Sequence[tuple[Mapping[str, str], Metrics]]:
    units: Mapping[str, str] = {}
    found = []
    for row in rows:
        if not (row.get("ID") or "").isdigit():
            units = row  # the row of units has no number
            continue
        values = ((name, _value(row.get(name), units.get(name))) for name in METRICS)
        found.append((row, {name: value for name, value in values if value is not None}))
    return found


def _long(rows: Sequence[Mapping[str, str]]) -> Sequence[tuple[Mapping[str, str], Metrics]]:
    launches: dict[str, tuple[Mapping[str, str], dict[str, float]]] = {}
    for row in rows:
        launch, value = row.get("ID") or "", _value(row.get("Metric Value"), row.get("Metric Unit"))
        if launch.isdigit():
            metrics = launches.setdefault(launch, (row, {}))[1]
            if value is not None:
                metrics[row.get("Metric Name") or ""] = value
    return list(launches.values())


def _kernel(row: Mapping[str, str], metrics: Metrics) -> KernelProfile | None:
    """None without a duration: then nothing of it was measured."""
    name = next((row[n] for n in _NAMES if row.get(n)), "a kernel")
    one = {key: metrics.get(metric) for key, metric in _SINGLE.items()}
    duration = one["duration"]
    if duration is None:
        return None
    sectors, passes = one["l2_sectors"], one["passes"]
    return KernelProfile(
        name=name.partition("(")[0].strip() or name, duration_us=duration,
        grid=int(one["grid"] or _product(row.get("Grid Size"))),
        block=int(one["block"] or _product(row.get("Block Size"))),
        registers=None if one["registers"] is None else int(one["registers"]),
        sms=None if one["sms"] is None else int(one["sms"]), waves=one["waves"], occupancy=one["occupancy"],
        units={unit: metrics[metric] for unit, metric in _UNITS.items() if metric in metrics},
        stalls={reason: metrics[metric] for reason, metric in _STALLS.items() if metric in metrics},
        read_bytes=one["read"], written_bytes=one["written"], l2_hit=one["l2_hit"], cycles=one["cycles"],
        l2_bytes=None if sectors is None else sectors * _SECTOR,
        load_sectors=one["load_sectors"], store_sectors=one["store_sectors"], load_use=one["load_use"],
        store_use=one["store_use"], instructions=one["instructions"], lanes=one["lanes"],
        conflicts=_sum(one["conflicts_ld"], one["conflicts_st"]) / passes if passes else None,
        local_bytes=_SECTOR * _sum(one["local_ld"], one["local_st"]),
    )  # fmt: skip


def _sum(*values: float | None) -> float:
    return sum(value for value in values if value is not None)


def _value(text: str | None, unit: str | None) -> float | None:
    """A number in microseconds, bytes or as it is; None for "n/a", NaN and whatever else is none."""
    try:
        # English thousands: the runner's own locale is C.
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return value * _factor((unit or "").strip()) if math.isfinite(value) else None


def _factor(unit: str) -> float:
    """To microseconds or bytes, whichever the unit is of; older versions spell "nsecond" and "Mbyte"."""
    lower = unit.lower()
    if (short := lower.replace("second", "s")) in _TO_US:
        return _TO_US[short]
    match = re.fullmatch(r"([kmgt]?)byte", lower)
    return _PREFIXES[match[1]] if match else 1.0


def _product(shape: str | None) -> int:
    """Of "(132, 2, 1)"."""
    return math.prod(int(number) for number in re.findall(r"\d+", shape or "")) if shape else 0
