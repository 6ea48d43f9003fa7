"""A generator that proposes the library's kernels of a variant before it asks another one. Owns `LibraryFirst`."""

from __future__ import annotations

import importlib.metadata
import logging
import time
from dataclasses import replace

from kernelforge.cards.types import Variant
from kernelforge.generate.types import Candidate, Generator, Proposal, Request
from kernelforge.library.folder import Library
from kernelforge.library.types import StoredKernel, abi_of
from kernelforge.search.duplicates import normalised
from kernelforge.search.types import Node
from kernelforge.verify.types import Rejected, RejectReason

GENERATOR = "library"

FAULTS = frozenset({
    RejectReason.WRONG_VALUE, RejectReason.WRONG_META, RejectReason.PRECISION_DOWNGRADE, RejectReason.MUTATED_INPUT,
    RejectReason.STALE_OUTPUT, RejectReason.OUT_OF_BOUNDS, RejectReason.UNDEFINED_BEHAVIOUR, RejectReason.UNINITIALISED,
    RejectReason.NONDETERMINISTIC, RejectReason.DELEGATED, RejectReason.TAMPER, RejectReason.FORBIDDEN,
})  # fmt: skip
"""Reasons that lie in the kernel. The others may lie in the machine, as a time limit does on a busy one."""

logger = logging.getLogger(__name__)

PROPOSALS = 4
"""So many of a variant's kernels are tried at most: each costs a trial, and those of other machines promise less."""


class LibraryFirst:
    """Proposes what the library holds for the request's variant and was not tried, then what `wrapped` proposes.

    A kernel is a candidate like any other: it is built from its source and judged. Keeps no state; the library may
    change between two calls.
    """

    def __init__(self, library: Library, wrapped: Generator) -> None:
        self.name = wrapped.name
        self._library = library
        self._wrapped = wrapped

    def propose(self, request: Request) -> Proposal:
        """The most promising kernel of the library that was not tried, as a start from scratch; else of `wrapped`."""
        kernels = () if request.attempts else proposals(self._library, request)
        if kernels:
            tried = {normalised(feedback.candidate.source) for feedback in request.history}
            for kernel in kernels:
                if normalised(kernel.source) not in tried:
                    return candidate_of(kernel, request)
        return self._ask(request)

    def _ask(self, request: Request) -> Proposal:
        """A proposal of `wrapped`; another one if it has a kernel of the library again but for comments and spaces.

        To `wrapped` that looks new, as an older version of it may have written the comments. A proposal that was paid
        for is no reason to ask, and pay, again.
        """
        known = {normalised(f.candidate.source): f for f in request.history if f.candidate.generator == GENERATOR}
        proposal = self._wrapped.propose(request)
        for _ in range(len(known)):
            if not isinstance(proposal, Candidate) or proposal.tokens_in != 0:
                break
            twin = known.get(normalised(proposal.source))
            if twin is None:
                break
            request = replace(request, history=(*request.history, replace(twin, candidate=proposal)))
            proposal = self._wrapped.propose(request)
        return proposal


def proposals(library: Library, request: Request) -> tuple[StoredKernel, ...]:
    """What to try of the library, in order: kernels of this very tool chain, device and torch, then the others.

    Only sources for the request's backend that were written against the same prelude.
    """
    abi = abi_of(request.prelude)
    fitting = [k for k in library.of(request.variant) if (k.backend, k.abi) == (request.backend, abi)]
    here = made_here(request.backend, request.prelude, request.brief)
    different: dict[str, StoredKernel] = {}
    for kernel in sorted(fitting, key=lambda k: k.made_for != here):  # keeps the faster first
        different.setdefault(normalised(kernel.source), kernel)
    return tuple(different.values())[:PROPOSALS]


def drop_if_rejected(library: Library, variant: Variant, node: Node, here: tuple[str, str, str, str]) -> None:
    """Remove a kernel of the library that the judge has just rejected where it had its certificate: it lies.

    Args:
        here: as `StoredKernel.made_for`. What was certified elsewhere may still be right there, and stays.
    """
    if node.kind != "rejected" or node.candidate.generator != GENERATOR:
        return
    outcome = node.outcome
    if not isinstance(outcome, Rejected) or outcome.reason not in FAULTS:
        return
    text = normalised(node.candidate.source)
    wrong = [k for k in library.of(variant) if k.made_for == here and normalised(k.source) == text]
    if wrong and library.drop(wrong):
        logger.warning(
            "kernel %s of the library is removed: it had its certificate here, and now the judge rejects it "
            "(kforge log %s %d)", wrong[0].id[:8], variant.label, node.number,
        )  # fmt: skip


def candidate_of(kernel: StoredKernel, request: Request) -> Candidate:
    """The stored source as a candidate for the request; its notes say where it came from."""
    date = time.strftime("%Y-%m-%d", time.gmtime(kernel.certified))
    notes = f"{kernel.notes or kernel.generator} (library: {kernel.model}, {kernel.origin.device}, {date})"
    return Candidate(
        variant_id=request.variant.id, source=kernel.source, backend=kernel.backend, generator=GENERATOR,
        notes=notes, schedule=kernel.schedule, tokens_in=0, tokens_out=0, cost_usd=0.0,
    )  # fmt: skip


def made_here(backend: str, prelude: str, brief: str) -> tuple[str, str, str, str]:
    """`StoredKernel.made_for` of what is built on this machine now."""
    return backend, abi_of(prelude), brief, torch_minor()


def torch_minor() -> str:
    """Major and minor version of the installed torch, without importing it."""
    return ".".join(importlib.metadata.version("torch").split(".")[:2])
