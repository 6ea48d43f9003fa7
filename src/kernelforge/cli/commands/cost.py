"""`kforge cost [PROJECT]`: what language models cost."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.options import ProjectArgument
from kernelforge.cli.output import Output
from kernelforge.cli.projects import find_project
from kernelforge.cli.verb import verb

if TYPE_CHECKING:
    from kernelforge.report.costs import CostKey


class By(StrEnum):
    """As `report.costs.COST_KEYS`, which a test keeps equal; repeated, so that `--help` loads nothing."""

    OP = "op"
    MODEL = "model"
    RUN = "run"
    STEP = "step"


@verb
def cost(
    out: Output,
    project: ProjectArgument = None,
    *,
    by: Annotated[By, typer.Option("--by", help="What is summed up: op, model, run or step.")] = By.RUN,
) -> None:
    """Show what language models cost, call by call summed up.

    Each row has its own cost, and that of all rows so far. Calls whose cost is not known are counted apart.
    """
    from kernelforge import forge
    from kernelforge.report.costs import cost_grid

    key: CostKey = by.value
    report = forge.show_cost(find_project(project), by=key)
    out.show(report.to_json(), [cost_grid(report)])
