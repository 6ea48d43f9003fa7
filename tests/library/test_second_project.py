"""A kernel that one project exported is the first that another one judges, on the CPU, through the public verbs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import kernelforge
from kernelforge import certification, forge, workshop
from kernelforge.benchmark.protocol import Protocol
from kernelforge.build.backends import get_backend
from kernelforge.evaluate.judge import Judge
from kernelforge.library.folder import Library
from kernelforge.search.lineage import best_node
from kernelforge.search.types import Budget
from kernelforge.settings import Settings, load_settings
from kernelforge.store.project import Project
from kernelforge.workshop import Workshop

pytestmark = pytest.mark.slow

DOES_NOTHING = """
extern "C" int launch(const float*, int64_t, float*, void*) { return 0; }
"""


class First(torch.nn.Module):
    """One call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x, 3, 2, 1)


class Second(torch.nn.Module):
    """Another model that has the same call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x, 3, 2, 1).flatten(1).sum(1)


def captured(model: torch.nn.Module, path: Path) -> Path:
    with torch.no_grad():
        kernelforge.capture(model, samples=[(torch.randn(b, 4, 32, 32),) for b in (1, 2)], project=path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("library")


@pytest.fixture(scope="module")
def settings(folder: Path) -> Settings:
    return load_settings({"KFORGE_LIBRARY_DIR": str(folder / "kept"), "KFORGE_CACHE_DIR": str(folder / "cache")})


@pytest.fixture(scope="module", autouse=True)
def quick_judge(settings: Settings) -> Iterator[None]:
    """One judge for all verbs. The machines that run tests are busy, and what is tested are not the times."""
    backend, threads = get_backend("cpp", settings), torch.get_num_threads()
    torch.set_num_threads(1)
    quick = Protocol(budget_s=0.1, min_pairs=4, busy_share=1.0)
    with (
        Judge(settings, device="cpu", backend=backend, threads=1, protocol=quick) as judge,
        pytest.MonkeyPatch.context() as monkeypatch,
    ):

        @contextmanager
        def open_workshop(_device: str, chosen: Settings) -> Iterator[Workshop]:
            yield Workshop(settings=chosen, backend=backend, judge=judge)

        monkeypatch.setattr(workshop, "open_workshop", open_workshop)
        monkeypatch.setattr(certification, "QUIET_TIMEOUT_S", 0.0)
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def best(folder: Path, settings: Settings) -> str:
    """The source that the first project found, and exported."""
    path = captured(First(), folder / "first.kforge")
    forge.forge_project(path, budget=Budget(trials=2), settings=settings)
    assert not (folder / "kept").exists(), "a search alone keeps nothing"
    found = best_node(pool(path)[1])
    assert found is not None
    # Picked by hand it is used whatever others do to the times.
    picks = {"max_pool2d": str(found.number)}
    report = forge.export_project(path, output=folder / "first.cast", picks=picks, settings=settings)
    assert report.entries == 1, report
    (kernel,) = Library(settings.library_dir).kernels()
    assert kernel.source == found.candidate.source
    return kernel.source


def pool(project: Path) -> Any:
    opened = Project.open(project)
    record = opened.record("max_pool2d")
    return record, opened.nodes(record.variant.id)


def test_a_second_project_reaches_the_kernel_in_one_trial(best: str, folder: Path, settings: Settings) -> None:
    path = captured(Second(), folder / "second.kforge")
    forge.forge_project(path, operators=["max_pool2d"], budget=Budget(trials=1), settings=settings)
    record, (node,) = pool(path)
    assert record.variant == pool(folder / "first.kforge")[0].variant
    assert best_node([node]) == node
    assert node.candidate.source == best
    assert node.candidate.generator == "library" and "library: First" in node.candidate.notes
    # The search goes on from there, and asks the library no more.
    forge.forge_project(path, operators=["max_pool2d"], budget=Budget(trials=1), settings=settings)
    _, nodes = pool(path)
    assert [n.candidate.generator for n in nodes] == ["library", "template"]
    assert len({n.candidate.source for n in nodes}) == 2


def test_without_the_library_the_search_begins_anew(best: str, folder: Path, settings: Settings) -> None:
    path = captured(Second(), folder / "third.kforge")
    budget = Budget(trials=1)
    forge.forge_project(path, operators=["max_pool2d"], budget=budget, library=False, settings=settings)
    _, (node,) = pool(path)
    assert node.candidate.generator == "template"


def test_a_stored_kernel_is_not_trusted(best: str, folder: Path, settings: Settings) -> None:
    (kernel,) = Library(settings.library_dir).kernels()
    liar = Library(folder / "liar")
    liar.keep([replace(kernel, source=kernel.source.replace("launch(", "renamed(", 1) + DOES_NOTHING)])
    path = captured(Second(), folder / "fourth.kforge")
    chosen = replace(settings, library_dir=liar.folder)
    forge.forge_project(path, operators=["max_pool2d"], budget=Budget(trials=1), settings=chosen)
    _, (node,) = pool(path)
    assert (node.candidate.generator, node.kind) == ("library", "rejected")


def test_an_entry_names_no_place_of_this_machine(best: str, folder: Path, settings: Settings) -> None:
    (path,) = settings.library_dir.iterdir()
    text = path.read_text()
    assert not [place for place in (folder, Path.home(), Path(kernelforge.__file__).parent) if str(place) in text]
