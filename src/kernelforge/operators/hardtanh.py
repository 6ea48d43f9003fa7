"""clamp(input, min_val, max_val); relu6 is hardtanh from 0 to 6."""

from kernelforge.operators._pointwise import activation, activation_entries
from kernelforge.operators.types import Entry

_SIX = {"min_val": 0.0, "max_val": 6.0}

OPERATOR = activation(
    "hardtanh",
    (
        *activation_entries("hardtanh", "min_val=-1.0, max_val=1.0", inplace_function=True),
        Entry(target="torch.nn.functional.relu6", parameters="(input, inplace=False)", preset=_SIX),
        Entry(target="torch.ops.aten.relu6.default", parameters="(input, /)", preset={**_SIX, "inplace": False}),
    ),
    scalars=("min_val", "max_val"),
    cost=2,
)
