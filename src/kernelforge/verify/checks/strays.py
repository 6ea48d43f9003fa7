"""What a candidate left beside its work: child processes, and frameworks that it brought into its process. Linux only.

Seen from outside, in /proc, so that it holds for binaries in which no symbol shows it (CUDA's static run time imports a
loader and more for itself).
"""

from __future__ import annotations

from pathlib import Path

import psutil

from kernelforge.verify.types import Rejected, RejectReason

BACKEND_LIBRARIES = (
    "libtorch", "libc10", "libaten", "libcublas", "libcudnn", "libcusparse", "libcusolver", "libcufft", "libcutensor",
    "libnvinfer", "libnccl", "libmkl", "libdnnl", "libonednn", "libopenblas", "libblas", "liblapack", "libonnxruntime",
    "libtensorflow", "libjax", "libxla", "libtvm.", "libnvrtc", "libcupti", "libpython",
)  # fmt: skip
_WHERE = "the process after its last case"


def strays_of(pid: int, *, in_torch: bool = False) -> Rejected | None:
    """`tamper` if the candidate's process has children, `delegated` if a framework or a vendor's library is mapped.

    Args:
        in_torch: torch is there anyway.
    """
    try:
        children = psutil.Process(pid).children(recursive=True)
        maps = Path(f"/proc/{pid}/maps").read_text()
    except (psutil.NoSuchProcess, OSError):
        return None
    if children:
        detail = f"the kernel started {len(children)} processes"
        return Rejected(reason=RejectReason.TAMPER, case=_WHERE, detail=detail)
    names = {line.rsplit("/", 1)[-1] for line in maps.splitlines() if "/" in line}
    foreign = sorted(n for n in names if n.lower().startswith(BACKEND_LIBRARIES))
    if foreign and not in_torch:
        detail = f"the kernel loaded {', '.join(foreign[:4])}: the work is to be its own"
        return Rejected(reason=RejectReason.DELEGATED, case=_WHERE, detail=detail)
    return None
