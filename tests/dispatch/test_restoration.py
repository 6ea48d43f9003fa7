"""After dispatch torch is what it was, to the object; threads, nesting, exceptions and other patches included."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from kernelforge.dispatch.loading import LoadedPackage
from kernelforge.operators import get_operator, operator_names, resolve_target
from kernelforge.settings import Settings

Make = Callable[..., LoadedPackage]
MARK = 1 / 1024  # what each test kernel adds to its result


def snapshot() -> dict[str, tuple[bool, object]]:
    """For each target of each operator: whether its owner has it itself, and the object that is there."""
    seen: dict[str, tuple[bool, object]] = {}
    for operator in map(get_operator, operator_names()):
        for form in operator.entries:
            if not form.target.startswith("torch.ops."):
                owner, attribute, _ = resolve_target(form.target)
                seen[form.target] = (attribute in vars(owner), inspect.getattr_static(owner, attribute))
    return seen


def same(before: dict[str, tuple[bool, object]]) -> bool:
    after = snapshot()
    return all(after[t][0] == own and after[t][1] is value for t, (own, value) in before.items())


def test_every_attribute_is_the_very_same_object_again(make: Make, x: torch.Tensor) -> None:
    before = snapshot()
    package = make()
    with package.dispatch():
        assert not same(before)
        assert F.softmax is not before["torch.nn.functional.softmax"][1]
    assert same(before)
    assert "softmax" not in vars(torch.Tensor)
    assert "__add__" not in vars(torch.Tensor)
    assert torch.equal(x + x, 2 * x)


def test_nested_blocks_of_one_package(make: Make, x: torch.Tensor) -> None:
    before, package = snapshot(), make("softmax")
    with package.dispatch():
        with package.dispatch():
            torch.softmax(x, 1)
        torch.softmax(x, 1)
    assert same(before)
    assert package.stats()[0].hits == 2


@pytest.mark.parametrize("first_out", ["inner", "outer"])
def test_two_packages_may_leave_in_any_order(make: Make, x: torch.Tensor, first_out: str) -> None:
    before, one, two = snapshot(), make("softmax"), make("softmax", "add")
    contexts = [one.dispatch(), two.dispatch()]
    for context in contexts:
        context.__enter__()
    torch.softmax(x, 1)
    contexts[0 if first_out == "outer" else 1].__exit__(None, None, None)
    torch.softmax(x, 1)
    contexts[1 if first_out == "outer" else 0].__exit__(None, None, None)
    torch.softmax(x, 1)
    assert same(before)
    hits = [p.stats()[-1].hits for p in (one, two)]
    assert hits == ([0, 2] if first_out == "outer" else [1, 1])


def test_an_exception_inside(make: Make) -> None:
    before = snapshot()
    with pytest.raises(ZeroDivisionError), make().dispatch():
        raise ZeroDivisionError
    assert same(before)


def test_all_threads_are_served(make: Make, x: torch.Tensor) -> None:
    package, before = make("softmax"), snapshot()
    want, wrong = torch.softmax(x, 1) + MARK, []

    def work() -> None:
        for _ in range(200):
            if not torch.allclose(torch.softmax(x, 1), want):
                wrong.append(1)

    with package.dispatch():
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    assert package.stats()[0].hits == 800
    assert same(before)


def test_threads_that_enter_and_leave_at_will(make: Make, x: torch.Tensor) -> None:
    package, before = make("softmax"), snapshot()

    def work() -> None:
        for _ in range(20):
            with package.dispatch():
                torch.softmax(x, 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert package.stats()[0].hits == 80
    assert same(before)


def test_a_foreign_patch_inside_stays_and_the_wrapper_below_becomes_a_pass_through(
    make: Make, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = make("softmax")
    monkeypatch.setattr(torch, "softmax", torch.softmax)  # put back when the test ends
    with pytest.warns(RuntimeWarning, match="torch.softmax"), package.dispatch():
        ours = torch.softmax

        def foreign(tensor: torch.Tensor, dim: int) -> torch.Tensor:
            return ours(tensor, dim)

        torch.softmax = foreign  # type: ignore[assignment]
        torch.softmax(x, 1)
    assert torch.softmax is foreign
    assert torch.equal(torch.softmax(x, 1), x.softmax(1))
    assert package.stats()[0].hits == 1


def test_a_wrapper_that_somebody_kept_passes_through(make: Make, x: torch.Tensor) -> None:
    package = make("softmax")
    with package.dispatch():
        kept = torch.softmax
        kept(x, 1)
    assert torch.equal(kept(x, 1), torch.softmax(x, 1))
    assert torch.equal(kept(x.double(), 1), torch.softmax(x.double(), 1))
    assert (package.stats()[0].hits, package.stats()[0].misses) == (1, {})


def test_a_python_function_of_torch_counts_a_miss_once(make: Make, x: torch.Tensor) -> None:
    package = make("softmax")
    with package.dispatch():
        for _ in range(3):
            F.softmax(x, 0)
    assert package.stats()[0].misses == {"argument": 3}


COMPILED = """
import sys
from dataclasses import replace
from pathlib import Path
import torch
import torch.nn.functional as F
from kernelforge.dispatch.loading import load
from kernelforge.settings import load_settings

def model(x):
    return F.softmax(x, 1) + torch.softmax(x * 2.0, 1).relu_()

x = torch.rand(4, 8)
want = model(x)
package = load(sys.argv[1], settings=replace(load_settings({}), cache_dir=Path(sys.argv[2])))
with package.dispatch():
    inside = torch.compile(model, fullgraph=True, backend="eager")
    got = inside(x), inside(x)
after = inside(x), torch.compile(lambda x: model(x), fullgraph=True, backend="eager")(x)
print([torch.allclose(y, want, atol=1 / 128) for y in got], [torch.equal(y, want) for y in after])
"""


def test_code_compiled_inside_runs_as_ever_inside_and_after(write: Callable[..., Path], settings: Settings) -> None:
    """In a fresh process: what torch learns of its functions during dispatch must not outlive it."""
    command = [sys.executable, "-c", COMPILED, str(write("softmax")), str(settings.cache_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[True, True] [True, True]", done.stderr
