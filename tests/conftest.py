"""What all tests share: skips for hardware and tools that are not here, and the time that each group of tests took.

A group is the first folder under tests/.
"""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from kernelforge.errors import EnvironmentMissing
from kernelforge.settings import load_settings

TESTS = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    # Tests must not meet each other's kernels, nor those of whoever runs them; tests/library uses folders of its own.
    os.environ["KFORGE_LIBRARY"] = "0"
    # Nor may they sign with the user's key, or change what the user trusts: also where only a bare environment is read.
    folder = tempfile.TemporaryDirectory(prefix="kforge-tests-")
    config.add_cleanup(folder.cleanup)
    os.environ["XDG_CONFIG_HOME"] = folder.name
    os.environ["KFORGE_CONFIG_DIR"] = str(Path(folder.name, "kernelforge"))
    config.pluginmanager.register(GroupTimes(), "kernelforge-group-times")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, in one place, what this machine cannot run. In CI a tool that can be installed must be there."""
    if item.get_closest_marker("gpu") and not _gpu_usable():
        pytest.skip("needs an NVIDIA GPU that torch can use")
    if item.get_closest_marker("nvcc") and (problem := _nvcc_problem()):
        if load_settings().strict_tools:
            pytest.fail(f"{problem} (KFORGE_STRICT_TOOLS is set, so this is no skip)", pytrace=False)
        pytest.skip(problem)


@pytest.fixture(scope="session")
def torch_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build cache for sources of the torch ABI, which take half a minute each: all tests share it."""
    return tmp_path_factory.mktemp("torch-cache")


@cache
def _gpu_usable() -> bool:
    import torch

    return torch.cuda.is_available()


@cache
def _nvcc_problem() -> str:
    from kernelforge.build.backends.cuda import find_nvcc

    try:
        find_nvcc(load_settings())
    except EnvironmentMissing as error:
        return str(error.message)
    return ""


class GroupTimes:
    """Sums setup, call and teardown of the tests of each group."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.tests: dict[str, set[str]] = defaultdict(set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        group = _group_of(report.nodeid)
        self.seconds[group] += report.duration
        self.tests[group].add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.seconds:
            return
        terminalreporter.section("time per test group")
        for line in self.lines():
            terminalreporter.line(line)

    def lines(self) -> Iterator[str]:
        for group, seconds in sorted(self.seconds.items(), key=lambda item: -item[1]):
            yield f"{seconds:8.1f} s  {group} ({len(self.tests[group])} tests)"
        yield f"{sum(self.seconds.values()):8.1f} s  in all"


def _group_of(node_id: str) -> str:
    """First folder under tests/ of "tests/cli/test_help.py::test_x"; "tests" for files directly in it."""
    parts = node_id.split("::", maxsplit=1)[0].split("/")
    below = parts[parts.index(TESTS.name) + 1 :] if TESTS.name in parts else parts
    return below[0] if len(below) > 1 else TESTS.name
