"""Graphed models on the CPU: a stand-in repeats the captured run, as a graph would, from the inputs it was given."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from kernelforge.dispatch.graph_capture import Contents
from kernelforge.dispatch.graphs import GraphedModel
from kernelforge.errors import NotGraphable


class Repeating:
    """Runs the captured function again, and writes what it returns where the captured run's result is.

    It holds the Python values of the captured run, as a graph does, in so far as `run` does.
    """

    device = "cpu"

    def __init__(self) -> None:
        self.captures = 0
        self.capturing = False

    def busy(self) -> bool:
        return self.capturing

    def record(self, run: Callable[[], Any], *, between: Callable[[], None]) -> tuple[Any, Callable[[], None]]:
        self.captures += 1
        run()
        between()
        result = run()
        flat, _ = pytree.tree_flatten(result)

        def replay() -> None:
            again, _ = pytree.tree_flatten(run())
            for old, new in zip(flat, again, strict=True):
                if isinstance(old, torch.Tensor) and old is not new:
                    old.copy_(new)

        return result, replay

    def order(self, index: int) -> None:
        """One thing after the other, anyway."""

    def wait(self) -> None:
        """Nothing is under way."""


@pytest.fixture(autouse=True)
def no_grad() -> Any:
    with torch.no_grad():
        yield


def graphed(model: Callable[..., Any], **options: Any) -> GraphedModel:
    return GraphedModel(model, machine=Repeating(), **options)


def test_each_signature_is_captured_once_and_then_replayed() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    fast = graphed(model)
    for rows in (2, 3, 2, 3, 2):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(fast(x), model(x))
    stats = fast.stats()
    assert (stats.graphs, stats.replays, dict(stats.eager)) == (2, 3, {"first call of a signature": 2})
    assert fast.explain(torch.randn(2, 4)) == "replayed from a graph"
    assert "not met yet" in fast.explain(torch.randn(5, 4))


def test_outputs_are_copies_unless_static_ones_are_asked_for() -> None:
    for static in (False, True):
        fast = graphed(lambda x: x * 2, static_outputs=static)
        fast(torch.ones(3))
        first = fast(torch.ones(3))
        fast(torch.full((3,), 5.0))
        assert first[0].item() == (10.0 if static else 2.0)


def test_structures_of_arguments_and_results_are_kept() -> None:
    def model(pair: tuple[torch.Tensor, torch.Tensor], *, scale: float, more: dict[str, torch.Tensor]) -> Any:
        total = pair[0] + pair[1] * scale + more["x"]
        return {"sum": total, "same": pair[0], "again": total, "number": 3, "none": None}

    fast = graphed(model)
    for value in (1.0, 2.0, 3.0):
        x, y, z = torch.full((2,), value), torch.ones(2), torch.zeros(2)
        result = fast((x, y), scale=0.5, more={"x": z})
        assert result["same"] is x and result["again"] is result["sum"] and result["number"] == 3
        torch.testing.assert_close(result["sum"], x + 0.5)
    assert fast.stats().replays == 2
    fast((x, y), scale=0.25, more={"x": z})
    assert fast.stats().graphs == 2


def test_state_is_written_once_for_each_call() -> None:
    class Counting(nn.Module):
        steps: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.steps.add_(1)
            return x + self.steps

    model = Counting()
    fast = graphed(model)
    for step in range(1, 6):
        assert fast(torch.zeros(1)).item() == step
    assert model.steps.item() == 5 and fast.stats().replays == 4


def test_batch_norm_in_training_mode_keeps_its_statistics() -> None:
    plain, model = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    fast = graphed(model)
    for _ in range(4):
        x = torch.randn(5, 3)
        torch.testing.assert_close(fast(x), plain(x))
    torch.testing.assert_close(model.running_mean, plain.running_mean)
    assert fast.stats().replays == 3


def test_arguments_that_the_model_writes_are_written() -> None:
    def model(x: torch.Tensor, cache: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, position, x)
        return cache.sum()

    fast = graphed(model)
    cache, plain = torch.zeros(8, 2), torch.zeros(8, 2)
    for step in range(5):
        x, position = torch.randn(1, 2), torch.tensor([step])
        torch.testing.assert_close(fast(x, cache, position), model(x, plain, position))
        torch.testing.assert_close(cache, plain)
    assert fast.stats().replays == 4


def test_strides_of_inputs_and_outputs_are_kept() -> None:
    fast = graphed(lambda x: x + 1)
    for _ in range(2):
        x = torch.randn(3, 4).t()
        got = fast(x)
        assert got.stride() == (x + 1).stride()
        torch.testing.assert_close(got, x + 1)


def mask_decides(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    if mask.all():
        return x
    return x.masked_fill(~mask, 0.0)


def test_a_branch_on_values_runs_eagerly_and_says_where(caplog: pytest.LogCaptureFixture) -> None:
    fast = graphed(mask_decides)
    x, mask = torch.ones(4), torch.ones(4, dtype=torch.bool)
    with caplog.at_level(logging.WARNING):
        assert fast(x, mask).sum() == 4
        mask[0] = False
        assert fast(x, mask).sum() == 3
    assert "reads a value of argument 1 on the host" in fast.explain(x, mask)
    assert "if mask.all():" in fast.explain(x, mask)
    assert len(caplog.records) == 1 and fast.stats().graphs == 0
    with pytest.raises(NotGraphable, match=r"if mask\.all"):
        graphed(mask_decides, strict=True)(x, mask)


class Window(nn.Module):
    """Counts in Python, and does something else once the window is full."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return x if self.seen <= 3 else x - 1


