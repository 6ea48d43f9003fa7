"""Options and arguments that several commands share, as typer annotations."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from kernelforge.errors import UsageError
from kernelforge.report.units import parse_duration


class Shapes(StrEnum):
    """How calls are grouped into variants."""

    AUTO = "auto"
    EXACT = "exact"


class DeviceName(StrEnum):
    """Where a model runs."""

    CPU = "cpu"
    CUDA = "cuda"


class BackendName(StrEnum):
    """What kernels are written in."""

    CPP = "cpp"
    CUDA = "cuda"


class ProtocolName(StrEnum):
    """How a candidate is judged: as this system does, or beside that as the original paper does."""

    OURS = "ours"
    PAPER = "paper"


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except UsageError as error:
        raise typer.BadParameter(f"{error.message}; {error.hint}") from error


VARIANT_NAMES = "Label or unique prefix of the variant's id, or its operator if that has only one variant."

Source: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A file with Model, get_inputs and get_init_inputs; package.module:factory; torchvision:NAME; "
        "or transformers:CONFIG.",
    ),
]
ProjectArgument: TypeAlias = Annotated[
    Path | None, typer.Argument(metavar="PROJECT", help="Project folder. Default: the only *.kforge here.")
]
ProjectOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--project", "-p", metavar="PROJECT", help="Project folder. Default: the only *.kforge here."),
]
VariantArgument: TypeAlias = Annotated[str, typer.Argument(metavar="VARIANT", help=VARIANT_NAMES)]
Device: TypeAlias = Annotated[
    DeviceName | None, typer.Option("--device", help="Default: cuda if there is a GPU, else cpu.")
]
Dtype: TypeAlias = Annotated[
    str | None,
    typer.Option("--dtype", metavar="DTYPE", help="Cast the model: float32, float16 or bfloat16. Default: as it is."),
]
Samples: TypeAlias = Annotated[int, typer.Option("--samples", min=1, help="How many sets of inputs to run.")]
RandomWeights: TypeAlias = Annotated[
    bool, typer.Option("--random-weights", help="Do not load weights; draw them at random.")
]
MaxTime: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--max-time", metavar="TIME", parser=_duration, help='Stop after so long: "90s", "3m", "1h30m". Default: none.'
    ),
]
Modes: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--modes",
        metavar="LIST",
        help="Modes of dispatch to time, separated by commas: eager, graphed, compiled. Default: those that were "
        "timed before; of a new package eager, and graphed on a GPU.",
    ),
]
Trust: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--trust", metavar="sha256:HASH", help="Trust the package with this hash, whoever signed it."),
]
RequireSpeedup: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--require-speedup",
        metavar="X",
        min=0.0,
        help="Exit with 8 unless some kernel to be used is at least X times faster.",
    ),
]


def names_in(text: str | None) -> list[str] | None:
    """ "eager,graphed" as a list of names; None for no text."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]
