"""Rows of weight [count, width] chosen by the integers of input [*]."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, concrete_tensor, per_element, pick
from kernelforge.operators._targets import eager
from kernelforge.operators.types import DTYPE_BYTES, ConcreteArguments, Domain, Entry, Operator, Unsupported

# padding_idx, scale_grad_by_freq and sparse only concern gradients.
_FLAT = "(weight, input, /, padding_idx=-1, scale_grad_by_freq=False, sparse=False)"


def _normalise(bound: dict[str, object]) -> Canonical:
    if bound.get("max_norm") is not None:
        return Unsupported(reason="max_norm changes the weight")
    return pick(bound, "input", "weight")


def _bytes_read(arguments: ConcreteArguments) -> int:
    indices, weight = concrete_tensor(arguments, "input"), concrete_tensor(arguments, "weight")
    rows = min(indices.elements, weight.shape[0])
    return indices.size_bytes + rows * weight.shape[1] * DTYPE_BYTES[weight.dtype]


OPERATOR = Operator(
    name="embedding",
    arguments=("input", "weight"),
    entries=(
        Entry(
            target="torch.nn.functional.embedding",
            parameters="(input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, "
            "sparse=False)",
        ),
        Entry(target="torch.embedding", parameters=_FLAT),
        Entry(target="torch.ops.aten.embedding.default", parameters=_FLAT),
    ),
    normalise=_normalise,
    call=eager("torch.nn.functional.embedding"),
    flops=per_element(1),
    bytes_read=_bytes_read,
    domains={"input": Domain(kind="index", of="weight", axis=0)},
)
