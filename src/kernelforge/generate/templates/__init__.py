"""Readable kernels for what the emitter's loop IR does not express. One file per family, found by its name.

A family's file exports `sources(variant, backend, weights)`, an iterator of `TemplateSource`, best guess first; it
raises `Unforgeable` for a layout, dtype or option that it does not do.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence

from kernelforge.cards.types import Variant
from kernelforge.generate.emitter.expressions import Backend
from kernelforge.generate.templates._source import TemplateSource
from kernelforge.generate.types import Unforgeable

__all__ = ["TemplateSource", "template_sources"]


def template_sources(
    family: str, variant: Variant, backend: Backend, weights: Sequence[tuple[Mapping[str, int], float]]
) -> Iterator[TemplateSource]:
    """The sources of a family.

    Raises:
        Unforgeable: there is no such family, or it declines the variant.
    """
    name = f"{__name__}.{family}"
    if family.startswith("_") or importlib.util.find_spec(name) is None:
        raise Unforgeable(f"no template family {family!r}")
    yield from importlib.import_module(name).sources(variant, backend, weights)
