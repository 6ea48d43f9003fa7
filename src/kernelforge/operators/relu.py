"""max(input, 0)."""

from kernelforge.operators._pointwise import unary
from kernelforge.operators.types import Entry

OPERATOR = unary(
    "relu",
    extra=(Entry(target="torch.nn.functional.relu", parameters="(input, inplace=False)", passes_on=True),),
)
