"""Where the command line's words go: data on stdout; progress, logs, hints and errors on stderr. Owns `Output`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelforge.digest import Json
from kernelforge.errors import ForgeError
from kernelforge.report.grid import Grid, grid_rich, grid_text
from kernelforge.wording import printable

if TYPE_CHECKING:
    from rich.console import Console

ONLY_ONCE = ("--record",)
"""Options with a value that the same command cannot have again: a recording is never written over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How one command speaks.

    Attributes:
        as_json: stdout gets exactly one JSON document. quiet: no progress and no hints.
        verbose: 0, 1 (log lines) or 2 (debug lines, and tracebacks of our own errors).
        color: False never prints an escape code; True leaves it to the terminal.
        arguments: the command line as it was given, without the program's name.
    """

    as_json: bool = False
    quiet: bool = False
    verbose: int = 0
    color: bool = True
    arguments: tuple[str, ...] = ()

    def console(self, *, stderr: bool) -> Console:
        """A rich console on stdout or stderr that obeys the colour rules."""
        from rich.console import Console

        # color_system None also drops bold and dim, which rich keeps under NO_COLOR.
        return Console(stderr=stderr, color_system="auto" if self.color else None, highlight=False, soft_wrap=True)

    def show(self, document: Json, grids: Iterable[Grid]) -> None:
        """Print the command's result: the document under --json, else the tables."""
        if self.as_json:
            sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
            return
        console = self.console(stderr=False)
        for index, grid in enumerate(grids):
            if index:
                sys.stdout.write("\n")
            if console.is_terminal:
                console.print(grid_rich(grid, width=console.width))
            else:
                sys.stdout.write(grid_text(grid) + "\n")

    def show_text(self, document: Json, text: str) -> None:
        """Print a result that is no table, as it is; the document under --json."""
        if self.as_json:
            self.show(document, ())
        else:
            sys.stdout.write(printable(text if text.endswith("\n") else text + "\n"))

    def width(self) -> int | None:
        """Columns of the terminal on stdout; None for a pipe or a file, where nothing need be cut."""
        console = self.console(stderr=False)
        return console.width if console.is_terminal else None

    def note(self, text: str) -> None:
        """A line of progress or a hint on stderr; silent under -q."""
        if not self.quiet:
            sys.stderr.write(printable(text) + "\n")

    def next_step(self, *words: object) -> None:
        """The last line: the command that one would run next, ready to be pasted into a shell."""
        self.note(f"next: {shlex.join(['kforge', *map(str, words)])}")

    def resume(self) -> None:
        """The command that goes on where this one ended: the very same, but for options that are good for once."""
        words = list(self.arguments)
        for option in ONLY_ONCE:
            words = [w for i, w in enumerate(words) if w.partition("=")[0] != option and words[i - 1 : i] != [option]]
        self.note(f"resume: {shlex.join(['kforge', *words])}")

    def error(self, error: ForgeError) -> None:
        """An error of ours on stderr: what happened, then what to do. Under --json also as the document on stdout."""
        if self.as_json:
            show_error(type(error).__name__, error.message, error.hint, error.exit_code)
        sys.stderr.write(f"error: {printable(error.message)}\n")
        if error.hint:
            sys.stderr.write(f"hint: {printable(error.hint)}\n")
        if error.__cause__ is not None and self.verbose < 2:
            sys.stderr.write("(-vv shows the traceback)\n")


def show_error(kind: str, message: str, hint: str, exit_code: int) -> None:
    """The one document on stdout of a command that failed under --json."""
    error: Json = {"kind": kind, "message": message, "hint": hint, "exit_code": exit_code}
    sys.stdout.write(json.dumps({"error": error}, indent=2) + "\n")
