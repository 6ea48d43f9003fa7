"""What judges and searches on one device: backend, judge and generator, opened together and closed together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

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
        on_event: Callable[[Event], None],
        should_stop: Callable[[], bool],
    ) -> SearchSummary:
        """Spend a budget on some variants of a project; the same call again resumes.

        Args:
            strategy: "" for the generator's own: "autotune" for templates, else "best-first".

        Raises:
            NotFound: no such generator or strategy.
        """
        from kernelforge.search.loop import SearchOptions, run_search
        from kernelforge.search.strategies import get_strategy

        chosen = get_strategy(strategy or ("autotune" if generator == "template" else "best-first"))
        # On the CPU builds would share the cores with the timings and flatter or slow both sides at random.
        threads = 1 if project.device == "cuda" else 0
        options = SearchOptions(strategy=chosen, build_threads=threads)
        proposer = cast(Generator, load_plugin("kernelforge.generate.generators", generator, "GENERATOR"))
        return run_search(
            project, proposer, self.backend, self.judge, budget, variants=records,
            prelude=self.prelude, on_event=on_event, should_stop=should_stop, options=options,
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
