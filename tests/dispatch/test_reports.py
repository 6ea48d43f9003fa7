"""What went wrong elsewhere, as it was reported in public, and that it does not here.

Each report is about other software; the test shows the behaviour that we owe in the same situation.

- Dao-AILab/flash-attention#1783, #1717: a binary with an undefined symbol
  -> a_binary_with_a_missing_symbol_is_off_by_its_name
- pytorch/pytorch#187727: a binary dies with a newer torch
  -> binaries_need_no_symbol_of_torch
- huggingface/kernels-community#1082: no reason why nothing fits
  -> test_loading: another_torch_minor_turns_all_off_with_one_warning
- flashinfer-ai/flashinfer#5269: tuned for one size, failed at another
  -> test_eager: another_size_hits_a_ranged_variant_until_the_range_ends
- sgl-project/sglang#38969: one unsupported shape switched all off
  -> one_unsupported_shape_leaves_the_others_served
- ROCm/aiter#5292: views silently wrong
  -> test_eager: a_call_outside_of_the_guard_gets_eager[stride]
- rahul-goel/fused-ssim#44: an output in the layout of its input
  -> outputs_have_eagers_layout_whatever_the_inputs_is
- NVIDIA/TensorRT-LLM#17987: a misaligned slice
  -> test_eager: a_call_outside_of_the_guard_gets_eager[alignment]
- pytorch/pytorch#195210: gradients assumed contiguous
  -> gradients_without_memory_of_their_own_are_refused
- linkedin/Liger-Kernel#1338, vllm-project/vllm#33383: other results when compiled
  -> test_compiled
- linkedin/Liger-Kernel#1303, DeepWave-KAUST/sweep#6: the wrong GPU
  -> test_reports_cuda: a_tensor_on_another_gpu_than_the_current_one
- deepseek-ai/FlashMLA#176: the current GPU's architecture, not the tensor's
  -> the_architecture_is_that_of_the_tensor
- thu-ml/SageAttention#380, tile-ai/tilelang#89, mirage-project/mirage#207, sgl-project/sglang#36572: the wrong stream
  -> test_reports_cuda: a_kernel_runs_on_the_current_stream
- spiriMirror/libuipc#472: a replay on frozen data
  -> test_reports_cuda: a_replayed_graph_sees_changed_inputs
- huggingface/trl#6783, linkedin/Liger-Kernel#772, #636: patches that stay
  -> test_restoration; nothing_of_a_model_is_touched
- pytorch/pytorch#180905, vllm-project/vllm#40562: two overrides of one aten operator
  -> other_overrides_of_operators_keep_working
- vllm-project/vllm#52802, sgl-project/sglang#9564: one operator registered twice
  -> one_package_loaded_twice_is_no_conflict
- triton-lang/triton#8437, ROCm/aotriton#224, flagos-ai/FlagGems#136: races of the first calls
  -> test_threads
- pytorch/pytorch#189245, NVIDIA/Megatron-LM#6956: a killed build blocks all later ones
  -> a_build_that_was_killed_blocks_none
- antirez/ds4#759, NVIDIA/cuml#7906: one fault, hours of errors
  -> test_quarantine; test_reports_cuda: a_fault_of_the_device_is_named
- pytorch/pytorch#128413: fused fast paths are lost under a mode
  -> fused_fast_paths_are_taken_as_ever

And what a hook on torch's functions has got wrong before: other threads (test_restoration), autocast
(products_under_autocast_have_eagers_dtype), gradients and transforms (test_subclasses), lazy bits (test_eager) and
another dtype behind a raw pointer (memory_of_another_dtype_is_never_reinterpreted).
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelforge.capture.types import TensorSpec
from kernelforge.cards.guard import CallFacts, Guard, Refused
from kernelforge.digest import digest_bytes
from kernelforge.dispatch.loading import LoadedPackage, load
from kernelforge.hostbuild import compile_once, find_c_compiler
from kernelforge.package.types import Entry
from kernelforge.settings import Settings

Make = Callable[..., LoadedPackage]
MARK = 1 / 1024  # what each test kernel adds to its result


def with_binary(entry: Entry, data: bytes) -> Entry:
    return replace(entry, binaries=(replace(entry.binary, data=data, digest=digest_bytes(data)),))


def test_a_binary_with_a_missing_symbol_is_off_by_its_name(
    write: Callable[..., Path], settings: Settings, entries: Mapping[str, Entry], tmp_path: Path, x: torch.Tensor
) -> None:
    """Dao-AILab/flash-attention#1783: the import died; here the reason names the symbol, and eager runs."""
    source, built = tmp_path / "broken.c", tmp_path / "broken.so"
    source.write_text("extern int _ZN3c105ErrorC2E; long kforge_workspace(void) { return _ZN3c105ErrorC2E; }")
    compiler = find_c_compiler(settings)
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(built)], check=True)
    package = load(write(with_binary(entries["softmax"], built.read_bytes()), "add"), settings=settings)
    reasons = {s.entry.variant.operator: s.reason for s in package.states}
    assert "_ZN3c105ErrorC2E" in reasons["softmax"]
    assert reasons["add"] == ""
    with package.dispatch():
        assert torch.equal(torch.softmax(x, 1), torch.ops.aten.softmax.int(x, 1))


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm, of binutils")
def test_binaries_need_no_symbol_of_torch(entries: Mapping[str, Entry], tmp_path: Path) -> None:
    """pytorch/pytorch#187727: a symbol went away with torch 2.13; a kernel's binary knows none of torch's."""
    path = tmp_path / "kernel.so"
    path.write_bytes(entries["softmax"].binary.data)
    listed = subprocess.run(["nm", "-D", "--undefined-only", str(path)], capture_output=True, text=True, check=True)
    names = [line.split()[-1] for line in listed.stdout.splitlines()]
    torchs = ("c10", "at4", "torch", "caffe2", "aoti", "THP")
    assert names, "there is at least the C library"
    assert not [name for name in names if any(part in name for part in torchs)]


