"""The recorder: what one capture says of an unmodified callable, trap by trap."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing._internal.two_tensor import TwoTensor

from kernelforge.capture import recorder
from kernelforge.capture.fastpaths import UNREACHABLE
from kernelforge.capture.recorder import record
from kernelforge.capture.types import ObservedCall, Recording
from kernelforge.cards.distill import distill
from kernelforge.cards.examples import ExampleStore
from kernelforge.errors import ModelError
from kernelforge.native.extension import why_not
from kernelforge.settings import load_settings


@pytest.fixture(autouse=True, params=["native", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Repeated calls are counted in compiled code where that can be had; the recording must not show which."""
    monkeypatch.setenv("KFORGE_NATIVE", "1" if request.param == "native" else "0")
    reason = why_not(load_settings())
    if request.param == "native" and "Python.h" in reason:
        pytest.skip(reason)
    assert (reason == "") == (request.param == "native"), reason
    return str(request.param)


def only(recording: Recording, operator: str) -> ObservedCall:
    found = [c for c in recording.calls if c.call.operator == operator]
    assert len(found) == 1, [c.call.operator for c in recording.calls]
    return found[0]


def test_positional_keyword_and_method_forms_are_one_call() -> None:
    x = torch.randn(3, 5)

    def model() -> None:
        F.softmax(x, 1)
        F.softmax(input=x, dim=-1)
        x.softmax(dim=1)
        torch.softmax(x, -1)

    observed = only(record(model), "softmax")
    assert observed.calls == 4
    assert dict(observed.call.arguments)["dim"] == 1
    assert observed.eager_us > 0
    assert observed.unforgeable == ""


def test_repeated_calls_are_told_apart_by_everything_that_is_recorded() -> None:
    base = torch.randn(65)
    x, shifted, weight = base[:64].view(8, 8), base[1:].view(8, 8), nn.Parameter(torch.randn(8, 8))

    def model() -> None:
        for _ in range(5):
            torch.add(x, x)
            torch.add(x, x.clone())
            torch.add(shifted, x.t())
            torch.mul(x, 2)
            torch.mul(x, 2.0)
            torch.mul(x, True)
            torch.mul(x, -0.0)
            torch.mul(weight, x)
            with torch.no_grad():
                torch.mul(weight, x)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                torch.matmul(x, weight)
            x[1:, None], x[1:, 0], x[..., 2:4]
            torch.neg(x.clone()).relu_()
            torch.sum(x, dim=(0, 1)), torch.sum(x, dim=[0]), torch.sum(x, 0, dtype=torch.float64)

    recording = record(model)
    counts = Counter(c.call.operator for c in recording.calls)
    assert counts == {
        "add": 3,
        "mul": 5,
        "clone": 1,
        "transpose": 1,
        "matmul": 1,
        "getitem": 3,
        "neg": 1,
        "relu": 1,
        "sum": 3,
    }
    # 2 and 2.0 are one factor of a float tensor; every other call happened once in each round.
    twice = [(c.call.operator, c.calls) for c in recording.calls if c.calls != 5]
    assert sorted(twice) == [("clone", 10), ("mul", 10)]
    assert all(c.eager_us > 0 for c in recording.calls)
    assert 0 < recording.coverage_wall <= 1


def test_only_the_outermost_call_is_recorded() -> None:
    linear = nn.Linear(4, 4)
    operators = [c.call.operator for c in record(lambda: linear(torch.ones(2, 4))).calls]
    assert operators == ["linear"]


def test_an_in_place_operator_is_recorded_with_its_inputs_as_before_the_call(tmp_path: Path) -> None:
    def model() -> torch.Tensor:
        return F.relu(torch.tensor([-1.0, 2.0]), inplace=True)

    store = ExampleStore(tmp_path)
    observed = only(record(model, example_store=store), "relu")
    assert observed.call.mutates == (0,)
    assert observed.call.output_kind == "none"
    assert observed.call.outputs == ()
    assert store.get(observed.example)[0].tolist() == [-1.0, 2.0]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_python_operators_in_place(mode: Any) -> None:
    def model() -> None:
        with mode():
            x = torch.ones(4)
            x += torch.ones(4)

    assert only(record(model), "add").call.mutates == (0,)


def test_a_changed_input_that_is_another_one_too_is_not_forged() -> None:
    def model() -> None:
        x = torch.arange(8.0)
        x.add_(x)

    observed = only(record(model), "add")
    assert observed.call.aliases == ((0, 1),)
    assert "shares memory" in observed.unforgeable


def test_the_same_tensor_twice_is_two_inputs_that_alias() -> None:
    x = torch.ones(4)
    call = only(record(lambda: torch.add(x, x)), "add").call
    assert len(call.tensors) == 2
    assert call.aliases == ((0, 1),)


