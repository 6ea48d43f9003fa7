"""torch.compile with kernels: that results are right, how many graphs there are, and the backend's own ways.

Most tests run the graphs without Inductor. Where it is used, kernels serve the whole graph: its first kernel of its own
costs the compiler a quarter of a minute, and is left to the long form (KFORGE_LONG=1).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.dispatch.conftest import COMPILED, MARK, Pack, varying_sizes
from torch import fx
from torch._dynamo.backends.debugging import aot_eager
from torch._dynamo.utils import counters

import kernelforge
from kernelforge.dispatch.compiled import PackageBackend, backend, compiled_pair, kernels_of, use
from kernelforge.dispatch.loading import LoadedPackage
from kernelforge.dispatch.rewrite import rewrite
from kernelforge.errors import NotFound, UsageError
from kernelforge.package.types import Off
from kernelforge.settings import Settings

LONG = bool(os.environ.get("KFORGE_LONG"))
# torch's own, when Inductor is first imported.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.*. is", "ignore::DeprecationWarning")

Function = Callable[..., Any]


@pytest.fixture(scope="module", autouse=True)
def inductor_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What another run has compiled would hide what this one does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing compiled by another test, and no package named by one."""
    torch._dynamo.reset()
    yield
    use()


def hits(package: LoadedPackage, mode: str = "compiled") -> int:
    return sum(row.hits for row in package.stats(mode))


def misses(package: LoadedPackage) -> Mapping[str, int]:
    """By reason, of all entries together."""
    found: dict[str, int] = {}
    for row in package.stats("compiled"):
        for reason, count in row.misses.items():
            found[reason] = found.get(reason, 0) + count
    return found


def graphs() -> int:
    """How many graphs Dynamo has made."""
    return int(counters["stats"]["unique_graphs"])


def shifted(tensor: torch.Tensor) -> torch.Tensor:
    """The same values at an address that only 4 divides."""
    made = torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)
    assert made.data_ptr() % 16 == 4
    return made


def through_aot(package: LoadedPackage) -> Callable[..., Any]:
    """A backend with all of Inductor's way but Inductor: AOT autograd, then the operators that it leaves."""

    def run(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        rewrite(graph_module, [kernels_of(package)])
        return aot_eager(graph_module, list(example_inputs))

    return run


def chain(x: torch.Tensor) -> torch.Tensor:
    return (F.softmax(x, -1) * 2.0).log() + x


def want_of_chain(x: torch.Tensor) -> torch.Tensor:
    return ((torch.softmax(x, 1) + MARK) * 2.0 + MARK).log() + MARK + x + MARK


def test_a_whole_graph_through_inductor(pack: Pack, x: torch.Tensor) -> None:
    package = pack("softmax", "mul", "log", "add")
    before = graphs()
    options: Any = {"kernelforge.packages": package}
    compiled = torch.compile(chain, backend="kernelforge", fullgraph=True, options=options)
    torch.testing.assert_close(compiled(x), want_of_chain(x))
    assert hits(package) == 4

    # The same graph, and memory of which it does not know that it is no longer what it was.
    got = compiled(shifted(x))
    torch.testing.assert_close(got, want_of_chain(x), atol=0.05, rtol=0.0)
    assert misses(package) == {"alignment": 2}  # softmax's input and the sum's; the others are Inductor's own buffers

    with ThreadPoolExecutor(8) as pool:
        for made in pool.map(lambda _: compiled(x), range(100)):
            torch.testing.assert_close(made, want_of_chain(x))
    assert hits(package) >= 400
    assert graphs() - before == 1


def test_a_package_can_be_switched_off_under_compiled_code(pack: Pack, x: torch.Tensor) -> None:
    package = pack("softmax")
    compiled = torch.compile(lambda x: torch.softmax(x, 1), backend=through_aot(package), fullgraph=True)
    for on in (True, False, True):
        package.enabled = on
        torch.testing.assert_close(compiled(x), torch.softmax(x, 1) + on * MARK)
    assert (hits(package), misses(package)) == (2, {})


def test_three_shapes_of_which_the_kernel_serves_one(pack: Pack) -> None:
    package = pack("softmax")
    before = graphs()
    compiled = torch.compile(lambda x: torch.softmax(x, 1), backend=through_aot(package), fullgraph=True, dynamic=False)
    for shape in ((4, 8), (65, 8), (4, 16), (4, 8)):
        tensor = torch.rand(shape)
        torch.testing.assert_close(compiled(tensor), torch.softmax(tensor, 1) + (shape == (4, 8)) * MARK)
    assert hits(package) == 2
    assert graphs() - before == 3


@varying_sizes
def test_a_range_through_inductor_is_one_graph(pack: Pack) -> None:
    package = pack("softmax", "mul")
    before = graphs()
    compiled = package.compile(lambda x: torch.softmax(x, 1) * 2.0, fullgraph=True)
    for rows in (3, 17, 64):
        tensor = torch.rand(rows, 8)
        torch._dynamo.mark_dynamic(tensor, 0, min=2, max=64)
        want = (torch.softmax(tensor, 1) + MARK) * 2.0 + MARK
        torch.testing.assert_close(compiled(tensor), want)
    assert hits(package) == 6
    assert graphs() - before == 1


def test_gradients_are_eagers(pack: Pack, x: torch.Tensor) -> None:
    package = pack("softmax", "add")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(1))

    def loss(x: torch.Tensor) -> torch.Tensor:
        # Nothing asks for a gradient of this sum, so that a kernel serves it.
        result: torch.Tensor = (model(x) - (x + x)).square().sum()
        return result

    compiled = torch.compile(loss, backend=through_aot(package), fullgraph=True)
    found = []
    for function in (loss, compiled):
        model.zero_grad()
        function(x).backward()  # type: ignore[no-untyped-call]
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(found[1], found[0], atol=0.1, rtol=0.1)
    assert len(found[0]) == len(found[1]) == 2
    assert hits(package) == 1
    assert misses(package) == {"left to Inductor: grad": 1}
    with torch.no_grad():
        compiled(x)
    assert hits(package) == 3


