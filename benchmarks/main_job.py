"""The main job on real models: capture, forge, certify, export, dispatch, compare; one record.

    python -m benchmarks.main_job --device cuda --out FILE.json [--only NAME ...] [--seconds 90]

Each model runs through `run_pipeline`, exactly as `kforge run --no-library` does. The record keeps every variant's
decision, each accepted measurement with its raw samples, all rejections with their reasons, and the whole-model A/B
whatever it says.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import write_record
from kernelforge.capture.models import LoadedModel
from kernelforge.capturing import Device
from kernelforge.evaluate.types import Scored
from kernelforge.package.serial import measurement_to_json
from kernelforge.pipeline import run_pipeline
from kernelforge.report.nodes import trial_row
from kernelforge.search.winners import choose_winners
from kernelforge.store.project import Project

QWEN3_06B = {"vocab": 151936, "hidden": 1024, "layers": 28, "heads": 16, "kv_heads": 8}


def _load(name: str, *, device: Device, dtype: str, samples: Sequence[Sequence[Any]], init: Any = None) -> LoadedModel:
    """An example model with given inputs: floats are cast to `dtype`, everything is moved to `device`."""
    import torch

    module = importlib.import_module(f"examples.models.{name}")
    arguments = module.get_init_inputs() if init is None else init
    built = module.Model(**arguments) if isinstance(arguments, Mapping) else module.Model(*arguments)
    model = built.to(device=device, dtype=getattr(torch, dtype)).eval()

    def place(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(device=device, dtype=getattr(torch, dtype) if value.is_floating_point() else None)

    def call(sample: Sequence[Any]) -> Callable[[], object]:
        placed = [place(value) for value in sample]
        run = getattr(module, "run", None)

        def once() -> object:
            with torch.no_grad():
                return model(*placed) if run is None else run(model, *placed)

        return once

    return LoadedModel(name=name, model=model, calls=tuple(call(s) for s in samples))


def jobs(device: Device) -> Mapping[str, Callable[[], LoadedModel]]:
    """The models by name, made when called."""
    import torch

    def image(batch: int) -> list[torch.Tensor]:
        return [torch.randn(batch, 3, 224, 224)]

    def prompt(length: int, new: int) -> list[Any]:
        return [torch.randint(0, 2048, (1, length)), new]

    if device == "cpu":
        return {
            "resnet50_fp32": lambda: _load(
                "resnet50", device="cpu", dtype="float32", samples=[image(1), image(2)]),
            "qwen3_fp32": lambda: _load(
                "qwen3", device="cpu", dtype="float32", samples=[prompt(17, 16), prompt(29, 16)]),
        }  # fmt: skip
    return {
        "device_operators_bf16": lambda: _load(
            "device_operators", device="cuda", dtype="bfloat16",
            samples=[[torch.randn(1, 128, 1024, 1024), torch.randn(1, 512, 128, 128), torch.randn(32768, 2048)]]),
        "resnet50_fp16_b1": lambda: _load(
            "resnet50", device="cuda", dtype="float16", samples=[image(1)]),
        "resnet50_fp16_b64": lambda: _load(
            "resnet50", device="cuda", dtype="float16", samples=[image(64)]),
        "vae_decoder_bf16": lambda: _load(
            "vae_decoder", device="cuda", dtype="bfloat16", samples=[[torch.randn(1, 16, 128, 128)]]),
        "qwen3_bf16": lambda: _load(
            "qwen3", device="cuda", dtype="bfloat16", init=QWEN3_06B, samples=[prompt(512, 16), prompt(96, 16)]),
    }  # fmt: skip


def run_job(name: str, load: Callable[[], LoadedModel], *, device: Device, seconds: float, folder: Path) -> Any:
    """One model through the pipeline; its part of the record."""
    started = time.monotonic()
    loaded = load()
    print(f"== {name}", flush=True)
    project = folder / f"{name}.kforge"
    result = run_pipeline(
        loaded, device=device, project=project, output=folder / f"{name}.cast", max_time_s=seconds,
        on_event=lambda event: print("  ", event, flush=True) if isinstance(event, str) else None,
        should_stop=lambda: False,
        library=False,  # what the search finds is measured, not what an earlier one found
    )  # fmt: skip
    opened = Project.open(project)
    trials = {}
    for choice in choose_winners(opened):
        nodes = opened.nodes(choice.record.variant.id)
        rows = []
        for node in nodes:
            row: dict[str, Any] = {**trial_row(node).to_json()}
            if isinstance(node.outcome, Scored):
                row["measurement"] = measurement_to_json(node.outcome.measurement)
                row["build_seconds"] = node.outcome.artifact.seconds
            rows.append(row)
        trials[choice.record.variant.label] = rows
    report = result.report.to_json()
    names = {key: Path(str(report[key])).name for key in ("package", "project")}  # the folder was a temporary one
    return {
        **report, **names, "capture": dict(opened.capture_info), "trials": trials,
        "job_seconds": time.monotonic() - started,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=90.0, help="per model")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="kernelforge-bench-") as folder:
        for name, load in jobs(options.device).items():
            if options.only and name not in options.only:
                continue
            try:
                results[name] = run_job(name, load, device=options.device, seconds=options.seconds, folder=Path(folder))
            except Exception as error:  # noqa: BLE001 - one model's failure must not lose the others' record
                traceback.print_exc()
                results[name] = {"error": f"{type(error).__name__}: {error}"}
            write_record(options.out, {"benchmark": "main_job", "models": results})
    for name, result in results.items():
        print_summary(name, result)


def print_summary(name: str, result: Mapping[str, Any]) -> None:
    """A short table: the variants that matter, and the whole model."""
    if "error" in result:
        print(f"{name}: {result['error']}")
        return
    whole = result["whole_model"]
    print(f"{name}: whole model {whole['speedup']} match={whole['outputs_match']} rel={whole['output_rel']:.2e}")
    print(f"   hits={whole['hits']} eager={whole['eager_ms']:.2f} ms fast={whole['fast_ms']:.2f} ms")
    for row in result["rows"]:
        if row["trials"]:
            best = "-" if row["speedup"] is None else f"{row['speedup']:.2f}x [{row['speedup_low']:.2f}]"
            print(f"   {row['label']:28s} share {row['share']:.3f} eager {row['eager_us']:9.1f} us best {best:16s} "
                  f"floor {row['floor_us'] or 0:7.1f} n={row['trials']} {row['decision'][:60]}")  # fmt: skip


if __name__ == "__main__":
    main()
