"""The `kforge` command: lists the commands, one file each in `commands/`. No logic, no torch."""

from __future__ import annotations

import os
import sys
import threading
from typing import Annotated, Any

import typer
import typer.core

from kernelforge import __version__
from kernelforge.cli.commands import (
    add,
    ask,
    audit,
    cast,
    cast_run,
    cost,
    demo,
    doctor,
    eval,
    export,
    library,
    op,
    ops,
    project,
    quarantine,
    recertify,
    run,
    runs,
    version,
)
from kernelforge.cli.commands import capture as capture_command
from kernelforge.cli.commands import forge as forge_command
from kernelforge.cli.commands import log as log_command
from kernelforge.cli.commands import mcp as mcp_command
from kernelforge.cli.commands import profile as profile_command
from kernelforge.cli.commands import replay as replay_command
from kernelforge.cli.commands import tree as tree_command
from kernelforge.cli.output import show_error
from kernelforge.cli.verb import ARGUMENTS, EXIT_CODES

INTERRUPTED = 130
# Of click, which typer brings along under a name that differs between its versions.
_BadCommandLine: Any = typer.BadParameter.__bases__[0]


class _Root(typer.core.TyperGroup):
    """Keeps the command line as it was given: what is parsed no longer says which options were."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS] = tuple(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what is wrong with its options is told as JSON too if that was asked for."""
        try:
            return super().invoke(ctx)
        except _BadCommandLine as error:
            error.message = plain_words(error.message)
            if "--json" in ctx.meta[ARGUMENTS]:
                show_error("UsageError", error.format_message(), "", error.exit_code)
            raise


def plain_words(message: str) -> str:
    """What is wrong with an option, without the words of the library that checks its type."""
    message = message.removeprefix("Value error, ")
    for start, words in _VALIDATOR.items():
        if message.startswith(start):
            return words + message.removeprefix(start)
    return message


_VALIDATOR = {
    "Input should be greater than or equal to ": "it must be at least ",
    "Input should be less than or equal to ": "it must be at most ",
    "Input should be a valid integer, unable to parse string as an integer": "it must be a whole number",
    "Input should be a valid number, unable to parse string as a number": "it must be a number",
    "Input should be ": "it must be ",
}
"""Beginnings of pydantic's messages, and ours."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kforge {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Make a PyTorch model run faster on the hardware you have: capture, forge, export, dispatch."""


def make_app() -> typer.Typer:
    """The application with all commands."""
    # Plain help: rich's takes three times as long to come up, and pipes badly.
    app = typer.Typer(
        name="kforge",
        cls=_Root,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    # "\b" keeps the lines of the list as they are.
    app.callback(epilog="\b\n" + EXIT_CODES)(_root)
    app.command("run")(run.run)
    app.command("demo")(demo.demo)
    app.command("capture")(capture_command.capture)
    app.command("ops")(ops.ops)
    app.add_typer(_group("op", "Look at one variant: show.", {"show": op.show}))
    app.command("forge")(forge_command.forge)
    detached = _group(
        "runs",
        "Detached runs: ls, attach, pause, resume, stop, cancel.",
        {
            "ls": runs.ls, "attach": runs.attach, "pause": runs.pause, "resume": runs.resume, "stop": runs.stop,
            "cancel": runs.cancel,
        },
    )  # fmt: skip
    detached.command("work", hidden=True)(runs.work)
    app.add_typer(detached)
    app.command("tree")(tree_command.tree)
    app.command("log")(log_command.log)
    app.command("diff")(tree_command.diff)
    app.command("ask")(ask.ask)
    app.command("tell")(ask.tell)
    app.command("profile")(profile_command.profile)
    app.command("mcp")(mcp_command.mcp)
    app.command("cost")(cost.cost)
    app.command("replay")(replay_command.replay)
    app.command("add")(add.add)
    app.command("eval")(eval.evaluate)
    app.command("audit")(audit.audit)
    app.command("export")(export.export)
    packages = _group(
        "cast",
        "Packages: inspect, verify, trust, untrust, keys, recertify, run, quarantine.",
        {
            "inspect": cast.inspect, "verify": cast.verify, "trust": cast.trust, "untrust": cast.untrust,
            "keys": cast.keys, "recertify": recertify.recertify, "run": cast_run.run,
        },
    )  # fmt: skip
    failed = {"ls": quarantine.ls, "clear": quarantine.clear}
    packages.add_typer(_group("quarantine", "Kernels that failed on this machine: ls, clear.", failed))
    app.add_typer(packages)
    app.add_typer(
        _group(
            "project",
            "Move projects: pack, unpack, merge.",
            {"pack": project.pack, "unpack": project.unpack, "merge": project.merge},
        )
    )
    app.add_typer(
        _group(
            "library",
            "Look at the kernels kept on this machine: ls, show, rm, path.",
            {"ls": library.ls, "show": library.show, "rm": library.rm, "path": library.path},
        )
    )
    app.command("doctor")(doctor.doctor)
    app.command("version")(version.version)
    return app


def _group(name: str, help_text: str, commands: dict[str, typer.models.CommandFunctionType]) -> typer.Typer:
    group = typer.Typer(name=name, help=help_text, no_args_is_help=True, rich_markup_mode=None)
    for command_name, function in commands.items():
        group.command(command_name)(function)
    return group


def main() -> None:
    """Entry point of the console script."""
    try:
        make_app()(prog_name="kforge")
    except SystemExit as end:
        if end.code == INTERRUPTED and any(
            t.name.startswith("kforge-") and t.is_alive() for t in threading.enumerate()
        ):
            # The interpreter would wait for threads that wait for a language model.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        raise
