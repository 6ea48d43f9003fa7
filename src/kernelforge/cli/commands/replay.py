"""`kforge replay FILE`: run a recorded search again, offline, and compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelforge.cli.output import Output
from kernelforge.cli.verb import verb


@verb
def replay(
    out: Output,
    recording: Annotated[Path, typer.Argument(metavar="FILE", help="As `kforge forge --record FILE` wrote it.")],
) -> None:
    """Run a recorded search of a language model again, without it.

    Needs neither key nor compiler nor GPU. Every prompt and every choice must be the recorded one, to the byte; exit
    code 4 if one is not. To have the recorded kernels judged here: kforge forge --generator replay:FILE.
    """
    from kernelforge import forge

    report = forge.replay_recording(recording)
    out.show_text(report.to_json(), "\n".join(report.lines))
