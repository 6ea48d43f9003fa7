"""What judges and searches on one device: backend, judge and generator, opened together and closed together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from kernelforge.benchmark.machine import known_facts
from kernelforge.build.abi import prelude
from kernelforge.build.backends import get_backend
from kernelforge.build.types import Backend
from kernelforge.capturing import present_device
from kernelforge.cards.types import Variant, VariantRecord
from kernelforge.generate.types import Generator
from kernelforge.plugins import load_plugin
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
        on_event: Callable[[Event], None],
        should_stop: Callable[[], bool],
        should_pause: Callable[[], bool] = lambda: False,
    ) -> SearchSummary:
        """Spend a budget on some variants of a project; the same call again resumes.

        The library's kernels are tried first, unless the settings switch it off.

        Args:
            strategy: "" for the generator's own: "autotune" for templates, else "best-first".
            policy: which variant gets the next trial, "gain" or "uniform".

        Raises:
            NotFound: no such generator, strategy or policy.
        """
        from kernelforge.library.folder import Library
        from kernelforge.library.proposals import LibraryFirst, drop_if_rejected, made_here
        from kernelforge.search.events import TrialFinished
        from kernelforge.search.loop import SearchOptions, run_search
        from kernelforge.search.plan import prior_floors
        from kernelforge.search.scheduler import get_policy
        from kernelforge.search.strategies import get_strategy

        chosen = get_strategy(strategy or ("autotune" if generator == "template" else "best-first"))
        # On the CPU builds would share the cores with the timings and flatter or slow both sides at random.
        threads = max(1, (os.cpu_count() or 1) - SPARE_CORES) if project.device == "cuda" else 0
        floors = prior_floors(records, known_facts(self.settings, device=project.device))
        options = SearchOptions(
            strategy=chosen, policy=get_policy(policy), prior_floors=floors, build_threads=threads,
            propose_threads=0 if generator == "template" else PROPOSE_THREADS, should_pause=should_pause,
        )  # fmt: skip
        proposer = cast(Generator, load_plugin("kernelforge.generate.generators", generator, "GENERATOR"))
        listen = on_event
        if self.settings.library:
            library, variants = Library(self.settings.library_dir), {r.variant.id: r.variant for r in records}
            proposer = LibraryFirst(library, proposer)

            def listen(event: Event) -> None:
                if isinstance(event, TrialFinished):
                    variant = variants[event.node.variant_id]
                    here = made_here(self.backend.name, self.prelude(variant), self.backend.brief())
                    drop_if_rejected(library, variant, event.node, here)
                on_event(event)

        return run_search(
            project, proposer, self.backend, self.judge, budget, variants=records,
            prelude=self.prelude, on_event=listen, should_stop=should_stop, options=options,
        )  # fmt: skip

    def prelude(self, variant: Variant) -> str:
        return prelude(variant, self.backend.name)


@contextmanager
def open_workshop(device: str, settings: Settings) -> Iterator[Workshop]:
    """Open the judge of a device.

    Raises:
        EnvironmentMissing: no compiler, or no GPU.
    """
    from kernelforge.evaluate.judge import Judge

    backend = get_backend(BACKEND_OF[device], settings)
    judge = Judge(settings, device=present_device(device), backend=backend)
    try:
        yield Workshop(settings=settings, backend=backend, judge=judge)
    finally:
        judge.close()
