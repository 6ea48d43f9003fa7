"""The program of the torch ABI's process, in this process, on functions of Python in the place of a `launch`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest
import torch
from tests.runner.test_eager import buffers_of, variant_of

from kernelforge.capture.types import Arguments, TensorRef
from kernelforge.digest import Json
from kernelforge.runner import arena, protocol
from kernelforge.runner.eager import load_request
from kernelforge.runner.torch_main import LaunchFailed, TorchServer, _argument

X = torch.arange(-3.0, 5.0).reshape(2, 4)
ARGUMENTS: Arguments = (("input", TensorRef(0)), ("inplace", False))


@contextmanager
def served(
    launch: Callable[..., object], *, mutates: tuple[int, ...] = (), count: int = 1
) -> Iterator[tuple[Callable[..., Mapping[str, Json]], int]]:
    """A server with one loaded set: how to ask it, and the arena of its outputs."""
    outputs = [] if mutates else [X] * count
    variant = variant_of("relu", ARGUMENTS, [X], outputs, mutates)
    buffers = buffers_of([X], outputs, mutates)
    layout = protocol.layout_of(buffers)
    fds = (arena.input_arena(buffers, layout), arena.blank_arena(layout.out_bytes))
    samples = arena.blank_arena(8 * 100)
    server = TorchServer("cpu", launch, [("input", "tensor")])

    def ask(op: str, **more: Json) -> Mapping[str, Json]:
        return server.handle({"op": op, "slot": 0, **more}, [samples])

    try:
        server.handle(load_request(0, variant.to_json(), {}, {}, buffers, layout=layout), fds)
        yield ask, fds[1]
    finally:
        for fd in (*fds, samples):
            os.close(fd)


TIME: dict[str, Json] = {"count": 1, "iterations": 20, "warmup": 1, "flush_bytes": 0, "batch": False, "core": None}


def sent(fd: int) -> torch.Tensor:
    return torch.frombuffer(arena.read_bytes(fd, 0, 32), dtype=torch.float32).reshape(2, 4)


def test_a_result_is_sent_and_then_poisoned() -> None:
    """The allocator gives its block to the next call: one that writes nothing must not find the right values."""
    results: list[torch.Tensor] = []

    def launch(x: torch.Tensor) -> torch.Tensor:
        results.append(torch.relu(x))
        return results[-1]

    with served(launch) as (ask, out):
        ask("run")
        assert torch.equal(sent(out), torch.relu(X))
        assert results[0].view(torch.uint8).eq(0x7F).all()
        ask("time", collect=True, **TIME)
        assert torch.equal(sent(out), torch.relu(X)) and results[-1].view(torch.uint8).eq(0x7F).all()
        ask("time", collect=False, **TIME)
        assert torch.equal(results[-1], torch.relu(X)), "nobody looks at it"


def test_inputs_that_are_changed_are_told_and_put_back() -> None:
    def launch(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x.add_(1))

    with served(launch) as (ask, out):
        assert ask("run")["changed"] == [0]
        assert ask("run")["changed"] == [0] and torch.equal(sent(out), torch.relu(X + 1))
        assert ask("time", collect=True, **TIME)["changed"] == [0]


def test_in_place_its_argument_is_the_result() -> None:
    with served(lambda x: x.relu_(), mutates=(0,)) as (ask, out):
        assert ask("run")["changed"] == [] and torch.equal(sent(out), torch.relu(X))
        ask("time", collect=True, **TIME)
        assert torch.equal(sent(out), torch.relu(X))


@pytest.mark.parametrize("kind", [tuple, list])
def test_several_outputs(kind: Callable[..., object]) -> None:
    with served(lambda x: kind((torch.relu(x), x * 2)), count=2) as (ask, out):
        ask("run")
        both = torch.frombuffer(arena.read_bytes(out, 0, 96), dtype=torch.float32)
        assert torch.equal(both[:8].reshape(2, 4), torch.relu(X))
        assert torch.equal(both[16:24].reshape(2, 4), X * 2), "each begins at a multiple of 64 bytes"


@pytest.mark.parametrize(
    ("launch", "error", "words"),
    [
        (lambda x: x, "meta", "shares the memory of an input"),
        (lambda x: x[:1].expand(2, 4), "meta", "shares the memory"),
        (lambda x: None, "meta", "returned 0 tensors"),
        (lambda x: (x + 1, x + 1), "meta", "returned 2 tensors"),
        (lambda x: torch.relu(x).half(), "meta", "float16"),
        (lambda x: torch.relu(x).t().contiguous().t(), "meta", "stride"),
        (lambda x: torch.relu(x).to_sparse(), "meta", "sparse"),
        (lambda x: torch.empty(2, 4, device="meta"), "meta", "tensor of meta"),
        (lambda x: x.nothing(), "launch", "AttributeError"),
    ],
)
def test_what_is_the_candidates_fault(launch: Callable[..., object], error: str, words: str) -> None:
    for op, more in (("run", {}), ("time", {"collect": True, **TIME})):
        with served(launch) as (ask, _), pytest.raises(LaunchFailed, match=words) as failed:
            ask(op, **more)
        assert failed.value.error == error


@pytest.mark.parametrize(
    ("value", "kind", "given"),
    [((2, 2), "int", 2), ((2, 2), "ints", [2, 2]), (0.5, "float", 0.5), (None, "tensor", None), (True, "bool", True)],
)
def test_arguments_as_the_parameter_takes_them(value: object, kind: str, given: object) -> None:
    assert _argument(value, kind) == given


def test_of_a_set_that_was_not_called_nothing_is_collected() -> None:
    """A slow candidate is timed in fewer calls than there are sets."""
    calls: list[int] = []

    def launch(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return torch.relu(x)

    with served(launch) as (ask, _):
        ask("time", **TIME, collect=True)
        before = len(calls)
        answer = ask("time", **{**TIME, "iterations": 0, "warmup": 0}, collect=True)
        assert len(calls) == before and answer["changed"] == []
