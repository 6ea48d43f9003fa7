"""What NVIDIA's profiler measured of the kernels of one call, in sentences. Owns `Profile`, `KernelProfile`. Pure.

With raw counters language models write slower kernels than without any, with what follows from them faster ones (the
ablation of KernelPro). So numbers stand only inside of sentences: which unit is nearest to its limit, what warps wait
for, which bytes move in vain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kernelforge.benchmark.roofline import traffic_bytes
from kernelforge.cards.types import VariantRecord
from kernelforge.explain.occupancy import WARP
from kernelforge.explain.speed import scalars_at
from kernelforge.wording import plural, size_text, time_text

PROFILED = "profiled: "
"""The first line of a diagnosis begins with this."""
MOST_SENTENCES = 6
MOST_KERNELS = 2
"""Of a call; the others are counted."""

BOUND, BUSY = 80.0, 60.0
"""Percent of a unit's peak: those of Nsight Compute's own rule of the "speed of light" section."""
WORTH_WAIT = 0.15
"""Part of the cycles between two instructions of a warp. Nsight Compute's rule has 0.3 for the first; here are two."""
MUCH_MORE_BYTES = 1.3
"""Times the necessary ones: rows that do not fill their sectors and what is read twice by chance stay below it."""
POOR_USE = 60.0
"""Percent of the bytes of a sector. A stride of two elements gives 50; an unaligned row seldom less than 70."""
SCATTERED = 16.0
"""Sectors of 32 bytes a request: a warp that reads 16 bytes a thread in a row needs so many, and no more."""
NARROW = 4.5
"""Sectors a request: a warp that reads 4 bytes a thread in a row needs 4."""
WORTH_CONFLICTS = 0.2
"""Part of the passes through shared memory."""
FEW_LANES = 20.0
"""Of the 32 threads of a warp."""
LOW_OCCUPANCY = 30.0
"""Percent; above it, loads in flight of each thread matter more than warps (Volkov, GTC 2010)."""
TINY_US = 3.0
"""Twice what an empty kernel takes in a stream on an H200 (1.5 us)."""
TAIL_WAVES = 4
"""With more full waves the last one is below a fifth of the time."""
ALMOST_FULL = 0.7

UNITS: Mapping[str, str] = {
    "dram": "the GPU's memory", "l2": "the L2 cache", "l1": "L1 and shared memory", "issue": "instruction issue",
    "tensor": "the tensor cores", "fma": "the FMA pipe", "alu": "the integer pipe",
    "xu": "the special-function pipe (exp, division, conversions)",
}  # fmt: skip
"""What has a peak, and its name."""

