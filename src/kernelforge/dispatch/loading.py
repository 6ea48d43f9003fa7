"""Loading a package: verify, load what this machine can run, say why the rest is off. Owns `load`, `LoadedPackage`.

Loading a package runs its native code in this process, so only trusted ones are loaded (`package.trust`). Kernels for
CUDA are launched once, lest anything be loaded later, inside of a stream capture (`first_launch`).
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kernelforge.dispatch.failures import Failures, add_suspects
from kernelforge.dispatch.inactive import inactive
from kernelforge.dispatch.machine import Machine, binary_for, cannot_run, this_machine, why_off
from kernelforge.dispatch.quarantine import Quarantine
from kernelforge.dispatch.records import with_local_record
from kernelforge.dispatch.types import EntryState, Kernel, States, Stats
from kernelforge.errors import ForgeError, NotFound
from kernelforge.operators import get_operator
from kernelforge.package.reader import extract_binary, read_package
from kernelforge.package.trust import require_trust
from kernelforge.package.types import MODES, Entry, Off, Package
from kernelforge.settings import Settings, load_settings
from kernelforge.wording import plural

if TYPE_CHECKING:
    from kernelforge.dispatch.decide import Admitted, Refused
    from kernelforge.dispatch.tables import Tables

_LOG = logging.getLogger(__name__)


def load(path: str | Path, *, trust: str | Collection[str] = (), settings: Settings | None = None) -> LoadedPackage:
    """Verify a package and load the kernels that this machine can run.

    What was exported on this machine by this user loads; so does what a pinned key signed, and a file that was trusted
    before (`kforge cast trust`). Any other is refused, and nobody is asked.

    An entry that cannot be used here is off, with a reason in `LoadedPackage.stats`; that is no error. So is one that
    was judged under another minor of torch, on another GPU or under another branch of its driver, until `kforge cast
    recertify` has judged and timed it on this machine; one warning in the log says how much of the expected gain is
    inactive, and the command.

    Args:
        trust: "sha256:" and the digest of the file, or several of those: trusted this time, whoever signed it.
        settings: by default what the environment says; with `disabled` every entry is off.

    Raises:
        NotFound: no such file.
        UntrustedPackage: nobody here has said to trust it; its hint says how to. Nothing of it was loaded.
        PackageError: the file is corrupt, truncated, edited, or of a newer format.
        UsageError: `trust`, or KFORGE_TRUST, holds something else than hashes.
    """
    settings = load_settings() if settings is None else settings
    read = read_package(Path(path))
    require_trust(read, settings, given=trust)  # before anything of the package is used
    machine = this_machine()
    package, certified = with_local_record(read, machine, settings.config_dir)
    quarantine = Quarantine(settings.cache_dir)
    failures = Failures(quarantine, machine, package=str(package.path), blocking=settings.launch_blocking)
    states = tuple(
        _load_entry(entry, package, machine, settings, failures, certified=entry.variant.id in certified)
        for entry in package.entries
    )
    lost = inactive(package, states, machine, certified)
    if lost is not None:
        # Logged, not `warnings.warn`: that an entry is off is no mistake of the caller's code, must be told at every
        # load and not once a process, and must not become an exception where warnings are errors.
        _LOG.warning("%s", lost)
    return LoadedPackage(package, states, settings, failures)


class LoadedPackage:
    """A package on this machine. Thread-safe."""

    def __init__(self, package: Package, states: Sequence[EntryState], settings: Settings, failures: Failures) -> None:
        from kernelforge.dispatch.eager import Activation
        from kernelforge.dispatch.native import native_dispatch_soon
        from kernelforge.dispatch.shadow import Shadow, share
        from kernelforge.dispatch.tables import Tables

        self.package = package
        self.states = States(states)
        in_use = any(state.kernel is not None for state in self.states)
        native = native_dispatch_soon(settings) if in_use else _no_tables
        every = share(settings.shadow)
        self._by_mode = {
            m: Tables(
                self.states, name=str(package.path), native=native, mode=m, failures=failures,
                # Results inside of a graph are not there to be compared.
                shadow=Shadow(every) if every and m == "eager" else None,
            )
            for m in MODES
        }  # fmt: skip
        # Graphs are captured from what eager dispatch launches.
        self._activations = {m: Activation(self._by_mode[m]) for m in ("eager", "graphed")}

    def __repr__(self) -> str:
        on = sum(state.kernel is not None for state in self.states)
        return f"<LoadedPackage {str(self.package.path)!r}: {plural(len(self.states), 'kernel')}, {on} on>"

    @contextmanager
    def dispatch(self, model: object = None, *, mode: str = "eager") -> Iterator[LoadedPackage]:  # noqa: ARG002 - see its description
        """Use the package's kernels inside the `with` block, wherever the guard admits a call; else PyTorch runs.

        The call sites (`torch.nn.functional.softmax`, `torch.Tensor.__add__` ...) are replaced for the whole process,
        so kernels serve every thread and also calls outside of the model; on exit each attribute is the very object
        that was there before. Blocks may be nested. Code compiled with torch.compile keeps PyTorch's own operators.

        Args:
            model: the model that will be called; any object. It says what is meant and limits nothing: a patch of
                torch's functions cannot see which model calls.
            mode: "graphed" uses those entries that are faster in a CUDA graph: for code that is being captured.
        """
        activation, tables = self._activations[mode], self._by_mode[mode]
        before = tables.launches()
        activation.enter()
        try:
            yield self
        except RuntimeError as error:
            add_suspects(error, str(self.package.path), tables.launches_since(before))
            raise
        finally:
            activation.leave()

    @property
    def enabled(self) -> bool:
        """Whether the kernels are used. False sends every call to PyTorch, uncounted, in all threads and blocks: the
        kill switch of a running process. `KFORGE_DISABLE=1` is that of a new one.
        """
        return self._by_mode["eager"].enabled

    @enabled.setter
    def enabled(self, on: bool) -> None:
        for tables in self._by_mode.values():
            tables.enabled = on
        for activation in self._activations.values():
            activation.switch(on=on)

    def compile(self, model: Callable[..., Any] | None = None, **options: Any) -> Any:
        """`torch.compile(model, **options)` with this package's kernels, wherever the guard admits a call.

        Inductor compiles the rest. `stats("compiled")` tells what was served. See docs/compile.md.

        Args:
            model: a module or function; None gives a decorator, as torch.compile does. options: of torch.compile, but
                for `backend`.
        """
        import torch

        from kernelforge.dispatch.compiled import PackageBackend

        return torch.compile(model, backend=PackageBackend((self,)), **options)

    def tables_of(self, mode: str) -> Tables:
        """What the package shares in one mode of dispatch: "eager", "graphed" or "compiled"."""
        return self._by_mode[mode]

    def stats(self, mode: str = "eager") -> Stats:
        """Hits and misses in one mode of dispatch since loading, one row per entry; `print` shows a table.

        A replayed CUDA graph runs without Python: calls in "graphed" were counted when the graph was captured.
        """
        return Stats(self._by_mode[mode].stats())

    def explain(self, operator_name: str, *args: object, **kwargs: object) -> Admitted | Refused:
        """Which entry would serve a call of this operator, with these arguments, in the present state of torch.

        The answer prints as a sentence. The term of a refusal is the reason under which `stats` counts such a call;
        "off" and "disabled" are of calls that are not counted. A call whose signature has not run yet is refused by
        "capture" while a CUDA stream is captured, which is not looked at here.

        Args:
            operator_name: "softmax", say, whose arguments are those of any form in which torch calls it; or the very
                function, "torch.Tensor.add_".

        Raises:
            NotFound: no such operator.
        """
        from kernelforge.dispatch.explaining import explain, forms_of

        return explain(self._by_mode["eager"], forms_of(operator_name), args, kwargs)


def _no_tables() -> None:
    """Where no entry is on, no call is looked up."""


def reasons_off(package: Package, settings: Settings) -> tuple[Package, dict[str, dict[str, str]]]:
    """The package with what was decided on this machine, and why which entry would be off here.

    The reasons are by variant id and mode of dispatch, as far as they show without loading any.

    For `kforge cast verify`: nothing of the package runs, so it need not be trusted.
    """
    machine = this_machine()
    package, certified = with_local_record(package, machine, settings.config_dir)
    return package, {
        entry.variant.id: _reasons_off(entry, package, machine, settings, certified=entry.variant.id in certified)
        for entry in package.entries
    }


def _load_entry(
    entry: Entry, package: Package, machine: Machine, settings: Settings, failures: Failures, *, certified: bool
) -> EntryState:
    reasons = _reasons_off(entry, package, machine, settings, certified=certified)
    if len(reasons) == len(MODES):
        return EntryState(entry=entry, kernel=None, reasons=reasons)
    binary = binary_for(entry, machine)
    assert binary is not None, "it is off otherwise"
    failed = failures.why_off(entry, binary.digest)
    if failed:
        return EntryState(entry=entry, kernel=None, reasons=dict.fromkeys(MODES, failed))
    try:
        kernel = replace(_load_kernel(extract_binary(binary, settings.cache_dir)), binary=binary.digest)
    except (OSError, AttributeError, RuntimeError, ForgeError) as error:
        return EntryState(entry=entry, kernel=None, reasons=dict.fromkeys(MODES, f"does not load: {error}"))
    failed = _first_launch(entry, kernel, failures)
    if failed:
        return EntryState(entry=entry, kernel=None, reasons=dict.fromkeys(MODES, failed))
    return EntryState(entry=entry, kernel=kernel, reasons=reasons)


def _reasons_off(
    entry: Entry, package: Package, machine: Machine, settings: Settings, *, certified: bool
) -> dict[str, str]:
    """Why an entry is off, for each mode of dispatch in which it is.

    Args:
        certified: the entry was certified again on this machine: its decisions and times are of here.
    """
    decisions = {mode: entry.decision(mode) for mode in MODES}
    reasons = {mode: d.reason or "off" for mode, d in decisions.items() if isinstance(d, Off)}
    if "graphed" not in reasons and entry.variant.device == "cpu":
        reasons["graphed"] = "needs a CUDA device"
    unfit = _why_off(entry, package, machine, settings, certified=certified)
    return {**dict.fromkeys(MODES, unfit), **reasons} if unfit else reasons


def _first_launch(entry: Entry, kernel: Kernel, failures: Failures) -> str:
    """Why the kernel does not work here at all, or "". On the CPU nothing is left to be loaded.

    Raises:
        ForgeError: it broke the device, so that nothing works there any more.
    """
    if entry.variant.device == "cpu":
        return ""
    from kernelforge.dispatch.first_launch import SickDevice, devices_in_use, launch_once

    try:
        return launch_once(entry, kernel, devices_in_use(entry.variant.capability))
    except SickDevice as error:
        raise failures.launch_failed(entry, kernel.binary, error.code, device=error.device) from error


def _why_off(entry: Entry, package: Package, machine: Machine, settings: Settings, *, certified: bool) -> str:
    """Why the entry cannot be used here in any mode, or ""."""
    if settings.disabled:
        return "disabled by KFORGE_DISABLE"
    try:
        get_operator(entry.variant.operator)
    except NotFound:
        return f"this version knows no operator {entry.variant.operator}"
    if len(entry.variant.outputs) > 1:
        return "has several outputs, which eager dispatch does not serve"
    return cannot_run(entry, machine) if certified else why_off(entry, package.header, machine)


def _load_kernel(path: Path) -> Kernel:
    """dlopen the binary.

    Raises:
        OSError: it does not load, or a symbol that it needs is missing.
        AttributeError: it lacks an entry that the run time calls.
        RuntimeError: tvm-ffi refuses it.
    """
    import torch  # noqa: F401 - brings the OpenMP run time that CPU kernels share
    import tvm_ffi

    # ctypes resolves every symbol at once: what is missing shows here and not in the middle of a model.
    library = ctypes.CDLL(str(path))
    workspace = library.kforge_workspace
    workspace.restype, workspace.argtypes = ctypes.c_int64, [ctypes.POINTER(ctypes.c_int64)]

    def workspace_bytes(dims: Sequence[int]) -> int:
        return int(workspace((ctypes.c_int64 * max(len(dims), 1))(*dims)))

    launch = tvm_ffi.load_module(str(path))["launch"]
    address = ctypes.cast(library["__tvm_ffi_launch"], ctypes.c_void_p).value
    assert address is not None
    return Kernel(launch=cast("Callable[..., int]", launch), address=address, workspace_bytes=workspace_bytes)
