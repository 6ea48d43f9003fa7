"""Cases that show what a kernel keeps between calls. Owns `with_probes`. Loads torch.

A cache of results, keyed by the addresses of the tensors, by some of their elements, or by both, is right for as long
as what it looks at decides the answer. A probe differs from its base case in a few elements of one input, at secret
places away from the ends: too few to be among those that a cheap fingerprint samples, and yet they change the output.
The gate runs it on the same addresses right after its base. Each input has its own: a weight may be kept where
the data are not.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kernelforge.verify.cases import FRESH, Case, CaseMaker, CasePlan
from kernelforge.verify.compare import Mismatch, compare
from kernelforge.verify.layout import clone_like
from kernelforge.verify.prepare import Baseline, PreparedCase, prepare

MOST_INPUTS = 4
ROUNDS = 2
"""Probes of each input: one may hit a sampled element by chance."""
TRIES = 8
GROWTH = 4
"""After each try that does not change the output, so many times as many elements are changed."""
LARGEST_BYTES = {"cpu": 32 << 20, "cuda": 256 << 20}
"""Of a base case; a probe costs as much as a case."""


def with_probes(
    maker: CaseMaker, cases: Sequence[PreparedCase], baseline: Baseline, generator: random.Random
) -> tuple[PreparedCase, ...]:
    """The cases with probes added to one of them: of observed sizes if one is small enough, for those are timed.

    A variant whose outputs do not depend on single elements, or all of whose cases are too large, gets none.
    """
    cap_bytes = LARGEST_BYTES[maker.record.variant.device]
    fit = [c for c in cases if not c.case.is_edge and c.size_bytes <= cap_bytes]
    if not fit:
        return tuple(cases)
    base = next((c for c in fit if c.case.plan.choice.why == "observed"), max(fit, key=lambda c: c.size_bytes))
    probes = []
    for index in range(min(len(base.case.inputs), MOST_INPUTS)):
        made = (_probe(maker, base, index, baseline, generator) for _ in range(ROUNDS))
        probes += [p for p in made if p is not None]
    return tuple(replace(c, probes=tuple(probes)) if c is base else c for c in cases)


def _probe(
    maker: CaseMaker, base: PreparedCase, index: int, baseline: Baseline, generator: random.Random
) -> PreparedCase | None:
    """One probe that changes the input `index`; None if no change of it was seen in the outputs."""
    variant, choice = maker.record.variant, base.case.plan.choice
    name, elements = variant.tensor_names()[index], base.case.inputs[index].numel()
    if elements == 0:
        return None
    count = 1
    for attempt in range(TRIES):
        other = maker.draw(CasePlan(choice=choice, distribution=FRESH[attempt % len(FRESH)])).inputs[index]
        inputs = list(clone_like(base.case.inputs))
        _change(inputs[index], other, min(count, elements), generator)
        plan = replace(base.case.plan, note=f"an earlier case with a few elements of {name} changed")
        made = prepare(variant, Case(plan=plan, inputs=tuple(inputs), outputs=base.case.outputs), baseline)
        if made is not None and _tells_apart(made, base):
            return made
        count *= GROWTH
    return None


def _change(tensor: Tensor, other: Tensor, count: int, generator: random.Random) -> None:
    """Copy `count` elements of another tensor of the shape, away from the ends if there is room."""
    elements = tensor.numel()
    margin = elements // 8
    for flat in generator.sample(range(margin, elements - margin), k=min(count, elements - 2 * margin)):
        place = torch.unravel_index(torch.tensor(flat), tensor.shape) if tensor.dim() else ()
        tensor[place] = other[place]


def _tells_apart(probe: PreparedCase, base: PreparedCase) -> bool:
    """Whether the base's output would be wrong for the probe."""
    pairs = zip(probe.expected, base.expected, strict=True)
    return any(isinstance(compare(new, old.eager), Mismatch) for new, old in pairs)
