"""Whole models in every way to run them, interleaved in one process: what a package brings beside graphs and compilers.

    python -m benchmarks.run_modes --out FILE.json [--only resnet50_fp16_b1 ...] [--seconds 120] [--rounds 30]

Each model is captured, searched with templates for `--seconds` (the decoder's linear also gets a kernel that
was written by hand, benchmarks/kernels), exported with decisions for eager, graphed and compiled mode, and run as

- eager, and with the package dispatched,
- graphed (`kernelforge.graphed`) without and with the package,
- compiled by torch.compile in its default mode and with reduce-overhead,
- compiled with backend="kernelforge", in both modes.

All sides run once in each round, in an order that turns, and a sample is some runs between two synchronisations. The
ratios are those of samples of one round. Outputs of all sides are compared with eager's. A side that fails is recorded
with its error. The decoder has a static cache in buffers; token, position and mask are arguments.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from examples.models import qwen3
from torch import nn
from torch.nn import functional as F

import kernelforge
from benchmarks.harness import ROOT, write_record
from kernelforge.adding import add_files
from kernelforge.benchmark.statistics import paired_interval
from kernelforge.capturing import capture_calls
from kernelforge.dispatch.agreement import compare_outputs, tensors_in
from kernelforge.dispatch.loading import LoadedPackage, load
from kernelforge.exporting import export
from kernelforge.report.operators import project_rows
from kernelforge.search.types import Budget
from kernelforge.settings import load_settings
from kernelforge.store.project import Project
from kernelforge.workshop import open_workshop

QWEN3_06B = {"vocab": 151936, "hidden": 1024, "layers": 28, "heads": 16, "kv_heads": 8, "head_dim": 128,
             "intermediate": 3072}  # fmt: skip
CACHE_LENGTH = 1024
SAMPLE_S = 0.02
WRITTEN = {"linear": ROOT / "benchmarks" / "kernels" / "linear_one_row.cu"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What all layers of one forward share."""

    rotary: tuple[torch.Tensor, torch.Tensor]
    positions: torch.Tensor
    mask: torch.Tensor


class Decoder(nn.Module):
    """The example decoder with a static cache: ids, positions [length] and mask [1, 1, length, cache] -> logits."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, model: qwen3.Model) -> None:
        super().__init__()
        config = model.config
        self.model = model
        shape = (config.layers, 1, config.kv_heads, CACHE_LENGTH, config.head_dim)
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        model = self.model
        x = model.embedding(ids)
        rotary = qwen3.rotary_tables(positions, model.config, x.dtype)
        step = Step(rotary=rotary, positions=positions, mask=mask)
        for index in range(len(model.layers)):
            x = self._layer(index, x, step)
        return F.linear(model.norm(x[:, -1:]), model.embedding.weight)

    def _layer(self, index: int, x: torch.Tensor, step: Step) -> torch.Tensor:
        layer: Any = self.model.layers[index]
        attention, config, (cos, sin) = layer.attention, self.model.config, step.rotary
        batch, length, _ = x.shape
        shape = (batch, length, -1, config.head_dim)
        h = layer.input_norm(x)
        q = attention.q_norm(attention.q_proj(h).view(shape)).transpose(1, 2)
        k = attention.k_norm(attention.k_proj(h).view(shape)).transpose(1, 2)
        v = attention.v_proj(h).view(shape).transpose(1, 2)
        q = q * cos + qwen3.rotate_half(q) * sin
        k = k * cos + qwen3.rotate_half(k) * sin
        keys, values = self.keys[index], self.values[index]
        keys.index_copy_(2, step.positions, k)
        values.index_copy_(2, step.positions, v)
        groups = config.heads // config.kv_heads
        keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
        scores = torch.matmul(q, keys.transpose(2, 3)) * config.head_dim**-0.5 + step.mask
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        mixed = torch.matmul(weights, values).transpose(1, 2).reshape(batch, length, -1)
        x = x + attention.o_proj(mixed)
        h = layer.post_norm(x)
        down: torch.Tensor = layer.down(F.silu(layer.gate(h)) * layer.up(h))
        return x + down


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model on the GPU and the arguments of one call. written: a source for the variants of an operator."""

    name: str
    model: nn.Module
    args: tuple[torch.Tensor, ...]
    written: Mapping[str, Path]


def resnet50() -> Workload:
    model = importlib.import_module("examples.models.resnet50").Model().cuda().half().eval()
    image = torch.randn(1, 3, 224, 224, device="cuda", dtype=torch.float16)
    return Workload(name="resnet50_fp16_b1", model=model, args=(image,), written={})


def decoder_token() -> Workload:
    """One token, with 512 before it in the cache."""
    model = Decoder(qwen3.Model(**QWEN3_06B)).cuda().bfloat16().eval()
    ids = torch.randint(QWEN3_06B["vocab"], (1, 1), device="cuda")
    positions = torch.arange(512, 513, device="cuda")
    visible = torch.arange(CACHE_LENGTH, device="cuda")[None, :] <= positions[:, None]
    mask = torch.zeros(visible.shape, device="cuda", dtype=torch.bfloat16)
    mask = mask.masked_fill(~visible, torch.finfo(torch.bfloat16).min)[None, None]
    return Workload(name="qwen3_bf16_token", model=model, args=(ids, positions, mask), written=WRITTEN)


WORKLOADS: Mapping[str, Callable[[], Workload]] = {"resnet50_fp16_b1": resnet50, "qwen3_bf16_token": decoder_token}


