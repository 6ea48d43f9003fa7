"""The guard in C, generated from the variant, and the entry that the run time calls through tvm-ffi's C header.

`__tvm_ffi_launch` takes the input tensors, the output tensors, the varying floats, the workspace address (int, 0 for
none) and the stream (int). It returns an int: 0 launched, k > 0 refused by term k of `refusal_terms`, -e when `launch`
returned the error e. No torch and no Python symbol is in the binary.
"""

from __future__ import annotations

from kernelforge.cards.types import Extent, Variant

_DL_CODES = {
    "float32": (2, 32), "float64": (2, 64), "float16": (2, 16), "bfloat16": (4, 16), "int64": (0, 64),
    "int32": (0, 32), "int16": (0, 16), "int8": (0, 8), "uint8": (1, 8), "bool": (6, 8),
}  # fmt: skip
_DL_DEVICES = {"cpu": 1, "cuda": 2}
# A launch goes to the current device; the tensors may live on another one.
_DEVICE_SWITCH = (
    [
        "  int current = 0;",
        "  cudaGetDevice(&current);",
        "  if (current != t[0]->device.device_id) cudaSetDevice(t[0]->device.device_id);",
    ],
    ["  if (current != t[0]->device.device_id) cudaSetDevice(current);"],
)


def refusal_terms(variant: Variant) -> tuple[str, ...]:
    """What each refusal code of `__tvm_ffi_launch` means; code k is the k-th of these, from 1."""
    names = [*variant.tensor_names(), *variant.output_names()]
    terms = ["number of arguments", "a dim is outside of its range", "number of elements is outside of its range"]
    for name in names:
        terms += [f"{name} is a tensor", f"dtype of {name}", f"device of {name}", f"rank of {name}",
                  f"shape of {name}", f"stride of {name}", f"alignment of {name}"]  # fmt: skip
    return tuple(terms)


def dim_source(variant: Variant, name: str) -> tuple[int, int, int]:
    """Where a dim can be read off: tensor (inputs, then outputs), axis, and by what the size there is to be divided.

    Raises:
        ValueError: no size is the dim or a multiple of it.
    """
    found = [
        (size.coefficient, tensor, axis)
        for tensor, pattern in enumerate([*variant.tensors, *variant.outputs])
        for axis, size in enumerate(pattern.shape)
        if size.dims == (name,)
    ]
    if not found:
        raise ValueError(f"no size of {variant.label} is a multiple of {name} alone")
    coefficient, tensor, axis = min(found)
    return tensor, axis, coefficient


def guard_body(variant: Variant) -> str:
    """C source of the guarded entry."""
    patterns = [*variant.tensors, *variant.outputs]
    count = len(patterns)
    arity = count + len(variant.scalars) + 2
    lines = [
        'extern "C" int __tvm_ffi_launch(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {',
        "  result->type_index = kTVMFFIInt;",
        "  result->zero_padding = 0;",
        "#define KF_REFUSE(code) do { result->v_int64 = (code); return 0; } while (0)",
        f"  if (count != {arity}) KF_REFUSE(1);",
        f"  const DLTensor* t[{max(count, 1)}];",
        f"  for (int i = 0; i < {count}; ++i) {{",
        "    if (args[i].type_index == kTVMFFIDLTensorPtr) t[i] = static_cast<const DLTensor*>(args[i].v_ptr);",
        "    else if (args[i].type_index == kTVMFFITensor)",
        "      t[i] = reinterpret_cast<const DLTensor*>(reinterpret_cast<const char*>(args[i].v_obj)"
        " + sizeof(TVMFFIObject));",
        "    else KF_REFUSE(4 + 7 * i);",
        "  }",
    ]
    lines += _check_kinds(variant)
    lines += _check_sizes(variant)
    lines += _launch(variant, count)
    return "\n".join(lines)


