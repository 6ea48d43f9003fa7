"""Every operator of the catalogue as a registered one, with a kernel that refuses every call.

So what is looked at is all but the kernel: which call forms of compiled code mean the operator, what the operator does
instead of the kernel, its fake implementation and its gradients. One form of each operator; all of them with
KFORGE_LONG=1.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch.library import opcheck

from kernelforge.capture.facts import tensor_spec
from kernelforge.capture.types import DimRef, TensorRef, Value
from kernelforge.cards.types import Dim, Extent, TensorPattern, Variant
from kernelforge.digest import digest
from kernelforge.dispatch.decide import describe
from kernelforge.dispatch.registered import namespace_of
from kernelforge.dispatch.rewrite import Kernels, rewrite
from kernelforge.dispatch.tables import Tables
from kernelforge.dispatch.types import EntryState, Kernel
from kernelforge.operators import get_operator, resolve_target
from kernelforge.package.types import Binary, Entry, Use

LONG = bool(os.environ.get("KFORGE_LONG"))
QUICK = ("test_schema", "test_autograd_registration", "test_faketensor")
EXPLICIT = {"torch.Tensor.__rtruediv__", "torch.Tensor.__rdiv__"}
"""Python functions of torch that a graph does not hold: written out in other operators."""


def _samples() -> Any:
    path = Path(__file__).parents[1] / "operators" / "test_conformance.py"
    spec = importlib.util.spec_from_file_location("samples_of_operators", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SAMPLES = _samples()


def _forms() -> dict[str, Any]:
    """Call forms that return one new tensor, by name."""
    found: dict[str, Any] = {}
    seen = set()
    for group in SAMPLES.GROUPS:
        operator = get_operator(group.operator)
        for form in group.forms:
            target, args, kwargs = form
            entry = next((e for e in operator.entries if e.target == target), None)
            if operator.view or operator.random or entry is None or target in EXPLICIT:
                continue
            view = describe([(operator, entry)], args, kwargs)
            if isinstance(view, str) or dict(view.facts.arguments).get("inplace") is True:
                continue
            if LONG or operator.name not in seen:
                seen.add(operator.name)
                found[f"{operator.name}-{len(found)}"] = (operator, entry, form)
    return found


FORMS = _forms()


def _pattern(tensor: torch.Tensor) -> TensorPattern:
    spec = tensor_spec(tensor)
    return TensorPattern(
        shape=tuple(map(Extent, spec.shape)), stride=tuple(map(Extent, spec.stride)), dtype=spec.dtype, alignment=1
    )


def _refused(*_: object) -> int:
    return 1


def _kernels(variant: Variant) -> Kernels:
    """A package of one kernel, which refuses."""
    binary = Binary(data=b"", digest="", backend="cpp", target="x86-64", refusals=("size",))
    entry = Entry(
        variant=variant, source="", prelude="", binaries=(binary,), verdict={}, measurement={}, audit={},
        decisions={"compiled": Use()}, provenance={},
    )  # fmt: skip
    kernel = Kernel(launch=_refused, address=0, workspace_bytes=lambda _: 0)
    tables = Tables(
        (EntryState(entry=entry, kernel=kernel, reasons={}),), name="test", native=lambda: None, mode="compiled"
    )
    return Kernels(tables=tables, namespace=namespace_of(tables, digest(["catalogue", variant.to_json()])))


@pytest.mark.filterwarnings("ignore:Using padding='same'", "ignore:.torch.jit.*. is")
@pytest.mark.parametrize("name", FORMS)
def test_an_operator_of_compiled_code_is_pytorchs_own_but_for_the_kernel(name: str) -> None:
    operator, entry, (target, args, kwargs) = FORMS[name]
    view = describe([(operator, entry)], args, kwargs)
    assert not isinstance(view, str)
    function = resolve_target(target)[2]
    want = function(*args, **kwargs)
    assert isinstance(want, torch.Tensor)
    variant = Variant(
        operator=operator.name, arguments=view.facts.arguments, tensors=tuple(map(_pattern, view.tensors)),
        outputs=(_pattern(want),),
    )  # fmt: skip
    kernels = _kernels(variant)

    def run(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        assert rewrite(graph_module, [kernels]) == 1
        made: Callable[..., Any] = graph_module.forward
        return made

    torch._dynamo.reset()
    got: Any = torch.compile(lambda *values: function(*values, **kwargs), backend=run, fullgraph=True, dynamic=False)(
        *args
    )
    assert torch.equal(got.nan_to_num(), want.nan_to_num())
    assert (got.dtype, got.stride()) == (want.dtype, want.stride())
    (row,) = kernels.tables.stats()
    assert (row.hits, row.misses) == (0, {"size": 1})

    registered = kernels.namespace.operator(kernels.tables.guarded[0][0])
    checks: dict[str, Any] = {} if LONG else {"test_utils": QUICK}
    for requires_grad in (False, True):
        # Running statistics are no inputs that a gradient could be asked of.
        tensors = [t.detach().clone().requires_grad_(requires_grad and t.is_floating_point()) for t in view.tensors]
        if operator.name == "batch_norm":
            tensors[1:3] = [t.detach() for t in tensors[1:3]]
        opcheck(registered.overload, (*tensors, *registered.numbers(view.facts.arguments)), **checks)


def test_an_integer_that_varies_is_an_argument_of_the_operator() -> None:
    """Output sizes, say: one variant, and each call says its own."""
    n, rest = Extent(1, ("n0",)), (Extent(3), Extent(4), Extent(4))
    image = TensorPattern(
        shape=(n, *rest), stride=(Extent(48), Extent(16), Extent(4), Extent(1)), dtype="float32", alignment=1
    )
    made = replace(
        image, shape=(n, Extent(3), Extent(1, ("n1",)), Extent(1, ("n2",))),
        stride=(Extent(3, ("n1", "n2")), Extent(1, ("n1", "n2")), Extent(1, ("n2",)), Extent(1)),
    )  # fmt: skip
    arguments: dict[str, Value] = {
        "input": TensorRef(0), "size": (DimRef("n1"), DimRef("n2")), "scale_factor": None, "mode": "nearest",
        "align_corners": None, "recompute_scale_factor": False, "antialias": False,
    }  # fmt: skip
    dims = tuple(Dim(name=name, low=1, high=64) for name in ("n0", "n1", "n2"))
    variant = Variant(
        operator="interpolate", arguments=tuple(arguments.items()), tensors=(image,), outputs=(made,), dims=dims
    )
    kernels = _kernels(variant)
    ((entry, _),) = kernels.tables.guarded
    registered = kernels.namespace.operator(entry)
    assert registered.schema == "(Tensor t0, SymInt n1, SymInt n2) -> Tensor"
    x = torch.rand(2, 3, 4, 4)

    def run(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        assert rewrite(graph_module, [kernels]) == 2
        return graph_module.forward

    def two_sizes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.interpolate(x, size=(5, 7)), F.interpolate(x, size=9)

    got, want = torch.compile(two_sizes, backend=run, fullgraph=True)(x), two_sizes(x)
    assert all(map(torch.equal, got, want))
    opcheck(registered.overload, (x, 5, 7), test_utils=QUICK)