def test_a_counter_in_python_is_found_and_the_window_is_crossed_rightly() -> None:
    fast, plain = graphed(Window()), Window()
    for _ in range(6):
        assert torch.equal(fast(torch.ones(2)), plain(torch.ones(2)))
    assert "forward changes seen" in fast.explain(torch.ones(2))


def test_a_model_that_fills_a_cache_of_its_own_at_first_is_captured_later() -> None:
    class Lazy(nn.Module):
        table: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.table is None:
                self.table = torch.arange(4.0)
            return x + self.table

    fast = graphed(Lazy())
    for _ in range(4):
        assert torch.equal(fast(torch.ones(4)), torch.arange(4.0) + 1)
    assert fast.stats().replays == 2


CHANGES: dict[str, Callable[[nn.Linear], object]] = {
    "parameter replaced": lambda m: setattr(m, "weight", nn.Parameter(torch.ones(4, 4))),
    "memory replaced": lambda m: setattr(m.weight, "data", torch.ones(4, 4)),
    "assigned": lambda m: m.load_state_dict({"weight": torch.ones(4, 4), "bias": torch.zeros(4)}, assign=True),
    "copied": lambda m: m.load_state_dict({"weight": torch.ones(4, 4), "bias": torch.zeros(4)}),
    "evaluated": lambda m: m.eval(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_model_that_has_changed_is_captured_anew(name: str) -> None:
    model = nn.Linear(4, 4)
    fast = graphed(model)
    x = torch.randn(2, 4)
    for _ in range(3):
        fast(x)
    CHANGES[name](model)
    for _ in range(3):
        torch.testing.assert_close(fast(x), model(x))
    assert fast.stats().replays == (5 if name == "copied" else 4)


def test_state_that_changes_between_all_calls_ends_in_eager_calls() -> None:
    model = nn.Linear(4, 4)
    fast = graphed(model, max_graphs=2)
    for step in range(12):
        model.step = step  # type: ignore[assignment]
        fast(torch.randn(2, 4))
    machine = fast._machine
    assert isinstance(machine, Repeating) and machine.captures <= 4
    assert "changes again and again" in fast.explain(torch.randn(2, 4))


def test_more_signatures_than_allowed_run_eagerly() -> None:
    fast = graphed(lambda x: x + 1, max_graphs=2)
    for size in (1, 2, 3, 4, 3):
        assert fast(torch.ones(size)).shape == (size,)
    assert fast.stats().graphs == 2 and "more than 2 signatures" in fast.explain(torch.ones(3))


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ((object(),), "argument 0 is a object"),
        ((torch.ones(2).as_subclass(Subclass),), "of the subclass Subclass"),
        ((torch.ones(1).expand(3),), "overlaps itself"),
        ((3,), "no argument is a tensor"),
    ],
)
def test_arguments_that_cannot_be_copied_in_run_eagerly(args: tuple[Any, ...], reason: str) -> None:
    fast = graphed(lambda *values: torch.zeros(1))
    for _ in range(2):
        fast(*args)
    assert reason in fast.explain(*args) and fast.stats().replays == 0


