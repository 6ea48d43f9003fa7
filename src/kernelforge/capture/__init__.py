"""Capture: what an unmodified model really calls. The package is also the verb `kernelforge.capture(model, ...)`.

The stage and the verb share a name, and importing a submodule makes it an attribute of its parent: whichever comes last
would win. So the package can be called like the verb.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _Verb(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See `kernelforge.forge.capture`."""
        # By name, because the stage itself must not depend on the composition root.
        return importlib.import_module("kernelforge.forge").capture(*args, **kwargs)


sys.modules[__name__].__class__ = _Verb
