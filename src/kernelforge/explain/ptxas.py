"""What `ptxas -v` wrote into a build log: registers, spills and shared memory of each kernel. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernelforge.explain.occupancy import occupancy

MAX_KERNELS = 5
ASSUMED_THREADS = 256
"""Of a block, where the source does not say."""

_ENTRY = re.compile(r"Compiling entry function '([^']+)' for 'sm_(\d+)[a-z]*'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_BOUNDS = re.compile(r"__launch_bounds__\s*\(\s*(\w+)[^)]*\)\s*(?:void\s+)?(\w+)\s*\(")
_LENGTH = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelResources:
    """What one kernel needs.

    Attributes:
        name: as in the binary (mangled). capability: 90 for sm_90 ...
        registers: of a thread. spill_bytes: stored to and loaded from local memory. shared_bytes: static, of a block.
    """

    name: str
    capability: int
    registers: int
    spill_bytes: tuple[int, int]
    shared_bytes: int


def parse_ptxas(log: str) -> tuple[KernelResources, ...]:
    """The kernels in a build log, in order; empty for a log without `ptxas -v`."""
    kernels = []
    starts = [*_ENTRY.finditer(log)]
    for index, match in enumerate(starts):
        part = log[match.end() : starts[index + 1].start() if index + 1 < len(starts) else len(log)]
        registers, spills, shared = _REGISTERS.search(part), _SPILLS.search(part), _SHARED.search(part)
        if registers is None:  # the log was cut here
            continue
        kernels.append(KernelResources(
            name=match[1], capability=int(match[2]), registers=int(registers[1]),
            spill_bytes=(int(spills[1]), int(spills[2])) if spills else (0, 0),
            shared_bytes=int(shared[1]) if shared else 0,
        ))  # fmt: skip
    return tuple(kernels)


def explain_kernels(log: str, source: str) -> tuple[str, ...]:
    """One line for each kernel of a build log, the one with the most registers first.

    Args:
        source: of the candidate, whose `__launch_bounds__` say how many threads a block has.
    """
    kernels = sorted(parse_ptxas(log), key=lambda k: -k.registers)
    lines = [_kernel_line(kernel, source) for kernel in kernels[:MAX_KERNELS]]
    more = len(kernels) - MAX_KERNELS
    return (*lines, f"and {more} kernels with fewer registers") if more > 0 else tuple(lines)


def threads_of(source: str, kernel: str) -> int | None:
    """Threads of a block by the kernel's `__launch_bounds__`, or None if it has none that can be read."""
    for bound, name in _BOUNDS.findall(source):
        if name == kernel:
            return _number(bound, source)
    return None


def plain_name(mangled: str) -> str:
    """The function's name with its namespaces, without parameters: "_Z11relu_kernelIfEvPKT_" is "relu_kernel"."""
    if not mangled.startswith("_Z"):
        return mangled
    nested = mangled.startswith("_ZN")
    rest = mangled[3:] if nested else mangled[2:].removeprefix("L")
    parts = []
    while match := _LENGTH.match(rest):
        end = match.end() + int(match[1])
        parts.append(rest[match.end() : end])
        rest = rest[end:].removeprefix("L")
        if not nested:
            break
    return "::".join(p for p in parts if not p.startswith("_GLOBAL__N_")) or mangled


def _number(word: str, source: str) -> int | None:
    if not word.isdigit():
        defined = re.search(rf"(?:\bconstexpr\s[^;=]*|#\s*define\s+|\benum\b[^;=]*)\b{word}\b\s*=?\s*(\d+)", source)
        word = defined[1] if defined else ""
    return int(word) if word and 0 < int(word) <= 1024 else None


def _kernel_line(kernel: KernelResources, source: str) -> str:
    name = plain_name(kernel.name)
    stored, loaded = kernel.spill_bytes
    spills = f"SPILLS {stored} bytes stored and {loaded} loaded a thread" if stored or loaded else "no spills"
    threads = threads_of(source, name.rpartition("::")[2])
    found = occupancy(
        kernel.capability, registers=kernel.registers, shared_bytes=kernel.shared_bytes,
        threads=threads or ASSUMED_THREADS,
    )  # fmt: skip
    text = f"{name}: {kernel.registers} registers, {spills}, {kernel.shared_bytes} bytes of static shared memory"
    if found is None:
        return text
    blocks = f"{threads} threads a block" if threads else f"{ASSUMED_THREADS} threads a block (assumed)"
    limit = f", limited by {found.limit}" if found.share < 1.0 else ""
    return f"{text}; occupancy at most {found.share:.0%} at {blocks}{limit}"
