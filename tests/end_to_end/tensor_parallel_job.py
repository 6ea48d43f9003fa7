"""A transformers model split over two processes: each captures, packs and dispatches its own share; prints JSON.

    python -m tests.end_to_end.tensor_parallel_job --device cpu     # gloo
    python -m tests.end_to_end.tensor_parallel_job --device cuda    # nccl, one GPU for each process

On the CPU and on GPUs alike the parent saves a small Qwen3 with random weights, starts the processes and joins what
they report. See `report` for what that is; test_tensor_parallel.py says what must hold. The kernels are the template
generator's first proposals, unjudged: what is looked at here is which calls reach them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.unjudged_packages import template_candidates, write_unjudged
from torch.overrides import TorchFunctionMode

import kernelforge
from kernelforge.dispatch.loading import LoadedPackage
from kernelforge.settings import load_settings
from kernelforge.store.project import Project

ROOT = Path(__file__).resolve().parent.parent.parent
PROCESSES = 2
OPERATORS = ("rsqrt", "silu", "softmax")
CAPTURED, SERVED = (9, 14, 22, 31), 57
"""Tokens of the captured texts, and of the one that is served."""
VOCAB = 512
SECONDS = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """What one process saw.

    Attributes:
        operators: of the captured cards; uncovered: names of captured calls that no operator describes.
        argument_types: by class, how many arguments of torch functions were of it in one inference.
        entries: kernels of the package; hits: of one inference; gradient_hits: of one forward with gradients on.
        refused: why calls of that forward missed, with counts.
        split, dispatched: the largest difference of the split model's outputs from the whole model's, without and with
            the package; gradient_split, gradient_dispatched: the same with gradients on.
        weight_gradient: the largest difference of one weight's gradient, with the package from without it.
        direct: what the package does with an operator called on a DTensor: why it missed.
        direct_right: and that the result was right, and still a DTensor.
    """

    rank: int
    operators: list[str]
    uncovered: list[str]
    argument_types: Mapping[str, int]
    entries: int
    hits: int
    gradient_hits: int
    refused: Mapping[str, int]
    split: float
    dispatched: float
    gradient_split: float
    gradient_dispatched: float
    weight_gradient: float
    direct: Mapping[str, int]
    direct_right: bool


class ArgumentTypes(TorchFunctionMode):
    """Counts the classes of tensors that torch functions are given."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in (*args, *(kwargs or {}).values()):
            if isinstance(value, torch.Tensor):
                name = type(value).__name__
                self.counts[name] = self.counts.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


def _transformers() -> Any:
    return importlib.import_module("transformers")


def save_model(folder: Path) -> None:
    """Save a small Qwen3 with random weights."""
    transformers = _transformers()
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=256, attn_implementation="eager",
    )  # fmt: skip
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)


def load_split(folder: Path) -> Any:
    """The saved model, split over the processes by transformers' own plan."""
    with warnings.catch_warnings():
        # Newer versions want the plan in a configuration object; what is meant is the same.
        warnings.simplefilter("ignore", FutureWarning)
        model = _transformers().Qwen3ForCausalLM.from_pretrained(folder, tp_plan="auto", attn_implementation="eager")
    return model.eval()


