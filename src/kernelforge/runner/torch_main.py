"""The program in which a candidate of the torch ABI runs: `python -m kernelforge.runner.torch_main`. Loads torch.

`torch_session.py` is its owner. It loads, runs and times like the eager worker, with the candidate's `launch` in the
place of the operator. It holds inputs and no expected value; its replies are JSON, which the owner does not trust.
What `launch` does wrong is an answer with an `error`, a word of `protocol.ReplyError`.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import json
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from kernelforge.runner.fence import raise_fence

if __name__ == "__main__" and "--fence" in sys.argv:
    # Before torch comes, and with it threads.
    raise_fence()

import torch

from kernelforge.cards.types import Variant
from kernelforge.digest import Json
from kernelforge.runner.eager_main import EagerServer, Slot, keep_freed_memory, requests_on, tie_to
from kernelforge.runner.protocol import TORCH_MODULE, ReplyError
from kernelforge.runner.tensors import check_outputs, raw_of, tensors_in, write_tensor

POISON = 0x7F
MOST_WORDS = 2000


class LaunchFailed(Exception):
    """The candidate's fault, as an answer."""

    def __init__(self, error: ReplyError, message: str) -> None:
        super().__init__(message)
        self.error, self.message = error, message


@dataclass(slots=True, kw_only=True)
class TorchSlot(Slot):
    """A loaded set, and what its calls leave.

    Attributes:
        originals: bytes of the inputs that must not change, by index. keeps: whether the result of a call is kept.
        called: whether it was, since then. result: of the last call.
    """

    originals: dict[int, torch.Tensor] = field(default_factory=dict)
    keeps: bool = False
    called: bool = False
    result: object = None


class TorchServer(EagerServer):
    """Executes requests on a candidate's `launch`.

    Args:
        call: argument and kind of each parameter of `launch` (see `build.torch_abi`).
    """

    def __init__(self, device: str, launch: Callable[..., object], call: Sequence[tuple[str, str]]) -> None:
        super().__init__(device)
        self._launch, self._plan = launch, call

    def _call_of(self, variant: Variant, bound: Mapping[str, object]) -> Callable[[], object]:  # noqa: ARG002
        launch, arguments = self._launch, [_argument(bound[name], kind) for name, kind in self._plan]
        return lambda: launch(*arguments)

    def _load(self, request: Mapping[str, Json], fds: Sequence[int]) -> TorchSlot:
        plain = super()._load(request, fds)
        slot = TorchSlot(**{f.name: getattr(plain, f.name) for f in fields(plain)})
        inner = plain.call

        def call() -> object:
            try:
                result = inner()
            except Exception as error:
                raise LaunchFailed("launch", f"{type(error).__name__}: {error}") from error
            if slot.keeps:
                slot.called, slot.result = True, result
            return result

        slot.call = call
        read_only = (i for i in range(len(slot.inputs)) if i not in slot.variant.mutates)
        slot.originals = {i: raw_of(slot.inputs[i]).clone() for i in read_only}
        return slot

    def _run(self, slot: Slot) -> dict[str, Json]:
        assert isinstance(slot, TorchSlot)
        slot.keeps = True
        try:
            total = self._time_one(slot)
            return {"total_ns": total, "changed": list(self._collect(slot))}
        finally:
            slot.keeps, slot.result = False, None

    def _time_one(self, slot: TorchSlot) -> int:
        slot.restore()
        with torch.no_grad(), self._state(slot):
            return self._time_batch([slot], 1)

    def _time(self, request: Mapping[str, Json], fds: Sequence[int]) -> dict[str, Json]:
        first, count = request["slot"], request["count"]
        assert isinstance(first, int) and isinstance(count, int)
        slots = [self._slots[first + i] for i in range(count)]
        for slot in slots:
            assert isinstance(slot, TorchSlot)
            slot.keeps, slot.called = bool(request["collect"]), False
        try:
            answer = super()._time(request, fds)
            changed: set[int] = set()
            for slot in slots:
                # A slow candidate is called on fewer sets than there are; of the others the former results stand.
                if isinstance(slot, TorchSlot) and slot.called:
                    changed |= self._collect(slot)
            return {**answer, "changed": sorted(changed)}
        finally:
            for slot in slots:
                if isinstance(slot, TorchSlot):
                    slot.keeps, slot.result = False, None

    def _collect(self, slot: TorchSlot) -> set[int]:
        """Send back what the last call left; the inputs that it changed.

        Raises:
            LaunchFailed: the result is not what the variant says.
        """
        results = tensors_in(slot.result) if slot.outputs else []
        _check(results, slot)
        changed = [slot.inputs[i] for i in slot.variant.mutates]
        for tensor, offset in zip([*changed, *results], slot.out_offsets, strict=True):
            write_tensor(slot.out, offset, tensor)
        for tensor in results:
            # The allocator gives the same block to the next call: one that writes nothing must not find this result.
            raw_of(tensor).fill_(POISON)
        return self._changed(slot)

    def _changed(self, slot: TorchSlot) -> set[int]:
        found = {i for i, data in slot.originals.items() if not torch.equal(raw_of(slot.inputs[i]), data)}
        for index in found:
            raw_of(slot.inputs[index]).copy_(slot.originals[index])
        return found

    def _synchronise(self) -> None:
        try:
            super()._synchronise()
        except RuntimeError as error:
            raise LaunchFailed("async", str(error)) from error


