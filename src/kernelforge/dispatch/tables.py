"""What one package shares in one mode of dispatch: live entries with their guards and kernels, and what is counted."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from kernelforge.cards.guard import Guard
from kernelforge.dispatch.native import NativeDispatch
from kernelforge.dispatch.types import EntryState, StatRow


class _Busy(threading.local):
    """Operators whose original, a Python function of torch, runs in this thread after a miss."""

    operators: frozenset[str] = frozenset()


class Tables:
    """Thread-safe; counters may lose a count when threads collide.

    Attributes:
        name: of the package, for messages. mode: of dispatch. native: the compiled call tables, or None.
        guarded: the entries that are on, the fastest first. kernels: theirs, by variant id.
        hits: their counters, by variant id.
    """

    def __init__(
        self, states: Sequence[EntryState], *, name: str, native: NativeDispatch | None, mode: str = "eager"
    ) -> None:
        """Args: states: all entries, on or off."""
        self.name, self.mode, self.native = name, mode, native
        self.busy = _Busy()
        self.lock = threading.RLock()
        self._states = tuple(states)
        live = [s for s in states if s.serves(mode)]
        live.sort(key=lambda s: s.entry.speedup, reverse=True)
        self.guarded = tuple((s.entry, Guard.of(s.entry.variant)) for s in live)
        self.kernels = {s.entry.variant.id: s.kernel for s in live if s.kernel is not None}
        self.hits = {s.entry.variant.id: [0] for s in live}
        self._misses: dict[tuple[tuple[str, str], ...], list[int]] = {}

    def miss_counter(self, reasons: Mapping[str, str]) -> list[int]:
        """The counter of calls that these variants refused, each for its reason."""
        with self.lock:
            return self._misses.setdefault(tuple(sorted(reasons.items())), [0])

    def stats(self) -> tuple[StatRow, ...]:
        """One row per entry, in the package's order."""
        with self.lock:
            misses = [(dict(reasons), counter[0]) for reasons, counter in self._misses.items()]
        rows = []
        for state in self._states:
            variant = state.entry.variant
            reasons: dict[str, int] = {}
            for by_variant, count in misses:
                if count and variant.id in by_variant:
                    reasons[by_variant[variant.id]] = reasons.get(by_variant[variant.id], 0) + count
            hits = self.hits.get(variant.id, [0])[0]
            state_text = state.reasons.get(self.mode, "") or "on"
            rows.append(StatRow(operator=variant.operator, variant=variant.id, state=state_text, hits=hits,
                                misses=dict(sorted(reasons.items()))))  # fmt: skip
        return tuple(rows)
