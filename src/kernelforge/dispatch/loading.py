"""Loading a package: verify, load what this machine can run, say why the rest is off. Owns `load`, `LoadedPackage`.

Loading a package runs its native code in this process; load only packages whose origin you trust. Nothing is launched.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from kernelforge.dispatch.machine import Machine, this_machine, why_off
from kernelforge.dispatch.types import EntryState, Kernel, States, Stats
from kernelforge.errors import ForgeError, NotFound
from kernelforge.operators import get_operator, operator_names
from kernelforge.package.reader import extract_binary, read_package
from kernelforge.package.types import MODES, Entry, Off, Package
from kernelforge.settings import Settings, load_settings
from kernelforge.wording import did_you_mean, plural

if TYPE_CHECKING:
    from kernelforge.dispatch.decide import Admitted, Refused
    from kernelforge.dispatch.tables import Tables

_LOG = logging.getLogger(__name__)


def load(path: str | Path, *, settings: Settings | None = None) -> LoadedPackage:
    """Verify a package and load the kernels that this machine can run.

    An entry that cannot be used here is off, with a reason in `LoadedPackage.stats`; that is no error.

    Args:
        settings: by default what the environment says; with `disabled` every entry is off.

    Raises:
        NotFound: no such file.
        PackageError: the file is corrupt, truncated, edited, or of a newer format.
    """
    settings = load_settings() if settings is None else settings
    package = read_package(Path(path))
    machine = this_machine()
    states = tuple(_load_entry(entry, package, machine, settings) for entry in package.entries)
    _warn_of_off(package, states)
    return LoadedPackage(package, states, settings)


class LoadedPackage:
    """A package on this machine. Thread-safe."""

    def __init__(self, package: Package, states: Sequence[EntryState], settings: Settings) -> None:
        from kernelforge.dispatch.eager import Activation
        from kernelforge.dispatch.native import native_dispatch
        from kernelforge.dispatch.tables import Tables

        self.package = package
        self.states = States(states)
        in_use = any(state.kernel is not None for state in self.states)
        native = native_dispatch(settings) if in_use else None
        self._by_mode = {m: Tables(self.states, name=str(package.path), native=native, mode=m) for m in MODES}
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
        activation = self._activations[mode]
        activation.enter()
        try:
            yield self
        finally:
            activation.leave()

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

        The answer prints as a sentence.

        Args:
            operator_name: "softmax", say; the arguments are those of any form in which torch calls it.

        Raises:
            NotFound: no such operator.
        """
        from kernelforge.dispatch.decide import Refused, decide, describe
        from kernelforge.dispatch.state import call_problem

        try:
            operator = get_operator(operator_name)
        except NotFound as error:
            near = did_you_mean(operator_name, operator_names())
            raise NotFound(f"no operator {operator_name!r}", hint=near or "kforge ops lists a model's") from error
        problem = call_problem(by_autocast=True)
        if problem:
            return Refused(term="call", detail=f"{problem} is active", by_variant={})
        view = describe([(operator, form) for form in operator.entries], args, kwargs)
        if isinstance(view, str):
            return Refused(term="call", detail=view, by_variant={})
        return decide(self._by_mode["eager"].guarded, view.facts)


def _load_entry(entry: Entry, package: Package, machine: Machine, settings: Settings) -> EntryState:
    decisions = {mode: entry.decision(mode) for mode in MODES}
    reasons = {mode: d.reason or "off" for mode, d in decisions.items() if isinstance(d, Off)}
    if "graphed" not in reasons and entry.variant.device == "cpu":
        reasons["graphed"] = "needs a CUDA device"
    unfit = _why_off(entry, package, machine, settings)
    if unfit:
        return EntryState(entry=entry, kernel=None, reasons={**dict.fromkeys(MODES, unfit), **reasons})
    if len(reasons) == len(MODES):
        return EntryState(entry=entry, kernel=None, reasons=reasons)
    try:
        kernel = _load_kernel(extract_binary(entry.binary, settings.cache_dir))
    except (OSError, AttributeError, RuntimeError, ForgeError) as error:
        return EntryState(entry=entry, kernel=None, reasons=dict.fromkeys(MODES, f"does not load: {error}"))
    return EntryState(entry=entry, kernel=kernel, reasons=reasons)


def _why_off(entry: Entry, package: Package, machine: Machine, settings: Settings) -> str:
    """Why the entry cannot be used here in any mode, or ""."""
    if settings.disabled:
        return "disabled by KFORGE_DISABLE"
    try:
        get_operator(entry.variant.operator)
    except NotFound:
        return f"this version knows no operator {entry.variant.operator}"
    if len(entry.variant.outputs) > 1:
        return "has several outputs, which eager dispatch does not serve"
    return why_off(entry, package.header, machine)


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


def _warn_of_off(package: Package, states: Sequence[EntryState]) -> None:
    """One line in the log when entries that the package wanted to use are off on this machine."""
    wanted = [s for s in states if not isinstance(s.entry.decision("eager"), Off)]
    lost = [s for s in wanted if s.kernel is None]
    if lost:
        gains = {s.entry.variant.id: _expected_gain(s.entry) for s in wanted}
        total, off = sum(gains.values()), sum(gains[s.entry.variant.id] for s in lost)
        share = f"{off / total:.0%} of the expected gain" if total else "no measured gain"
        _LOG.warning(
            "%s: %d of %d kernels are off here (%s): %s", package.path, len(lost), len(wanted), share, _reasons(lost)
        )


def _expected_gain(entry: Entry) -> float:
    return entry.share * max(1.0 - 1.0 / entry.speedup, 0.0) if entry.speedup > 0 else 0.0


def _reasons(states: Sequence[EntryState]) -> str:
    counts: dict[str, int] = {}
    for state in states:
        counts[state.reason] = counts.get(state.reason, 0) + 1
    return "; ".join(f"{reason} ({count})" for reason, count in sorted(counts.items()))
