"""What this machine can run, and why an entry cannot run on it, or is not known to be right and fast on it.

A kernel is right and faster under the torch, on the GPU and under the driver where it was judged. The minor version of
torch counts, because eager's own results and times change with it; the GPU's name, because times do. Of the driver its
branch counts (580 of 580.65.06): branches differ in how they launch, replay graphs and set clocks, while releases
within one mend faults, and come with a system's weekly updates, which must not turn every kernel off. A driver that is
not known, here or in the package, turns nothing off.

Reading the machine apart, everything here is pure.
"""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass
from pathlib import Path

from kernelforge.package.types import Binary, Entry, Header

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
        driver: version of the GPUs' driver, "580.65.06"; "" without a GPU, or if it does not tell.
        cpu: what the CPU calls itself, or "".
    """

    cpu_targets: tuple[str, ...]
    capabilities: tuple[str, ...]
    device_names: tuple[str, ...]
    torch: str
    driver: str = ""
    cpu: str = ""


def this_machine() -> Machine:
    """Look at this machine; starts no CUDA context when there is no CUDA device."""
    import torch

    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else range(0)
    capabilities = [torch.cuda.get_device_capability(i) for i in devices]
    flags, cpu = _cpu_info()
    return Machine(
        cpu_targets=cpu_targets(platform.machine(), flags),
        capabilities=tuple(f"sm_{major}{minor}" for major, minor in capabilities),
        device_names=tuple(torch.cuda.get_device_name(i) for i in devices),
        torch=torch.__version__.split("+")[0], driver=driver_version() if capabilities else "", cpu=cpu,
    )  # fmt: skip


def driver_version() -> str:
    """Version of the NVIDIA driver, "580.65.06", by its management library; "" if that is not there."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        text = ctypes.create_string_buffer(96)
        if library.nvmlInit_v2() != 0:
            return ""
        known = library.nvmlSystemGetDriverVersion(text, ctypes.c_uint(len(text))) == 0
        library.nvmlShutdown()
    except (OSError, AttributeError):
        return ""
    return text.value.decode(errors="replace") if known else ""


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
    return cannot_run(entry, machine) or uncertified(entry, header, machine)


def cannot_run(entry: Entry, machine: Machine) -> str:
    """Why none of an entry's binaries runs on a machine, or "" if one does."""
    if binary_for(entry, machine) is not None:
        return ""
    if not any(b.callable for b in entry.binaries):
        binary = entry.binary
        return f"is called by the ABI {binary.abi} {binary.abi_version}, which this version does not know"
    if entry.variant.device == "cpu":
        return f"needs a CPU of level {entry.binary.target}; this one has {machine.cpu_targets[-1]}"
    if not machine.capabilities:
        return "needs a CUDA device; there is none"
    return f"needs {entry.variant.capability}; there is {', '.join(sorted(set(machine.capabilities)))}"


def binary_for(entry: Entry, machine: Machine) -> Binary | None:
    """The binary of an entry that a machine runs: of several the one for the highest level that it has."""
    known = [b for b in entry.binaries if b.callable]
    if entry.variant.device == "cpu":
        fitting = [b for b in known if b.target in machine.cpu_targets]
        return max(fitting, key=lambda b: machine.cpu_targets.index(b.target), default=None)
    # The guard of a variant asks for its capability, so that no other one's binary would ever be launched.
    if entry.variant.capability not in machine.capabilities:
        return None
    return next((b for b in known if b.target == entry.variant.capability), next(iter(known), None))


def uncertified(entry: Entry, header: Header, machine: Machine) -> str:
    """In what this machine differs from where an entry was judged, so that neither its verdict nor its times hold here;
    "" if in nothing that counts.
    """
    if torch_minor(header.torch) != torch_minor(machine.torch):
        return f"judged under torch {header.torch}, this is {machine.torch}: certify it again"
    if entry.variant.device == "cpu":
        return ""
    if header.device_name and header.device_name not in machine.device_names:
        return f"judged on {header.device_name}, this is {machine.device_names[0]}: certify it again"
    ours, theirs = driver_branch(machine.driver), driver_branch(header.driver)
    if ours and theirs and ours != theirs:
        return f"judged under driver {header.driver}, this is {machine.driver}: certify it again"
    return ""


def torch_minor(version: str) -> str:
    """ "2.13" of "2.13.0+cu130"."""
    return ".".join(version.split("+", maxsplit=1)[0].split(".")[:2])


def driver_branch(version: str) -> str:
    """ "580" of "580.65.06"."""
    return version.split(".", maxsplit=1)[0]


def _cpu_info() -> tuple[frozenset[str], str]:
    """Flags of the CPU as /proc/cpuinfo names them, and its name; nothing where there is no such file."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset(), ""
    lines = [line.split(":", 1) for line in text.splitlines() if line.startswith(("flags", "model name"))]
    found = {name.strip(): value.strip() for name, value in reversed(lines)}
    return frozenset(found.get("flags", "").split()), found.get("model name", "")
