"""Build backends, one file each, found by name."""

from __future__ import annotations

from typing import cast

from kernelforge.build.types import Backend
from kernelforge.plugins import load_plugin
from kernelforge.settings import Settings

__all__ = ["get_backend"]


def get_backend(name: str, settings: Settings, *, arch: str = "") -> Backend:
    """The backend `name` ("cpp" or "cuda").

    Args:
        arch: the target to build for, "sm_90" or "x86-64-v3"; "" for the present machine.

    Raises:
        NotFound: no such backend.
        EnvironmentMissing: its compiler is not installed, or no target can be found.
    """
    factory = load_plugin(__name__, name, "BACKEND_FACTORY")
    assert callable(factory)
    return cast(Backend, factory(settings, arch))
