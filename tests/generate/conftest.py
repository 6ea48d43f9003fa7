"""One table of operator calls, and benches that forge, compile and run all of them at any batch size n0.

A bench compiles the sources of all cases in one translation unit, each in a namespace of its own. The CUDA bench does
so with g++ and an emulation of CUDA's threads (cuda_emulation.h), so that index arithmetic is tested without a GPU.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from kernelforge.build.abi import prelude
from kernelforge.capture.types import DtypeRef, TensorRef, Value
from kernelforge.cards.types import Dim, Extent, TensorPattern, Variant
from kernelforge.generate.generators.template import sources
from kernelforge.generate.types import Candidate, Request
from kernelforge.operators import Unsupported, get_operator

HERE = Path(__file__).parent
BATCH = 5  # the size that becomes the dim n0; no other axis of any case has it
DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Case:
    """A call `operator(*tensors, **keywords)`; every shape's 5 is the batch."""

    operator: str
    shapes: tuple[tuple[int, ...], ...]
    keywords: Mapping[str, object] = field(default_factory=dict)
    special: bool = False  # also with nan, infinities and a row of -inf
    inplace: bool = False
    transpose: bool = False  # the first tensor comes with its last two axes swapped


IMAGE, ODD_IMAGE, ROWS, BLOCK = (5, 6, 23, 32), (5, 3, 7, 7), (5, 70), (5, 6, 7)
CASES: Mapping[str, Case] = {
    "relu": Case("relu", (ROWS,), special=True),
    "relu_inplace": Case("relu", (ROWS,), {"inplace": True}, special=True, inplace=True),
    "silu": Case("silu", (ROWS,), special=True),
    "gelu": Case("gelu", (ROWS,), special=True),
    "gelu_tanh": Case("gelu", (ROWS,), {"approximate": "tanh"}, special=True),
    "add_alpha": Case("add", (ROWS, ROWS), {"alpha": 3}),
    "add_row": Case("add", (IMAGE, (32,))),
    "add_middle": Case("add", (IMAGE, (6, 1, 32))),
    "mul_strided": Case("mul", (BLOCK, BLOCK), transpose=True),
    "softmax": Case("softmax", (ROWS,), {"dim": 1}, special=True),
    "softmax_cast": Case("softmax", (ROWS,), {"dim": 1, "dtype": torch.float32}, special=True),
    "softmax_middle": Case("softmax", (BLOCK,), {"dim": 1}, special=True),
    "softmax_first": Case("softmax", (BLOCK,), {"dim": 0}),
    "log_softmax": Case("log_softmax", (ROWS,), {"dim": 1}, special=True),
    "layer_norm": Case(
        "layer_norm", ((5, 72),), {"normalized_shape": (72,), "weight": (72,), "bias": (72,)}, special=True
    ),
    "layer_norm_two_axes": Case("layer_norm", (BLOCK,), {"normalized_shape": (6, 7)}),
    "rms_norm": Case("rms_norm", ((5, 72),), {"normalized_shape": (72,), "weight": (72,)}),
    "batch_norm": Case("batch_norm", (IMAGE, (6,), (6,), (6,), (6,)), special=True),
    "max_pool": Case("max_pool2d", (IMAGE,), {"kernel_size": 3, "stride": 2, "padding": 1}, special=True),
    "max_pool_ceil": Case("max_pool2d", (ODD_IMAGE,), {"kernel_size": 2, "ceil_mode": True}, special=True),
    "max_pool_dilated": Case("max_pool2d", (IMAGE,), {"kernel_size": (3, 2), "dilation": 2, "stride": 1}),
    "avg_pool": Case("avg_pool2d", (IMAGE,), {"kernel_size": 3, "stride": 2, "padding": 1}),
    "avg_pool_inside": Case(
        "avg_pool2d", (IMAGE,), {"kernel_size": 3, "padding": 1, "ceil_mode": True, "count_include_pad": False}
    ),
    "avg_pool_ceil": Case("avg_pool2d", (IMAGE,), {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
    "mean_of_planes": Case("adaptive_avg_pool2d", (ODD_IMAGE,), {"output_size": 1}),
    "adaptive_avg_pool": Case("adaptive_avg_pool2d", (IMAGE,), {"output_size": (7, 4)}),
    "group_norm": Case("group_norm", (IMAGE,), {"num_groups": 3, "weight": (6,), "bias": (6,)}),
    "group_norm_plain": Case("group_norm", (ODD_IMAGE,), {"num_groups": 3}),
    "pad": Case("pad", (IMAGE,), {"pad": (0, 1, 0, 1)}),
    "pad_crop": Case("pad", (IMAGE,), {"pad": (2, -1), "value": 1.5}),
    "pad_three_axes": Case("pad", (IMAGE,), {"pad": (1, 2, 3, 0, 1, 1)}),
    "nearest": Case("interpolate", (IMAGE,), {"scale_factor": 2.0}),
    "nearest_factor": Case("interpolate", (IMAGE,), {"scale_factor": (1.7, 0.6)}),
    "nearest_exact": Case("interpolate", (IMAGE,), {"size": (40, 17), "mode": "nearest-exact"}),
    "bilinear": Case("interpolate", (IMAGE,), {"size": (11, 76), "mode": "bilinear"}),
    "bilinear_corners": Case("interpolate", (IMAGE,), {"scale_factor": 1.3, "mode": "bilinear", "align_corners": True}),
    "batch_norm_odd_rows": Case("batch_norm", (ODD_IMAGE, (3,), (3,), (3,), (3,)), special=True),
    "batch_norm_length": Case("batch_norm", ((3, 6, 5), (6,), (6,), (6,), (6,))),
    "long_mean": Case("mean", ((5, 9001),), {"dim": (1,)}),
    "long_mean_middle": Case("mean", ((5, 9001, 3),), {"dim": (1,)}),
    "mul_gate": Case("mul", (ODD_IMAGE, (5, 3, 1, 1))),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case_name" in metafunc.fixturenames:
        metafunc.parametrize("case_name", CASES)
    if "dtype" in metafunc.fixturenames:
        metafunc.parametrize("dtype", DTYPES)


def arguments_of(case: Case, dtype: str, n: int) -> dict[str, object]:
    """The canonical arguments of a case with random tensors at batch size n."""
    generator = torch.Generator().manual_seed(n)

    def tensor(shape: Sequence[int], position: int) -> torch.Tensor:
        sizes = [n if s == BATCH else s for s in shape]
        if case.transpose and position == 0:
            sizes[-1], sizes[-2] = sizes[-2], sizes[-1]
        # Parameters are positive, so that they also serve as variances.
        data = torch.rand(sizes, generator=generator) + 0.5 if position else torch.randn(sizes, generator=generator) * 3
        if case.special and position == 0 and n >= 4:
            data[0].flatten()[1] = float("nan")
            data[1] = -float("inf")
            data[2].flatten()[:3] = -float("inf")
            data[3].flatten()[2] = float("inf")
        data = data.to(getattr(torch, dtype))
        return data.transpose(-1, -2) if case.transpose and position == 0 else data

    tensors = [tensor(shape, i) for i, shape in enumerate(case.shapes)]
    keywords = {
        k: tensor(v, 1) if k in ("weight", "bias") and isinstance(v, tuple) else v for k, v in case.keywords.items()
    }
    operator = get_operator(case.operator)
    entry = next(e for e in operator.entries if all(k in e.parameters for k in keywords))
    bound = entry.bind(tuple(tensors), keywords)
    canonical = operator.normalise(bound)
    assert not isinstance(canonical, Unsupported), canonical.reason
    return canonical


def variant_of(case: Case, dtype: str, device: str) -> Variant:
    """The variant of a case, its batch a dim n0 in [0, 64]."""
    arguments = arguments_of(case, dtype, BATCH)
    tensors: list[torch.Tensor] = []

    def value(item: object) -> Value:
        if isinstance(item, torch.Tensor):
            tensors.append(item)
            return TensorRef(len(tensors) - 1)
        if isinstance(item, torch.dtype):
            return DtypeRef(str(item).removeprefix("torch."))
        if isinstance(item, tuple):
            return tuple(value(i) for i in item)
        assert item is None or isinstance(item, bool | int | float | str)
        return item

    named = tuple((name, value(item)) for name, item in arguments.items())
    result = get_operator(case.operator).call({k: _copy(v) for k, v in arguments.items()})
    assert isinstance(result, torch.Tensor)
    return Variant(
        operator=case.operator, arguments=named, tensors=tuple(_pattern(t) for t in tensors),
        outputs=() if case.inplace else (_pattern(result),), mutates=(0,) if case.inplace else (),
        dims=(Dim(name="n0", low=0, high=64),), device=device, capability="sm_90" if device == "cuda" else "",
    )  # fmt: skip


def _wide(value: object) -> object:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else _copy(value)


def _copy(value: object) -> object:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _pattern(tensor: torch.Tensor) -> TensorPattern:
    shape = tuple(Extent(1, ("n0",)) if s == BATCH else Extent(s) for s in tensor.shape)
    batch = next((s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n == BATCH), max(tensor.stride()))
    stride = tuple(Extent(s // BATCH, ("n0",)) if s > batch else Extent(s) for s in tensor.stride())
    return TensorPattern(shape=shape, stride=stride, dtype=str(tensor.dtype).removeprefix("torch."))


def proposals(variant: Variant, backend: str) -> list[Candidate]:
    """What the template generator proposes for a variant, in order."""
    request = Request(variant=variant, backend=backend, prelude="", brief="")
    return [
        Candidate(
            variant_id=variant.id, source=made.source, backend=backend, generator="template", notes=made.notes,
            schedule=made.schedule,
        )
        for made in sources(request)
    ]  # fmt: skip


def unit(made: Mapping[int, tuple[Variant, Candidate]], backend: str, includes: str) -> str:
    """One translation unit of many sources: source i is in namespace s<i> and exports launch_<i>."""
    head = prelude(next(iter(made.values()))[0], backend)
    helpers = head[head.index("#include") : head.index("namespace v {")] if backend == "cpp" else ""
    parts = [includes, helpers]
    for number, (variant, candidate) in made.items():
        text = prelude(variant, backend)
        constants = text[text.index("namespace v {") : text.index("}  // namespace v")] + "}\n"
        source = re.sub(r"\b(launch|workspace_bytes)\(", rf"\1_{number}(", candidate.source)
        parts.append(f"// {variant.describe()}: {candidate.notes}\nnamespace s{number} {{\n{constants}{source}}}\n")
    return "\n".join(parts)


class Bench:
    """Compiled sources of all cases: the first proposal of each, and for float32 also one later one."""

    def __init__(self, folder: Path, backend: str, compile_unit: Callable[[str, Path], None]) -> None:
        self._entries: dict[tuple[str, str], list[tuple[int, Variant, Candidate]]] = {}
        made: list[tuple[Variant, Candidate]] = []
        for position, (name, case) in enumerate(CASES.items()):
            for dtype in DTYPES:
                variant = variant_of(case, dtype, "cuda" if backend == "cuda" else "cpu")
                found = proposals(variant, backend)
                assert found, f"nothing is proposed for {name} {dtype}"
                later = found[-1 - position % len(found)]
                for candidate in (found[0], later) if dtype == "float32" and later != found[0] else (found[0],):
                    self._entries.setdefault((name, dtype), []).append((len(made), variant, candidate))
                    made.append((variant, candidate))
        includes = '#include "cuda_emulation.h"\n' if backend == "cuda" else ""
        texts = [unit(dict(list(enumerate(made))[part::2]), backend, includes) for part in range(2)]
        paths = [folder / f"unit_{part}.so" for part in range(2)]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(compile_unit, texts, paths))
        self._libraries = [ctypes.CDLL(str(path)) for path in paths]

    def check(self, case_name: str, dtype: str, n: int) -> None:
        """Run a case's sources at batch size n and compare each with eager."""
        case = CASES[case_name]
        operator = get_operator(case.operator)
        arguments = arguments_of(case, dtype, n)
        want = operator.call({k: _copy(v) for k, v in arguments.items()})
        assert isinstance(want, torch.Tensor)
        for number, variant, candidate in self._entries[(case_name, dtype)]:
            tensors = [v.clone() for v in arguments.values() if isinstance(v, torch.Tensor)]
            got = tensors[0] if case.inplace else torch.full_like(want, 7)
            pointers = [t.data_ptr() for t in tensors]
            status = self._call(number, variant, pointers, n, [] if case.inplace else [got.data_ptr()])
            assert status == 0
            tolerance = 2e-5 if want.dtype == torch.float32 == tensors[0].dtype else 1e-2
            ours = torch.isclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)
            if not ours.all():
                # On some processors eager's gelu of infinity is NaN, in float32 alone.
                wide = operator.call({k: _wide(v) for k, v in arguments.items()})
                assert isinstance(wide, torch.Tensor)
                right = torch.isclose(got, wide.to(want.dtype), rtol=tolerance, atol=tolerance)
                ours |= want.isnan() & ~wide.isnan() & right
            worst = (got - want)[~ours].abs()
            assert ours.all(), f"{candidate.notes}: {worst.numel()} wrong, the first by {worst[:4].tolist()}"

    def _call(self, number: int, variant: Variant, inputs: list[int], n: int, outputs: list[int]) -> int:
        workspace, library = torch.empty(1), self._libraries[number % 2]
        if hasattr(library, f"workspace_bytes_{number}"):
            size = library[f"workspace_bytes_{number}"]
            size.restype = ctypes.c_size_t
            workspace = torch.empty(size(ctypes.c_int64(n)) + 1, dtype=torch.uint8)
        arguments: list[object] = [ctypes.c_void_p(p) for p in inputs]
        arguments += [ctypes.c_int64(n)] * len(variant.dims)
        arguments += [ctypes.c_void_p(p) for p in (*outputs, workspace.data_ptr(), 0)]
        return int(library[f"launch_{number}"](*arguments))


def _gxx(text: str, target: Path, flags: Sequence[str]) -> None:
    source = target.with_suffix(".cpp")
    source.write_text(text)
    command = ["g++", "-std=c++17", "-shared", "-fPIC", f"-I{HERE}", *flags, "-o", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


@pytest.fixture(scope="session")
def cpp_bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    flags = [
        "-O2",
        "-march=x86-64-v3",
        "-fno-math-errno",
        "-ffp-contract=fast",
        "-fopenmp",
        "-Wall",
        "-Wextra",
        "-Werror",
    ]
    return Bench(tmp_path_factory.mktemp("cpp"), "cpp", lambda text, target: _gxx(text, target, flags))


@pytest.fixture(scope="session")
def emulated_bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    def compile_unit(text: str, target: Path) -> None:
        text = re.sub(
            r"extern __shared__ (\w+) (\w+)\[\];",
            r"\1* \2 = reinterpret_cast<\1*>(emulation::dynamic_shared);", text,
        )  # fmt: skip
        text = text.replace("__shared__ __align__(16)", "alignas(16) static").replace("__shared__", "static")
        text = re.sub(
            r"(\w+(?:<[\w, ]+>)?)<<<([^;]*?), THREADS, [^;]*?, stream>>>\(([^;]*?)\);",
            r"emulation::launch(\2, THREADS, [=] { \1(\3); });", text, flags=re.DOTALL,
        )  # fmt: skip
        # The emulation's half converts to several number types, which nvcc resolves and g++ calls ambiguous.
        _gxx(text, target, ["-O1", "-mf16c", "-fpermissive", "-w"])

    return Bench(tmp_path_factory.mktemp("cuda"), "cuda", compile_unit)


@pytest.fixture(scope="session")
def propose() -> Callable[[str, str, str], list[tuple[Variant, Candidate]]]:
    """All proposals for a case by name, dtype and backend."""

    def proposed(case_name: str, dtype: str, backend: str) -> list[tuple[Variant, Candidate]]:
        variant = variant_of(CASES[case_name], dtype, "cuda" if backend == "cuda" else "cpu")
        return [(variant, candidate) for candidate in proposals(variant, backend)]

    return proposed


@pytest.fixture(scope="session")
def cpp_unit(propose: Callable[[str, str, str], list[tuple[Variant, Candidate]]]) -> Callable[[str], str]:
    """A translation unit for g++ with the first proposal for a case in float32, as `launch_0`."""
    return lambda case_name: unit({0: propose(case_name, "float32", "cpp")[0]}, "cpp", "")


@pytest.fixture(scope="session")
def cuda_unit(propose: Callable[[str, str, str], list[tuple[Variant, Candidate]]]) -> str:
    """A translation unit for nvcc: a sample of all CUDA proposals."""
    headers = "cuda_runtime.h cuda_fp16.h cuda_bf16.h cfloat climits algorithm cmath cstddef cstdint cstring limits"
    includes = "".join(f"#include <{h}>\n" for h in headers.split())
    made: list[tuple[Variant, Candidate]] = []
    for position, name in enumerate(CASES):
        found = propose(name, DTYPES[position % len(DTYPES)], "cuda")
        made += list(dict.fromkeys((found[0], found[-1 - position % len(found)])))
    return unit(dict(enumerate(made)), "cuda", includes)
