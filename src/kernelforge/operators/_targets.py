"""Dotted names of torch callables, resolved when they are needed. Owns `resolve_target` and `eager`."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from kernelforge.errors import NotFound
from kernelforge.operators.types import Bound


def resolve_target(target: str) -> tuple[object, str, Callable[..., object]]:
    """The object that holds a target, the attribute's name on it, and the attribute's present value.

    `setattr(owner, attribute, wrapper)` makes torch call the wrapper. The owner may inherit the attribute
    (`torch.Tensor` does from `torch._C.TensorBase`): to undo, delete what `vars(owner)` did not have before.

    Raises:
        NotFound: this torch has no such target.
    """
    import torch

    root, *path, attribute = target.split(".")
    assert root == "torch", target
    owner: object = torch
    try:
        for part in path:
            owner = getattr(owner, part)
        return owner, attribute, cast("Callable[..., object]", getattr(owner, attribute))
    except AttributeError:
        raise NotFound(f"this torch has no {target}", hint="another version of torch may have it") from None


def eager(target: str, *, inplace: str = "", positional: int = 1) -> Callable[[Bound], object]:
    """An `Operator.call` that passes the canonical arguments to one torch callable.

    Args:
        target: dotted name of the callable.
        inplace: the callable to take instead when the argument `inplace` is true. If given, neither callable gets the
            argument `inplace`; else `target` gets it as every other.
        positional: how many leading canonical arguments go by position; the rest goes by name.
    """

    def call(arguments: Bound) -> object:
        rest = dict(arguments)
        name = target
        if inplace and rest.pop("inplace"):
            name = inplace
        leading = [rest.pop(key) for key in list(rest)[:positional]]
        return resolve_target(name)[2](*leading, **rest)

    return call