def test_one_unsupported_shape_leaves_the_others_served(make: Make, x: torch.Tensor) -> None:
    """sgl-project/sglang#38969: a prefill shape that was not supported switched the fast path off for all."""
    package = make("softmax")
    with package.dispatch():
        for _ in range(3):
            torch.testing.assert_close(torch.softmax(x, 1), torch.ops.aten.softmax.int(x, 1) + MARK)
            long = torch.rand(65, 8)
            assert torch.equal(torch.softmax(long, 1), torch.ops.aten.softmax.int(long, 1))
    (row,) = package.stats()
    assert (row.hits, row.misses) == (3, {"dim": 3})


def test_outputs_have_eagers_layout_whatever_the_inputs_is(make: Make) -> None:
    """rahul-goel/fused-ssim#44: `empty_like` kept a view's strides, and most outputs were never written."""
    wide = torch.rand(4, 16)
    views = [wide[:, ::2], torch.rand(8, 4).t(), torch.rand(1, 8).expand(4, 8), wide[:, :8], wide[1:, 8:]]
    with make("softmax", "add").dispatch() as package:
        torch.softmax(torch.rand(4, 8), 1)
        for view in views:
            for got, want in (
                (torch.softmax(view, 1), torch.ops.aten.softmax.int(view, 1)),
                (view + view, torch.ops.aten.add.Tensor(view, view)),
            ):
                assert got.stride() == want.stride()
                assert torch.equal(got, want)
    assert sum(row.hits for row in package.stats()) == 1


class Through(torch.autograd.Function):
    """A backward in Python that calls what a kernel serves."""

    seen: list[tuple[int, ...]] = []  # noqa: RUF012 - emptied by the test

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        Through.seen.append(grad.stride())
        return torch.softmax(grad, 1)


def test_gradients_without_memory_of_their_own_are_refused(make: Make, x: torch.Tensor) -> None:
    """pytorch/pytorch#195210: backward kernels took gradients for contiguous; `sum` passes one number expanded, `cat`
    narrow views."""

    def gradients() -> list[torch.Tensor]:
        found = []
        for use in (
            lambda t: t.sum(), lambda t: torch.cat([t, t], 1).square().sum(), lambda t: (t * t.detach()).sum(),
        ):  # fmt: skip
            leaf = x.clone().requires_grad_()
            use(Through.apply(leaf)).backward()  # type: ignore[no-untyped-call]
            assert leaf.grad is not None
            found.append(leaf.grad)
        return found

    want = gradients()
    with make("softmax").dispatch() as package:
        torch.softmax(x, 1)
        Through.seen.clear()
        got = gradients()
    assert (0, 0) in Through.seen
    served = sum(row.hits for row in package.stats()) - 1
    assert served == sum(stride == (8, 1) for stride in Through.seen)
    for a, b, stride in zip(got, want, Through.seen, strict=True):
        torch.testing.assert_close(a, b + (MARK if stride == (8, 1) else 0.0))


def test_the_architecture_is_that_of_the_tensor(entries: Mapping[str, Entry]) -> None:
    """deepseek-ai/FlashMLA#176: the current GPU was asked, and its kernel ran on the tensor's."""
    variant = replace(entries["softmax"].variant, device="cuda", capability="sm_90")
    spec = TensorSpec(shape=(4, 8), stride=(8, 1), dtype="float32", device="cuda")
    facts = CallFacts(
        operator="softmax", arguments=variant.arguments, tensors=(spec,), device="cuda", capability="sm_100"
    )
    answer = Guard.of(variant).check(facts)
    assert isinstance(answer, Refused)
    assert answer.term == "capability"


