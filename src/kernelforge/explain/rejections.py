"""What usually causes a rejection, and what to look at: one hint for each reason. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelforge.verify.types import Rejected, RejectReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """cause: what a rejection for this reason usually comes from. look_at: where in the source to look first."""

    cause: str
    look_at: str


HINTS: Mapping[RejectReason, Hint] = {
    RejectReason.WRONG_VALUE: Hint(
        cause="an index, a stride, a tail, or a step of the formula is off",
        look_at="where the wrong elements sit: only at row ends means the tail, everywhere means the formula or a "
        "stride, only for nan or inf means a comparison that drops them",
    ),
    RejectReason.WRONG_META: Hint(
        cause="the outputs are not those of the variant in number, shape or type",
        look_at="the output parameters of launch in the prelude",
    ),
    RejectReason.PRECISION_DOWNGRADE: Hint(
        cause="part of the arithmetic is done in a narrower type than eager does it in",
        look_at="accumulators and intermediate results (keep them in float), tensor-core modes, fast-math intrinsics",
    ),
    RejectReason.MUTATED_INPUT: Hint(
        cause="an input is used as scratch memory, or inputs and outputs are mixed up",
        look_at="every store through a pointer that comes from an input; scratch belongs into the workspace",
    ),
    RejectReason.STALE_OUTPUT: Hint(
        cause="something is kept from one call to the next: a flag, a counter, a cached result",
        look_at="static and global variables; every call must compute from its own arguments",
    ),
    RejectReason.OUT_OF_BOUNDS: Hint(
        cause="the last block, tile or vector goes past the end of a buffer",
        look_at="the bounds check of the innermost loop at sizes that the block and the vector width do not divide",
    ),
    RejectReason.UNDEFINED_BEHAVIOUR: Hint(
        cause="an overflow of a signed integer, a shift by too much, a misaligned or null pointer",
        look_at="the line that the detail names; index arithmetic in 32 bits, casts of pointers to wider types",
    ),
    RejectReason.UNINITIALISED: Hint(
        cause="memory is read that nobody has written: a local, shared memory, the workspace, an output",
        look_at="accumulators without a start value, partial sums of blocks that had no work, the last iteration",
    ),
    RejectReason.NONDETERMINISTIC: Hint(
        cause="a race: threads write one element, or read what another has not written yet; or memory is read that "
        "nobody set",
        look_at="missing __syncthreads or OpenMP reductions, shared accumulators, a workspace taken as zero",
    ),
    RejectReason.LAUNCH_ERROR: Hint(
        cause="the launch itself was refused, or the device failed in it",
        look_at="grid and block sizes (also 0 for an empty size), dynamic shared memory above 48 KiB without "
        "cudaFuncSetAttribute, the value that launch returns",
    ),
    RejectReason.CRASH: Hint(
        cause="an invalid address, an unaligned vector access, or a symbol that no library provides",
        look_at="pointer arithmetic in 32 bits, vector loads at an alignment that the prelude does not promise, "
        "functions that are declared but not defined",
    ),
    RejectReason.TIMEOUT: Hint(
        cause="a loop that does not end, a deadlock, or far too little parallelism for the largest size",
        look_at="loop conditions with a step of 0, barriers that not all threads of a block reach, spin locks",
    ),
    RejectReason.OUT_OF_MEMORY: Hint(
        cause="the workspace grows faster than the sizes, or overflows when its bytes are computed",
        look_at="workspace_bytes at the upper end of every dim, computed in size_t",
    ),
    RejectReason.TIMING_SUSPECT: Hint(
        cause="work is missing or done outside of the timed window: another stream, a thread, an early return",
        look_at="that every launch is on the stream of the call, and that every byte of the output is written each "
        "time",
    ),
    RejectReason.DELEGATED: Hint(
        cause="the work is left to code that is loaded at run time",
        look_at="dlopen and the like, and library search paths; compute in this source",
    ),
    RejectReason.TAMPER: Hint(
        cause="the binary reaches for what no kernel needs: processes, files, threads, clocks",
        look_at="printing left over from debugging, and the functions that the detail names",
    ),
    RejectReason.FORBIDDEN: Hint(
        cause="memory of its own: an allocation, or state that outlives the call",
        look_at="malloc, new, std::vector and large static variables; take the workspace, and make tables const",
    ),
    RejectReason.NO_VERDICT: Hint(
        cause="the process ended before the judge had its answer",
        look_at="exit, abort and signals in the source",
    ),
}  # fmt: skip


def explain_rejection(rejected: Rejected) -> tuple[str, ...]:
    """What the judge saw, and the hint for its reason."""
    lines = [f"rejected: {rejected.reason}"]
    if rejected.case:
        lines.append(f"case: {rejected.case}")
    lines += rejected.detail.splitlines()
    hint = HINTS.get(rejected.reason)
    if hint is not None:
        lines += [f"usual cause: {hint.cause}", f"look at: {hint.look_at}"]
    return tuple(lines)
