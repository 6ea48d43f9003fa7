"""The `kforge-c` ABI as text: the prelude that a generator sees, and the glue that exports the kernel.

Both derive from the variant alone. docs/abi.md is the table of the rules; this file is what enforces them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from kernelforge.build.glue import guard_body
from kernelforge.capture.types import DimRef, DtypeRef, ScalarRef, TensorRef, Value
from kernelforge.cards.types import Extent, Variant

CPP_TYPES: Mapping[str, str] = {
    "float32": "float", "float64": "double", "float16": "uint16_t", "bfloat16": "uint16_t", "int64": "int64_t",
    "int32": "int32_t", "int16": "int16_t", "int8": "int8_t", "uint8": "uint8_t", "bool": "bool",
}  # fmt: skip
CUDA_TYPES: Mapping[str, str] = {**CPP_TYPES, "float16": "__half", "bfloat16": "__nv_bfloat16"}

_CPP_HEADERS = ("algorithm", "cmath", "cstddef", "cstdint", "cstring", "limits")
_CUDA_HEADERS = ("cuda_runtime.h", "cuda_fp16.h", "cuda_bf16.h", "cfloat", "climits", *_CPP_HEADERS)


def c_types(backend: str) -> Mapping[str, str]:
    """C type of each dtype for a backend ("cpp" or "cuda")."""
    return CUDA_TYPES if backend == "cuda" else CPP_TYPES


def launch_parameters(variant: Variant, backend: str) -> tuple[str, ...]:
    """The parameters of `launch`, in order, as C declarations."""
    types = c_types(backend)
    parameters = []
    for index, (name, pattern) in enumerate(zip(variant.tensor_names(), variant.tensors, strict=True)):
        const = "" if index in variant.mutates else "const "
        parameters.append(f"{const}{types[pattern.dtype]}* {name}")
    parameters += [f"int64_t {dim.name}" for dim in variant.dims]
    parameters += [f"double {scalar.name}" for scalar in variant.scalars]
    for name, pattern in zip(variant.output_names(), variant.outputs, strict=True):
        parameters.append(f"{types[pattern.dtype]}* {name}")
    parameters.append("void* workspace")
    if backend == "cuda":
        parameters.append("cudaStream_t stream")
    return tuple(parameters)


def prelude(variant: Variant, backend: str) -> str:
    """The generated head of the source: headers, the variant in words, constants, and the signature of `launch`.

    Args:
        variant: a forgeable one: every dtype has a C type, every dim can be read off a size.
        backend: "cpp" or "cuda".
    """
    headers = _CUDA_HEADERS if backend == "cuda" else _CPP_HEADERS
    lines = [f"// {variant.label}: {variant.describe()}"]
    for dim in variant.dims:
        lines.append(f"// {dim.name} in [{dim.low}, {dim.high}], a multiple of {dim.multiple_of}")
    lines += [f"#include <{header}>" for header in headers]
    if backend == "cpp":
        lines.append(_CPU_HELPERS)
    lines.append("namespace v {")
    lines += _constants(variant)
    lines.append("}  // namespace v")
    signature = ",\n                      ".join(launch_parameters(variant, backend))
    dims = ", ".join(f"int64_t {dim.name}" for dim in variant.dims) or "void"
    success = "a cudaError_t, 0 for success" if backend == "cuda" else "0 for success"
    lines += [
        f'extern "C" int launch({signature});  // returns {success}',
        f'extern "C" __attribute__((weak)) size_t workspace_bytes({dims});  // optional',
        "",
    ]
    return "\n".join(lines)


def _constants(variant: Variant) -> list[str]:
    lines = []
    named = [*zip(variant.tensor_names(), variant.tensors, strict=True)]
    named += [*zip(variant.output_names(), variant.outputs, strict=True)]
    for name, pattern in named:
        if pattern.shape:
            lines.append(f"constexpr int64_t {name}_shape[{len(pattern.shape)}] = {{{_extents(pattern.shape)}}};")
            lines.append(f"constexpr int64_t {name}_stride[{len(pattern.stride)}] = {{{_extents(pattern.stride)}}};")
    for dim in variant.dims:
        lines.append(
            f"constexpr int64_t {dim.name}_low = {dim.low}, {dim.name}_high = {dim.high}, "
            f"{dim.name}_multiple_of = {dim.multiple_of};"
        )
    for name, value in variant.arguments:
        lines += _scalar_constant(name, value)
    return lines


def _extents(extents: tuple[Extent, ...]) -> str:
    return ", ".join(str(e.constant if e.constant is not None else -1) for e in extents)


def _scalar_constant(name: str, value: Value) -> list[str]:
    """The constexpr of one argument; nothing for None, tensors, strings, dtypes and what is a parameter."""
    match value:
        case bool():
            return [f"constexpr bool {name} = {str(value).lower()};"]
        case int():
            return [f"constexpr int64_t {name} = {value};"]
        case float():
            return [f"constexpr double {name} = {_c_double(value)};"]
        case str():
            return [f'constexpr const char* {name} = "{value}";'] if value.isascii() and value.isidentifier() else []
        case tuple() if value and all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            return [f"constexpr int64_t {name}[{len(value)}] = {{{', '.join(str(v) for v in value)}}};"]
        case tuple() if value and all(isinstance(v, int | float) and not isinstance(v, bool) for v in value):
            items = ", ".join(_c_double(float(v)) for v in value if isinstance(v, int | float))
            return [f"constexpr double {name}[{len(value)}] = {{{items}}};"]
        case TensorRef() | DtypeRef() | DimRef() | ScalarRef() | tuple() | None:
            return []


def _c_double(value: float) -> str:
    if math.isnan(value):
        return "std::numeric_limits<double>::quiet_NaN()"
    if math.isinf(value):
        return ("-" if value < 0 else "") + "std::numeric_limits<double>::infinity()"
    return repr(value)


def glue(variant: Variant, backend: str) -> str:
    """The generated middle of the source: the uniform entry of the runner and the guarded entry of the run time."""
    types = c_types(backend)
    arguments = []
    position = 0
    for index, pattern in enumerate(variant.tensors):
        const = "" if index in variant.mutates else "const "
        arguments.append(f"static_cast<{const}{types[pattern.dtype]}*>(buffers[{position}])")
        position += 1
    arguments += [f"dims[{i}]" for i in range(len(variant.dims))]
    arguments += [f"scalars[{i}]" for i in range(len(variant.scalars))]
    for pattern in variant.outputs:
        arguments.append(f"static_cast<{types[pattern.dtype]}*>(buffers[{position}])")
        position += 1
    arguments.append("workspace")
    if backend == "cuda":
        arguments.append("static_cast<cudaStream_t>(stream)")
    dims = ", ".join(f"dims[{i}]" for i in range(len(variant.dims)))
    return _GLUE.format(
        arguments=", ".join(arguments), dims=dims, guard=guard_body(variant), error=_last_error(backend)
    )


def _last_error(backend: str) -> str:
    # A launch that failed asynchronously in its configuration shows only here; a candidate may forget to look.
    return "if (status == 0) status = static_cast<int>(cudaGetLastError());" if backend == "cuda" else ""


_CPU_HELPERS = """\
#if defined(__F16C__)
#include <immintrin.h>
#endif
namespace kf {
inline float bf16_to_float(uint16_t bits) {
  uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}
inline uint16_t float_to_bf16(float value) {  // round to nearest even; nan stays nan
  uint32_t wide;
  std::memcpy(&wide, &value, 4);
  uint32_t rounded = (wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((wide & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}
#if defined(__F16C__)
inline float half_to_float(uint16_t bits) { return _cvtsh_ss(bits); }
inline uint16_t float_to_half(float value) { return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT); }
#else
inline float half_to_float(uint16_t bits) { _Float16 h; std::memcpy(&h, &bits, 2); return static_cast<float>(h); }
inline uint16_t float_to_half(float value) {
  _Float16 h = static_cast<_Float16>(value); uint16_t bits; std::memcpy(&bits, &h, 2); return bits;
}
#endif
}  // namespace kf"""

_GLUE = """
// ---- generated glue: never written by a generator ----
#include <tvm/ffi/c_api.h>

extern "C" int kforge_invoke(void* const* buffers, const int64_t* dims, const double* scalars, void* workspace,
                             void* stream) {{
  (void)buffers; (void)dims; (void)scalars; (void)stream;
  int status = launch({arguments});
  {error}
  return status;
}}

extern "C" int64_t kforge_workspace(const int64_t* dims) {{
  (void)dims;
  return workspace_bytes ? static_cast<int64_t>(workspace_bytes({dims})) : 0;
}}

{guard}
"""