def test_two_arguments_in_one_memory_run_eagerly() -> None:
    fast = graphed(lambda x, y: x.add_(y))
    x = torch.ones(4)
    fast(x, x)
    assert torch.equal(fast(x, x), torch.full((4,), 4.0))


def test_a_view_of_an_argument_is_not_captured() -> None:
    fast = graphed(lambda x: x[1:])
    for _ in range(2):
        x = torch.arange(3.0)
        assert fast(x).data_ptr() == x[1:].data_ptr()


def test_grad_mode_is_part_of_the_signature_and_gradients_are_never_dropped() -> None:
    model = nn.Linear(4, 1)
    fast = graphed(model)
    x = torch.randn(2, 4)
    for _ in range(2):
        fast(x)
    with torch.enable_grad():
        for _ in range(2):
            fast(x).sum().backward()
        assert "grad mode is on" in fast.explain(x)
    assert model.weight.grad is not None and fast.stats().replays == 1


def test_modes_of_torch_are_part_of_the_signature() -> None:
    model = nn.Linear(4, 4)
    fast = graphed(model)
    x = torch.randn(2, 4)
    for _ in range(2):
        assert fast(x).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(2):
            assert fast(x).dtype == torch.bfloat16
    assert fast.stats().graphs == 2


def test_what_runs_past_the_capture_is_found() -> None:
    """A launch on another stream runs once, at the capture, and never again."""
    frozen: list[torch.Tensor] = []

    class Past(Repeating):
        def record(self, run: Callable[[], Any], *, between: Callable[[], None]) -> tuple[Any, Callable[[], None]]:
            between()
            result = run()
            frozen.append(result.clone())
            return result, lambda: result.copy_(frozen[0])

    fast = GraphedModel(lambda x: x + 1, machine=Past())
    x = torch.randn(4)
    for _ in range(2):
        torch.testing.assert_close(fast(x), x + 1)
    assert "a replay differs from eager" in fast.explain(x)


def test_nothing_is_captured_or_replayed_inside_of_another_capture() -> None:
    fast = graphed(lambda x: x + 1)
    machine = fast._machine
    assert isinstance(machine, Repeating)
    fast(torch.ones(1))
    machine.capturing = True
    fast(torch.ones(1))
    assert fast.stats().eager["the stream is being captured"] == 1


def test_without_a_gpu_calls_run_eagerly_and_say_why() -> None:
    import kernelforge

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    fast = kernelforge.graphed(nn.Linear(4, 4))
    for _ in range(2):
        fast(torch.randn(2, 4))
    assert "not on a cuda device" in fast.explain(torch.randn(2, 4))


def test_weights_that_need_gradients_again_get_them() -> None:
    model = nn.Linear(4, 2).requires_grad_(False)
    fast = graphed(model)
    x = torch.randn(2, 4)
    with torch.enable_grad():
        for _ in range(2):
            fast(x)
        model.requires_grad_(True)
        assert fast(x).requires_grad


