"""Which inputs a candidate is judged on. Owns `Case`, `CasePlan` and the two levels: the gate and the certificate.

A plan pairs sizes with distributions; a case is a plan with its tensors drawn. Seeds come from the operating system's
entropy and stay in the judge; a case's description names sizes and distribution, never the seed. Loads torch.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from kernelforge.capture.types import TensorSpec
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import DimValues, ScalarValues, Variant, VariantRecord
from kernelforge.errors import NotFound, ProjectError
from kernelforge.verify.draw import IN_WORDS, draw_inputs
from kernelforge.verify.layout import place
from kernelforge.verify.sizes import SizeChoice, choose_sizes, draw_scalars, footprint_bytes, secret_point

logger = logging.getLogger(__name__)

CAPTURED = "captured"
EDGES = frozenset({"constant", "nonfinite", "subnormal"})
"""Cases of these distributions may be unable to reject some wrong kernels; they are kept for what they alone show."""

ROTATION = (
    "scaled", "spike", "offset", "nonfinite", "mixed", "magnitudes", "normal", "negative", "cancelling", "constant",
    "subnormal",
)  # fmt: skip
"""Distributions in the order in which a small set takes them: the most telling first."""

FRESH = ("scaled", "spike", "normal", "mixed", "offset")
"""What the fresh cases of each candidate are drawn from."""


class Level(StrEnum):
    """How much is tried: every candidate passes the gate; what is exported passes the certificate too."""

    GATE = "gate"
    CERTIFICATE = "certificate"


LARGE_BYTES = 1 << 27
LEAST_LARGE = {Level.GATE: 2, Level.CERTIFICATE: 4}
"""A case above `LARGE_BYTES` costs seconds; so many drawn ones are taken of such sizes beside the captured one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Bounds of a set of cases.

    Attributes:
        observed: observed sizes at most; extra: further sizes at most.
        case_bytes: inputs and outputs of a case of unobserved size; total_bytes: of the whole set, softly.
        least, most: number of drawn cases whatever their size, and at most.
    """

    observed: int
    extra: int
    case_bytes: int
    total_bytes: int
    least: int
    most: int


def caps_for(level: Level, device: str) -> Caps:
    """The bounds of a level on a device type."""
    scale = 8 if device == "cuda" else 1
    if level is Level.GATE:
        return Caps(observed=3, extra=6, case_bytes=scale * 2**22, total_bytes=scale * 2**25, least=4, most=11)
    return Caps(observed=12, extra=24, case_bytes=2**30 if device == "cuda" else 2**26,
                total_bytes=scale * 2**28, least=8, most=48)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CasePlan:
    """Sizes and distribution of one case, before anything is drawn.

    Attributes:
        note: said instead of the distribution, of a case that is made of another one.
    """

    choice: SizeChoice
    distribution: str
    note: str = ""

    @property
    def description(self) -> str:
        """The case in words, without its seed."""
        sizes = [f"{n}={v}" for n, v in self.choice.dims.items()] + [f"{n}={v}" for n, v in self.choice.scalars.items()]
        values = self.note or IN_WORDS.get(self.distribution, "captured values")
        return f"{', '.join(sizes) or 'the fixed sizes'} ({self.choice.why}), {values}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """One set of inputs.

    Attributes:
        inputs: on the judge's device, with exactly the variant's strides; never handed to candidate code itself.
        outputs: specs of what the candidate must write (of an in-place variant: of the inputs that it changes).
    """

    plan: CasePlan
    inputs: tuple[Tensor, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def dims(self) -> DimValues:
        return self.plan.choice.dims

    @property
    def scalars(self) -> ScalarValues:
        return self.plan.choice.scalars

    @property
    def description(self) -> str:
        return self.plan.description

    @property
    def is_edge(self) -> bool:
        return self.plan.distribution in EDGES


def output_specs(variant: Variant, dims: DimValues) -> tuple[TensorSpec, ...]:
    """Specs of what a candidate writes: the outputs, or the changed inputs (by index) of an in-place variant."""
    changed = tuple(variant.tensors[i] for i in sorted(variant.mutates))
    return tuple(p.spec(dims, variant.device) for p in (changed or variant.outputs))


class CaseMaker:
    """Makes the cases of one variant. Not thread-safe; owned by one judge."""

    def __init__(self, record: VariantRecord, examples: ExampleStore, device: torch.device) -> None:
        self.record = record
        self.device = device
        self._examples = examples
        self._generator = random.Random(secrets.randbits(128))
        self._pools = self._captured_pools()

    def plans(self, level: Level) -> tuple[CasePlan, ...]:
        """The plans of a level: captured values at observed sizes, then drawn ones over all sizes and distributions."""
        variant = self.record.variant
        caps = caps_for(level, variant.device)
        choices = choose_sizes(
            self.record, observed=caps.observed, extra=caps.extra, cap_bytes=caps.case_bytes, generator=self._generator
        )
        captured = [c for c in choices if c.example and self._examples.has(c.example)][
            : 1 if level is Level.GATE else 4
        ]
        plans = [CasePlan(choice=c, distribution=CAPTURED) for c in captured]
        budget = caps.total_bytes - sum(footprint_bytes(variant, c.dims) for c in captured)
        wanted = min(max(len(choices), len(ROTATION)), caps.most)
        if level is Level.CERTIFICATE:
            wanted = min(2 * max(len(choices), len(ROTATION)), caps.most)
        order = (*choices, *sorted(choices, key=lambda c: footprint_bytes(variant, c.dims)))
        for position in range(wanted):
            choice = order[position % len(order)] if len(choices) > 1 else choices[0]
            footprint = footprint_bytes(variant, choice.dims)
            budget -= footprint
            if budget < 0 and position >= (caps.least if footprint <= LARGE_BYTES else LEAST_LARGE[level]):
                break
            plans.append(CasePlan(choice=self._with_scalars(choice), distribution=ROTATION[position % len(ROTATION)]))
        return tuple(plans)

    def has_example(self, choice: SizeChoice) -> bool:
        """Whether captured values of these very sizes are stored."""
        return bool(choice.example) and self._examples.has(choice.example)

    def fresh_plans(self, count: int) -> tuple[CasePlan, ...]:
        """Plans for one candidate alone: another distribution each, at a secret size where there is one."""
        caps = caps_for(Level.GATE, self.record.variant.device)
        names = self._generator.sample(FRESH, k=min(count, len(FRESH)))
        plans = []
        for name in names:
            choice = secret_point(self.record, cap_bytes=caps.case_bytes, generator=self._generator)
            if choice is None:
                smallest = min(self.record.points, key=lambda p: footprint_bytes(self.record.variant, p.dims))
                choice = SizeChoice(dims=smallest.dims, scalars=smallest.scalars, why="observed")
            plans.append(CasePlan(choice=self._with_scalars(choice), distribution=name))
        return tuple(plans)

    def draw(self, plan: CasePlan) -> Case:
        """Draw the tensors of a plan; every call draws others, except of captured plans."""
        variant, choice = self.record.variant, plan.choice
        specs = [p.spec(choice.dims, variant.device) for p in variant.tensors]
        if plan.distribution == CAPTURED:
            stored = self._examples.get(choice.example, device=str(self.device))
            inputs = tuple(place(t, s) for t, s in zip(stored, specs, strict=True))
        else:
            seed = secrets.randbits(63)
            inputs = draw_inputs(variant, specs, plan.distribution, pools=self._pools, seed=seed, device=self.device)
        return Case(plan=plan, inputs=inputs, outputs=output_specs(variant, choice.dims))

    def _with_scalars(self, choice: SizeChoice) -> SizeChoice:
        scalars = self.record.variant.scalars
        if not scalars:
            return choice
        return SizeChoice(dims=choice.dims, scalars=draw_scalars(scalars, self._generator), why=choice.why)

    def _captured_pools(self) -> Sequence[Tensor | None]:
        """Captured values of the integer and bool inputs, flat, from which such inputs are drawn."""
        pools: list[Tensor | None] = [None] * len(self.record.variant.tensors)
        wanted = [i for i, p in enumerate(self.record.variant.tensors) if not p.dtype.startswith(("float", "bfloat"))]
        example = next((p.example for p in self.record.points if self._examples.has(p.example)), "")
        if not wanted or not example:
            return pools
        try:
            stored = self._examples.get(example)
        except (NotFound, ProjectError) as error:
            logger.warning("the captured example of %s cannot be read: %s", self.record.variant.label, error)
            return pools
        for index in wanted:
            pools[index] = stored[index].reshape(-1)
        return pools
