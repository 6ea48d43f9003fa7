"""What every command shares: the options for output, and the way from an error to an exit code. Owns `@verb`."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, get_type_hints

import typer

from kernelforge.cli.output import Output
from kernelforge.errors import ForgeError
from kernelforge.report.rows import DECISION_USE, OperatorRow
from kernelforge.settings import load_settings

WRONG = 4
TOO_SLOW = 8
NOT_CERTIFIED = 10
ARGUMENTS = "kernelforge.arguments"
"""Where the root command keeps the command line in the context's `meta`."""

OUT_OF_BUDGET = frozenset({"seconds", "trials", "tokens", "usd"})
"""The `search.types.StopReason`s after which the same command does more."""

EXIT_CODES = """Exit codes:
  0    ok
  1    unexpected: a fault of kernelforge or of this machine
  2    usage: an option or argument is off
  3    not found, or a model, project or package that cannot be used
  4    wrong: a candidate (eval, add, audit), a replay, a kernel on this machine (cast recertify), outputs (cast run)
  5    the candidate does not compile (eval, add, audit)
  6    something is missing here: a GPU, a compiler, an optional package
  7    flagged by the audit: the candidate does not do the work itself (eval, add, audit)
  8    no kernel reached the speed-up that --require-speedup asks for
  9    the package is intact, but nobody here has said to trust it or whoever signed it
  10   the package is not certified for this machine (cast recertify)
  75   the device is busy: its timing slot could not be had
  130  interrupted with Ctrl-C (143 by SIGTERM); what was finished is kept"""

_COMMON = (
    ("as_json", Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")], False),
    ("quiet", Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no hints.")], False),
    (
        "verbose",
        Annotated[int, typer.Option("-v", count=True, show_default=False, help="Log lines; -vv also tracebacks.")],
        0,
    ),
    ("no_color", Annotated[bool, typer.Option("--no-color", help="Never print colour (as does NO_COLOR).")], False),
)


def verb(function: Callable[..., None]) -> Callable[..., None]:
    """Make a typer command of `function(out, ...)`: adds the output options and turns our errors into exit codes.

    The signature that typer reads has `out` replaced by those four options and the context.
    """

    @functools.wraps(function)
    def command(
        *, context: typer.Context, as_json: bool, quiet: bool, verbose: int, no_color: bool, **values: object
    ) -> None:
        color = not (no_color or load_settings().no_color)
        arguments = context.meta.get(ARGUMENTS, ())
        out = Output(as_json=as_json, quiet=quiet, verbose=verbose, color=color, arguments=arguments)
        _configure_logging(out)
        try:
            function(out, **values)
        except ForgeError as error:
            if verbose >= 2:
                traceback.print_exc()
            out.error(error)
            raise typer.Exit(error.exit_code) from error

    hints = get_type_hints(function, include_extras=True)
    own = [p.replace(annotation=hints[p.name]) for p in inspect.signature(function).parameters.values()][1:]
    common = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, kind, default in _COMMON
    ]
    common.append(inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))
    command.__signature__ = inspect.Signature([*own, *common])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in (*own, *common)}
    return command


def require_speedup_of(rows: Sequence[OperatorRow], wanted: float | None) -> None:
    """End with exit code 8 unless a kernel that is to be used is surely at least `wanted` times faster.

    The lower end of the interval counts, so that luck does not pass a gate.
    """
    if wanted is None:
        return
    lows = [row.speedup_low for row in rows if row.decision.startswith(DECISION_USE) and row.speedup_low is not None]
    if max(lows, default=0.0) < wanted:
        typer.echo(f"no kernel is surely {wanted:g} times faster (--require-speedup)", err=True)
        raise typer.Exit(TOO_SLOW)


class _Notes(logging.Handler):
    """What our modules log: a warning is a note like the others, everything below is a log line."""

    def __init__(self, out: Output) -> None:
        super().__init__()
        self._out = out

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if self._out.verbose or record.levelno > logging.WARNING:
            sys.stderr.write(f"{record.levelname} {record.name}: {text}\n")
        else:
            self._out.note(f"note: {text}")


def _configure_logging(out: Output) -> None:
    level = {0: logging.WARNING, 1: logging.INFO}.get(out.verbose, logging.DEBUG)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logger = logging.getLogger("kernelforge")
    logger.setLevel(level)
    logger.handlers = [h for h in logger.handlers if not isinstance(h, _Notes)] + [_Notes(out)]
    logger.propagate = False
