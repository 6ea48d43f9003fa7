"""The torch ABI as text: which sources are of it, and what their `launch` is called with."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.cli.test_judgement import RELU as C_RELU
from tests.cli.test_judgement import relu_record
from tests.torch_kernels import BROKEN, CUDA, RELU, WRONG

from kernelforge.build.backends import get_backend
from kernelforge.build.torch_abi import call_of, is_torch_source, launch_parameters, torch_unit
from kernelforge.build.types import Artifact, BuildFailure
from kernelforge.capture.types import Arguments, DimRef, DtypeRef, TensorRef
from kernelforge.cards.types import Dim, Extent, TensorPattern, Variant
from kernelforge.explain.outcome import explain
from kernelforge.generate.types import Candidate
from kernelforge.settings import load_settings

HEAD = "#include <torch/extension.h>\n"


def variant_of(arguments: Arguments, tensors: int, dims: tuple[Dim, ...] = ()) -> Variant:
    pattern = TensorPattern(shape=(Extent(4),), stride=(Extent(1),), dtype="float32")
    return Variant(
        operator="conv2d", arguments=arguments, tensors=(pattern,) * tensors, outputs=(pattern,), dims=dims
    )  # fmt: skip


CONV = variant_of(
    (
        ("input", TensorRef(0)), ("weight", TensorRef(1)), ("bias", None), ("stride", (2, 2)), ("padding", (1, 0)),
        ("dilation", (1, 1)), ("groups", 1),
    ), 2,
)  # fmt: skip
NORM = variant_of(
    (("input", TensorRef(0)), ("num_groups", 8), ("weight", TensorRef(1)), ("bias", TensorRef(2)), ("eps", 1e-5)), 3
)
MIXED = variant_of(
    (
        ("tensors", (TensorRef(0), TensorRef(1))), ("dim", DimRef("n0")), ("dtype", DtypeRef("float16")),
        ("mode", "mean"), ("keepdim", True), ("scale", (0.5, 1.5)),
    ), 2, (Dim(name="n0", low=1, high=4),),
)  # fmt: skip


def given(parameters: str, variant: Variant) -> list[str] | str:
    call = call_of(f"{HEAD}torch::Tensor launch({parameters}) {{ return a; }}", variant)
    return call if isinstance(call, str) else [p.argument for p in call]


@pytest.mark.parametrize(
    "filler",
    [
        "\n" * 10,
        'extern "C" ',
        'extern "C" {',
        "launch(",
        "launch(<",
        "torch::Tensor launch(" + "<" * 500,
        "{",
        "}",
        '"',
    ],
)
def test_hostile_text_takes_no_time(filler: str) -> None:
    source = HEAD + filler * (900_000 // len(filler))
    started = time.process_time()
    is_torch_source(source)
    launch_parameters(source)
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    "source",
    [
        RELU,
        WRONG,
        HEAD + 'extern "C" { void other(); } extern "C" int a(int b) { return b; }' + WRONG,
        HEAD + "std::vector<at::Tensor> launch(at::Tensor x) { return {x}; }",
    ],
)
def test_is_of_the_torch_abi(source: str) -> None:
    assert is_torch_source(source)


@pytest.mark.parametrize(
    "source",
    [
        C_RELU,
        HEAD + C_RELU,
        HEAD + 'extern "C" {\nint launch(const float* x, float* out, void* w) { return 0; }\n}',
        "// #include <torch/extension.h>\n" + C_RELU,
        HEAD + 'namespace k {}\nextern "C" { static int a() { return 1; }\nint launch(const float* x) { return 0; } }',
        "torch::Tensor launch(torch::Tensor x) { return x; }",
    ],
)
def test_is_of_the_c_abi(source: str) -> None:
    """Whatever it includes: a launch that is extern "C" is held to the strict tier."""
    assert not is_torch_source(source)


@pytest.mark.parametrize(
    ("parameters", "variant", "arguments"),
    [
        ("torch::Tensor a, const torch::Tensor& b, int64_t s", CONV, ["input", "weight", "stride"]),
        (
            "at::Tensor x, at::Tensor w, c10::optional<at::Tensor> b, at::IntArrayRef s, std::vector<int64_t> p", CONV,
            ["input", "weight", "bias", "stride", "padding"],
        ),
        ("torch::Tensor x, torch::Tensor w, int64_t groups", CONV, ["input", "weight", "groups"]),
        ("torch::Tensor x, torch::Tensor w, int64_t nothing = 3", NORM, ["input", "weight"]),
        ("torch::Tensor x, int64_t g, torch::Tensor w, torch::Tensor b, double e", NORM,
         ["input", "num_groups", "weight", "bias", "eps"]),
        ("torch::Tensor x, torch::Tensor weight, torch::Tensor bias, int num_groups, float eps", NORM,
         ["input", "weight", "bias", "num_groups", "eps"]),
        ("at::TensorList t, int64_t d, at::ScalarType y, std::string m, bool k, std::vector<double> s", MIXED,
         ["tensors", "dim", "dtype", "mode", "keepdim", "scale"]),
        ("const std::vector<torch::Tensor>& t, std::optional<bool> k", MIXED, ["tensors", "keepdim"]),
    ],
)  # fmt: skip
def test_parameters_get_the_operators_arguments(parameters: str, variant: Variant, arguments: list[str]) -> None:
    assert given(parameters, variant) == arguments


@pytest.mark.parametrize(
    ("parameters", "variant"),
    [
        ("torch::Tensor x, torch::Tensor w, torch::Tensor b", CONV),  # there is no bias
        ("torch::Tensor x, int64_t padding", CONV),  # (1, 0) is not one number
        ("torch::Tensor a, torch::Tensor b, torch::Tensor c, torch::Tensor d", NORM),
        ("float* x", NORM),
    ],
)
def test_what_has_no_counterpart_is_said(parameters: str, variant: Variant) -> None:
    said = given(parameters, variant)
    assert isinstance(said, str) and "has no counterpart" in said


def test_the_definition_is_found() -> None:
    source = (
        HEAD + "/* launch(int nothing) { */ torch::Tensor launch(torch::Tensor a, std::array<int, 2> b);\n"
        "static void before() { object.launch(1); kernel::launch(2); }\n"
        "torch::Tensor launch(torch::Tensor a, std::array<int, 2> b = {1, 2})\n{ return a; }"
    )
    parameters = launch_parameters(source)
    assert parameters is not None
    assert [(p.name, p.kind, p.defaulted) for p in parameters] == [("a", "tensor", False), ("b", "ints", True)]
    assert launch_parameters(HEAD + "void launch_all(int x) {}") is None


def test_a_source_with_a_module_of_its_own_keeps_it() -> None:
    own = RELU + 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("launch", &launch); }\n'
    variant = relu_record("").variant
    plain = torch_unit(Candidate(variant_id=variant.id, source=RELU, backend="cpp", generator="manual"), variant)
    kept = torch_unit(Candidate(variant_id=variant.id, source=own, backend="cpp", generator="manual"), variant)
    assert plain.count("PYBIND11_MODULE") == 1 and "return launch(a0)" in plain
    assert kept.count("PYBIND11_MODULE") == 1 and "a0" not in kept


@pytest.mark.parametrize(
    ("source", "reason", "words"),
    [
        (HEAD + "// launch(\nvoid other() {}", "missing_launch", "docs/abi.md"),
        (HEAD + "torch::Tensor launch(float* x) { return {}; }", "wrong_signature", "has no counterpart"),
    ],
)
def test_what_cannot_be_called_is_not_built(torch_cache: Path, source: str, reason: str, words: str) -> None:
    variant = relu_record("").variant
    backend = get_backend("cpp", load_settings({"KFORGE_CACHE_DIR": str(torch_cache)}))
    built = backend.build(Candidate(variant_id=variant.id, source=source, backend="cpp", generator="manual"), variant)
    assert isinstance(built, BuildFailure) and built.reason == reason
    assert words in "\n".join(explain(built, source=source))


@pytest.mark.slow
def test_a_compile_error_names_the_candidates_line(torch_cache: Path) -> None:
    variant = relu_record("").variant
    backend = get_backend("cpp", load_settings({"KFORGE_CACHE_DIR": str(torch_cache)}))
    built = backend.build(Candidate(variant_id=variant.id, source=BROKEN, backend="cpp", generator="manual"), variant)
    assert isinstance(built, BuildFailure) and built.reason == "compile_error"
    said = "\n".join(explain(built, source=BROKEN))
    assert "line 2:" in said and "nothing" in said and "prelude" not in said


@pytest.mark.nvcc
@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("KFORGE_LONG"), reason="takes minutes; `make build-test` runs it")
@pytest.mark.timeout(900)  # nvcc reads torch's headers once for each side
def test_cuda_compiles(torch_cache: Path) -> None:
    variant = relu_record("").variant
    backend = get_backend("cuda", load_settings({"KFORGE_CACHE_DIR": str(torch_cache)}), arch="sm_90")
    built = backend.build(Candidate(variant_id=variant.id, source=CUDA, backend="cuda", generator="manual"), variant)
    assert isinstance(built, Artifact), built
    assert (built.backend, built.target) == ("torch", "sm_90") and "relu" in built.log
    assert not any("site-packages" in flag for flag in built.flags), "where torch lies says nothing elsewhere"