def _check_kinds(variant: Variant) -> list[str]:
    lines = []
    device = _DL_DEVICES[variant.device]
    for i, pattern in enumerate([*variant.tensors, *variant.outputs]):
        code, bits = _DL_CODES[pattern.dtype]
        lines.append(f"  if (t[{i}]->dtype.code != {code} || t[{i}]->dtype.bits != {bits}) KF_REFUSE({5 + 7 * i});")
        lines.append(f"  if (t[{i}]->device.device_type != {device}) KF_REFUSE({6 + 7 * i});")
        lines.append(f"  if (t[{i}]->ndim != {len(pattern.shape)}) KF_REFUSE({7 + 7 * i});")
    return lines


def _check_sizes(variant: Variant) -> list[str]:
    """Derive each dim from the first tensor axis that is the dim, then compare all shapes, strides and alignments."""
    patterns = [*variant.tensors, *variant.outputs]
    lines = []
    for dim in variant.dims:
        tensor, axis, coefficient = dim_source(variant, dim.name)
        given = f"t[{tensor}]->shape[{axis}]"
        if coefficient != 1:
            lines.append(f"  if ({given} % {coefficient} != 0) KF_REFUSE({8 + 7 * tensor});")
        lines.append(f"  const int64_t {dim.name} = {given}{f' / {coefficient}' if coefficient != 1 else ''};")
        rules = f"{dim.name} < {dim.low} || {dim.name} > {dim.high}"
        if dim.multiple_of > 1:
            rules += f" || {dim.name} % {dim.multiple_of} != 0"
        lines.append(f"  if ({rules}) KF_REFUSE(2);")
    lines.append("  int64_t largest = 0;")
    for i, pattern in enumerate(patterns):
        for axis, size in enumerate(pattern.shape):
            lines.append(f"  if (t[{i}]->shape[{axis}] != {_c_extent(size)}) KF_REFUSE({8 + 7 * i});")
        for axis, (size, stride) in enumerate(zip(pattern.shape, pattern.stride, strict=True)):
            if size != Extent(1):
                lines.append(
                    f"  if (t[{i}]->shape[{axis}] != 1 && (!t[{i}]->strides || "
                    f"t[{i}]->strides[{axis}] != {_c_extent(stride)})) KF_REFUSE({9 + 7 * i});"
                )
        elements = "".join(f" * t[{i}]->shape[{axis}]" for axis in range(len(pattern.shape)))
        lines.append(f"  {{ const int64_t elements = 1{elements}; if (elements > largest) largest = elements; }}")
        lines.append(
            f"  if ((reinterpret_cast<uintptr_t>(t[{i}]->data) + t[{i}]->byte_offset) % {pattern.alignment} != 0 || "
            f"(!t[{i}]->data && 1{elements} != 0)) KF_REFUSE({10 + 7 * i});  // null: a tensor without memory"
        )
    lines.append(f"  if (largest > {variant.max_elements}LL || largest < {variant.min_elements}LL) KF_REFUSE(3);")
    return lines


def _launch(variant: Variant, count: int) -> list[str]:
    dims = ", ".join(dim.name for dim in variant.dims) or "0"
    scalars = ", ".join(f"args[{count + i}].v_float64" for i in range(len(variant.scalars))) or "0"
    buffers = ", ".join(f"static_cast<char*>(t[{i}]->data) + t[{i}]->byte_offset" for i in range(count))
    base = count + len(variant.scalars)
    enter, leave = _DEVICE_SWITCH if variant.device == "cuda" else ([], [])
    return [
        f"  const int64_t dims[] = {{{dims}}};",
        f"  const double scalars[] = {{{scalars}}};",
        f"  void* const buffers[] = {{{buffers}}};",
        f"  void* workspace = reinterpret_cast<void*>(args[{base}].v_int64);",
        f"  void* stream = reinterpret_cast<void*>(args[{base + 1}].v_int64);",
        *enter,
        "  result->v_int64 = -static_cast<int64_t>(kforge_invoke(buffers, dims, scalars, workspace, stream));",
        *leave,
        "#undef KF_REFUSE",
        "  return 0;",
        "}",
    ]


def _c_extent(extent: Extent) -> str:
    factors = [f"{extent.coefficient}LL", *extent.dims] if extent.coefficient != 1 or not extent.dims else extent.dims
    return " * ".join(factors)
