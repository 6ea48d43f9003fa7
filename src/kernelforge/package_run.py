"""A model with and without a package, in each way to run it: outputs compared, times paired. Behind `kforge cast run`.

Without a package is what the user has: eager calls, CUDA graphs of them (`kernelforge.graphed`), torch.compile. Each is
compared with the same way and the package, in this process, in turn. In eager mode nothing here builds anything: it
runs where there is no compiler.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from kernelforge.benchmark.whole_model import compare_runs
from kernelforge.capture.models import LoadedModel, ModelOptions, SampleCall, load_model
from kernelforge.errors import ForgeError, ModelError
from kernelforge.package.types import MODES
from kernelforge.report.package_run import ModeRun, PackageRunReport, ServedRow
from kernelforge.settings import Settings
from kernelforge.wording import check_known, plural

if TYPE_CHECKING:
    from kernelforge.dispatch.loading import LoadedPackage

REDUCE_OVERHEAD = "reduce-overhead"
WAYS = (*MODES, REDUCE_OVERHEAD)
"""In which a model is run: the modes of dispatch, and torch.compile's way to use CUDA graphs."""

DEFAULT_SECONDS = 10.0
"""For the timing of one way, compilation apart."""
LEAST_SECONDS = 0.5
WARM_UPS = 3
"""Runs before outputs are compared: torch.compile with `reduce-overhead` records at the second."""

Run: TypeAlias = "Callable[[], list[object]]"
"""All samples once; their outputs."""


def run_package(
    path: Path,
    source: str,
    *,
    options: ModelOptions,
    settings: Settings,
    ways: Sequence[str] | None = None,
    trust: str | Collection[str] = (),
    max_time_s: float | None = None,
    say: Callable[[str], None],
) -> PackageRunReport:
    """Load a package and a model, and compare the model with and without it.

    Args:
        source: as `capture.models.load_model` takes it.
        ways: of `WAYS`; by default eager, and graphed on a GPU.
        max_time_s: of the comparisons together, loading apart. No further one is begun after it, and each is timed the
            shorter the less is left; what a compiler takes is not bounded.

    Raises:
        UsageError: an unknown way. ModelError: the model cannot be loaded. UntrustedPackage, PackageError: as
        `dispatch.loading.load`. EnvironmentMissing: no GPU although CUDA is asked for.
    """
    from kernelforge.dispatch.loading import load
    from kernelforge.dispatch.machine import this_machine
    from kernelforge.dispatch.records import environments

    started = time.monotonic()
    chosen = chosen_ways(ways, options.device)
    package = load(path, trust=trust, settings=settings)
    load_seconds = time.monotonic() - started
    say(f"loading {source}")
    loaded = load_model(source, options)
    _try(loaded)
    comparison = _Comparison(loaded=loaded, package=package, device=options.device, say=say)
    runs: list[ModeRun] = []
    begun = time.monotonic()
    for position, way in enumerate(chosen):
        left = None if max_time_s is None else max_time_s - (time.monotonic() - begun)
        if left is not None and left <= 0 and runs:
            runs.append(ModeRun(mode=way, why_not="--max-time was spent"))
            continue
        seconds = DEFAULT_SECONDS if left is None else max(LEAST_SECONDS, left / (len(chosen) - position))
        runs.append(comparison.compare(way, budget_s=min(seconds, DEFAULT_SECONDS)))
    environment = next(iter(environments(options.device, this_machine())), "")
    return PackageRunReport(
        model=loaded.name, package=str(path), device=options.device, environment=str(environment),
        kernels=len(package.states), on=sum(s.kernel is not None for s in package.states), runs=tuple(runs),
        seconds=time.monotonic() - started, load_seconds=load_seconds, notes=_notes(package, options.device),
    )  # fmt: skip


def _try(loaded: LoadedModel) -> None:
    """Run every sample once, without the package.

    Raises:
        ModelError: the model itself raises.
    """
    try:
        for call in loaded.calls:
            call()
    except Exception as error:
        message = f"{loaded.name} raised {type(error).__name__}: {error}"
        raise ModelError(message, hint="run it without a package first") from error


