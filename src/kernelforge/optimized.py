"""A model that runs with a package: what `kernelforge.optimize` returns. Owns `OptimizedModel`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from kernelforge.report.rows import OperatorRow, WholeModel

if TYPE_CHECKING:
    from kernelforge.dispatch.loading import LoadedPackage


class OptimizedModel:
    """Calls go to the unmodified model with the package's kernels dispatched; every miss runs the original call.

    Attributes:
        model: the model itself, never changed.
        package: the loaded package, or None if no kernel was worth using (calls then go straight to the model).
        rows: the operator table. whole_model: the paired A/B of the whole model, whatever it says.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        package: LoadedPackage | None,
        *,
        rows: tuple[OperatorRow, ...] = (),
        whole_model: WholeModel | None = None,
    ) -> None:
        self.model = model
        self.package = package
        self.rows = rows
        self.whole_model = whole_model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.package is None:
            return self.model(*args, **kwargs)
        with self.dispatch():
            return self.model(*args, **kwargs)

    def dispatch(self) -> AbstractContextManager[object]:
        """The context in which the package's kernels are used.

        Raises:
            ValueError: there is no package.
        """
        if self.package is None:
            raise ValueError("no kernel was worth using, so there is no package to dispatch")
        return self.package.dispatch()

    def __getattr__(self, name: str) -> Any:
        """Attributes of the model; its methods (`generate`, say) run with the kernels dispatched."""
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(self.model, name)
        if self.package is None or getattr(value, "__self__", None) is not self.model:
            return value

        @functools.wraps(value)
        def dispatched(*args: Any, **kwargs: Any) -> Any:
            with self.dispatch():
                return value(*args, **kwargs)

        return dispatched