def make_package(workload: Workload, folder: Path, seconds: float) -> tuple[LoadedPackage, Any]:
    """Capture, search, export; the loaded package and the operator table."""
    settings = load_settings()
    path = folder / f"{workload.name}.kforge"

    def call() -> object:
        with torch.no_grad():
            return workload.model(*workload.args)

    capture_calls([call], model=workload.name, device="cuda", project=path, shapes="auto", overwrite=False)
    project = Project.open(path)
    records = [r for card in project.cards() for r in card.variants]
    say: Callable[[Any], None] = lambda event: print("  ", event, flush=True) if isinstance(event, str) else None  # noqa: E731
    for record in records:
        source = workload.written.get(record.variant.operator)
        if source is not None and not record.forgeable:
            report = add_files(
                project, [source], variant=record.variant.label, on_event=say, should_stop=lambda: False,
                settings=settings,
            )  # fmt: skip
            print("  ", record.variant.describe(), report.rows, flush=True)
    with open_workshop("cuda", settings) as workshop:
        workshop.search(project, records, Budget(seconds=seconds), on_event=say, should_stop=lambda: False)
        output = folder / f"{workload.name}.cast"
        exported = export(project, output, workshop=workshop, modes=("eager", "graphed", "compiled"), say=say)
    rows = [row.to_json() for row in project_rows(project, exported.decisions)]
    # Of the path only the name: the folder was a temporary one.
    return load(output), {"export": {**exported.report.to_json(), "path": output.name}, "operators": rows}


def sides(workload: Workload, package: LoadedPackage) -> dict[str, Callable[[], Any]]:
    """Every way to run the model, by name; compiled ones compile at their first call."""
    model, args = workload.model, workload.args

    def dispatched() -> Any:
        with package.dispatch():
            return model(*args)

    graphed, with_package = kernelforge.graphed(model), kernelforge.graphed(model, package)
    forms: dict[str, Callable[..., Any]] = {
        "eager": model,
        "eager+package": lambda *_: dispatched(),
        "graphed": graphed,
        "graphed+package": with_package,
        "compile": torch.compile(model),
        "compile reduce-overhead": torch.compile(model, mode="reduce-overhead"),
        "backend kernelforge": package.compile(model),
        "backend kernelforge reduce-overhead": package.compile(model, mode="reduce-overhead"),
    }
    return {name: (lambda form=form: form(*args)) for name, form in forms.items()}  # type: ignore[misc]


def run_rounds(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds a run of each side, one sample a round."""
    runs: dict[str, int] = {}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for name, call in calls.items():
        call()
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        torch.cuda.synchronize()
        runs[name] = max(1, min(100, int(SAMPLE_S / (time.perf_counter() - started))))
    names = list(calls)
    for turn in range(rounds):
        shift = turn % len(names)
        order = names[shift:] + names[:shift]
        for name in order if turn % 2 == 0 else reversed(order):
            calls[name]()
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(runs[name]):
                calls[name]()
            torch.cuda.synchronize()
            samples[name].append((time.perf_counter() - started) / runs[name] * 1e3)
    return samples


def measure(workload: Workload, package: LoadedPackage, rounds: int) -> dict[str, Any]:
    """Outputs compared, then all sides timed together."""
    told: dict[str, Any] = {}
    usable: dict[str, Callable[[], Any]] = {}
    want: list[torch.Tensor] = []
    for name, call in sides(workload, package).items():
        started = time.monotonic()
        try:
            for _ in range(4):
                got = [t.clone() for t in tensors_in(call())]
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 - a side that fails is a result
            traceback.print_exc()
            told[name] = {"failed": f"{type(error).__name__}: {error}"[:500]}
            continue
        want = want or got
        max_abs, relative, matches, _ = compare_outputs(want, got)
        usable[name] = call
        told[name] = {"output_max_abs": max_abs, "output_rel": relative, "outputs_match": matches,
                      "first_calls_s": time.monotonic() - started}  # fmt: skip
    samples = run_rounds(usable, rounds)
    for name, milliseconds in samples.items():
        told[name]["ms"] = milliseconds
    return told


def ratio(told: Mapping[str, Any], base: str, side: str) -> str:
    if "ms" not in told.get(base, {}) or "ms" not in told.get(side, {}):
        return "-"
    i = paired_interval(told[base]["ms"], told[side]["ms"])
    return f"{i.median:.2f}x [{i.low:.2f}, {i.high:.2f}]"


def print_table(name: str, told: Mapping[str, Any]) -> None:
    print(f"\n{name}: milliseconds, over eager, over graphed, outputs")
    for side, row in told.items():
        if "ms" not in row:
            print(f"  {side:36s} {row['failed'][:90]}")
            continue
        middle = sorted(row["ms"])[len(row["ms"]) // 2]
        match = (
            "same"
            if row["output_max_abs"] == 0
            else f"{row['output_rel']:.1e} {'ok' if row['outputs_match'] else 'DIFFER'}"
        )
        print(
            f"  {side:36s} {middle:8.3f}  {ratio(told, 'eager', side):22s} {ratio(told, 'graphed', side):22s} {match}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=120.0, help="of search per model")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="kernelforge-bench-") as folder, torch.no_grad():
        for name, make in WORKLOADS.items():
            if options.only and name not in options.only:
                continue
            try:
                workload = make()
                package, made = make_package(workload, Path(folder), options.seconds)
                told = measure(workload, package, options.rounds)
                graphed = [{"variant": r.label, "state": r.state, "hits": r.hits} for r in package.stats("graphed")]
                results[name] = {**made, "sides": told, "graphed_stats": graphed}
                print(package.stats("graphed"))
                print_table(name, told)
            except Exception as error:  # noqa: BLE001 - one model's failure must not lose the others' record
                traceback.print_exc()
                results[name] = {"error": f"{type(error).__name__}: {error}"}
            write_record(options.out, {"benchmark": "run_modes", "models": results})
            torch._dynamo.reset()


if __name__ == "__main__":
    main()
