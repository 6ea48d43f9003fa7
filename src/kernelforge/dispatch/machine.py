"""What this machine can run, and why an entry cannot run on it. The second half is pure."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from kernelforge.package.types import Entry, Header

# Flags as /proc/cpuinfo names them; each level includes the ones before it.
_CPU_LEVELS = (
    ("x86-64", frozenset[str]()),
    ("x86-64-v2", frozenset({"sse4_2", "ssse3", "popcnt", "cx16"})),
    ("x86-64-v3", frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})),
    ("x86-64-v4", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What matters of a machine.

    Attributes:
        cpu_targets: what a CPU binary may be built for, weakest first: "x86-64" ... "x86-64-v3", or "aarch64".
        capabilities, device_names: of each visible CUDA device, "sm_90" and "NVIDIA H200".
        torch: version of torch, "2.13.0".
    """

    cpu_targets: tuple[str, ...]
    capabilities: tuple[str, ...]
    device_names: tuple[str, ...]
    torch: str


def this_machine() -> Machine:
    """Look at this machine; starts no CUDA context when there is no CUDA device."""
    import torch

    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else range(0)
    capabilities = [torch.cuda.get_device_capability(i) for i in devices]
    return Machine(
        cpu_targets=cpu_targets(platform.machine(), _cpu_flags()),
        capabilities=tuple(f"sm_{major}{minor}" for major, minor in capabilities),
        device_names=tuple(torch.cuda.get_device_name(i) for i in devices),
        torch=torch.__version__.split("+")[0],
    )


def cpu_targets(machine: str, flags: frozenset[str]) -> tuple[str, ...]:
    """The targets that a CPU with these flags can run, weakest first."""
    if machine not in {"x86_64", "AMD64"}:
        return (machine,)
    targets = []
    for name, needed in _CPU_LEVELS:
        if not needed <= flags:
            break
        targets.append(name)
    return tuple(targets)


def why_off(entry: Entry, header: Header, machine: Machine) -> str:
    """Why an entry cannot be used on a machine, or "" if it can."""
    if _minor(header.torch) != _minor(machine.torch):
        return f"judged under torch {header.torch}, this is {machine.torch}: certify it again"
    if entry.variant.device == "cpu":
        if entry.binary.target not in machine.cpu_targets:
            return f"needs a CPU of level {entry.binary.target}; this one has {machine.cpu_targets[-1]}"
        return ""
    if not machine.capabilities:
        return "needs a CUDA device; there is none"
    if entry.variant.capability not in machine.capabilities:
        return f"needs {entry.variant.capability}; there is {', '.join(sorted(set(machine.capabilities)))}"
    if header.device_name and header.device_name not in machine.device_names:
        return f"judged on {header.device_name}, this is {machine.device_names[0]}: certify it again"
    return ""


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split("+", maxsplit=1)[0].split(".")[:2])


def _cpu_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    lines = (line for line in text.splitlines() if line.startswith("flags"))
    return frozenset(next((line.split(":", 1)[1].split() for line in lines), []))
