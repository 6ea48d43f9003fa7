"""`kforge cast quarantine ls|clear`: the kernels that failed on this machine and are therefore off."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.output import Output
from kernelforge.cli.verb import verb
from kernelforge.errors import UsageError
from kernelforge.wording import plural

if TYPE_CHECKING:
    from kernelforge.dispatch.quarantine import Quarantined
    from kernelforge.report.grid import Grid

SHORT_KEY = 8


@verb
def ls(out: Output) -> None:
    """List the kernels that failed here.

    Their launch returned an error, so packages are loaded with them off, until they are cleared. Each is listed with
    the GPU, driver and torch under which it failed, which is where it is off.
    """
    from kernelforge.dispatch.quarantine import Quarantine
    from kernelforge.settings import load_settings

    found = Quarantine(load_settings().cache_dir).list()
    out.show({"quarantined": [asdict(q) for q in found]}, [_grid(found)])
    if found:
        out.next_step("cast", "quarantine", "clear", found[0].key[:SHORT_KEY])


@verb
def clear(
    out: Output,
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEYS", help="Unique prefixes of their keys.")] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Clear all.")] = False,
) -> None:
    """Let kernels be used again that had failed."""
    from kernelforge.dispatch.quarantine import Quarantine
    from kernelforge.settings import load_settings

    if bool(keys) == everything or "" in (keys or ()):
        raise UsageError("name keys, or --all of them", hint="list them: kforge cast quarantine ls")
    quarantine = Quarantine(load_settings().cache_dir)
    removed = [q.key for prefix in keys or [""] for q in quarantine.clear(prefix)]
    out.show_text({"cleared": list(removed)}, f"cleared {plural(len(removed), 'kernel')}")


def _grid(found: tuple[Quarantined, ...]) -> Grid:
    from kernelforge.report.grid import Cell, Column, Grid, Record

    titles = ("key", "kernel", "error", "blame", "when", "where", "package")
    records = [
        Record(tuple(map(Cell, (
            q.key[:SHORT_KEY], q.kernel or "cannot be read", str(q.error) if q.binary else "",
            "" if not q.binary else "certain" if q.certain else "suspected", q.date if q.binary else "",
            ", ".join(filter(None, (q.device, q.driver and f"driver {q.driver}", q.torch and f"torch {q.torch}"))),
            q.package,
        ))))
        for q in found
    ]  # fmt: skip
    return Grid(
        columns=tuple(Column(title=t, align="right" if t == "error" else "left") for t in titles),
        records=tuple(records), footer=() if records else ("no kernel has failed here",),
    )  # fmt: skip
