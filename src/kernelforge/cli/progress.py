"""Shows a search while it runs: a live line on a terminal, else one line per finished trial. Owns `Progress`."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from kernelforge.cli.output import Output
from kernelforge.report.units import format_duration, format_speedup
from kernelforge.wording import noun_for, printable

if TYPE_CHECKING:
    from rich.live import Live

MAX_PHASES_SHOWN = 3


class Progress:
    """Called with each event of a search (`search.events`) or with a line of text; prints on stderr only.

    A context manager. Silent under -q.
    """

    def __init__(self, out: Output) -> None:
        self._out = out
        self._console = out.console(stderr=True)
        self._live: Live | None = None
        self._phases: dict[tuple[str, int], str] = {}
        self._best: dict[str, float] = {}
        self._done = 0
        self._expected: int | None = None
        self._eta_s: float | None = None
        self._silent = out.quiet

    def __enter__(self) -> Self:
        if not self._out.quiet and self._console.is_terminal and not self._console.is_dumb_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, transient=True, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __call__(self, event: object) -> None:
        """Take one event. Kinds that this version does not know are ignored."""
        from kernelforge.report.nodes import trial_line
        from kernelforge.search.events import PhaseChanged, SearchProgress, TrialFinished, VariantExhausted

        match event:
            case str() if not self._silent:
                self._print(event)
            case PhaseChanged():
                self._phase(event.variant, event.trial, event.phase)
            case TrialFinished():
                self._done += 1
                if event.best_speedup is not None:
                    self._best[event.variant] = event.best_speedup
                if not self._silent:
                    self._print(f"{self._counter()}  {event.variant}  {trial_line(event.node)}")
            case VariantExhausted():
                best = f", best {format_speedup(self._best[event.variant])}" if event.variant in self._best else ""
                if not self._silent:
                    self._print(f"{event.variant}  done{best}: {event.reason}")
            case SearchProgress():
                self._done, self._expected, self._eta_s = event.done, event.expected, event.eta_s
        self._refresh()

    def past(self, event: object) -> None:
        """Take an event of before: it counts, and prints nothing."""
        self._silent = True
        try:
            self(event)
        finally:
            self._silent = self._out.quiet

    def _phase(self, variant: str, trial: int, phase: str) -> None:
        if phase == "done":
            self._phases.pop((variant, trial), None)
        else:
            self._phases[variant, trial] = phase

    def _counter(self) -> str:
        return f"[{self._done}/{self._expected}]" if self._expected else f"[{self._done}]"

    def _print(self, line: str) -> None:
        if self._live is None:
            self._out.note(line)
        else:
            self._console.print(printable(line), markup=False, soft_wrap=False, no_wrap=True, overflow="ellipsis")

    def _refresh(self) -> None:
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text(self.status(), no_wrap=True, overflow="ellipsis"))

    def status(self) -> str:
        """The live line: trials, the time left, the best so far, phases of those that run."""
        parts = [f"{self._counter()} {noun_for(self._expected or self._done, 'trial')}"]
        if self._eta_s is not None:
            parts.append(f"about {format_duration(self._eta_s)} left")
        if self._best:
            variant, best = max(self._best.items(), key=lambda item: item[1])
            parts.append(f"best {format_speedup(best)} ({variant})")
        # Last, because a narrow terminal cuts the line here.
        parts += [f"{variant} {phase}" for (variant, _), phase in list(self._phases.items())[-MAX_PHASES_SHOWN:]]
        return " · ".join(parts)
