"""The C side of a variant: types of tensors, and the head of `launch` as the ABI fixes it."""

from __future__ import annotations

from collections.abc import Mapping

from kernelforge.cards.types import Variant
from kernelforge.generate.emitter.expressions import Backend

CPP_TYPES: Mapping[str, str] = {
    "float32": "float", "float64": "double", "float16": "uint16_t", "bfloat16": "uint16_t", "int64": "int64_t",
    "int32": "int32_t", "int16": "int16_t", "int8": "int8_t", "uint8": "uint8_t", "bool": "bool",
}  # fmt: skip
CUDA_TYPES: Mapping[str, str] = {**CPP_TYPES, "float16": "__half", "bfloat16": "__nv_bfloat16"}


def c_type(dtype: str, backend: Backend) -> str:
    return (CUDA_TYPES if backend == "cuda" else CPP_TYPES)[dtype]


def tensor_declarations(variant: Variant, backend: Backend) -> dict[str, str]:
    """For each tensor, inputs first: its pointer type, for example {"input": "const float*", "out": "float*"}."""
    result = {}
    for index, (name, pattern) in enumerate(zip(variant.tensor_names(), variant.tensors, strict=True)):
        const = "" if index in variant.mutates else "const "
        result[name] = f"{const}{c_type(pattern.dtype, backend)}*"
    for name, pattern in zip(variant.output_names(), variant.outputs, strict=True):
        result[name] = f"{c_type(pattern.dtype, backend)}*"
    return result


def launch_head(variant: Variant, backend: Backend) -> str:
    """`extern "C" int launch(...) {`, parameters in the ABI's order, wrapped at 118 columns."""
    tensors = tensor_declarations(variant, backend)
    inputs = variant.tensor_names()
    parts = [f"{tensors[name]} {name}" for name in inputs]
    parts += [f"int64_t {dim.name}" for dim in variant.dims]
    parts += [f"double {scalar.name}" for scalar in variant.scalars]
    parts += [f"{tensors[name]} {name}" for name in variant.output_names()]
    parts.append("void* workspace")
    if backend == "cuda":
        parts.append("cudaStream_t stream")
    return wrapped('extern "C" int launch(', parts, ") {")


def wrapped(head: str, parts: list[str], tail: str) -> str:
    """A parameter list, wrapped at 118 columns and aligned to the opening parenthesis."""
    lines, current = [], head
    for position, part in enumerate(parts):
        text = part + (", " if position + 1 < len(parts) else tail)
        if len(current) + len(text) > 118 and current.strip():
            lines.append(current.rstrip())
            current = " " * len(head)
        current += text
    lines.append(current)
    return "\n".join(lines)
