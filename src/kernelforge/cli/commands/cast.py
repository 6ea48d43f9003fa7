"""`kforge cast inspect|verify|trust|untrust|keys`: look into a package, check it, and say whom to trust."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from kernelforge.cli.output import Output
from kernelforge.cli.trusting import HASH, KEY, ask_trust, can_ask
from kernelforge.cli.verb import verb
from kernelforge.errors import UsageError

INVALID = 3

PackageFile: TypeAlias = Annotated[Path, typer.Argument(metavar="FILE", help="A .cast package.")]


@verb
def inspect(out: Output, package: PackageFile) -> None:
    """Show what a package holds.

    Also who signed it, and whether it is trusted here. Runs nothing of it.
    """
    from kernelforge import forge
    from kernelforge.report.tables import package_grids

    report = forge.inspect_package(package)
    out.show(report.to_json(), package_grids(report))
    out.next_step("cast", "verify", package)


@verb
def verify(out: Output, package: PackageFile) -> None:
    """Check a package.

    Its structure, checksums and signature, and whether its kernels can run here. Runs nothing of it. Exit code 3 if a
    check fails.
    """
    from kernelforge import forge
    from kernelforge.report.tables import package_grids

    report = forge.verify_package(package)
    out.show(report.to_json(), package_grids(report))
    if not report.valid:
        raise typer.Exit(INVALID)
    if not any(entry.in_use for entry in report.entries):
        out.note("the package is intact, but uses no kernel: loading it changes nothing")
    elif report.digest and not report.trusted:
        out.note(f"the package is intact, and {report.trust}")
        out.next_step("cast", "trust", package)
    else:
        out.note(f"next: in Python: kernelforge.load({str(package)!r})")


@verb
def trust(
    out: Output,
    what: Annotated[str, typer.Argument(metavar="FILE|KEY", help="A .cast package, or a public key: 64 hex digits.")],
    *,
    signer: Annotated[
        bool, typer.Option("--signer", help="Trust whatever the package's signer signs, not only this file.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Trust a package or a signer.

    Loading a package runs its native code, so only those are loaded that were exported here, whose signer's key is
    pinned, or whose hash is trusted. Shows the package and asks. A trusted file that changes is trusted no more.
    """
    from kernelforge import forge
    from kernelforge.package.signing import is_public_key

    if is_public_key(what):
        done = forge.pin_signer(what)
        out.show_text(done.to_json(), done.sentence)
        return
    report = forge.inspect_package(Path(what))
    if report.trusted and not (yes or signer):
        out.show_text(report.to_json(), f"{report.path} is {report.trust} already")
        return
    choice = KEY if signer else HASH
    if not yes:
        if not can_ask(out):
            raise UsageError("nobody can be asked here", hint="look at it with kforge cast inspect, then say --yes")
        choice = ask_trust(out, report, only=choice if signer else "")
    if not choice:
        out.note("nothing was changed")
        return
    done = forge.trust_package(report, signer=choice == KEY)
    out.show_text(done.to_json(), done.sentence)


@verb
def untrust(
    out: Output,
    what: Annotated[
        str,
        typer.Argument(
            metavar="FILE|KEY|HASH", help="A package, a public key or its fingerprint, or sha256: and a digest."
        ),
    ],
) -> None:
    """Trust a package or a key no more.

    Of a package its hash; to trust its signer no more, name the key.
    """
    from kernelforge import forge

    done = forge.distrust(what)
    out.show_text(done.to_json(), done.sentence)


@verb
def keys(out: Output) -> None:
    """List whom and what is trusted.

    This machine's own key, the pinned keys and the trusted files.
    """
    from kernelforge import forge
    from kernelforge.report.trust import keys_grids

    report = forge.trusted_keys()
    out.show(report.to_json(), keys_grids(report))
