"""Eager dispatch: call sites of torch are replaced while a package is active, for the whole process.

`torch.ops.*` is left alone: operator overloads are keys of torch's own tables, which a wrapper must not enter.
"""

from __future__ import annotations

import logging
import threading
import warnings
from functools import cache

from kernelforge.dispatch.callsite import CallSite
from kernelforge.dispatch.patches import Function, Ledger, origin_at
from kernelforge.dispatch.tables import Tables
from kernelforge.errors import NotFound
from kernelforge.operators import Entry as CallForm
from kernelforge.operators import Operator, get_operator, resolve_target

_LOG = logging.getLogger(__name__)
_PLACES = threading.RLock()
"""Held while attributes are replaced: packages that come and go in several threads share the same ones."""


class Activation:
    """Replaces the call sites of one package's operators, and puts them back when the last user leaves. Thread-safe."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._ledger: Ledger | None = None
        self._sites: list[tuple[CallSite, Function]] = []
        self._depth = 0

    def enter(self) -> None:
        """Replace the call sites; entering again counts up."""
        with _PLACES, self._tables.lock:
            self._depth += 1
            if self._depth == 1:
                _fill_tables_of_torch()
                self._ledger = self._install()

    def leave(self) -> None:
        """Put everything back when the last one leaves."""
        with _PLACES, self._tables.lock:
            self._depth -= 1
            if self._depth == 0 and self._ledger is not None:
                ledger, self._ledger = self._ledger, None
                # What was decided holds the next time too, but a wrapper that somebody kept must pass through now.
                for site, _ in self._sites:
                    site.close()
                ledger.restore()

    def switch(self, *, on: bool) -> None:
        """Make the call sites pass-throughs, or bring them back, without touching what is replaced."""
        with self._tables.lock:
            self._tables.enabled = on
            for site, _ in self._sites:
                if not on:
                    site.pause()
                elif site.origin.active:
                    site.resume()

    def _install(self) -> Ledger:
        ledger = Ledger()
        if self._sites and all(site.still_fits() for site, _ in self._sites):
            # The same wrappers as last time: entering is then a few dozen assignments.
            for site, wrapper in self._sites:
                site.reopen()
                ledger.replace(site.origin, wrapper)
            return ledger
        self._sites = []
        for target, forms in _call_forms({e.variant.operator for e, _ in self._tables.guarded}).items():
            try:
                owner, attribute, _ = resolve_target(target)
                origin = origin_at(owner, attribute)
                site = CallSite(self._tables, target, forms, origin)
                wrapper = site.wrapper()
                ledger.replace(origin, wrapper)
            except NotFound:
                continue
            except TypeError as error:
                _LOG.warning("%s cannot be replaced: %s", target, error)
                continue
            self._sites.append((site, wrapper))
        return ledger


@cache
def _fill_tables_of_torch() -> None:
    """Have torch build its tables of its own functions while these are the real ones.

    Dynamo builds its on first import (1.3 s, once per process). Built among wrappers they would stay wrong: functions
    that are not in them could not be compiled any more, after dispatch too.
    """
    import torch._dynamo.trace_rules
    import torch.overrides

    torch._dynamo.trace_rules.get_torch_obj_rule_map()
    torch._dynamo.trace_rules.get_tensor_method()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks at deprecated functions too
        torch.overrides.get_overridable_functions()


def _call_forms(operators: set[str]) -> dict[str, list[tuple[Operator, CallForm]]]:
    """The call forms to replace for the operators, by target; one target may mean several operators."""
    forms: dict[str, list[tuple[Operator, CallForm]]] = {}
    for operator in map(get_operator, sorted(operators)):
        for form in operator.entries:
            if not form.target.startswith("torch.ops.") and not form.passes_on:
                forms.setdefault(form.target, []).append((operator, form))
    return forms