def _argument(value: object, kind: str) -> object:
    """A bound argument as the parameter takes it: a size in all directions may be one number."""
    if kind in ("int", "float") and isinstance(value, tuple | list):
        return value[0]
    return list(value) if isinstance(value, tuple) else value


def _check(results: Sequence[torch.Tensor], slot: TorchSlot) -> None:
    memory = {t.untyped_storage().data_ptr() for t in slot.inputs if t.numel()}
    for index, tensor in enumerate(results):
        if tensor.layout is not torch.strided or tensor.device.type != slot.inputs[0].device.type:
            raise LaunchFailed("meta", f"output {index} is a tensor of {tensor.device.type}, {tensor.layout}")
        if tensor.numel() and tensor.untyped_storage().data_ptr() in memory:
            raise LaunchFailed("meta", f"output {index} shares the memory of an input")
    try:
        check_outputs(results, slot.outputs, who="launch")
    except ValueError as error:
        raise LaunchFailed("meta", str(error)) from error


def load_launch(binary: str) -> Callable[..., object]:
    """The `launch` of a built module.

    Raises:
        LaunchFailed: it does not load.
    """
    try:
        loader = importlib.machinery.ExtensionFileLoader(TORCH_MODULE, binary)
        spec = importlib.util.spec_from_loader(TORCH_MODULE, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        launch: Callable[..., object] = module.launch
    except Exception as error:
        raise LaunchFailed("load", f"the module does not load: {error}") from error
    return launch


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--threads", "--control", "--lifeline"):
        parser.add_argument(name, type=int, required=True)
    for name in ("--device", "--binary", "--call"):
        parser.add_argument(name, required=True)
    parser.add_argument("--fence", action="store_true")
    options = parser.parse_args()
    tie_to(options.lifeline)
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    channel = socket.socket(fileno=options.control)
    try:
        # Makes the context: what the fence forbids shows here.
        torch.zeros(1, device=options.device)
    except RuntimeError as error:
        _answer(channel, {"nonce": ""}, {"error": "device", "message": str(error)})
        return
    _answer(channel, {"nonce": ""}, {})
    try:
        call = [(str(name), str(kind)) for name, kind in json.loads(options.call)]
        server = TorchServer(options.device, load_launch(options.binary), call)
    except LaunchFailed as failed:
        _answer(channel, {"nonce": ""}, {"error": failed.error, "message": failed.message})
        return
    _answer(channel, {"nonce": ""}, {})
    for request, fds in requests_on(channel):
        _answer(channel, request, _handle(server, request, fds))


def _handle(server: TorchServer, request: Mapping[str, Json], fds: Sequence[int]) -> Mapping[str, Json]:
    try:
        return server.handle(request, fds)
    except LaunchFailed as failed:
        return {"error": failed.error, "message": failed.message}
    except Exception as error:  # noqa: BLE001 - the boundary of this process: the owner calls it its own fault
        traceback.print_exc()
        return {"error": "device", "message": f"{type(error).__name__}: {error}"}


def _answer(channel: socket.socket, request: Mapping[str, Json], answer: Mapping[str, Json]) -> None:
    complete = {"nonce": request["nonce"], "error": "", "message": "", "total_ns": 0, "changed": [], **answer}
    complete["message"] = str(complete["message"])[:MOST_WORDS]
    channel.send(json.dumps(complete).encode())


if __name__ == "__main__":
    main()