def two_softmaxes(x: torch.Tensor) -> torch.Tensor:
    return F.softmax(x, 1) + x.softmax(1)


COMPILERS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.skipif(not LONG, reason="long form only"))]


@pytest.mark.parametrize("compiler", COMPILERS)
def test_code_compiled_before_dispatch_keeps_its_operators_during_it(
    pack: Pack, x: torch.Tensor, compiler: str
) -> None:
    package = pack("softmax", "add")
    want = two_softmaxes(x)
    served = want + 3 * MARK
    plain = torch.compile(two_softmaxes, backend=compiler, fullgraph=True)
    ours = package.compile(two_softmaxes, fullgraph=True)
    torch.testing.assert_close(plain(x), want)
    torch.testing.assert_close(ours(x), served)
    with package.dispatch():
        torch.testing.assert_close(plain(x), want)
        torch.testing.assert_close(ours(x), served)
        torch.testing.assert_close(two_softmaxes(x), served)
        assert (hits(package, "eager"), hits(package)) == (3, 6)
    torch.testing.assert_close(plain(x), want)
    torch.testing.assert_close(ours(x), served)
    assert (hits(package, "eager"), hits(package)) == (3, 9)


@pytest.mark.parametrize("compiler", ["eager", *COMPILERS, "ours"])
def test_code_compiled_during_dispatch_runs_no_kernel_of_it_afterwards(
    pack: Pack, x: torch.Tensor, compiler: str
) -> None:
    package = pack("softmax", "add")
    want = two_softmaxes(x)
    backend = PackageBackend((package,)) if compiler == "ours" else compiler
    compiled = torch.compile(two_softmaxes, backend=backend, fullgraph=True)
    with package.dispatch():
        inside = compiled(x)
        # The graph of "eager" is a module that calls torch's functions by their names: those of dispatch.
        counted = (3, 0) if compiler == "eager" else (0, 3) if compiler == "ours" else (0, 0)
        torch.testing.assert_close(inside, want + max(counted) * MARK)
        assert (hits(package, "eager"), hits(package)) == counted
    after = compiled(x)
    torch.testing.assert_close(after, want + counted[1] * MARK)
    assert (hits(package, "eager"), hits(package)) == (counted[0], 2 * counted[1])


# --- The backend's own ways ---


def test_torch_finds_the_backend_by_its_name() -> None:
    assert "kernelforge" in torch._dynamo.list_backends()


def test_without_a_package_the_error_says_what_to_do(x: torch.Tensor) -> None:
    with pytest.raises(Exception, match=r"kernelforge\.use\(") as error:
        torch.compile(lambda x: x + x, backend="kernelforge")(x)
    with pytest.raises(UsageError, match=r"no package"):
        backend(fx.symbolic_trace(lambda x: x), [])
    assert "no package" in str(error.value)
    with pytest.raises(NotFound, match=r"no package .*missing\.cast"):
        use("missing.cast")
    with pytest.raises(UsageError, match="is no package"):
        backend(fx.symbolic_trace(lambda x: x), [], options={"kernelforge.packages": 7})