def chosen_ways(names: Sequence[str] | None, device: str) -> tuple[str, ...]:
    """The ways to run a model, in the order of `WAYS`.

    Raises:
        UsageError: an unknown one.
    """
    if names is None:
        return ("eager", "graphed") if device == "cuda" else ("eager",)
    check_known(names, WAYS, "way to run a model:")
    return tuple(way for way in WAYS if way in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ways:
    """A model without and with the package in one way.

    Attributes:
        around: in which `fast` runs. why_not: why the model is not run in this way after all, or "".
    """

    without: Run
    fast: Run
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    why_not: Callable[[], str] = lambda: ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    loaded: LoadedModel
    package: LoadedPackage
    device: str
    say: Callable[[str], None]

    def compare(self, way: str, *, budget_s: float) -> ModeRun:
        """The two, compared and timed; or why they cannot be."""
        import torch

        if self.device != "cuda" and way in ("graphed", REDUCE_OVERHEAD):
            return ModeRun(mode=way, why_not="needs a CUDA device")
        self.say(f"{way}: comparing outputs")
        try:
            with self._opened(way) as ways, torch.no_grad():
                return self._compare(way, ways, budget_s)
        except (RuntimeError, OSError, ImportError, ForgeError) as error:
            if way == "eager":
                raise
            # The compilers' errors are of these kinds; that one of them is missing is why a way cannot be compared.
            text = str(error).strip() or type(error).__name__
            return ModeRun(mode=way, why_not=text.splitlines()[0])

    def _compare(self, way: str, ways: _Ways, budget_s: float) -> ModeRun:
        import torch

        from kernelforge.dispatch.agreement import compare_outputs, tensors_in

        mode = "compiled" if way == REDUCE_OVERHEAD else way
        begun = _counts(self.package, mode)
        for _ in range(WARM_UPS if way != "eager" else 0):
            ways.without()
            ways.fast()
        want = [t.clone() for t in tensors_in(ways.without())]
        once = _counts(self.package, mode)
        with ways.around():
            got = [t.clone() for t in tensors_in(ways.fast())]
        # What a CUDA graph holds was counted when it was captured; what was left to a compiler, when it compiled.
        captured = way in ("graphed", REDUCE_OVERHEAD)
        entries = _served(self.package, mode, hits_since=begun if captured else once, misses_since=begun)
        why_not = ways.why_not()
        if why_not:
            return ModeRun(mode=way, why_not=why_not, entries=entries)
        max_abs, relative, matches, tokens = compare_outputs(want, got)
        self.say(f"{way}: timing for about {budget_s:.0f} s")
        synchronize: Callable[[], None] = torch.cuda.synchronize if self.device == "cuda" else _nothing
        runs = compare_runs(
            ways.without, ways.fast, synchronize=synchronize, around_fast=ways.around, budget_s=budget_s
        )
        return ModeRun(
            mode=way, speedup=runs.speedup, without_ms=runs.eager_ms, with_ms=runs.fast_ms, max_abs=max_abs,
            relative=relative, matches=matches, tokens_equal=tokens, entries=entries,
        )  # fmt: skip

    @contextmanager
    def _opened(self, way: str) -> Iterator[_Ways]:
        if way == "eager":
            yield _Ways(without=self._eager, fast=self._eager, around=self.package.dispatch)
        elif way == "graphed":
            yield self._graphed()
        else:
            import torch

            # Dynamo keeps only a few versions of one function.
            torch._dynamo.reset()
            try:
                yield self._compiled("reduce-overhead" if way == REDUCE_OVERHEAD else None)
            finally:
                torch._dynamo.reset()

    def _eager(self) -> list[object]:
        return [call() for call in self.loaded.calls]

    def _graphed(self) -> _Ways:
        from kernelforge.dispatch.graphs import GraphedModel, graphed

        plain: dict[int, GraphedModel] = {}
        fast: dict[int, GraphedModel] = {}
        for call in self._samples():
            plain.setdefault(id(call.run), graphed(call.run))
            fast.setdefault(id(call.run), graphed(call.run, self.package))

        def why_not() -> str:
            models = [*plain.values(), *fast.values()]
            if all(model.stats().replays for model in models):
                return ""
            explained = [fast[id(c.run)].explain(*c.args, **c.kwargs) for c in self._samples()]
            return "; ".join(dict.fromkeys(" ".join(text.split()) for text in explained))

        return _Ways(
            without=lambda: [plain[id(c.run)](*c.args, **c.kwargs) for c in self._samples()],
            fast=lambda: [fast[id(c.run)](*c.args, **c.kwargs) for c in self._samples()],
            why_not=why_not,
        )

    def _compiled(self, mode: str | None) -> _Ways:
        import torch

        from kernelforge.dispatch.compiled import PackageBackend

        backend: Any = PackageBackend((self.package,))
        plain: dict[int, Callable[..., Any]] = {}
        fast: dict[int, Callable[..., Any]] = {}
        for call in self._samples():
            if id(call.run) not in plain:
                plain[id(call.run)] = torch.compile(_function(call.run), mode=mode)
                fast[id(call.run)] = torch.compile(_function(call.run), backend=backend, mode=mode)

        def outputs(compiled: dict[int, Callable[..., Any]]) -> list[object]:
            found = []
            for call in self._samples():
                if mode == REDUCE_OVERHEAD:
                    torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
                result = compiled[id(call.run)](*call.args, **call.kwargs)
                # A later run writes over the memory of this one's outputs.
                found.append(_copied(result) if mode == REDUCE_OVERHEAD and len(self.loaded.calls) > 1 else result)
            return found

        return _Ways(without=lambda: outputs(plain), fast=lambda: outputs(fast))

    def _samples(self) -> Sequence[SampleCall]:
        return [call for call in self.loaded.calls if isinstance(call, SampleCall)]


def _function(run: Callable[..., Any]) -> Callable[..., Any]:
    """What torch.compile takes: a module or a function, and no partial."""
    import torch

    if isinstance(run, torch.nn.Module) or hasattr(run, "__code__"):
        return run

    def function(*args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    return function


def _copied(value: object) -> list[object]:
    from kernelforge.dispatch.agreement import tensors_in

    return [t.clone() for t in tensors_in(value)]


_Counts: TypeAlias = "dict[str, tuple[int, dict[str, int]]]"
"""Variant -> hits, and misses by reason."""


def _counts(package: LoadedPackage, mode: str) -> _Counts:
    return {row.variant: (row.hits, dict(row.misses)) for row in package.stats(mode)}


def _served(
    package: LoadedPackage, mode: str, *, hits_since: _Counts, misses_since: _Counts
) -> tuple[ServedRow, ...]:  # fmt: skip
    """What each entry did since something was counted."""
    rows = []
    for row in package.stats(mode):
        hits, misses = hits_since[row.variant][0], misses_since[row.variant][1]
        since = {reason: count - misses.get(reason, 0) for reason, count in row.misses.items()}
        rows.append(ServedRow(
            label=row.label, state=row.state, hits=row.hits - hits,
            misses={reason: count for reason, count in since.items() if count > 0},
        ))  # fmt: skip
    return tuple(rows)


def _notes(package: LoadedPackage, device: str) -> tuple[str, ...]:
    made_for = package.package.header.device
    if made_for != device:
        return (f"the package is for {made_for}, and the model runs on {device}: none of its kernels can serve it",)
    if not package.states:
        return ("the package holds no kernel",)
    if not any(state.kernel is not None for state in package.states):
        reasons = sorted({reason for state in package.states for reason in state.reasons.values()})
        return (f"none of the {plural(len(package.states), 'kernel')} is on here: {'; '.join(reasons)}",)
    return ()


def _nothing() -> None:
    """The CPU has nothing to wait for."""