def test_tuples_and_lists_of_outputs() -> None:
    x = torch.ones(6, 2)
    call = only(record(lambda: torch.chunk(x, 3)), "chunk").call
    assert call.output_kind == "tuple"
    assert [o.shape for o in call.outputs] == [(2, 2)] * 3
    assert call.output_aliases == (0, 0, 0)


def test_a_model_may_return_a_dict() -> None:
    assert only(record(lambda: {"y": torch.relu(torch.ones(2))}), "relu").calls == 1


def test_autocast_is_recorded_with_the_dtypes_that_the_model_sees() -> None:
    linear, x = nn.Linear(4, 4), torch.ones(2, 4)

    def model() -> None:
        linear(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            linear(x)

    plain, cast = (c.call for c in record(model).calls if c.call.operator == "linear")
    assert (plain.autocast, plain.outputs[0].dtype) == ("", "float32")
    assert (cast.autocast, cast.tensors[0].dtype, cast.outputs[0].dtype) == ("bfloat16", "float32", "bfloat16")


def test_grad_mode_and_requires_grad_are_recorded() -> None:
    weight, x = torch.ones(2, 4, requires_grad=True), torch.ones(3, 4)

    def model() -> None:
        F.linear(x, weight)
        with torch.no_grad():
            F.linear(x, weight)

    calls = [c.call for c in record(model).calls if c.call.operator == "linear"]
    assert [c.grad_enabled for c in calls] == [True, False]
    assert calls[0].tensors[1].requires_grad


def test_views_are_recorded_and_not_forged() -> None:
    x = torch.ones(2, 3)
    assert "view" in only(record(lambda: x.transpose(0, 1)), "transpose").unforgeable


def test_strides_and_alignment_of_a_slice() -> None:
    base = torch.zeros(8, 8)
    spec = only(record(lambda: torch.relu(base[1:5, 1:4])), "relu").call.tensors[0]
    assert spec.shape == (4, 3)
    assert spec.stride == (8, 1)
    assert spec.alignment == 4


def test_tensors_without_plain_memory_are_recorded_and_not_forged() -> None:
    def model() -> None:
        torch.mul(torch.eye(3).to_sparse(), 2.0)
        torch.mul(torch._neg_view(torch.ones(3)), 2.0)

    recording = record(model)
    found = [c for c in recording.calls if c.call.operator == "mul"]
    assert [c.call.tensors[0].layout for c in found] == ["sparse_coo", "neg"]
    assert all("without plain memory" in c.unforgeable for c in found)
    assert sum(v.calls for c in distill(recording, model="m") if c.operator == "mul" for v in c.variants) == 2


@pytest.mark.parametrize(
    ("tensor", "dtype", "shape"),
    [
        (torch.arange(6).reshape(2, 3), "int64", (2, 3)),
        (torch.tensor([True, False]), "bool", (2,)),
        (torch.tensor(2.5), "float32", ()),
        (torch.zeros(0, 4), "float32", (0, 4)),
    ],
)
def test_integer_bool_scalar_and_empty_tensors(tensor: torch.Tensor, dtype: str, shape: tuple[int, ...]) -> None:
    observed = only(record(lambda: torch.cat([tensor.reshape(-1), tensor.reshape(-1)])), "cat")
    assert observed.call.tensors[0].dtype == dtype
    call = only(record(lambda: torch.mul(tensor, 2)), "mul").call
    assert call.tensors[0].shape == shape
    assert (observed.unforgeable != "") == (0 in shape)


def test_training_dropout_is_recorded_and_never_forged() -> None:
    observed = only(record(lambda: F.dropout(torch.ones(8), 0.5, training=True)), "dropout")
    assert observed.unforgeable == "draws random numbers"


def test_batch_norm_in_training_is_reported_as_uncovered() -> None:
    norm = nn.BatchNorm1d(4)
    recording = record(lambda: norm(torch.randn(3, 4)))
    assert {u.name: u.reason for u in recording.uncovered}["batch_norm"] == "training statistics"


def test_an_unknown_function_is_counted_by_name_and_questions_are_not() -> None:
    x = torch.ones(2, 2)

    def model() -> None:
        for _ in range(3):
            torch.linalg.det(x)
        assert x.shape == (2, 2) and x.dim() == 2 and x.dtype == torch.float32

    recording = record(model)
    assert [(u.name, u.calls) for u in recording.uncovered] == [("torch.linalg.det", 3)]
    assert recording.uncovered[0].total_us > 0


def test_coverage_is_the_captured_share_of_the_wall_time() -> None:
    x = torch.randn(256, 256)

    def model() -> None:
        for _ in range(5):
            F.linear(x, x)
        torch.linalg.svd(x)

    recording = record(model, repeats=3)
    assert 0 < recording.coverage_wall < 0.9
    assert recording.coverage_wall == recording.coverage_device
    assert record(lambda: F.linear(x, x), repeats=3).coverage_wall > recording.coverage_wall


def test_samples_are_recorded_together() -> None:
    recording = record([partial(torch.relu, torch.ones(n)) for n in (2, 3)])
    assert [c.call.tensors[0].shape for c in recording.calls if c.call.operator == "relu"] == [(2,), (3,)]
    assert recording.samples == 2


def test_the_random_state_is_that_of_a_single_run() -> None:
    torch.manual_seed(3)
    seen: list[float] = []
    record(lambda: seen.append(torch.rand(1).item()))
    torch.manual_seed(3)
    assert seen[-1] == torch.rand(1).item()


@pytest.mark.parametrize("repeats", [0, 3])
def test_times_are_medians_of_the_repeats(repeats: int) -> None:
    x, runs = torch.zeros(1), list[int]()

    def hold(value: float) -> float:
        time.sleep(0.1)
        return value

    def model() -> None:
        runs.append(1)
        torch.relu(x), torch.relu(x)
        # The recorded run is the second one, after the plain one; only there something is in the way.
        x.apply_(hold if len(runs) == 2 else float)

    recording = record(model, repeats=repeats)
    assert (len(runs), recording.repeats) == (2 + repeats, repeats)
    assert [(u.name, u.calls) for u in recording.uncovered] == [("torch.Tensor.apply_", 1)]
    assert (recording.uncovered[0].total_us > 1e5) == (repeats == 0)
    assert (recording.wall_us > 1e5) == (repeats == 0)
    assert only(recording, "relu").calls == 2
    assert 0 < only(recording, "relu").eager_us < 1e5
    assert 0 < recording.coverage_wall <= 1


def test_a_model_with_a_state_is_not_repeated_any_further(tmp_path: Path) -> None:
    runs: list[int] = []

    def model() -> None:
        runs.append(1)
        torch.relu(torch.ones(len(runs)))

    store = ExampleStore(tmp_path)
    observed = only(record(model, repeats=5, example_store=store), "relu")
    assert len(runs) == 3
    assert (observed.calls, observed.call.tensors[0].shape) == (1, (2,))
    assert observed.eager_us > 0
    assert store.get(observed.example)[0].tolist() == [1.0, 1.0]


def test_a_model_that_cannot_run_again_keeps_what_was_recorded() -> None:
    runs: list[int] = []

    def model() -> None:
        runs.append(1)
        torch.relu(torch.ones(3))
        if len(runs) > 3:
            raise ValueError("the cache is full")
        torch.relu(torch.ones(3))

    recording = record(model, repeats=5)
    assert (len(runs), recording.repeats) == (4, 1)
    assert only(recording, "relu").calls == 2


def test_a_slow_model_is_not_repeated_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "REPEAT_SECONDS", 0.05)
    assert record(lambda: torch.relu(torch.ones(3)), repeats=None).repeats == recorder.TIMED_REPEATS

    def slow() -> None:
        torch.relu(torch.ones(3))
        time.sleep(0.1)

    assert record(slow, repeats=None).repeats == 0


