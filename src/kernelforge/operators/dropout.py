"""Zeroes elements at random in training; the identity otherwise."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, as_float, per_element
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Entry, Operator


def _normalise(bound: dict[str, object]) -> Canonical:
    bound["p"] = as_float(bound["p"])
    bound["training"] = bool(bound.pop("train", bound.get("training")))
    return bound


OPERATOR = Operator(
    name="dropout",
    arguments=("input", "p", "training", "inplace"),
    entries=(
        Entry(target="torch.nn.functional.dropout", parameters="(input, p=0.5, training=True, inplace=False)"),
        Entry(target="torch.dropout", parameters="(input, p, train)", preset={"inplace": False}),
        Entry(target="torch.dropout_", parameters="(input, p, train)", preset={"inplace": True}),
    ),
    normalise=_normalise,
    call=eager("torch.nn.functional.dropout"),
    flops=per_element(2),
    random=True,
)
