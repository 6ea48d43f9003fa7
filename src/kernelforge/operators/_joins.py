"""What cat and stack share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelforge.operators._arguments import Canonical, dim_of, per_element, tensor
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Entry, Operator


def join(name: str, *, synonyms: tuple[str, ...] = (), new_dim: bool) -> Operator:
    """An operator that joins a sequence of tensors along `dim`, a dim of the output.

    Args:
        name: of the operator.
        synonyms: further names that torch has for it.
        new_dim: the output has one dim more than the inputs.
    """
    targets = [f"torch.{n}" for n in (name, *synonyms)]
    return Operator(
        name=name,
        arguments=("tensors", "dim"),
        entries=(
            *(Entry(target=t, parameters="(tensors, dim=0)") for t in targets),
            Entry(target=f"torch.ops.aten.{name}.default", parameters="(tensors, /, dim=0)"),
        ),
        normalise=_normalise(int(new_dim)),
        call=eager(f"torch.{name}"),
        flops=per_element(1),
    )


def _normalise(extra: int) -> Callable[[dict[str, object]], Canonical]:
    def normalise(bound: dict[str, object]) -> Canonical:
        items = bound["tensors"]
        if not isinstance(items, Sequence):
            raise TypeError("expected a sequence of tensors")
        tensors = tuple(tensor(item) for item in items)
        rank = max(t.dim() for t in tensors)
        return {"tensors": tensors, "dim": dim_of(bound["dim"], rank + extra)}

    return normalise
