"""What whoever writes a kernel should know of the device, out of the environment that stands beside a measurement."""

from __future__ import annotations

from collections.abc import Mapping

KIB = 1024


def target_facts(environment: Mapping[str, str]) -> tuple[str, ...]:
    """A fact a line; only what stays the same from one measurement to the next, and of it what is known."""
    lines = [environment[key] for key in ("device", "gpu_resources") if environment.get(key)]
    if environment.get("threads") and "gpu_clocks" not in environment:
        lines.append(f"{environment['threads']} threads, which eager uses too")
    rates = _pairs(environment.get("bandwidth_gb_s", ""), "KiB")
    if rates:
        small, large = rates[0], rates[-1]
        lines.append(
            f"memory: at most {large[1]:.0f} GB/s; {small[1]:.0f} GB/s where all of a call fits into {_size(small[0])}"
        )
    peaks = _pairs(environment.get("peak_gflop_s", ""), "")
    if peaks:
        lines.append("matrix products: " + ", ".join(f"{rate / 1e3:.4g} TFLOP/s in {dtype}" for dtype, rate in peaks))
    return tuple(lines)


def gpu_resources() -> str:
    """Architecture, multiprocessors, caches and limits of the first GPU."""
    import torch

    gpu = torch.cuda.get_device_properties(0)

    def known(name: str, text: str, unit: int = 1) -> list[str]:
        value = getattr(gpu, name, 0) // unit  # some are not in torch's own stubs
        return [text.format(value)] if value else []

    parts = [
        f"sm_{gpu.major}{gpu.minor}", *known("multi_processor_count", "{} SMs"),
        *known("max_threads_per_multi_processor", "{} threads an SM"),
        *known("regs_per_multiprocessor", "{} registers an SM"),
        *known("shared_memory_per_multiprocessor", "{} KiB shared memory an SM", KIB),
        *known("shared_memory_per_block_optin", "at most {} KiB a block (above 48: dynamic, with an attribute)", KIB),
        *known("L2_cache_size", "L2 {} MiB", KIB**2),
    ]  # fmt: skip
    return ", ".join(parts)


def _pairs(text: str, unit: str) -> list[tuple[str, float]]:
    """Name and number of each of "name: number, ..."."""
    pairs = [part.partition(": ") for part in text.split(", ") if ": " in part]
    return [(name.removesuffix(unit).strip(), float(number)) for name, _, number in pairs]


def _size(kib: str) -> str:
    return f"{int(kib)} KiB" if int(kib) < KIB else f"{int(kib) // KIB} MiB"
