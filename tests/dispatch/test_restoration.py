"""After dispatch torch is what it was, to the object; threads, nesting, exceptions and other patches included."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import subprocess
import sys
import threading
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelforge.dispatch.callsite import CallSite
from kernelforge.dispatch.loading import LoadedPackage, load
from kernelforge.dispatch.tables import Tables
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
        assert torch.softmax is not before["torch.softmax"][1]
        assert F.softmax is before["torch.nn.functional.softmax"][1], "what it calls is replaced"
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


def test_inner_calls_of_a_python_function_count_once_with_two_packages(make: Make, x: torch.Tensor) -> None:
    one, two = make("layer_norm"), make("layer_norm")
    many = torch.ones(100, 8)
    with one.dispatch(), two.dispatch():
        for _ in range(5):
            F.layer_norm(many, (8,))
    assert [p.stats()[0].misses for p in (one, two)] == [{"dim": 5}, {"dim": 5}]


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
    package = make("layer_norm")
    with package.dispatch():
        for _ in range(3):
            F.layer_norm(x, (4, 8))
            torch.layer_norm(x, (4, 8))
    assert package.stats()[0].misses == {"argument": 6}


COMPILED = """
import functools, sys
from dataclasses import replace
from pathlib import Path
from typing import Any
import torch
import torch.nn.functional as F
from kernelforge.dispatch.loading import load
from kernelforge.settings import load_settings

HELD = F.layer_norm

def whole(x):
    both = F.softmax(x, 1) + F.layer_norm(x, (8,)) + torch.softmax(x * 2.0, dim=1).relu_()
    return both + x.softmax(1) + torch.Tensor.softmax(x, 1) + HELD(x, (8,))

def partial(x):
    return functools.partial(F.layer_norm, normalized_shape=(8,))(x)

def broken(x):
    y = torch.softmax(x, 1)
    torch._dynamo.graph_break()
    return y + F.layer_norm(x + 1, (8,)).softmax(-1)

def generator(x):
    return sum(y for y in (F.layer_norm(x + i, (8,)) for i in range(2)))

x = torch.rand(4, 8)
package = load(sys.argv[1], settings=replace(load_settings({}), cache_dir=Path(sys.argv[2])))
def left_alone(x):  # Dynamo compiles no function with a break inside of a loop, but looks at those that it calls
    for kind in (torch.float64, torch.float16):
        torch._dynamo.graph_break()
        y = F.layer_norm(x.to(kind), (8,))
    return y

def compiled(model, one_graph):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    fast = torch.compile(model, fullgraph=one_graph, backend="eager")
    return fast, (fast(x), fast(x)), torch._dynamo.utils.counters["frames"]["total"]

for model, one_graph in ((whole, True), (partial, True), (broken, False), (generator, False), (left_alone, False)):
    want, (_, _, plain) = model(x), compiled(model, one_graph)
    with package.dispatch():
        inside, got, frames = compiled(model, one_graph)
    after = inside(x), torch.compile(lambda x: model(x), fullgraph=one_graph, backend="eager")(x)
    near, same = [torch.allclose(y, want, atol=7 / 1024) for y in got], [torch.equal(y, want) for y in after]
    print(model.__name__, near == same == [True, True], frames - plain)
