"""The main job on real models: capture, forge, certify, export, dispatch, compare; one record.

    python -m benchmarks.main_job --device cuda --out benchmarks/results/NAME.json [--only NAME ...] [--max-time 90]

Each model runs through `run_pipeline`, exactly as `kforge run` does. The record keeps every accepted measurement with its
raw samples, all rejections with their reasons, and the whole-model A/B whatever it says.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.harness import ROOT

MODELS = ROOT / "examples" / "models"
CUDA_JOBS: Mapping[str, tuple[str, str, int]] = {
    "device_operators_bf16": (str(MODELS / "device_operators.py"), "bfloat16", 1),
    "resnet50_fp16_b1": (str(MODELS / "resnet50.py") + "?batch=1", "float16", 1),
    "resnet50_fp16_b64": (str(MODELS / "resnet50.py") + "?batch=64", "float16", 1),
    "vae_decoder_bf16_1024": (str(MODELS / "vae_decoder.py"), "bfloat16", 1),
    "qwen3_bf16": (str(MODELS / "qwen3.py"), "bfloat16", 2),
}
