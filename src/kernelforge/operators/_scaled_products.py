"""What addmm and baddbmm share: beta * input + alpha * (first @ second)."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, concrete_tensor, scalar_for
from kernelforge.operators._products import LEAST_OF_PRODUCT
from kernelforge.operators._targets import eager
from kernelforge.operators.types import ConcreteArguments, Entry, Operator, TensorShape


def scaled_product(name: str, first: str, second: str) -> Operator:
    """The operator torch.NAME with its two factors called `first` and `second`."""

    def flops(arguments: ConcreteArguments, outputs: tuple[TensorShape, ...]) -> int:
        inner = concrete_tensor(arguments, first).shape[-1]
        return max(1, 2 * outputs[0].elements * (inner + 1))

    parameters = f"{first}, {second}, *, beta=1, alpha=1"
    return Operator(
        name=name,
        arguments=("input", first, second, "beta", "alpha"),
        entries=(
            Entry(target=f"torch.{name}", parameters=f"(input, {parameters})"),
            Entry(target=f"torch.Tensor.{name}", parameters=f"(input, /, {parameters})"),
            Entry(target=f"torch.ops.aten.{name}.default", parameters=f"(input, /, {parameters})"),
        ),
        normalise=_normalise,
        call=eager(f"torch.{name}"),
        flops=flops,
        least_flops=LEAST_OF_PRODUCT,
        provider="vendor",
        reduction=True,
    )


def _normalise(bound: dict[str, object]) -> Canonical:
    for name in ("beta", "alpha"):
        bound[name] = scalar_for(bound[name], bound["input"])
    return bound
