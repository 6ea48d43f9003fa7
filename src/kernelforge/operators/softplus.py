"""log(1 + exp(beta * input)) / beta, and input itself where beta * input > threshold."""

from kernelforge.operators._pointwise import activation
from kernelforge.operators.types import Entry

OPERATOR = activation(
    "softplus",
    (
        Entry(target="torch.nn.functional.softplus", parameters="(input, beta=1, threshold=20)"),
        Entry(target="torch.ops.aten.softplus.default", parameters="(input, /, beta=1, threshold=20)"),
    ),
    scalars=("beta", "threshold"),
    inplace=False,
    cost=5,
)