def report(rank: int, device: str, work: Path) -> RankReport:
    """Capture, pack and dispatch this process's share of the model.

    Args:
        work: a folder that holds the model, and gets this process's project and package.
    """
    place = torch.device(device, rank) if device == "cuda" else torch.device("cpu")
    family = _transformers().Qwen3ForCausalLM
    whole = family.from_pretrained(work / "model", attn_implementation="eager").eval().to(place)
    split = load_split(work / "model")

    def text(length: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(length)
        return torch.randint(VOCAB, (1, length), generator=generator).to(place)

    def infer(ids: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            logits = split(ids, use_cache=False).logits
        assert isinstance(logits, torch.Tensor)
        return logits

    def learn(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weight = split.model.layers[0].mlp.gate_proj.weight
        weight.grad = None
        logits = split(ids, use_cache=False).logits
        logits.square().mean().backward()
        return _local(logits).detach(), _local(weight.grad).clone()

    # Each process must make the same calls in the same order, or the collectives of one wait for ever; so the number of
    # runs must not follow this process's clock.
    project = work / f"rank{rank}.kforge"
    captured = kernelforge.capture(
        infer, samples=[(text(n),) for n in CAPTURED], project=project, device=device, repeats=0
    )
    records = [r for card in Project.open(project).cards() for r in card.variants]
    chosen = [r for r in records if r.variant.operator in OPERATORS and not r.forgeable]
    package = kernelforge.load(write_unjudged(work / f"rank{rank}.cast", template_candidates(chosen), load_settings()))
    ids = text(SERVED)
    with torch.no_grad():
        want = whole(ids, use_cache=False).logits
    plain, (learned, gradient) = infer(ids), learn(ids)
    types = ArgumentTypes()
    with types:
        infer(ids)
    with package.dispatch(split):
        before = _hits(package)
        dispatched = infer(ids)
        hits = _hits(package) - before
        with _new_misses(package) as refused:
            learned_again, gradient_again = learn(ids)
        gradient_hits = _hits(package) - before - hits
    direct, right = _direct(package, place)
    return RankReport(
        rank=rank, operators=sorted({r.variant.operator for r in records}),
        uncovered=sorted(str(name) for name, _ in captured.unsupported), argument_types=types.counts,
        entries=len(package.states), hits=hits, gradient_hits=gradient_hits, refused=refused,
        split=_difference(plain, want), dispatched=_difference(dispatched, want),
        gradient_split=_difference(learned, want), gradient_dispatched=_difference(learned_again, want),
        weight_gradient=_difference(gradient_again, gradient), direct=direct, direct_right=right,
    )  # fmt: skip


def _direct(package: LoadedPackage, place: torch.device) -> tuple[Mapping[str, int], bool]:
    """An operator that has a kernel, called on a DTensor of its sizes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate

    entry = next(s.entry for s in package.states if s.entry.variant.operator == "silu")
    dims = {d.name: d.low + 1 for d in entry.variant.dims}
    local = torch.linspace(-1, 1, 4096, device=place)
    shape = entry.variant.tensors[0].spec(dims, place.type).shape
    local = local[: torch.Size(shape).numel()].reshape(shape)
    given = DTensor.from_local(local, init_device_mesh(place.type, (PROCESSES,)), [Replicate()])
    want = torch.nn.functional.silu(local)
    with torch.no_grad(), package.dispatch(), _new_misses(package, "silu") as missed:
        got = torch.nn.functional.silu(given)
    return missed, isinstance(got, DTensor) and torch.equal(got.to_local(), want)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    from torch.distributed.tensor import DTensor

    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _difference(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((_local(got) - _local(want)).abs().max())


def _hits(package: LoadedPackage) -> int:
    return sum(row.hits for row in package.stats())


def _misses(package: LoadedPackage, operator: str) -> dict[str, int]:
    """Misses by reason; all rows of an operator count the same calls, so one row speaks for it."""
    found: dict[str, int] = {}
    for name in {row.operator for row in package.stats() if operator in ("", row.operator)}:
        row = next(row for row in package.stats() if row.operator == name)
        for reason, count in row.misses.items():
            found[reason] = found.get(reason, 0) + count
    return found


@contextmanager
def _new_misses(package: LoadedPackage, operator: str = "") -> Iterator[dict[str, int]]:
    """A mapping that holds, after the block, the misses that were counted in it."""
    before, found = _misses(package, operator), dict[str, int]()
    yield found
    after = _misses(package, operator)
    found.update({reason: n - before.get(reason, 0) for reason, n in after.items() if n > before.get(reason, 0)})


def run_job(device: str) -> list[RankReport]:
    """Start the processes and wait for them.

    Raises:
        RuntimeError: one failed, or did not end in time.
    """
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        save_model(Path(folder, "model"))
        children = [_start(rank, device, port, Path(folder)) for rank in range(PROCESSES)]
        try:
            said = [child.communicate(timeout=SECONDS) for child in children]
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"the processes did not end in {SECONDS:.0f} s") from error
        finally:
            for child in children:
                child.kill()
                child.wait()
        for child, (_, errors) in zip(children, said, strict=True):
            if child.returncode:
                raise RuntimeError(f"a process failed:\n{errors}")
        return [RankReport(**json.loads(output.splitlines()[-1])) for output, _ in said]


def _start(rank: int, device: str, port: int, folder: Path) -> subprocess.Popen[str]:
    environment = {
        **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(PROCESSES),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    if device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.end_to_end.tensor_parallel_job", "--device", device, "--work", str(folder)],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)  # of a process that was started
    options = parser.parse_args()
    if options.work is None:
        print(json.dumps([asdict(r) for r in run_job(options.device)], indent=1))
        return
    found = report(int(os.environ["RANK"]), options.device, options.work)
    print(json.dumps(asdict(found)))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
