"""What judges and searches on one device: backend, judge and generator, opened together and closed together."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernelforge.benchmark.machine import known_facts
from kernelforge.benchmark.target import target_facts
from kernelforge.build.abi import prelude
from kernelforge.build.backends import get_backend
from kernelforge.build.types import Backend
from kernelforge.capturing import present_device
from kernelforge.cards.types import Variant, VariantRecord
from kernelforge.generate.types import Generator
from kernelforge.proposing import REPLAY, TEMPLATE, open_generator
from kernelforge.recording import begin_recording
from kernelforge.settings import Settings

if TYPE_CHECKING:
    from kernelforge.evaluate.judge import Judge
    from kernelforge.search.events import Event
    from kernelforge.search.types import Budget, SearchSummary
    from kernelforge.store.project import Project

BACKEND_OF = {"cpu": "cpp", "cuda": "cuda"}

SPARE_CORES = 2
"""Left to the judge and to eager while others build."""
PROPOSE_THREADS = 4
"""Proposals under way of a generator that is slow; the templates take milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """An open judge with its backend. One per device and process: timings must not run beside each other."""

    settings: Settings
    backend: Backend
    judge: Judge

    def search(
        self,
        project: Project,
        records: Sequence[VariantRecord],
        budget: Budget,
        *,
        generator: str = "template",
        strategy: str = "",
        policy: str = "gain",
        run: str = "",
        run_budget: Budget | None = None,
        record: Path | None = None,
        on_event: Callable[[Event], None],
        should_stop: Callable[[], bool],
        should_pause: Callable[[], bool] = lambda: False,
    ) -> SearchSummary:
        """Spend a budget on some variants of a project; the same call again resumes.

        The library's kernels are tried first, unless the settings switch it off.

        Args:
            generator: see `proposing.open_generator`.
            strategy: "" for the generator's own: "autotune" for templates, else "best-first".
            policy: which variant gets the next trial, "gain" or "uniform".
            run: id under which calls of language models are stored; by default a new one. run_budget: of all calls of
                the search under this id together; by default `budget`.
            record: write the search of a language model to this file, to be replayed (see `recording`). Proposals are
                then asked for one at a time, and the library is left out.

        Raises:
            NotFound: no such generator, strategy or policy. EnvironmentMissing: the language model's key or package.
            UsageError: dollars are limited, and the model has no known price; or `record` cannot be written, or there
                is nothing to record.
        """
        from kernelforge.search.loop import SearchOptions, run_search
        from kernelforge.search.plan import prior_floors
        from kernelforge.search.scheduler import get_policy
        from kernelforge.search.strategies import get_strategy

        chosen = get_strategy(strategy or ("autotune" if generator == TEMPLATE else "best-first"))
        # On the CPU builds would share the cores with the timings and flatter or slow both sides at random.
        threads = max(1, (os.cpu_count() or 1) - SPARE_CORES) if project.device == "cuda" else 0
        proposer, repairing = open_generator(
            generator, project, run_budget or budget, run=run or uuid.uuid4().hex, settings=self.settings
        )
        options = SearchOptions(
            strategy=chosen, policy=get_policy(policy), build_threads=threads, should_pause=should_pause,
            prior_floors=prior_floors(records, known_facts(self.settings, device=project.device)),
            # What answers in no time needs no threads, and sees all results before it.
            propose_threads=0 if generator.partition(":")[0] in (TEMPLATE, REPLAY) else PROPOSE_THREADS,
            repairing=repairing,
            target=() if repairing is None else target_facts(self.judge.conditions()),
        )  # fmt: skip
        with ExitStack() as stack:
            if record is not None:
                writer, proposer, options = begin_recording(
                    record, project, records, proposer, options, policy=policy, backend=self.backend
                )
                on_event = stack.enter_context(writer).listening(on_event)
            elif self.settings.library:
                proposer, on_event = self._with_library(proposer, records, on_event)
            return run_search(
                project, proposer, self.backend, self.judge, budget, variants=records,
                prelude=self.prelude, on_event=on_event, should_stop=should_stop, options=options,
            )  # fmt: skip

    def _with_library(
        self, generator: Generator, records: Sequence[VariantRecord], on_event: Callable[[Event], None]
    ) -> tuple[Generator, Callable[[Event], None]]:
        """The generator after the library's kernels; one that turns out to be wrong is removed there."""
        from kernelforge.library.folder import Library
        from kernelforge.library.proposals import LibraryFirst, drop_if_rejected, made_here
        from kernelforge.search.events import TrialFinished

        library, variants = Library(self.settings.library_dir), {r.variant.id: r.variant for r in records}

        def listen(event: Event) -> None:
            if isinstance(event, TrialFinished):
                variant = variants[event.node.variant_id]
                here = made_here(self.backend.name, self.prelude(variant), self.backend.brief())
                drop_if_rejected(library, variant, event.node, here)
            on_event(event)

        return LibraryFirst(library, generator), listen

    def prelude(self, variant: Variant) -> str:
        return prelude(variant, self.backend.name)


@contextmanager
def open_workshop(device: str, settings: Settings) -> Iterator[Workshop]:
    """Open the judge of a device.

    Raises:
        EnvironmentMissing: no compiler, or no GPU.
    """
    workshop = make_workshop(device, settings)
    try:
        yield workshop
    finally:
        workshop.judge.close()


def make_workshop(
    device: str, settings: Settings, *, on_phase: Callable[[str, float], None] = lambda _name, _seconds: None
) -> Workshop:
    """As `open_workshop`, for who closes the judge by himself.

    Args:
        on_phase: see `evaluate.judge.Judge`.
    """
    from kernelforge.evaluate.judge import Judge

    backend = get_backend(BACKEND_OF[device], settings)
    judge = Judge(settings, device=present_device(device), backend=backend, on_phase=on_phase)
    return Workshop(settings=settings, backend=backend, judge=judge)
