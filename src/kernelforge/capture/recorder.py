"""Records the operator calls of an unmodified callable. Owns `record`; imports torch.

How a capture goes:
1. The first sample runs once plain: warm-up, and the count of what really runs (see `fastpaths`).
2. Every sample runs under a torch-function mode that sees each outermost torch call in the form the model wrote it.
   A call's *signature* (function, argument values, tensor metadata) is looked up in a cache; only a new signature is
   bound, described and, while wanted, its inputs copied - before the call, because the call may change them.
3. The samples run again, a few times, only to be timed: one run is noisy, and shares decide where a search looks.
4. Fused calls are marked, examples written. Nothing is written before the model has finished.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kernelforge.capture.collector import ExampleCollector, ExampleSink
from kernelforge.capture.facts import (
    autocast_dtype,
    capability_of,
    describe_call,
    memory_aliases,
    require_plain,
    tensor_spec,
)
from kernelforge.capture.fastpaths import (
    UNREACHABLE,
    WATCHED_MODULES,
    FusedModules,
    OperatorNames,
    after_modules,
    plain_run,
)  # fmt: skip
from kernelforge.capture.outputs import changed_inputs, describe_outputs, input_versions, unforgeable_reason
from kernelforge.capture.precision import flags_of, precision_of
from kernelforge.capture.signatures import group_key, is_metadata, signature
from kernelforge.capture.slots import Slot
from kernelforge.capture.threads import watch_threads
from kernelforge.capture.types import ObservedCall, OperatorCall, Recording, UncoveredCall
from kernelforge.errors import ModelError
from kernelforge.native.extension import extension
from kernelforge.operators import Entry, Operator, Unsupported
from kernelforge.operators._entries import canonical_call, entry_table
from kernelforge.operators.types import DTYPE_BYTES
from kernelforge.settings import load_settings

_NONE: dict[str, Any] = {}
MAX_EXAMPLE_BYTES = 256 << 20
MAX_TENSOR_BYTES = 64 << 20

TIMED_REPEATS = 5
REPEAT_SECONDS = 1.0
"""By default the samples are timed again so often, or as often as fits into so many seconds: a slow model is not made
to wait, and one run of it is long enough to be less noisy."""


class _Recorder(TorchFunctionMode):
    """The hook. Inside its handler torch has it switched off, so only outermost calls are seen."""

    def __init__(self, device: str, examples: ExampleCollector, modules: FusedModules) -> None:
        super().__init__()
        self.table = entry_table()
        self.cuda = device == "cuda"
        self.device = device
        self.examples = examples
        self.modules = modules
        self.watching = False
        self.watched: set[str] = set()
        self.by_signature: dict[object, Slot] = {}
        self.by_call: dict[object, Slot] = {}
        self.unknown: dict[object, Any] = {}  # a slot, or None for what is no work
        self.mutating: set[object] = set()
        # Flags that products and convolutions follow; the ledger cannot see them, and others need not look.
        self.flags = {o.name: flags_of(o, device, DTYPE_BYTES) for o, _ in self.table.values()}
        self.at_first = {name: self._flags(name) for name in self.flags}
        self.number = 0
        self.current = ""
        self.own_seconds = 0.0
        self.host_seconds = 0.0
        # Device times need events around each call, which the ledger does not make.
        self.native: Any = None if self.cuda else extension(load_settings())
        self.ledger = None if self.native is None else self.native.Ledger()
        self.not_known: object = None if self.native is None else self.native.UNKNOWN

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or _NONE
        found = self.table.get(func)
        if found is not None and self.ledger is not None and not self.modules.stack:
            self.current = name = found[0].name
            if not self.flags[name] or self._as_at_first(name):
                result = self.ledger.attempt(func, args, kwargs)
                if result is not self.not_known:
                    return result
        if found is None and self.unknown.get(func, self) is None:
            return func(*args, **kwargs)  # a question about a tensor
        entered, spent = perf_counter(), self.host_seconds
        if found is None:
            result = self._unknown(func, args, kwargs)
        else:
            key = signature(func, args, kwargs, self._state(found[0]), func in self.mutating)
            slot = None if key is None else self.by_signature.get(key)
            if slot is None:
                result = self._first(found, key, func, args, kwargs)
            else:
                result = self._timed(slot, func, args, kwargs)
        self.own_seconds += perf_counter() - entered - (self.host_seconds - spent)
        return result

    def _state(self, operator: Operator) -> tuple[object, ...]:
        cast = torch.get_autocast_dtype(self.device) if torch.is_autocast_enabled(self.device) else None
        return torch.is_grad_enabled(), cast, *self._flags(operator.name)

    def _flags(self, name: str) -> tuple[object, ...]:
        """The present values of the flags that an operator follows."""
        return tuple([flag.value() for flag in self.flags[name]])

    def _as_at_first(self, name: str) -> bool:
        entered = perf_counter()
        same = self._flags(name) == self.at_first[name]
        self.own_seconds += perf_counter() - entered
        return same

    def _unknown(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if func not in self.unknown:
            name = torch.overrides.resolve_name(func) or getattr(func, "__name__", repr(func))
            self.unknown[func] = None if is_metadata(name) else Slot(name, "no operator describes it")
        slot = self.unknown[func]
        if slot is not None:
            return self._timed(slot, func, args, kwargs)
        start = perf_counter()
        result = func(*args, **kwargs)
        self.host_seconds += perf_counter() - start
        return result

    def _timed(self, slot: Slot, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.number += 1
        self.current = slot.name
        if self.modules.stack:
            slot.inside[tuple(self.modules.stack)] += 1
        if self.cuda:
            begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            begin.record()
        start = perf_counter()
        result = func(*args, **kwargs)
        elapsed = perf_counter() - start
        if self.cuda:
            end.record()
            slot.events.append((begin, end))
        slot.calls += 1
        slot.seconds += elapsed
        self.host_seconds += elapsed
        return result

    def _first(
        self, found: tuple[Operator, Entry], key: object, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """The first call of a signature: describe it in full."""
        operator, entry = found
        canonical = canonical_call(operator, entry, args, kwargs)
        if isinstance(canonical, Unsupported):
            return self._unsupported(key, Slot(operator.name, canonical.reason), func, args, kwargs)
        try:
            arguments, tensors = describe_call(operator.name, canonical)
            require_plain(operator.name, tensors)
        except TypeError as error:
            return self._unsupported(key, Slot(operator.name, str(error)), func, args, kwargs)
        specs = tuple(map(tensor_spec, tensors))
        aliases = memory_aliases(tensors)
        slot = Slot(operator.name, "")
        slot.group = group_key(operator, arguments, specs)
        if not (operator.view or operator.random):
            slot.example = self.examples.take(slot.group, tensors)
        before = input_versions(tensors)
        result = self._watched(slot, func, args, kwargs)
        mutates = changed_inputs(tensors, before, canonical)
        if mutates:
            self.mutating.add(func)
        outputs = describe_outputs(result, tensors, mutates)
        cast = autocast_dtype(specs[0].device)
        slot.call = OperatorCall(
            operator=operator.name, arguments=arguments, tensors=specs, outputs=outputs.specs,
            output_kind=outputs.kind, mutates=mutates, aliases=aliases, output_aliases=outputs.aliases,
            autocast=cast, precision=precision_of(operator, specs[0].device, {cast, *(s.dtype for s in specs)}),
            grad_enabled=torch.is_grad_enabled(), device=specs[0].device,
            capability=capability_of(specs[0].device, tensors[0].device.index or 0),
        )  # fmt: skip
        slot.reason = unforgeable_reason(operator, slot.call)
        self._teach(self._register(key, slot), key, func, args, kwargs)
        return result

    def _unsupported(self, key: object, slot: Slot, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        known = self._register(key, slot)
        result = self._timed(known, func, args, kwargs)
        self._teach(known, key, func, args, kwargs)
        return result

    def _teach(self, slot: Slot, key: object, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Leave further calls of a signature to the compiled ledger."""
        if self.ledger is None or key is None or func in self.mutating:
            return
        if self._flags(slot.name) == self.at_first[slot.name]:
            slot.tally = slot.tally or self.native.Tally()
            self.ledger.remember(func, args, kwargs, slot.tally)

    def _watched(self, slot: Slot, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Time a call and, in the sample that also ran plain, once per group note the aten operators it runs."""
        if not self.watching or slot.group in self.watched:
            return self._timed(slot, func, args, kwargs)
        self.watched.add(slot.group)
        observer = OperatorNames()
        with observer:
            result = self._timed(slot, func, args, kwargs)
        slot.first, slot.observed = slot.seconds, observer.names
        return result

    def _register(self, key: object, slot: Slot) -> Slot:
        """File a slot under its signature, or add it to the slot of the same call written in another form."""
        # repr, because 1, 1.0 and True are equal in Python and different arguments in torch.
        identity = (slot.name, slot.reason) if slot.call is None else (repr(slot.call.arguments), slot.call)
        known = self.by_call.setdefault(identity, slot)
        if known is not slot:
            known.calls += slot.calls
            known.seconds += slot.seconds
            known.events += slot.events
            known.inside += slot.inside
        if key is not None:
            self.by_signature[key] = known
        return known

    def stop_watching(self) -> None:
        """Take further calls for what they are, as the plain run was watched no longer."""
        self.watching = False

    def overhead_s(self) -> float:
        """Seconds that the recorder itself has taken so far."""
        return self.own_seconds + (self.ledger.own_seconds if self.ledger is not None else 0.0)

    def calls_made(self) -> int:
        """How many operator calls have begun."""
        return self.number + (self.ledger.calls if self.ledger is not None else 0)

    def close_run(self) -> None:
        """Add what the compiled ledger has counted to the slots; on CUDA replace the host times by device times."""
        for slot in self._all():
            if slot.tally is not None:
                slot.calls += slot.tally.calls
                slot.seconds += slot.tally.seconds
                slot.tally.calls, slot.tally.seconds = 0, 0.0
            if self.cuda:
                times = [begin.elapsed_time(end) / 1e3 for begin, end in slot.events]
                slot.seconds, slot.first = sum(times), times[0] if times else 0.0

    @contextmanager
    def repeating(self) -> Iterator[None]:
        """Time the body's calls and count none: afterwards each slot has one more repeat, and is else as before."""
        slots, examples = self.slots(), self.examples
        before = [(s.calls, s.seconds, s.first, s.events, s.inside) for s in slots]
        for slot in slots:
            slot.calls, slot.seconds, slot.first, slot.events, slot.inside = 0, 0.0, 0.0, [], Counter()
        self.examples = ExampleCollector(0, 0, keep=False)
        means: list[float | None] = [None] * len(slots)
        try:
            yield
            self.close_run()
            means = [s.seconds / s.calls if s.calls else None for s in slots]
        finally:
            for slot in self._all():
                slot.calls = 0
                if slot.tally is not None:
                    slot.tally.calls, slot.tally.seconds = 0, 0.0
            for slot, counted, mean in zip(slots, before, means, strict=True):
                slot.calls, slot.seconds, slot.first, slot.events, slot.inside = counted
                slot.repeats += [] if mean is None else [mean]
            self.examples = examples

    def slots(self) -> list[Slot]:
        """Every slot with a recorded call, in order of first appearance."""
        return [s for s in self._all() if s.calls]

    def _all(self) -> list[Slot]:
        return [*self.by_call.values(), *(s for s in self.unknown.values() if s is not None)]


def record(
    call: Callable[[], object] | Sequence[Callable[[], object]],
    *,
    device: str = "cpu",
    example_store: ExampleSink | None = None,
    max_example_bytes: int = MAX_EXAMPLE_BYTES,
    max_tensor_bytes: int = MAX_TENSOR_BYTES,
    repeats: int | None = 0,
    warmup: bool = True,
    name: str = "the model",
) -> Recording:
    """Run a callable, or one callable per sample, and record its operator calls.

    Args:
        device: "cpu" or "cuda", where the model runs.
        example_store: where captured inputs go, after the model has finished; None keeps none.
        max_example_bytes: all examples together; max_tensor_bytes: one tensor. Above, a tensor's distribution is kept.
        repeats: run the samples so many more times, and take each call's median time over those runs. None: as many of
            `TIMED_REPEATS` as fit into `REPEAT_SECONDS`. They end early if the model does not do the same again.
        warmup: run the first sample once more, before and without the recorder. Switch it off for a callable whose
            state matters; then there are no repeats, first-call effects are in the times and fused paths are not looked
            for.

    Raises:
        ModelError: the callable raised. Nothing has been written.
    """
    samples = [call] if callable(call) else list(call)
    if not samples:
        raise ModelError(f"{name} has no sample to run", hint="give at least one set of inputs")
    warnings: list[str] = []
    modules = FusedModules()
    examples = ExampleCollector(max_example_bytes, max_tensor_bytes) if example_store is not None else None
    plain = _warm_up(samples[0], modules, device) if warmup else None
    if plain is None:
        warnings.append("fused fast paths were not looked for: the model did not run without the recorder")
    recorder = _Recorder(device, examples or ExampleCollector(0, 0, keep=False), modules)
    with watch_threads(warnings), modules.tracked(), _cheap_collections():
        random = _random_state(device)
        wall = _run_samples(samples, recorder, name, watching=plain is not None)
        recorder.close_run()
        walls = _run_again(samples, recorder, repeats, random=random, first_s=wall) if plain is not None else []
    unreachable = _unreachable(recorder, modules, plain or frozenset(), warnings)
    digests = examples.flush(example_store) if examples is not None and example_store is not None else {}
    return _result(
        recorder, unreachable, digests, warnings, wall=median(walls) if walls else wall, samples=len(samples),
        repeats=len(walls),
    )  # fmt: skip


@contextmanager
def _cheap_collections() -> Iterator[None]:
    """Keep the garbage collector from walking all of torch again and again, while the recorder makes many objects."""
    ours = gc.get_freeze_count() == 0
    if ours:
        gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()


def _warm_up(call: Callable[[], object], modules: FusedModules, device: str) -> frozenset[str] | None:
    """The plain run, with the random state left as it was; None if the model fails, which the recorded run reports."""
    devices = [torch.cuda.current_device()] if device == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        try:
            return plain_run(call, modules)
        except (Exception, SystemExit):  # noqa: BLE001 - it fails again under the recorder, which says where
            return None


def _run_samples(samples: Sequence[Callable[[], object]], recorder: _Recorder, name: str, *, watching: bool) -> float:
    """Run the samples under the recorder; seconds of the model without the recorder's own work."""
    wall = 0.0
    for index, sample in enumerate(samples):
        recorder.watching = watching and index == 0
        own, start = recorder.overhead_s(), perf_counter()
        try:
            with recorder, after_modules(WATCHED_MODULES, recorder.stop_watching):
                sample()
            if recorder.cuda:
                torch.cuda.synchronize()
        except (Exception, SystemExit) as error:
            made = recorder.calls_made()
            call = f"operator call {made} ({recorder.current})" if made else "before its first operator call"
            raise ModelError(
                f"{name} raised {type(error).__name__} in sample {index + 1} of {len(samples)}, {call}: {error}",
                hint="run the model on these inputs without kernelforge first",
            ) from error
        wall += perf_counter() - start - (recorder.overhead_s() - own)
    return wall


def _run_again(
    samples: Sequence[Callable[[], object]],
    recorder: _Recorder,
    repeats: int | None,
    *,
    random: tuple[torch.Tensor, torch.Tensor | None],
    first_s: float,
) -> list[float]:
    """Time the samples again, from the random state that the recorded run began with; the seconds of each run."""
    walls: list[float] = []
    deadline = perf_counter() + REPEAT_SECONDS
    devices = [torch.cuda.current_device()] if recorder.cuda else []
    longest = first_s
    with torch.random.fork_rng(devices=devices):
        while len(walls) < (TIMED_REPEATS if repeats is None else repeats):
            began = perf_counter()
            if repeats is None and began + longest > deadline:
                break
            _set_random_state(random)
            known = len(recorder.by_call), len(recorder.unknown)
            try:
                with recorder.repeating():
                    wall = _run_samples(samples, recorder, "the model", watching=False)
            except ModelError:  # it has a state that does not allow for another run; what was recorded holds
                break
            walls.append(wall)
            if (
                len(recorder.by_call),
                len(recorder.unknown),
            ) != known:  # it has a state, and goes somewhere else from now on
                break
            longest = max(longest, perf_counter() - began)
    return walls


def _random_state(device: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state() if device == "cuda" else None


def _set_random_state(state: tuple[torch.Tensor, torch.Tensor | None]) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1])


