"""What happens when a kernel fails for real: it is named, and kept from being used again. Owns `Failures`.

Eager after a CUDA error would only fail elsewhere, and hide the cause. Which kernel is at fault is not always known: a
fault on the device, an illegal access say, shows at some later call, whoever makes it. So a launch that returns such an
error is quarantined as a suspect, unless CUDA_LAUNCH_BLOCKING=1 makes it certain, and of an error that passes out of a
`dispatch()` block only a note tells which kernels ran there: blaming one would be a guess.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from kernelforge.dispatch.machine import Machine
from kernelforge.dispatch.quarantine import Quarantine
from kernelforge.errors import EnvironmentMissing, ForgeError
from kernelforge.package.types import Entry
from kernelforge.wording import plural

_LOG = logging.getLogger(__name__)

STICKY = {
    700: "an illegal memory access was encountered", 702: "the launch timed out and was terminated",
    710: "device-side assert triggered", 714: "hardware stack error", 715: "an illegal instruction was encountered",
    716: "misaligned address", 717: "operation not supported on global/shared address space",
    718: "invalid program counter", 719: "unspecified launch failure",
}  # fmt: skip
"""Errors of the device, after which a process can use it no more; the CUDA run time's numbers and words."""

_NOT_THE_KERNELS = frozenset({2, 4, 46, 100, 101, 214, 220, 709, 901})
"""Out of memory, no device, a broken link, the end of the process, a capture that others broke."""


class Failures:
    """What one package does about the failures of its kernels.

    Args:
        package: its path, for messages. blocking: every launch waits for its end, so that errors are its own.
    """

    def __init__(self, quarantine: Quarantine, machine: Machine, *, package: str, blocking: bool = False) -> None:
        self._quarantine, self._machine = quarantine, machine
        self._package, self._blocking = package, blocking

    def launch_failed(self, entry: Entry, binary: str, code: int, *, device: int = -1) -> ForgeError:
        """The error to raise when a launch returned a code; the next process starts with the kernel off.

        Args:
            binary: hex sha256 of what was launched. device: CUDA device index, or -1.
        """
        label, certain = entry.variant.label, code not in STICKY or self._blocking
        what = f": {STICKY[code]}" if code in STICKY else ""
        doubt = "" if certain else ". An earlier kernel may have caused it"
        hint = "set KFORGE_DISABLE=1 to run without kernels"
        if code not in _NOT_THE_KERNELS:
            kept = self._keep(entry, binary, code, certain=certain, device=device)
            hint = f"{kept}; {hint}" if kept else hint
        if not certain:
            hint += "; CUDA_LAUNCH_BLOCKING=1 shows which kernel it is"
        return ForgeError(f"{self._package}: the kernel of {label} failed with error {code}{what}{doubt}", hint=hint)

    def _keep(self, entry: Entry, binary: str, code: int, *, certain: bool, device: int) -> str:
        try:
            kept = self._quarantine.add(
                binary, device=self.device_name(device), machine=self._machine, kernel=entry.variant.label,
                package=self._package, error=code, certain=certain,
            )  # fmt: skip
        except EnvironmentMissing as error:
            _LOG.warning("%s", error)
            return ""
        return f"the next process starts with it off ({kept})"

    def device_name(self, device: int) -> str:
        """What a record calls a device, by its index."""
        return self._machine.device_names[device] if 0 <= device < len(self._machine.device_names) else "cpu"

    def why_off(self, entry: Entry, binary: str) -> str:
        """Why an earlier failure keeps an entry off here, or "". On several GPUs a failure on any of them counts."""
        names = ("cpu",) if entry.variant.device == "cpu" else dict.fromkeys(self._machine.device_names)
        for name in names:
            found = self._quarantine.find(binary, device=name, machine=self._machine)
            if found is not None:
                return str(found)
        return ""


def add_suspects(error: RuntimeError, package: str, launched: Mapping[str, int]) -> None:
    """Note on an error of the device which kernels of a package had run: any may have caused it, or none.

    Args:
        launched: launches since the block began, by the variant's label.
    """
    if sticky_code(error) is None:
        return
    ran = [f"{label} ({plural(count, 'launch', 'launches')})" for label, count in launched.items() if count]
    if not ran:
        error.add_note(f"{package}: none of its kernels had run since dispatch began")
        return
    error.add_note(
        f"{package}: kernels that had run since dispatch began, any of which may have caused this, or none: "
        f"{', '.join(ran)}. With CUDA_LAUNCH_BLOCKING=1 the one at fault is named and kept from being used again."
    )


def sticky_code(error: RuntimeError) -> int | None:
    """The code of an error after which the device cannot be used; None for all other errors."""
    code = getattr(error, "error_code", None)
    if isinstance(code, int) and code in STICKY:
        return code
    found = re.search(r"CUDA(?: driver)? error: (.*)", str(error))
    if found is None:
        return None
    return next((code for code, words in STICKY.items() if words in found[1]), None)
