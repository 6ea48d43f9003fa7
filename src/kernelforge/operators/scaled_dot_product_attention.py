"""softmax(query @ key.T * scale + mask) @ value; query [..., H, L, E], key [..., H, S, E], value [..., H, S, Ev]."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, as_float, concrete_tensor, pick
from kernelforge.operators._targets import eager
from kernelforge.operators.types import ConcreteArguments, Entry, Operator, TensorShape, Unsupported

_ARGUMENTS = ("query", "key", "value", "attn_mask", "is_causal", "scale", "enable_gqa")
_PARAMETERS = "key, value, attn_mask=None, dropout_p=0.0, is_causal=False"


def _normalise(bound: dict[str, object]) -> Canonical:
    if bound["dropout_p"]:
        return Unsupported(reason="draws random numbers: dropout_p")
    if bound["scale"] is not None:
        bound["scale"] = as_float(bound["scale"])
    for name in ("is_causal", "enable_gqa"):
        bound[name] = bool(bound[name])
    return pick(bound, *_ARGUMENTS)


def _flops(arguments: ConcreteArguments, outputs: tuple[TensorShape, ...]) -> int:  # noqa: ARG001 - one signature
    """Two products; a causal mask leaves half of them."""
    query, value = concrete_tensor(arguments, "query"), concrete_tensor(arguments, "value")
    rows = query.elements // max(query.shape[-1], 1)
    total = 2 * rows * value.shape[-2] * (query.shape[-1] + value.shape[-1])
    return max(1, total // 2 if arguments["is_causal"] else total)


OPERATOR = Operator(
    name="scaled_dot_product_attention",
    arguments=_ARGUMENTS,
    entries=(
        Entry(
            target="torch.nn.functional.scaled_dot_product_attention",
            parameters=f"(query, {_PARAMETERS}, scale=None, enable_gqa=False)",
        ),
        Entry(
            target="torch.ops.aten.scaled_dot_product_attention.default",
            parameters=f"(query, /, {_PARAMETERS}, *, scale=None, enable_gqa=False)",
        ),
    ),
    normalise=_normalise,
    call=eager("torch.nn.functional.scaled_dot_product_attention"),
    flops=_flops,
    least_flops=0.25,  # a mask may leave out more than a causal one does
    provider="vendor",
    reduction=True,
)