def test_nothing_of_a_model_is_touched(make: Make, x: torch.Tensor) -> None:
    """linkedin/Liger-Kernel#636: after the revert `forward` stayed replaced, on the class or on the instance."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Softmax(1), nn.ReLU())
    modules = list(model.modules())
    before = [dict(vars(module)) for module in modules]
    forwards = [type(module).forward for module in modules]
    with torch.no_grad(), make().dispatch():
        model(x)
        assert [dict(vars(module)) for module in modules] == before
    assert [type(module).forward for module in modules] == forwards
    assert [dict(vars(module)) for module in modules] == before


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_other_overrides_of_operators_keep_working(make: Make, x: torch.Tensor) -> None:
    """pytorch/pytorch#180905: only one may replace an aten operator; we replace none, and whoever does is asked."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    calls = []

    def softmax(tensor: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
        calls.append(tensor.dtype)
        return torch.full_like(tensor, 0.125)

    try:
        library.impl("_softmax", softmax, "CPU", allow_override=True)
        with make("softmax").dispatch() as package:
            served, refused = torch.softmax(x, 1), torch.softmax(x.double(), 1)
    finally:
        library._destroy()
    assert calls == [torch.float64]
    assert bool((refused == 0.125).all()) and not bool((served == 0.125).all())
    assert sum(row.hits for row in package.stats()) == 1


def test_one_package_loaded_twice_is_no_conflict(make: Make, x: torch.Tensor) -> None:
    """vllm-project/vllm#52802: two versions of one kernel, one name."""
    want = torch.softmax(x, 1) + MARK
    first, second = make("softmax"), make("softmax")
    with first.dispatch(), second.dispatch():
        torch.testing.assert_close(torch.softmax(x, 1), want)
    with first.dispatch():
        torch.testing.assert_close(torch.softmax(x, 1), want)
    assert [row.hits for package in (first, second) for row in package.stats()] == [1, 1]


def test_a_build_that_was_killed_blocks_none(cache: Settings, tmp_path: Path) -> None:
    """pytorch/pytorch#189245: a file named `lock` was left behind, and every later build waited for its end."""
    command = (find_c_compiler(cache), "-shared", "-fPIC", "{source}", "-o", "{output}")
    first = compile_once("kernelforge.runner", "kforge_runner.c", (*command, "-c"), tmp_path, "first.o")
    first.unlink()
    lock = Path(f"{first}.lock")
    lock.write_text("of a process that is no more")
    assert compile_once("kernelforge.runner", "kforge_runner.c", (*command, "-c"), tmp_path, "first.o") == first
    assert first.exists()


def test_fused_fast_paths_are_taken_as_ever(make: Make) -> None:
    """pytorch/pytorch#128413: with a function mode on, an encoder layer runs 35 operators instead of one."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.rand(2, 4, 8)

    def operators() -> list[str]:
        with torch.profiler.profile() as profile:
            layer(x)
        return sorted({event.name for event in profile.events() if event.name.startswith("aten::_transformer")})

    with torch.no_grad():
        layer(x)
        want = operators()
        with make().dispatch():
            assert operators() == want == ["aten::_transformer_encoder_layer_fwd"]


def test_products_under_autocast_have_eagers_dtype(make: Make, x: torch.Tensor) -> None:
    """Where functions are replaced, inputs are float32 still, and results must be of autocast's dtype."""
    package, weight = make("linear", "softmax"), torch.rand(8, 8)
    with torch.no_grad(), package.dispatch():
        F.linear(x, weight)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert F.linear(x, weight).dtype is torch.bfloat16
            assert F.linear(x, weight).dtype is torch.bfloat16
        assert F.linear(x, weight).dtype is torch.float32
    (row,) = [row for row in package.stats() if row.operator == "linear"]
    assert (row.hits, row.misses) == (2, {"autocast": 2})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.complex64])
def test_memory_of_another_dtype_is_never_reinterpreted(make: Make, x: torch.Tensor, dtype: torch.dtype) -> None:
    """A raw pointer to bfloat16 in a kernel for float32 reads past the end: heap corruption, and no error."""
    package, other = make("add", "softmax"), x.to(dtype)
    guard = torch.full((64,), 7, dtype=torch.uint8)
    with package.dispatch():
        x + x
        for _ in range(2):
            assert torch.equal(other + other, torch.ops.aten.add.Tensor(other, other))
            mixed = other + x
            assert torch.equal(mixed, torch.ops.aten.add.Tensor(other, x))
    assert bool((guard == 7).all())
    (row,) = [row for row in package.stats() if row.operator == "add"]
    assert (row.hits, row.misses) == (1, {"dtype": 4})


def test_temporaries_live_until_the_kernel_has_run(make: Make) -> None:
    """ROCm/aiter#5292: what was made contiguous for the call was freed before the kernel had read it."""
    package = make("mul", "add")
    with package.dispatch():
        for _ in range(50):
            x = torch.rand(8, 8)
            want = torch.ops.aten.mul.Scalar(x, 2.0)
            torch.testing.assert_close(torch.empty(8, 8).copy_(x) * 2.0, want + MARK)
            torch.testing.assert_close(x.clone() + x.clone(), want + MARK)
    assert sum(row.hits for row in package.stats()) == 100


def test_an_error_in_the_middle_leaves_no_exception_behind(make: Make, x: torch.Tensor) -> None:
    """A call that fails must not spoil the next one, nor be swallowed."""
    package = make("softmax", "add")
    with package.dispatch():
        for _ in range(3):
            with pytest.raises(RuntimeError, match="size of tensor"):
                x + torch.rand(3, 7)
            torch.softmax(x, 1)
    assert {r.operator: r.hits for r in package.stats()} == {"add": 0, "softmax": 3}