def test_repeats_draw_what_the_recorded_run_drew() -> None:
    torch.manual_seed(3)
    seen: list[float] = []
    record(lambda: seen.append(torch.rand(1).item()), repeats=2)
    torch.manual_seed(3)
    assert seen == [torch.rand(1).item()] * 4


def test_without_warm_up_the_callable_runs_once() -> None:
    runs: list[int] = []
    recording = record(lambda: runs.append(1), warmup=False, repeats=3)
    assert len(runs) == 1
    assert any("fast path" in w for w in recording.warnings)


def test_an_encoder_layer_takes_its_fused_path_only_without_the_recorder() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, batch_first=True).eval()
    head, x = nn.Linear(16, 16).eval(), torch.randn(2, 5, 16)

    def model() -> None:
        with torch.no_grad():
            head(layer(x))

    forward = nn.TransformerEncoderLayer.forward
    recording = record(model)
    linears = [c for c in recording.calls if c.call.operator == "linear"]
    reachable = [c for c in linears if c.unforgeable != UNREACHABLE]
    assert len(linears) == 3
    assert [c.call.outputs[0].shape for c in reachable] == [(2, 5, 16)]
    assert any("not reachable at run time" in w for w in recording.warnings)
    assert nn.TransformerEncoderLayer.forward is forward


def test_calls_that_also_happen_outside_the_fused_path_are_counted_there_only() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, dim_feedforward=16, batch_first=True).eval()
    head, x = nn.Linear(16, 16).eval(), torch.randn(2, 5, 16)

    def model() -> None:
        with torch.no_grad():
            head(layer(x))

    assert only(record(model), "linear").calls == 1


