"""torch.compile with a package's kernels: `torch.compile(model, backend="kernelforge")`. Owns the backend, `use`,
`compiled_pair`.

Inductor compiles the graph, with the `mode` and `options` of the call; the calls that a kernel serves are operators of
ours in it (see `rewrite`). Which packages: those of the option "kernelforge.packages", else those given to `use`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from torch import fx

from kernelforge.cards.bind import to_bound
from kernelforge.cards.types import DimValues, ScalarValues, Variant
from kernelforge.dispatch.loading import LoadedPackage, load
from kernelforge.dispatch.registered import can_be_registered, namespace_of
from kernelforge.dispatch.rewrite import Kernels, rewrite
from kernelforge.dispatch.tables import Tables
from kernelforge.dispatch.types import EntryState
from kernelforge.errors import NotFound, UsageError
from kernelforge.operators import get_operator

PACKAGES_OPTION = "kernelforge.packages"
MODE = "compiled"

Source: TypeAlias = "str | Path | LoadedPackage"
"""A package, or where it is."""
Options: TypeAlias = "Mapping[str, Any]"


def backend(
    graph_module: fx.GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None,
    options: Options | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """What torch.compile calls for `backend="kernelforge"`.

    Args:
        mode: as of torch.compile. options: as of torch.compile, and "kernelforge.packages": a path, a `LoadedPackage`,
            or a list of such.

    Raises:
        UsageError: no package was named. NotFound, PackageError: as `load` does.
    """
    options = dict(options or {})
    sources = options.pop(PACKAGES_OPTION, None)
    packages = _PACKAGES.given if sources is None else _PACKAGES.of(_as_list(sources))
    return _compile(graph_module, example_inputs, [kernels_of(p) for p in packages], mode, options)


def _reset() -> None:
    """Called by `torch._dynamo.reset`, as it is of Inductor."""
    if torch.cuda.is_available():
        from torch._inductor.cudagraph_trees import reset_cudagraph_trees

        reset_cudagraph_trees()


backend.reset = _reset  # type: ignore[attr-defined]


def use(*packages: Source) -> tuple[LoadedPackage, ...]:
    """Name the packages whose kernels `backend="kernelforge"` uses from now on, in this process; none: forget them.

    What is compiled already stays as it is.

    Returns:
        The packages, loaded: their `stats("compiled")` tell what they served.

    Raises:
        NotFound, PackageError: as `load` does.
    """
    loaded = _PACKAGES.given = _PACKAGES.of(packages)
    return loaded


@dataclass(frozen=True, slots=True)
class PackageBackend:
    """The backend with its packages: `torch.compile(model, backend=PackageBackend(package), mode=...)`."""

    packages: tuple[LoadedPackage, ...]

    @property
    def __name__(self) -> str:
        return "kernelforge"

    def __call__(
        self, graph_module: fx.GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None,
        options: Options | None = None,
    ) -> Callable[..., Any]:  # fmt: skip
        kernels = [kernels_of(p) for p in self.packages]
        return _compile(graph_module, example_inputs, kernels, mode, dict(options or {}))

    def reset(self) -> None:
        _reset()


class _Packages:
    """The packages that compilations of this process use."""

    def __init__(self) -> None:
        self._given: tuple[LoadedPackage, ...] = ()
        self._loaded: dict[tuple[Path, int, int], LoadedPackage] = {}
        self._lock = threading.Lock()

    @property
    def given(self) -> tuple[LoadedPackage, ...]:
        if not self._given:
            raise UsageError(
                'backend "kernelforge" was given no package',
                hint='options={"kernelforge.packages": "model.cast"}, or kernelforge.use("model.cast") before, or '
                "package.compile(model)",
            )
        return self._given

    @given.setter
    def given(self, packages: tuple[LoadedPackage, ...]) -> None:
        self._given = packages

    def of(self, sources: Sequence[Source]) -> tuple[LoadedPackage, ...]:
        """Loaded packages. A path is loaded once as long as its file does not change: each graph asks for it."""
        return tuple(s if isinstance(s, LoadedPackage) else self._load(Path(s)) for s in sources)

    def _load(self, path: Path) -> LoadedPackage:
        try:
            status = path.stat()
        except OSError:
            raise NotFound(f"no package {path}", hint="give the path of a .cast file") from None
        key = (path.resolve(), status.st_mtime_ns, status.st_size)
        with self._lock:
            known = self._loaded.get(key)
            if known is None:
                known = self._loaded[key] = load(path)
        return known


_PACKAGES = _Packages()


def kernels_of(package: LoadedPackage) -> Kernels:
    """What a package offers to graphs: the entries that are on in compiled mode."""
    tables = package.tables_of(MODE)
    return Kernels(tables=tables, namespace=namespace_of(tables, package.package.digest))


def _compile(
    graph_module: fx.GraphModule, example_inputs: Sequence[Any], kernels: Sequence[Kernels], mode: str | None,
    options: Options,
) -> Callable[..., Any]:  # fmt: skip
    rewrite(graph_module, kernels)
    # The very object that `backend="inductor"` stands for, so that mode and options mean the same.
    inductor = torch._TorchCompileInductorWrapper(mode, dict(options), None)  # type: ignore[no-untyped-call]
    return cast("Callable[..., Any]", inductor(graph_module, example_inputs))


def _as_list(sources: object) -> list[Source]:
    items = list(sources) if isinstance(sources, list | tuple) else [sources]
    for item in items:
        if not isinstance(item, str | Path | LoadedPackage):
            raise UsageError(
                f"{PACKAGES_OPTION}: a {type(item).__name__} is no package",
                hint="give a path, a loaded package, or a list of them",
            )
    return cast("list[Source]", items)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledPair:
    """One operator call, compiled twice; both take the variant's input tensors.

    Attributes:
        plain: by Inductor alone. fast: by Inductor with the entry's kernel.
    """

    plain: Callable[..., torch.Tensor]
    fast: Callable[..., torch.Tensor]
    _tables: Tables
    _variant: str

    @property
    def hits(self) -> int:
        """How often `fast` launched the kernel. 0 after a call: it was refused, and both are the same."""
        return self._tables.hits[self._variant][0]


def compiled_pair(
    package: LoadedPackage, variant: Variant, dims: DimValues, scalars: ScalarValues, *, mode: str | None = None,
    options: Options | None = None,
) -> CompiledPair | str:  # fmt: skip
    """The call that a variant describes, compiled without and with its kernel, to be timed against each other.

    The package's own decision for compiled mode does not matter: this is what it is made from. Call each once before
    timing; under `mode="reduce-overhead"` a few times.

    Args:
        dims, scalars: the size at which it is called, as in a `SizePoint`. mode, options: of torch.compile.

    Returns:
        The pair, or why there is none: the entry is missing or not loaded, or of a kind that graphs do not hold.
    """
    state = next((s for s in package.states if s.entry.variant.id == variant.id), None)
    if state is None or state.kernel is None:
        return "not in the package" if state is None else state.reason or "not loaded"
    reason = can_be_registered(variant)
    if reason:
        return reason
    shared = package.tables_of(MODE)
    alone = EntryState(entry=state.entry, kernel=state.kernel, reasons={})
    tables = Tables((alone,), name=str(package.package.path), native=lambda: shared.native, mode=MODE)
    kernels = Kernels(tables=tables, namespace=namespace_of(tables, package.package.digest))

    def with_kernel(graph_module: fx.GraphModule, example_inputs: Sequence[Any], **given: Any) -> Callable[..., Any]:
        return _compile(graph_module, example_inputs, [kernels], given.get("mode"), given.get("options") or {})

    chosen: dict[str, Any] = {"options": dict(options)} if options else {"mode": mode}
    plain = torch.compile(_call_of(variant, dims, scalars), fullgraph=True, dynamic=False, **chosen)
    fast = torch.compile(_call_of(variant, dims, scalars), backend=with_kernel, fullgraph=True, dynamic=False, **chosen)
    return CompiledPair(plain=plain, fast=fast, _tables=tables, _variant=variant.id)


def _call_of(variant: Variant, dims: DimValues, scalars: ScalarValues) -> Callable[..., torch.Tensor]:
    operator = get_operator(variant.operator)
    constants = {**dims}, {**scalars}

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        return cast("torch.Tensor", operator.call(to_bound(variant, *constants, tensors)))

    # Dynamo compiles one code object a few times only, for all functions that share it.
    call.__code__ = call.__code__.replace()
    return call
