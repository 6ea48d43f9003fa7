"""`kforge library ls|show|rm|path`: the certified kernels that are kept on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelforge.cli.output import Output
from kernelforge.cli.verb import verb
from kernelforge.errors import UsageError


@verb
def ls(out: Output) -> None:
    """List the kept kernels.

    Those that exports took into use here. A search judges them first where it meets the same variant again.
    """
    from kernelforge import forge
    from kernelforge.report.library import SHORT_ID, library_grid

    report = forge.list_library()
    out.show(report.to_json(), [library_grid(report)])
    if report.kernels:
        out.next_step("library", "show", report.kernels[0].id[:SHORT_ID])


@verb
def show(
    out: Output,
    kernel: Annotated[str, typer.Argument(metavar="KERNEL", help="Unique prefix of a kernel's id.")],
) -> None:
    """Show a kept kernel with its source."""
    from kernelforge import forge
    from kernelforge.report.grid import grid_text
    from kernelforge.report.library import library_kernel_grid

    report = forge.show_library_kernel(kernel)
    facts = grid_text(library_kernel_grid(report.row), width=out.width())
    out.show_text(report.to_json(), f"{facts}\n\n{report.source}")


@verb
def rm(
    out: Output,
    kernels: Annotated[
        list[str] | None, typer.Argument(metavar="KERNELS", help="Unique prefixes of kernels' ids.")
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Remove all kernels.")] = False,
) -> None:
    """Remove kept kernels, also damaged ones."""
    from kernelforge import forge

    if bool(kernels) == everything:
        raise UsageError("name kernels, or --all of them", hint="list them: kforge library ls")
    report = forge.remove_library_kernels(kernels or ())
    out.show_text(report.to_json(), report.sentence)


@verb
def path(out: Output) -> None:
    """Print the library's folder.

    KFORGE_LIBRARY_DIR names another one; KFORGE_LIBRARY=0 switches the library off.
    """
    from kernelforge.settings import load_settings

    settings = load_settings()
    folder = str(settings.library_dir)
    out.show_text({"path": folder, "enabled": settings.library}, folder)
