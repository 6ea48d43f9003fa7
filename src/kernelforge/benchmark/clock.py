"""The conditions under which times were taken, as text beside every measurement."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import psutil

from kernelforge.benchmark.slot import physical_gpu
from kernelforge.benchmark.target import gpu_resources

if TYPE_CHECKING:
    from kernelforge.benchmark.machine import MachineFacts
    from kernelforge.benchmark.types import Measurement

BUSY_SHARE = 0.2
"""Of the machine's CPUs: from which on others disturb a timing."""


_GPU_FIELDS = "clocks.sm,clocks.mem,temperature.gpu,power.draw,clocks_throttle_reasons.active"


def environment(facts: MachineFacts, *, device: str, threads: int, torch_version: str) -> dict[str, str]:
    """Device, versions, threads, load and clocks at this moment."""
    text = {
        "device": facts.device, "torch": torch_version, "threads": str(threads),
        "load_average": " ".join(f"{x:.2f}" for x in os.getloadavg()),
        "dispatch_overhead_us": f"{facts.dispatch_overhead_us:.2f} (added to the candidate's CPU times)",
        "bandwidth_gb_s": ", ".join(f"{s >> 10} KiB: {r / 1e9:.1f}" for s, r in facts.bandwidth),
    }  # fmt: skip
    if facts.flops:
        text["peak_gflop_s"] = ", ".join(f"{dtype}: {rate / 1e9:.4g}" for dtype, rate in facts.flops)
    if device == "cuda":
        text.pop("dispatch_overhead_us")
        text["clock_us"] = f"{facts.clock_us:.2f} (what two events add, taken off both sides)"
        text["launch_us"] = f"{facts.launch_us:.2f} (least time of any call)"
        text["gpu"] = physical_gpu(0)
        text["gpu_resources"] = gpu_resources()
        text["gpu_clocks"] = gpu_clocks(text["gpu"])
    return text


class ForeignLoad:
    """How much of the machine's CPUs others used since the object was made. Not thread-safe.

    Args:
        pids: our own processes besides this one; one that is gone by the end counts as foreign from its last look.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = (os.getpid(), *pids)
        self._started, self._busy, self._own = time.monotonic(), _busy_s(), self._own_s()

    def share(self) -> float:
        """Foreign CPU time over all CPU time there was, in [0, 1]."""
        wall = max(time.monotonic() - self._started, 1e-3)
        foreign = _busy_s() - self._busy - max(self._own_s() - self._own, 0.0)
        return min(max(foreign / (wall * (os.cpu_count() or 1)), 0.0), 1.0)

    def _own_s(self) -> float:
        total = 0.0
        for pid in self._pids:
            try:
                times = psutil.Process(pid).cpu_times()
            except psutil.Error:
                continue
            total += times.user + times.system
        return total


def wait_until_quiet(pids: Sequence[int], *, share: float, timeout_s: float) -> None:
    """Wait until others use less than `share` of the CPUs for a quarter of a second, or until the time is up."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        load = ForeignLoad(pids)
        time.sleep(0.25)
        if load.share() < share:
            return


def was_disturbed(measurement: Measurement) -> bool:
    """Whether others used more of the CPUs while this was timed than the judge takes for quiet."""
    try:
        return float(measurement.environment.get("foreign_cpu_share", "0")) > BUSY_SHARE
    except ValueError:
        return False


def _busy_s() -> float:
    times = psutil.cpu_times()
    # "user" leaves out what runs at a lower priority; "steal" is what other guests of the host took from us.
    return float(times.user + times.system + getattr(times, "nice", 0.0) + getattr(times, "steal", 0.0))


def gpu_clocks(gpu: str) -> str:
    """Clocks, temperature, power and throttle reasons of a GPU by its UUID, or why they are unknown."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown: no nvidia-smi"
    command = [tool, f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader", f"--id={gpu}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except subprocess.TimeoutExpired:
        return "unknown: nvidia-smi did not answer"
    return f"{_GPU_FIELDS}: {done.stdout.strip()}" if done.returncode == 0 else "unknown: nvidia-smi failed"
