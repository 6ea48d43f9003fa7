"""A candidate of the torch ABI in a process: what it returns, how it fails, and that nothing of it is trusted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.cli.test_judgement import relu_record
from tests.torch_kernels import RELU

from kernelforge.build.backends import get_backend
from kernelforge.build.types import Artifact
from kernelforge.capture.types import TensorRef
from kernelforge.cards.types import Extent, TensorPattern, Variant
from kernelforge.executors.types import Limits
from kernelforge.generate.types import Candidate
from kernelforge.runner.protocol import Buffer, BufferSet, RunnerDeath, RunReply, TimeReply
from kernelforge.runner.torch_session import TorchSession, _read_answer
from kernelforge.settings import load_settings

LIMITS = Limits(wall_s=10.0)
PATTERN = TensorPattern(shape=(Extent(2), Extent(4)), stride=(Extent(4), Extent(1)), dtype="float32")
SMALL = Variant(
    operator="relu", arguments=(("input", TensorRef(0)), ("inplace", False)), tensors=(PATTERN,), outputs=(PATTERN,)
)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def module(torch_cache: Path) -> Path:
    variant = relu_record("").variant
    backend = get_backend("cpp", load_settings({"KFORGE_CACHE_DIR": str(torch_cache)}))
    candidate = Candidate(variant_id=variant.id, source=RELU, backend="cpp", generator="manual")
    built = backend.build(candidate, variant)
    assert isinstance(built, Artifact), built
    assert built.backend == "torch"
    return built.path


@pytest.fixture
def session(module: Path) -> Iterator[TorchSession]:
    with open_session(module) as opened:
        yield opened


def open_session(module: Path, limits: Limits = LIMITS) -> TorchSession:
    return TorchSession(module, SMALL, [("input", "tensor")], device="cpu", limits=limits, threads=1)


def work(first: float = 0.0, rest: float = -3.0) -> BufferSet:
    data = torch.tensor([first, *[rest, 2.0, rest, 4.0, 5.0, rest, 7.0]]).numpy().tobytes()
    return BufferSet(
        buffers=(Buffer(kind="input", data=data, size_bytes=32), Buffer(kind="output", data=None, size_bytes=32))
    )


def run(session: TorchSession, first: float) -> RunReply | RunnerDeath:
    loaded = session.load(0, work(first))
    assert not isinstance(loaded, RunnerDeath) and not loaded.error, loaded
    return session.run_slot(0)


def values(data: bytearray) -> list[float]:
    return torch.frombuffer(data, dtype=torch.float32).tolist()


def test_computes_and_is_timed(session: TorchSession) -> None:
    reply = run(session, 0.5)
    assert isinstance(reply, RunReply)
    assert values(reply.outputs[0]) == [0.5, 0.0, 2.0, 0.0, 4.0, 5.0, 0.0, 7.0]
    assert 0 < reply.seconds <= reply.wall_s
    session.load(1, work(0.25))
    timed = session.time_slots(0, 2, iterations=10, collect=True, read={1})
    assert isinstance(timed, TimeReply) and not timed.error
    assert len(timed.samples_ns) == 10 and min(timed.samples_ns) > 0 and sum(timed.samples_ns) == timed.total_ns
    assert timed.outputs[0] == () and values(timed.outputs[1][0])[0] == 0.25
    batch = session.time_slots(0, 2, iterations=10, batch=True)
    assert isinstance(batch, TimeReply) and batch.samples_ns == () and batch.total_ns > 0


@pytest.mark.parametrize(
    ("mode", "error", "words"),
    [
        (1, "launch", "no such luck"),
        (2, "meta", "launch gives [2, 4] float64"),
        (3, "meta", "launch gives [8] float32"),
        (4, "meta", "stride [1, 2], the variant says [2, 4] float32 stride [4, 1]"),
        (6, "meta", "shares the memory of an input"),
        (9, "launch", "unknown exception"),
        (10, "meta", "launch returned 0 tensors, the variant says 1"),
        (15, "launch", "memory"),
    ],
)
def test_a_wrong_result_or_an_exception_is_an_answer(
    session: TorchSession, mode: int, error: str, words: str
) -> None:  # fmt: skip
    reply = run(session, mode)
    assert isinstance(reply, RunReply)
    assert (reply.error, reply.outputs) == (error, ()) and words in reply.message
    again = run(session, 0.0)
    assert isinstance(again, RunReply) and not again.error, "the process goes on"


@pytest.mark.parametrize(("mode", "kind"), [(7, "crash"), (8, "timeout"), (11, "crash"), (14, "protocol")])
def test_a_process_that_dies_or_lies(module: Path, mode: int, kind: str) -> None:
    with open_session(module, Limits(wall_s=2.0)) as session:
        reply = run(session, mode)
        assert isinstance(reply, RunnerDeath) and reply.kind == kind
        assert session.run_slot(0) is reply and session.load(0, work()) is reply


def test_a_changed_input_is_told_and_put_back(session: TorchSession) -> None:
    reply = run(session, 5)
    assert isinstance(reply, RunReply) and reply.inputs_changed == (0,)
    again = session.run_slot(0)
    assert isinstance(again, RunReply) and again.outputs == reply.outputs


def test_a_module_that_does_not_load_is_the_death_of_every_command(tmp_path: Path) -> None:
    broken = tmp_path / "kernel.so"
    broken.write_bytes(b"no module")
    with open_session(broken) as session:
        assert session.death is not None and session.death.kind == "load"
        assert "does not load" in session.death.detail
        assert session.run_slot(0) is session.death


GOOD = {"nonce": "a", "error": "", "message": "", "total_ns": 5, "changed": []}


@pytest.mark.parametrize(
    "change",
    [
        {"nonce": "b"}, {"error": "fine"}, {"error": 1}, {"message": None}, {"total_ns": -1}, {"total_ns": True},
        {"total_ns": 2.5}, {"total_ns": 1 << 63}, {"changed": [1]}, {"changed": [-1]}, {"changed": [True]},
        {"changed": {}}, {"error": []},
    ],
)  # fmt: skip
def test_a_nonsensical_answer_is_none(change: dict[str, object]) -> None:
    assert not isinstance(_read_answer(json.dumps(GOOD).encode(), nonce="a", inputs=1), str)
    assert isinstance(_read_answer(json.dumps({**GOOD, **change}).encode(), nonce="a", inputs=1), str)


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"1", b"[" * 100_000, b"9" * 10_000, b'{"nonce": "a"}'])
def test_no_answer_at_all(data: bytes) -> None:
    assert isinstance(_read_answer(data, nonce="a", inputs=1), str)


def test_words_can_be_stored() -> None:
    answer = _read_answer(json.dumps({**GOOD, "message": "\ud800" + "x" * 5000}).encode(), nonce="a", inputs=1)
    assert not isinstance(answer, str) and answer.message.encode() and len(answer.message) == 2000


def test_the_fence_keeps_off_what_it_says(tmp_path: Path) -> None:
    """In a process of its own: it cannot be taken down again."""
    program = (
        "import json, socket, sys\nfrom kernelforge.runner.fence import raise_fence\nkept = raise_fence()\n"
        "def works(what):\n    try:\n        what()\n    except OSError:\n        return False\n    return True\n"
        "net = socket.if_nameindex()\n"
        "print(json.dumps([kept, works(lambda: open(sys.argv[1], 'w')), len(net)]))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "new")], capture_output=True, text=True, check=True
    )  # fmt: skip
    kept, writes, interfaces = json.loads(ran.stdout)
    assert writes is ("files" not in kept)
    assert interfaces == 1 or "network" not in kept
