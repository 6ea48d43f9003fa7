"""The tree of our own failures. A candidate's failure is never an exception: it is a value (see `evaluate.types`).

ForgeError                      exit code 1
|-- UsageError                  2   the request itself is off
|-- NotFound                    3   a project, variant, node or file that does not exist
|-- ModelError                  3   a model cannot be named, loaded or run
|-- ProjectError                3   the project's files cannot be read or written
|   `-- SchemaTooNew            3   written by a newer kernelforge
|-- PackageError                3   a .cast is corrupt, truncated, edited or cannot be written
|   `-- UntrustedPackage        9   a .cast that nobody on this machine has said to trust
|-- NotGraphable                4   a call that cannot be replayed from a CUDA graph, where that was asked for strictly
|-- EnvironmentMissing          6   no GPU, no compiler, no optional dependency
|-- DeviceBusy                  75  the device's timing slot could not be had
|-- Stopped                     130 whoever asked for it wants it no more
`-- HarnessError                1   a fault of the judge itself, never charged to a candidate
"""

from __future__ import annotations


class ForgeError(Exception):
    """Base of every error that kernelforge raises on purpose.

    Args:
        message: what happened, and to which variant or file.
        hint: what to do next; printed on a line of its own.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.hint))


def _rebuild(kind: type[ForgeError], message: str, hint: str) -> ForgeError:
    return kind(message, hint=hint)


class UsageError(ForgeError):
    """The request contradicts itself or names something that no version knows."""

    exit_code = 2


class NotFound(ForgeError):
    """A project, variant, node or file that does not exist."""

    exit_code = 3


class ModelError(ForgeError):
    """A model cannot be named, loaded or run."""

    exit_code = 3


class ProjectError(ForgeError):
    """The project's files cannot be read or written."""

    exit_code = 3


class SchemaTooNew(ProjectError):
    """The project was written by a newer kernelforge."""


class PackageError(ForgeError):
    """A `.cast` package is corrupt, truncated, edited, or cannot be written."""

    exit_code = 3


class UntrustedPackage(PackageError):
    """A `.cast` package that is intact, but nobody on this machine has said to trust it or whoever signed it."""

    exit_code = 9


class NotGraphable(ForgeError):
    """A model's call cannot be replayed from a CUDA graph; the message names the lines that prevent it."""

    exit_code = 4


class EnvironmentMissing(ForgeError):
    """The machine lacks a GPU, a compiler or an optional dependency that the request needs."""

    exit_code = 6


class DeviceBusy(ForgeError):
    """The exclusive timing slot of a device could not be had in time."""

    exit_code = 75


class Stopped(ForgeError):
    """Whoever asked for it wants it no more; what was finished is kept."""

    exit_code = 130


class HarnessError(ForgeError):
    """A fault of the judge itself. It is never charged to a candidate."""