def test_any_code_that_looks_for_an_active_mode_is_found_out() -> None:
    x = torch.randn(4, 4)

    def model() -> torch.Tensor:
        if torch.overrides.has_torch_function((x,)):
            return torch.softmax(x, 1)
        return torch.relu(x)

    recording = record(model)
    assert only(recording, "softmax").unforgeable == UNREACHABLE


def test_a_training_encoder_layer_is_reachable() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, batch_first=True, dropout=0.0).train()
    recording = record(lambda: layer(torch.randn(2, 5, 16)))
    assert all(c.unforgeable != UNREACHABLE for c in recording.calls)


@pytest.mark.parametrize("pool", [False, True])
def test_other_threads_are_warned_of(pool: bool) -> None:
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit
    x = torch.ones(2)

    def model() -> None:
        if pool:
            executor.submit(torch.relu, x).result()
        else:
            thread = threading.Thread(target=torch.relu, args=(x,))
            thread.start()
            thread.join()

    with ThreadPoolExecutor(1) as executor:
        executor.submit(int).result()
        recording = record(model)
    assert any("other threads" in w for w in recording.warnings)
    assert threading.Thread.start is start
    assert ThreadPoolExecutor.submit is submit
    assert record(lambda: torch.relu(x)).warnings == ()


def test_an_exception_names_the_model_and_the_call_and_writes_nothing(tmp_path: Path) -> None:
    def model() -> None:
        torch.relu(torch.ones(3))
        torch.ones(3) @ torch.ones(4)

    with pytest.raises(
        ModelError, match=r"net raised RuntimeError in sample 1 of 1, operator call \d+ \(matmul\)"
    ) as e:
        record(model, example_store=ExampleStore(tmp_path / "examples"), name="net")
    assert isinstance(e.value.__cause__, RuntimeError)
    assert not (tmp_path / "examples").exists()


def test_an_exception_before_the_first_call_says_so() -> None:
    def model() -> None:
        raise KeyError("input_ids")

    with pytest.raises(ModelError, match="KeyError in sample 1 of 1, before its first operator call: 'input_ids'") as e:
        record(model)
    assert "traceback" not in e.value.hint


def test_a_weight_used_by_many_calls_is_stored_once(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.randn(64, 64))

    def model() -> None:
        x = torch.randn(4, 64)
        for _ in range(50):
            x = F.linear(x, weight.detach())
            F.linear(x[:2], weight)

    record(model, example_store=ExampleStore(tmp_path))
    sizes = [p.stat().st_size for p in tmp_path.glob("tensors/*")]
    assert sum(size > weight.nbytes for size in sizes) == 1


def test_a_tensor_above_the_cap_is_described_and_redrawn(tmp_path: Path) -> None:
    x = torch.randn(200, 200) * 3 + 5
    store = ExampleStore(tmp_path)
    recording = record(lambda: torch.relu(x), example_store=store, max_tensor_bytes=1000)
    example = only(recording, "relu").example
    redrawn = store.get(example)[0]
    assert not store.is_exact(example)
    assert redrawn.shape == x.shape
    assert redrawn.mean().item() == pytest.approx(5, abs=0.2)
    assert redrawn.std().item() == pytest.approx(3, abs=0.2)
    assert sum(p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()) < 1000


def test_the_total_cap_holds(tmp_path: Path) -> None:
    def model() -> None:
        for n in range(1, 5):
            torch.relu(torch.randn(n, 1000))

    record(model, example_store=ExampleStore(tmp_path), max_example_bytes=13_000)
    assert sum(p.stat().st_size for p in tmp_path.glob("tensors/*")) < 14_000


def test_a_hundred_sizes_do_not_keep_a_hundred_examples(tmp_path: Path) -> None:
    def model() -> None:
        for n in range(1, 101):
            torch.relu(torch.ones(n))

    recording = record(model, example_store=ExampleStore(tmp_path))
    kept = [c for c in recording.calls if c.call.operator == "relu" and c.example]
    assert 4 <= len(kept) <= 10


def test_a_tensor_of_a_subclass_is_no_operators_input_and_the_reason_names_it(tmp_path: Path) -> None:
    x = torch.ones(3, 5)
    pair = TwoTensor(x, x)  # type: ignore[no-untyped-call]

    def model() -> None:
        for _ in range(3):
            torch.relu(pair)
            torch.relu(x)

    recording = record(model, example_store=ExampleStore(tmp_path))
    assert only(recording, "relu").calls == 3
    (left,) = [u for u in recording.uncovered if u.name == "relu"]
    assert left.calls == 3 and "TwoTensor" in left.reason