"""


def test_code_compiled_inside_runs_as_ever_inside_and_after(write: Callable[..., Path], settings: Settings) -> None:
    """In a fresh process: what torch learns of its functions during dispatch must not outlive it.

    Nor is anything of ours compiled: the last number is how many functions more were looked at than without dispatch.
    """
    command = [sys.executable, "-c", COMPILED, str(write("softmax", "layer_norm")), str(settings.cache_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    want = ["whole True 0", "partial True 0", "broken True 0", "generator True 0", "left_alone True 0"]
    assert done.stdout.splitlines() == want, done.stderr + done.stdout


def test_where_the_compiler_does_not_look_through_each_call_asks(
    make: Make, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a torch that nobody has tried yet."""
    monkeypatch.setattr("kernelforge.dispatch.callsite._dynamo_looks_through", lambda: False)

    def model(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(torch.softmax(x, 1), (8,)) + x.softmax(1)

    want, package = model(x), make("softmax", "layer_norm")
    with package.dispatch():
        inside = torch.compile(model, fullgraph=True, backend="eager")
        assert torch.equal(inside(x), model(x)), "the graph calls what stands in torch when it runs"
    assert sorted(row.hits for row in package.stats()) == [2, 4]
    assert torch.equal(inside(x), want)


def plain_and_inside(look: Callable[[], object], make: Make) -> tuple[object, object]:
    plain = look()
    with make("softmax", "layer_norm").dispatch():
        return plain, look()


LOOKS: dict[str, Callable[[], object]] = {
    "name": lambda: (F.layer_norm.__name__, torch.softmax.__name__, torch.Tensor.softmax.__qualname__),
    "module": lambda: F.layer_norm.__module__,
    "doc": lambda: (F.layer_norm.__doc__, torch.softmax.__doc__),
    "kind": lambda: [
        inspect.isfunction(F.layer_norm), inspect.isbuiltin(torch.softmax), inspect.isroutine(torch.softmax),
        inspect.ismethoddescriptor(torch.Tensor.softmax), inspect.ismethod(nn.Softmax(1).forward),
    ],
    "signature": lambda: (inspect.signature(F.layer_norm), inspect.getfullargspec(F.layer_norm)),
    "source": lambda: inspect.getsource(F.layer_norm),
    "hints": lambda: typing.get_type_hints(F.layer_norm),
    "copies": lambda: copy.deepcopy(Holder()).method.__name__,
}  # fmt: skip


@pytest.mark.parametrize("name", LOOKS)
def test_what_is_there_meanwhile_looks_like_what_was_there(make: Make, settings: Settings, name: str) -> None:
    if not settings.native:
        pytest.skip("without the extension all are Python functions")
    plain, inside = plain_and_inside(LOOKS[name], make)
    assert inside == plain


class Holder:
    """Of a function that was taken from torch."""

    def __init__(self) -> None:
        self.function: Any = F.layer_norm
        self.method: Any = torch.Tensor.softmax
        self.builtin: Any = torch.softmax


def test_functions_taken_from_torch_meanwhile_can_be_kept_on_disk(
    make: Make, settings: Settings, x: torch.Tensor
) -> None:
    """They are written by name, and are the originals when they are read."""
    if not settings.native:
        pytest.skip("without the extension all are Python functions")
    with make("softmax", "layer_norm").dispatch():
        kept = [F.layer_norm, torch.softmax, torch.Tensor.softmax]
        written = pickle.dumps(kept)
        assert copy.deepcopy(kept) == kept == pickle.loads(written)
    for text in (written, pickle.dumps(kept)):
        read = pickle.loads(text)
        assert read == [F.layer_norm, torch.softmax, torch.Tensor.softmax]
        assert torch.equal(read[0](x, (8,)), F.layer_norm(x, (8,)))
        assert all(torch.equal(f(x, 1), x.softmax(1)) for f in read[1:])


def test_a_builtin_does_not_become_a_method(make: Make, settings: Settings, x: torch.Tensor) -> None:
    if not settings.native:
        pytest.skip("without the extension all are Python functions")
    with make("softmax", "layer_norm").dispatch():

        class Model:
            builtin, function, method = torch.softmax, staticmethod(F.layer_norm), torch.Tensor.softmax

        model: Any = Model()
        assert torch.allclose(model.builtin(x, 1), x.softmax(1))
        assert torch.equal(model.function(x, (8,)), F.layer_norm(x, (8,)))
        with pytest.raises(TypeError):
            model.method(x, 1)  # the model is the tensor, as without dispatch


@pytest.mark.parametrize("grad", [False, True])
def test_nothing_of_a_package_outlives_it(
    write: Callable[..., Path], settings: Settings, x: torch.Tensor, grad: bool
) -> None:
    def count() -> int:
        gc.collect()
        return sum(type(thing) in {CallSite, Tables} for thing in gc.get_objects())

    before = count()
    package = load(write("softmax"), settings=settings)
    with package.dispatch():
        for tensor in (x, x[:, :3], x.clone().requires_grad_(grad)):
            torch.softmax(tensor, 1)
            tensor.softmax(1)
    del package
    assert count() == before