def _unreachable(
    recorder: _Recorder, modules: FusedModules, plain: frozenset[str], warnings: list[str]
) -> dict[int, int]:
    """How many calls of each slot (by id) do not happen without the recorder; adds a warning if there are any."""
    result: dict[int, int] = {}
    slots = [s for s in recorder.slots() if s.call is not None]
    # Calls that differ in sizes only share the fate of the one that was watched.
    lost = {s.group for s in slots if s.observed is not None and s.observed - plain}
    for slot in slots:
        inside = sum(n for stack, n in slot.inside.items() if modules.fused & set(stack))
        result[id(slot)] = slot.calls if slot.group in lost else inside
    names = sorted({s.name for s in slots if result[id(s)]})
    if names:
        total = sum(result.values())
        warnings.append(
            f"{total} calls ({', '.join(names)}) happen only while capturing, because torch takes a fused path "
            "without the recorder: they are not reachable at run time"
        )
    return result


def _result(
    recorder: _Recorder,
    unreachable: Mapping[int, int],
    digests: Mapping[int, str],
    warnings: Sequence[str],
    *,
    wall: float,
    samples: int,
    repeats: int,
) -> Recording:
    slots = recorder.slots()
    known = [s for s in slots if s.call is not None]
    calls = []
    for slot in known:
        assert slot.call is not None
        lost = unreachable[id(slot)]
        everything = lost >= slot.calls
        calls.append(
            ObservedCall(
                call=slot.call,
                calls=slot.calls if everything else slot.calls - lost,
                eager_us=slot.mean_us(),
                example="" if slot.example is None else digests.get(slot.example, ""),
                unforgeable=(UNREACHABLE if everything else slot.reason),
            )
        )
    uncovered = [
        UncoveredCall(name=s.name, reason=s.reason, calls=s.calls, total_us=1e6 * s.total_s())
        for s in slots
        if s.call is None
    ]
    captured = sum(s.total_s() for s in known)
    measured = sum(s.total_s() for s in slots)
    share = captured / measured if measured else 0.0
    return Recording(
        device=recorder.device,
        calls=tuple(calls),
        uncovered=tuple(sorted(uncovered, key=lambda u: (-u.total_us, u.name))),
        warnings=tuple(warnings),
        samples=samples,
        repeats=repeats,
        wall_us=1e6 * wall,
        coverage_wall=min(captured / wall, 1.0) if wall else 0.0,
        coverage_device=share if recorder.cuda else (min(captured / wall, 1.0) if wall else 0.0),
    )
