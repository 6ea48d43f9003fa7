"""Asking a person at a terminal whether to trust a package. Only the command line asks; the library never does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from kernelforge.cli.output import Output

if TYPE_CHECKING:
    from kernelforge.report.rows import PackageReport

Choice: TypeAlias = Literal["hash", "key", ""]
HASH: Choice = "hash"
KEY: Choice = "key"


def can_ask(out: Output) -> bool:
    """Whether a person reads what is printed and can answer."""
    return sys.stdin.isatty() and sys.stderr.isatty() and not (out.as_json or out.quiet)


def offer_trust(out: Output, package: Path, *, given: tuple[str, ...] = ()) -> None:
    """Before a command loads a package: let the person at the terminal say whether to trust it, if it is not.

    Whoever is not there, or says no, gets the refusal of `load`.

    Args:
        given: what the command's own options trust.
    """
    from kernelforge import forge

    if not can_ask(out):
        return
    report = forge.inspect_package(package)
    if report.trusted or f"sha256:{report.digest}" in given:
        return
    choice = ask_trust(out, report)
    if choice:
        out.note(forge.trust_package(report, signer=choice == KEY).sentence)


def ask_trust(out: Output, report: PackageReport, *, only: Choice = "") -> Choice:
    """Show a package and ask. Returns "" for no, which is what anything but a clear answer means.

    Args:
        only: the one thing that may be answered beside no; by default both.
    """
    from kernelforge.report.tables import package_grids

    out.show(report.to_json(), package_grids(report))
    out.note("Loading this package runs its native code with all your rights.")
    choices: dict[str, Choice] = {"h": HASH, "k": KEY} if report.signer else {"h": HASH}
    choices = {letter: choice for letter, choice in choices.items() if only in {"", choice}}
    words = {"h": "h  trust this very file", "k": "k  trust whatever its signer signs, now and later"}
    for line in [*(words[letter] for letter in choices), "c  cancel"]:
        out.note(line)
    sys.stderr.write(f"[{'/'.join([*choices, 'C'])}] ")
    sys.stderr.flush()
    return choices.get(_answer().strip().lower(), "")


def _answer() -> str:
    return sys.stdin.readline()