def test_gradients_inside_of_forward_are_not_replayed() -> None:
    weight = torch.ones(2, requires_grad=True)

    def model(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return x * weight

    fast = graphed(model)
    for _ in range(3):
        assert fast(torch.ones(2)).requires_grad


def test_arguments_that_begin_to_share_memory_are_met_anew() -> None:
    def model(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return b * 2

    fast = graphed(model)
    for _ in range(2):
        fast(torch.ones(2), torch.ones(2))
    both, base = torch.ones(2), torch.ones(3)
    assert fast(both, both).tolist() == [4, 4]
    assert fast(base[:2], base[1:]).tolist() == [4, 2]


def test_the_model_s_own_tensor_as_an_argument() -> None:
    class Own(nn.Module):
        state: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.state.add_(1)
            return x * 2

    model = Own()
    fast = graphed(model)
    assert [fast(model.state).item() for _ in range(3)] == [2, 4, 6]


def test_containers_among_the_arguments_are_changed_once_for_each_call() -> None:
    def model(x: torch.Tensor, log: list[int], cache: dict[str, torch.Tensor]) -> torch.Tensor:
        log.append(3)
        cache["k"] = x * 3
        return x * 2

    fast = graphed(model)
    for value in (1.0, 2.0, 3.0):
        log: list[int] = []
        cache = {"k": torch.zeros(1)}
        fast(torch.full((1,), value), log, cache)
        assert log == [3] and cache["k"].item() == 3 * value


def test_outputs_that_share_memory_go_on_doing_so() -> None:
    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return y, y.view(2, 2)

    fast = graphed(model)
    for _ in range(3):
        first, second = fast(torch.ones(4))
        first.add_(100)
        assert second[0, 0] == 102


def test_expanded_outputs_are_copied() -> None:
    fast = graphed(lambda x: (x * 2).sum().expand(3))
    for value in (1.0, 2.0, 3.0):
        assert fast(torch.full((2,), value)).tolist() == [4 * value] * 3


def test_random_draws_of_python_are_found() -> None:
    fast = graphed(lambda x: x * random.random())
    assert len({fast(torch.ones(1)).item() for _ in range(5)}) == 5


def test_transforms_and_modes_of_torch_run_eagerly() -> None:
    fast = graphed(lambda x: x * 2)
    x = torch.ones(2, 3)
    for _ in range(2):
        fast(x[0])
    assert torch.vmap(fast)(x).tolist() == [[2.0] * 3] * 2
    assert fast.stats().eager["functorch"] == 1


def test_the_new_names_of_precision_flags_are_understood() -> None:
    fast = graphed(lambda x: x * 2)
    before = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    try:
        for value in ("ieee", "bf16"):
            torch.backends.mkldnn.matmul.fp32_precision = value  # type: ignore[attr-defined]
            for _ in range(2):
                fast(torch.ones(1))
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before  # type: ignore[attr-defined]
    assert fast.stats().replays == 2


def test_an_exception_while_it_is_captured_is_no_exception_of_the_call() -> None:
    calls = iter(range(100))
    numbers = [next(calls) for _ in range(3)]

    def model(x: torch.Tensor) -> torch.Tensor:
        if x.data_ptr() != address:
            raise ValueError(numbers)
        return x * 2

    x = torch.ones(2)
    address = x.data_ptr()
    fast = graphed(model)
    for _ in range(2):
        assert fast(x).tolist() == [2, 2]
    assert "cannot be captured" in fast.explain(x)


def test_the_order_of_what_an_undeclared_write_moved_is_put_back() -> None:
    before = torch.arange(6.0).reshape(3, 2)
    contents = Contents([before])
    before.copy_(before.roll(1, 0).clone())
    assert len(contents.changed()) == 1


def test_torch_may_settle_a_switch_in_the_first_run() -> None:
    """As the first attention on a GPU settles in which order torch tries its kernels: no argument has changed."""

    def model(x: torch.Tensor) -> torch.Tensor:
        torch.backends.cuda.enable_cudnn_sdp(False)
        return x + 1

    before = torch._C._get_cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        fast = graphed(model)
        for _ in range(3):
            x = torch.randn(4)
            torch.testing.assert_close(fast(x), model(x))
        assert fast.stats().replays == 2, fast.stats()
        torch.backends.cuda.enable_cudnn_sdp(True)
        fast(torch.randn(4))
        assert not torch._C._get_cudnn_sdp_enabled(), "a replay would have left the switch where it was"
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
