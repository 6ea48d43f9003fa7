"""input * Phi(input), with the error function (approximate "none") or its tanh approximation ("tanh")."""

from kernelforge.operators._arguments import accept, per_element
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Entry, Operator

OPERATOR = Operator(
    name="gelu",
    arguments=("input", "approximate"),
    entries=(
        Entry(target="torch.nn.functional.gelu", parameters="(input, *, approximate='none')"),
        Entry(target="torch.ops.aten.gelu.default", parameters="(input, /, *, approximate='none')"),
    ),
    normalise=accept,
    call=eager("torch.nn.functional.gelu"),
    flops=per_element(8),
    family="emitter",
)