WAITS: Mapping[str, tuple[str, str]] = {
    "long_scoreboard": ("global loads", "start more loads before the first result is used, or run more warps"),
    "short_scoreboard": ("shared memory or special functions", ""),
    "barrier": ("barriers", "fewer __syncthreads, smaller blocks, or reduce within warps first"),
    "membar": ("memory fences", "fences and grid-wide steps are on the critical path"),
    "math_pipe_throttle": ("the math pipe", "it is busy: less arithmetic, or another pipe"),
    "mio_throttle": ("the queue of shared memory", "fewer, wider accesses to shared memory, or registers and shuffles"),
    "lg_throttle": ("memory throttle (the queue of global accesses is full)", "fewer and wider accesses, of 16 bytes"),
    "tex_throttle": ("the texture queue", ""),
    "drain": ("their last stores", "store in wider pieces, or less at the very end"),
    "no_instruction": ("instruction fetch", "shorter code: unroll less, avoid branches into cold code"),
    "imc_miss": ("constants and kernel arguments", "a short kernel pays their first load; pass fewer"),
    "wait": ("fixed latencies of arithmetic", "shorten the chain of dependent instructions, or interleave two"),
    "branch_resolving": ("branches", "fewer branches and loops with few steps"),
    "dispatch_stall": ("the dispatcher", ""),
    "sleeping": ("other blocks (spinning or sleeping)", "blocks that wait for one another do no work meanwhile"),
    "gmma": ("warpgroup matrix instructions", "more tiles in flight"),
    "misc": ("other causes", ""),
}  # fmt: skip
"""Reason of a stall, as the profiler calls it -> in words, and what helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelProfile:
    """One launched kernel. What the profiler did not give is None, or missing in a mapping.

    Attributes:
        grid, block: blocks, and threads of a block. registers: of a thread. sms: multiprocessors of the GPU.
        duration_us: as the profiler times it, apart from other kernels.
        units: percent of the peak over the whole duration, by the names of `UNITS`.
        occupancy: percent of the warps that fit, while any ran. waves: how often the grid fills the GPU.
        read_bytes, written_bytes: of DRAM. l2_bytes: between L1 and L2. l2_hit: percent.
        cycles: between two instructions of a warp; stalls: parts of them, by the names of `WAITS`.
        load_sectors, store_sectors: of 32 bytes, a request of a warp to global memory.
        load_use, store_use: percent of these sectors' bytes that were wanted.
        conflicts: part of the passes through shared memory that are there because of bank conflicts.
        local_bytes: of spilled registers and local arrays. instructions: of all warps.
        lanes: threads that take part in an instruction, of 32.
    """

    name: str
    grid: int
    block: int
    duration_us: float
    registers: int | None = None
    sms: int | None = None
    units: Mapping[str, float] = field(default_factory=dict)
    occupancy: float | None = None
    waves: float | None = None
    read_bytes: float | None = None
    written_bytes: float | None = None
    l2_bytes: float | None = None
    l2_hit: float | None = None
    cycles: float | None = None
    stalls: Mapping[str, float] = field(default_factory=dict)
    load_sectors: float | None = None
    store_sectors: float | None = None
    load_use: float | None = None
    store_use: float | None = None
    conflicts: float | None = None
    local_bytes: float | None = None
    instructions: float | None = None
    lanes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """All kernels of one warmed-up call.

    Attributes:
        device: the GPU's name. dims: the sizes of the call. cold: every kernel began with empty caches, as where the
            judge's inputs do not fit into them; else the inputs were in L2. recorded: POSIX seconds.
        kernels: in the order of their launches.
    """

    device: str
    dims: Mapping[str, int]
    cold: bool
    kernels: tuple[KernelProfile, ...]
    recorded: float = 0.0


def explain_profile(profile: Profile, record: VariantRecord | None) -> tuple[str, ...]:
    """The diagnosis of a call: a line that says what was profiled, then at most `MOST_SENTENCES` for each kernel.

    Args:
        record: of the variant; without it the necessary bytes are unknown.
    """
    at = ", ".join(f"{name}={value}" for name, value in profile.dims.items()) or "fixed sizes"
    caches = "caches cold" if profile.cold else "inputs in L2"
    head = f"{PROFILED}{plural(len(profile.kernels), 'kernel')} a call on {profile.device}, at {at}, {caches}"
    ranked = sorted(profile.kernels, key=lambda k: -k.duration_us)
    shown = ranked[:MOST_KERNELS]
    necessary = None
    if record is not None:
        necessary = traffic_bytes(record.variant, profile.dims, scalars_at(record, profile.dims))
    lines = [head, *_several(profile.kernels, ranked), *_traffic(profile, necessary)]
    left = MOST_SENTENCES - len(lines) + 1 if len(shown) == 1 else MOST_SENTENCES // 2 + 1
    for kernel in shown:
        lines += diagnose(kernel, most=left)
    return tuple(lines)


def diagnose(kernel: KernelProfile, *, most: int = MOST_SENTENCES) -> tuple[str, ...]:
    """What limits one kernel, the most important first, at most so many sentences."""
    found = [
        _nearest(kernel), *_waits(kernel), *_blocks(kernel), *_access(kernel), *_spills(kernel), *_conflicts(kernel),
        *_lanes(kernel),
    ]  # fmt: skip
    return tuple(found[:most])


def _nearest(kernel: KernelProfile) -> str:
    """The unit that is nearest to its limit, or that none is near."""
    shape = f"{plural(kernel.grid, 'block')} of {plural(kernel.block, 'thread')}"
    text = f"{kernel.name}, {shape}, {time_text(kernel.duration_us)}: "
    unit, share = max(kernel.units.items(), key=lambda item: item[1], default=("", 0.0))
    if not unit:
        return f"{text}how busy its units are is not known"
    if share >= BOUND:
        return f"{text}bound by {UNITS[unit]}, at {share:.0f}% of its peak"
    if share >= BUSY:
        return f"{text}nearest to its limit is {UNITS[unit]}, at {share:.0f}% of its peak"
    text += f"bound by latency: no unit is above {BUSY:.0f}% of its peak, the busiest is {UNITS[unit]} at {share:.0f}%"
    warps = kernel.grid * -(-kernel.block // WARP)
    if kernel.instructions and warps:
        text += f"; a warp executes about {kernel.instructions / warps:.0f} instructions"
    if kernel.duration_us < TINY_US:
        text += "; an empty kernel takes half of this time or more, so only a shorter chain of dependent steps gains"
    return text


def _waits(kernel: KernelProfile) -> Iterator[str]:
    """What warps wait for: at most two reasons."""
    # "selected" is the instruction itself; "not_selected" waits for nothing but its turn.
    cycles = kernel.cycles or sum(kernel.stalls.values()) + 1.0
    shares = {reason: value / cycles for reason, value in kernel.stalls.items() if reason in WAITS}
    worst = sorted((r for r, share in shares.items() if share >= WORTH_WAIT), key=lambda r: -shares[r])[:2]
    if not worst:
        return
    parts = " and ".join(f"{100 * min(shares[r], 1.0):.0f}% for {WAITS[r][0]}" for r in worst)
    hint = WAITS[worst[0]][1]
    yield f"of the {cycles:.0f} cycles from one instruction of a warp to the next, it waits {parts}" + (
        f": {hint}" if hint else ""
    )


def _blocks(kernel: KernelProfile) -> Iterator[str]:
    """Blocks that do not fill the GPU, a last wave that does not, few warps."""
    if kernel.sms and kernel.grid < kernel.sms:
        yield f"its {plural(kernel.grid, 'block')} leave {kernel.sms - kernel.grid} of {kernel.sms} SMs idle: use more"
        return
    waves = kernel.waves
    if waves is not None and 1.0 < waves < TAIL_WAVES and 0.0 < waves % 1.0 < ALMOST_FULL:
        yield (
            f"tail: the blocks fill the GPU {waves:.2g} times, so the last wave leaves much of it idle; choose a grid "
            "of whole waves, or loop over the work in one"
        )
    elif kernel.occupancy is not None and kernel.occupancy < LOW_OCCUPANCY and _is_idle(kernel):
        registers = f" ({kernel.registers} registers a thread)" if kernel.registers else ""
        yield f"only {kernel.occupancy:.0f}% of the warps that an SM can hold were there{registers}"


def _is_idle(kernel: KernelProfile) -> bool:
    return max(kernel.units.values(), default=0.0) < BUSY


def _access(kernel: KernelProfile) -> Iterator[str]:
    """Loads and stores that waste parts of what they move, or move too little at once."""
    wasted = []
    for word, sectors, use in (
        ("loads", kernel.load_sectors, kernel.load_use), ("stores", kernel.store_sectors, kernel.store_use)
    ):  # fmt: skip
        if use is not None and 0.0 < use < POOR_USE:
            wasted.append(f"global {word} use {use:.0f}% of the bytes they move")
        elif use is None and sectors is not None and sectors > SCATTERED + 0.5:
            wasted.append(f"global {word} touch {sectors:.0f} sectors of 32 bytes a warp, {SCATTERED:.0f} would do")
    if wasted:
        yield f"uncoalesced: {' and '.join(wasted)}; let neighbouring threads take neighbouring elements"
    elif kernel.load_sectors is not None and 1.5 < kernel.load_sectors <= NARROW and _waits_for_memory(kernel):
        yield (
            f"narrow loads: a warp's load brings {32 * kernel.load_sectors:.0f} bytes, with 16 bytes a thread it "
            "brings 512"
        )


def _waits_for_memory(kernel: KernelProfile) -> bool:
    cycles = kernel.cycles or sum(kernel.stalls.values()) + 1.0
    waits = kernel.stalls.get("long_scoreboard", 0.0) + kernel.stalls.get("lg_throttle", 0.0)
    return waits / cycles >= WORTH_WAIT


def _spills(kernel: KernelProfile) -> Iterator[str]:
    if kernel.local_bytes:
        yield f"{size_text(kernel.local_bytes)} of spilled registers or local arrays move: use fewer registers"


def _conflicts(kernel: KernelProfile) -> Iterator[str]:
    if kernel.conflicts is not None and kernel.conflicts >= WORTH_CONFLICTS:
        yield (
            f"bank conflicts: {100 * kernel.conflicts:.0f}% of the passes through shared memory are repeats; pad or "
            "swizzle the rows"
        )


def _lanes(kernel: KernelProfile) -> Iterator[str]:
    if kernel.lanes is not None and 0.0 < kernel.lanes < FEW_LANES:
        yield f"only {kernel.lanes:.0f} of a warp's 32 threads take part in an instruction on average"


def _several(kernels: Sequence[KernelProfile], ranked: Sequence[KernelProfile]) -> Iterator[str]:
    if len(kernels) < 2:
        return
    whole = sum(k.duration_us for k in kernels) or 1.0
    parts = ", ".join(f"{k.name} {100 * k.duration_us / whole:.0f}%" for k in ranked[:3])
    yield f"{len(kernels)} launches take {time_text(whole)}, and each but the first a gap besides: {parts}"


def _traffic(profile: Profile, necessary: int | None) -> Iterator[str]:
    """Bytes that moved against those that must."""
    if not necessary:
        return
    if profile.cold:
        moved, where = [_sum(k.read_bytes, k.written_bytes) for k in profile.kernels], "to and from the GPU's memory"
    else:
        moved, where = [k.l2_bytes for k in profile.kernels], "between L2 and the SMs"
    known = [value for value in moved if value is not None]
    if len(known) < len(profile.kernels):
        return
    ratio = sum(known) / necessary
    said = f"{size_text(sum(known))} moved {where}, {size_text(necessary)} are necessary"
    if ratio >= MUCH_MORE_BYTES:
        yield f"{said}: {ratio:.1f} times as many, so inputs are read more than once or sectors are not used up"


def _sum(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
