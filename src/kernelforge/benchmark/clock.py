"""The conditions under which times were taken, as text beside every measurement."""

from __future__ import annotations

import os
import shutil
import subprocess

from kernelforge.benchmark.machine import MachineFacts

_GPU_FIELDS = "clocks.sm,clocks.mem,temperature.gpu,power.draw,clocks_throttle_reasons.active"


def environment(facts: MachineFacts, *, device: str, threads: int, torch_version: str) -> dict[str, str]:
    """Device, versions, threads, load and clocks at this moment."""
    text = {
        "device": facts.device, "torch": torch_version, "threads": str(threads),
        "load_average": " ".join(f"{x:.2f}" for x in os.getloadavg()),
        "dispatch_overhead_us": f"{facts.dispatch_overhead_us:.2f} (added to the candidate's CPU times)",
        "bandwidth_gb_s": ", ".join(f"{s >> 10} KiB: {r / 1e9:.1f}" for s, r in facts.bandwidth),
    }  # fmt: skip
    if device == "cuda":
        text.pop("dispatch_overhead_us")
        text["gpu_clocks"] = gpu_clocks()
    return text


def gpu_clocks() -> str:
    """Clocks, temperature, power and throttle reasons of the first GPU, or why they are unknown."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown: no nvidia-smi"
    command = [tool, f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except subprocess.TimeoutExpired:
        return "unknown: nvidia-smi did not answer"
    return f"{_GPU_FIELDS}: {done.stdout.strip()}" if done.returncode == 0 else "unknown: nvidia-smi failed"
