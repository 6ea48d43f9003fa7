"""Batched matrix product of input [B, N, K] and mat2 [B, K, M]."""

from kernelforge.operators._arguments import accept
from kernelforge.operators._products import LEAST_OF_PRODUCT, product_flops
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Entry, Operator

OPERATOR = Operator(
    name="bmm",
    arguments=("input", "mat2"),
    entries=(
        Entry(target="torch.bmm", parameters="(input, mat2)"),
        Entry(target="torch.Tensor.bmm", parameters="(input, /, mat2)"),
        Entry(target="torch.ops.aten.bmm.default", parameters="(input, /, mat2)"),
    ),
    normalise=accept,
    call=eager("torch.bmm"),
    flops=product_flops,
    least_flops=LEAST_OF_PRODUCT,
    provider="vendor",
    reduction=True,
)
