"""What one package shares in one mode of dispatch: live entries with their guards and kernels, and what is counted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from kernelforge.cards.guard import Guard
from kernelforge.dispatch.failures import Failures
from kernelforge.dispatch.native import NativeDispatch
from kernelforge.dispatch.plans import Hit
from kernelforge.dispatch.shadow import Shadow
from kernelforge.dispatch.types import EntryState, StatRow
from kernelforge.errors import ForgeError
from kernelforge.native.extension import Counter, new_counter


class _Busy(threading.local):
    """Operators whose original, a Python function of torch, runs in this thread after a miss."""

    operators: frozenset[str] = frozenset()


class Tables:
    """Thread-safe; counts of the exact path may be lost when threads collide.

    Attributes:
        name: of the package, for messages. mode: of dispatch.
        guarded: the entries that are on, the fastest first. kernels: theirs, by variant id.
        hits: their counters, by variant id. states: of all entries.
        enabled: False while the package is switched off: every call goes to PyTorch, and none is counted.
        shadow: what compares some hits with PyTorch, or None.
    """

    def __init__(
        self, states: Sequence[EntryState], *, name: str, native: Callable[[], NativeDispatch | None],
        mode: str = "eager", shadow: Shadow | None = None, failures: Failures | None = None,
    ) -> None:  # fmt: skip
        """Args:
        states: all entries, on or off. native: gives the compiled call tables, when they are first asked for.
        failures: what to do when a launch fails; by default only raise.
        """
        self.name, self.mode, self._native = name, mode, native
        self.enabled, self.shadow, self._failures = True, shadow, failures
        self.busy = _Busy()
        self.lock = threading.RLock()
        self.states = tuple(states)
        live = [s for s in states if s.serves(mode)]
        live.sort(key=lambda s: s.entry.speedup, reverse=True)
        self.guarded = tuple((s.entry, Guard.of(s.entry.variant)) for s in live)
        self.kernels = {s.entry.variant.id: s.kernel for s in live if s.kernel is not None}
        self.hits = {s.entry.variant.id: new_counter() for s in live}
        self._misses: dict[tuple[tuple[str, str], ...], Counter] = {}

    @cached_property
    def native(self) -> NativeDispatch | None:
        """The compiled call tables, or None where they cannot be had."""
        return self._native()

    def miss_counter(self, reasons: Mapping[str, str]) -> Counter:
        """The counter of calls that these variants refused, each for its reason."""
        with self.lock:
            return self._misses.setdefault(tuple(sorted(reasons.items())), new_counter())

    def failure(self, plan: Hit, status: int) -> ForgeError:
        """The error to raise when a launch returned a negative status; the kernel is off in the next process."""
        entry = plan.entry
        if self._failures is None:
            return ForgeError(f"{self.name}: the kernel of {entry.variant.label} failed with error {-status}")
        binary = self.kernels[plan.variant_id].binary or entry.binary.digest
        return self._failures.launch_failed(entry, binary, -status, device=plan.device)

    def launches(self) -> tuple[int, ...]:
        """How often each kernel has been launched, in the order of `guarded`. Cheap: every block begins with it."""
        return tuple([hits[0] for hits in self.hits.values()])

    def launches_since(self, before: tuple[int, ...]) -> Mapping[str, int]:
        """How often each kernel was launched since `launches` said that, by the variant's label."""
        counts = zip(self.guarded, self.launches(), before, strict=True)
        return {entry.variant.label: now - then for (entry, _), now, then in counts}

    def stats(self) -> tuple[StatRow, ...]:
        """One row per entry, in the package's order."""
        with self.lock:
            misses = [(dict(reasons), counter[0]) for reasons, counter in self._misses.items()]
        rows = []
        for state in self.states:
            variant = state.entry.variant
            reasons: dict[str, int] = {}
            for by_variant, count in misses:
                if count and variant.id in by_variant:
                    reasons[by_variant[variant.id]] = reasons.get(by_variant[variant.id], 0) + count
            hits = self.hits[variant.id][0] if variant.id in self.hits else 0
            state_text = state.reasons.get(self.mode, "") or "on"
            rows.append(StatRow(operator=variant.operator, variant=variant.id, state=state_text, hits=hits,
                                misses=dict(sorted(reasons.items())),
                                shadow=self.shadow.seen(variant.id) if self.shadow is not None else None))  # fmt: skip
        return tuple(rows)
