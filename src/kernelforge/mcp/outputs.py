"""What the tools return, as pydantic models: their schemas are what a client sees. The values are those of the reports.

Times are microseconds a call (`_us`) or POSIX seconds; shares are in [0, 1]; speed-ups are eager over kernel, so more
than 1 is faster. null means "not known".
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _Output(BaseModel):
    """A report may say more than a client is told."""

    model_config = ConfigDict(extra="ignore")


class Interval(_Output):
    """A median with its 95% interval."""

    median: float | None
    low: float | None
    high: float | None


class Unsupported(_Output):
    """An operator that no file describes."""

    operator: str
    calls: int


class Captured(_Output):
    """What a capture recorded."""

    project: str
    model: str
    device: str
    variants: int = Field(description="How many variants there are, each of which one kernel can serve.")
    calls: int
    coverage_wall: float | None = Field(description="Part of the model's wall time that was captured.")
    unsupported: list[Unsupported]
    warnings: list[str]


class Operator(_Output):
    """One variant of an operator."""

    variant: str = Field(description="Its id; every tool takes a unique prefix, or the label.")
    label: str
    operator: str
    describe: str = Field(description="Tensors, arguments and outputs.")
    calls: int
    share: float | None = Field(description="Of the model's captured time.")
    eager_us: float | None = Field(description="PyTorch's time of a call, as captured.")
    judged_eager_us: float | None
    best_us: float | None = Field(description="Time of the best kernel.")
    floor_us: float | None = Field(description="No kernel can be faster.")
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    decision: str = Field(description="use, eager: <reason>, not forged: <reason>, or pending.")
    trials: int


class Operators(_Output):
    """The operator table, largest share first."""

    operators: list[Operator]


class Parent(_Output):
    """The kernel that is to be revised."""

    node: str
    number: int
    source: str
    diagnosis: str


class Past(_Output):
    """A kernel that was tried before."""

    number: int
    outcome: str
    speedup: float | None
    notes: str


class Order(_Output):
    """A work order."""

    order: str = Field(description="Its id, for submit_candidate; empty for a look at a variant without an order.")
    state: str
    variant: str
    label: str
    model: str
    backend: Literal["cpp", "cuda"]
    reason: str
    write: str = Field(description="Name of the file that is wanted; its text is the source to submit.")
    prompt: str = Field(description="All that its author must know.")
    prelude: str = Field(description="The C declarations that are put before the source.")
    parent: Parent | None = Field(description="null for a start from scratch.")
    history: list[Past]
    asked: float
    expires: float


class Next(_Output):
    """The next work order, if there is one."""

    order: Order | None
    parked: dict[str, str] = Field(description="Label of a variant -> why it gets no orders now.")


class Judged(_Output):
    """What the judge says of a kernel."""

    outcome: Literal["accepted", "rejected", "build_failure", "worker_failure"]
    reason: str = Field(description="Typed, of a failure; empty if accepted.")
    detail: str
    number: int = Field(description="Of the trial within its variant.")
    node: str
    speedup: Interval | None
    eager_us: float | None
    candidate_us: float | None
    floor_us: float | None
    audit: str | None = Field(description="Who does the work: generated, backend or fallback.")
    disturbed: bool = Field(description="Others used the machine while it was timed.")


class Verdict(_Output):
    """The verdict on a kernel, or why there is none."""

    order: str = Field(description="Id of this attempt's order; empty for a trial that was named by its number.")
    state: str
    label: str
    variant: str
    title: str
    diagnosis: str = Field(description="What came of it, why, and what to look at.")
    judged: Judged | None
    why: str = Field(description="Why there is no verdict.")
    source: str
    notes: str
    model: str


class Node(_Output):
    """One trial of a variant."""

    node: str
    number: int
    parent: str = Field(description="Id of the node that it revises, or empty.")
    outcome: str
    reason: str
    speedup: Interval | None
    candidate_us: float | None
    generator: str
    notes: str
    best: bool
    on_best_path: bool


class Tree(_Output):
    """All trials of a variant, each after the one that it revises."""

    variant: str
    label: str
    nodes: list[Node]


class OpenOrder(_Output):
    """An order without a verdict."""

    order: str
    label: str
    state: str
    reason: str
    asked: float
    expires: float


class Status(_Output):
    """How a project stands."""

    project: str
    model: str
    device: str
    trials: int
    rows: list[Operator]
    orders: list[OpenOrder]


class Used(_Output):
    """A kernel that the package uses."""

    label: str
    origin: str
    share: float | None
    least_elements: int
    dispatch: Interval = Field(description="The speed-up when the model calls it through the package.")


class Skipped(_Output):
    """A variant without a kernel in use."""

    variant: str
    reason: str


class Exported(_Output):
    """A written package."""

    path: str
    entries: int = Field(description="How many of its kernels are used.")
    held: int
    size_bytes: int
    used: list[Used]
    skipped: list[Skipped]