@pytest.fixture
def given_to_inductor(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What Inductor is given as configuration; it compiles nothing."""
    import torch._inductor.compile_fx

    seen: list[dict[str, Any]] = []

    def compile_fx(model: fx.GraphModule, inputs: Any, *, config_patches: dict[str, Any], **_: Any) -> Any:
        seen.append(config_patches)
        return model.forward

    monkeypatch.setattr(torch._inductor.compile_fx, "compile_fx", compile_fx)
    return seen


@pytest.mark.parametrize(
    "chosen",
    [
        {}, {"mode": "default"}, {"mode": "reduce-overhead"}, {"mode": "max-autotune"},
        {"mode": "max-autotune-no-cudagraphs"}, {"options": {"epilogue_fusion": False, "max-autotune": True}},
    ],
    ids=str,
)  # fmt: skip
def test_mode_and_options_mean_what_they_mean_to_torch(
    pack: Pack, x: torch.Tensor, chosen: dict[str, Any], given_to_inductor: list[dict[str, Any]]
) -> None:
    package = pack("add")
    (loaded,) = use(package)
    assert loaded is package
    for ours in ({"backend": "kernelforge"}, {"backend": PackageBackend((package,))}, {}):
        torch._dynamo.reset()
        torch.compile(lambda x: x + x, **ours, **chosen)(x)
    first, second, plain = given_to_inductor
    assert first == second == plain
    assert hits(package) == 2


def test_an_option_that_nobody_knows_is_refused_as_by_torch(pack: Pack, x: torch.Tensor) -> None:
    with pytest.raises(Exception, match="Unexpected optimization option no_such_option"):
        pack("add").compile(lambda x: x + x, options={"no_such_option": 1})(x)


def test_packages_are_named_by_option_else_by_use(
    pack: Pack,
    x: torch.Tensor,
    given_to_inductor: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    cache: Settings,
) -> None:
    monkeypatch.setenv("KFORGE_CACHE_DIR", str(cache.cache_dir))
    first, second = pack("add"), pack("add")

    def call(**options: Any) -> None:
        torch._dynamo.reset()
        given: dict[str, Any] = {"options": options} if options else {}
        torch.compile(lambda x: x + x, backend="kernelforge", **given)(x)

    kernelforge.use(first)
    call()
    assert (hits(first), hits(second)) == (1, 0)
    call(**{"kernelforge.packages": [second]})
    assert (hits(first), hits(second)) == (1, 1)
    (loaded,) = kernelforge.use(first.package.path)
    assert kernelforge.use(str(first.package.path)) == (loaded,)
    call(**{"kernelforge.packages": Path(first.package.path)})
    assert (hits(loaded), hits(first)) == (1, 1)


@pytest.mark.parametrize("inductor", [False, pytest.param(True, marks=pytest.mark.skipif(not LONG, reason="long"))])
def test_a_pair_is_one_call_with_and_without_its_kernel(
    pack: Pack, x: torch.Tensor, inductor: bool, request: pytest.FixtureRequest
) -> None:
    if not inductor:
        request.getfixturevalue("given_to_inductor")
    package = pack("softmax", "mul", "relu_", decisions={**COMPILED, "compiled": Off(reason="not measured")})
    variants = {e.variant.operator: e.variant for e in package.package.entries}
    pair = compiled_pair(package, variants["mul"], {"n0": 4}, {"s0": 2.0})
    assert not isinstance(pair, str)
    torch.testing.assert_close(pair.plain(x), x * 2.0)
    assert pair.hits == 0
    torch.testing.assert_close(pair.fast(x), x * 2.0 + MARK)
    assert pair.hits == 1
    assert hits(package) == 0  # what is only tried is not what the package has served
    assert compiled_pair(package, variants["relu"], {"n0": 4}, {}) == "changes an input in place"
    assert compiled_pair(pack("softmax"), variants["mul"], {"n0": 4}, {"s0": 2.0}) == "not in the package"


def test_pairs_of_many_sizes_are_made_in_one_process(
    pack: Pack, x: torch.Tensor, given_to_inductor: list[dict[str, Any]]
) -> None:
    package = pack("softmax")
    variant = package.package.entries[0].variant
    for _ in range(5):
        pair = compiled_pair(package, variant, {"n0": 4}, {})
        assert not isinstance(pair, str)
        torch.testing.assert_close(pair.fast(x), pair.plain(x) + MARK)
        assert pair.hits == 1
    assert len(given_to_inductor) == 10  # more than Dynamo compiles one function
