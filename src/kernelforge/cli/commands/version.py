"""`kforge version`: what is installed."""

from __future__ import annotations

import importlib.metadata
import platform

from kernelforge.cli.output import Output
from kernelforge.cli.verb import verb

SHOWN = ("torch", "apache-tvm-ffi", "safetensors", "transformers", "torchvision")


@verb
def version(out: Output) -> None:
    """Show what is installed."""
    from kernelforge import __version__
    from kernelforge.report.tables import facts_grid

    facts = [("kernelforge", __version__), ("python", platform.python_version())]
    for name in SHOWN:
        try:
            facts.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            facts.append((name, "not installed"))
    out.show(dict(facts), [facts_grid(facts)])
