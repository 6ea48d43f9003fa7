"""input @ weight.T + bias, with input [..., in], weight [out, in], bias [out] or None."""

from kernelforge.operators._arguments import accept
from kernelforge.operators._products import LEAST_OF_PRODUCT, product_flops
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Entry, Operator

OPERATOR = Operator(
    name="linear",
    arguments=("input", "weight", "bias"),
    entries=(
        Entry(target="torch.nn.functional.linear", parameters="(input, weight, bias=None)"),
        Entry(target="torch.ops.aten.linear.default", parameters="(input, /, weight, bias=None)"),
    ),
    normalise=accept,
    call=eager("torch.nn.functional.linear"),
    flops=product_flops,
    least_flops=LEAST_OF_PRODUCT,
    provider="vendor",
    reduction=True,
)
