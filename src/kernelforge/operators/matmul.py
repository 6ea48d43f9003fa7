"""Matrix product with broadcast of the leading dims; vectors as torch.matmul has them."""

from kernelforge.operators._arguments import accept
from kernelforge.operators._products import LEAST_OF_PRODUCT, product_flops
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Entry, Operator

OPERATOR = Operator(
    name="matmul",
    arguments=("input", "other"),
    entries=(
        Entry(target="torch.matmul", parameters="(input, other)"),
        Entry(target="torch.Tensor.matmul", parameters="(input, /, other)"),
        Entry(target="torch.Tensor.__matmul__", parameters="(input, other, /)"),
        Entry(target="torch.Tensor.__rmatmul__", parameters="(other, input, /)"),
        Entry(target="torch.linalg.matmul", parameters="(input, other)"),
        Entry(target="torch.mm", parameters="(input, other, /)"),
        Entry(target="torch.Tensor.mm", parameters="(input, other, /)"),
        Entry(target="torch.ops.aten.matmul.default", parameters="(input, other, /)"),
        Entry(target="torch.ops.aten.mm.default", parameters="(input, other, /)"),
    ),
    normalise=accept,
    call=eager("torch.matmul"),
    flops=product_flops,
    least_flops=LEAST_OF_PRODUCT,
    provider="vendor",
    reduction=True,
)
