"""What is proposed of the library, in which order, and when the wrapped generator is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from kernelforge.cards.types import Variant
from kernelforge.evaluate.types import Outcome, Trial, WorkerFailure
from kernelforge.generate.types import Candidate, Exhausted, Feedback, Request
from kernelforge.library.folder import Library
from kernelforge.library.proposals import PROPOSALS, LibraryFirst, drop_if_rejected, made_here, proposals
from kernelforge.library.types import Origin, StoredKernel, abi_of
from kernelforge.search.types import node_of
from kernelforge.verify.types import Rejected, RejectReason

PRELUDE = "// relu-1a2b3c4d on another GPU\nextern  int launch();\n"
"""But for comments and spaces that of the made-up kernels."""
BRIEF = "a compiler 12; target x86-64-v3"

Make = Callable[..., StoredKernel]


class Wrapped:
    """A generator that says when it was asked."""

    name = "wrapped"

    def propose(self, request: Request) -> Candidate | Exhausted:
        return Exhausted(reason=f"asked for {request.variant.operator}")


def request_for(
    variant: Variant, tried: Sequence[Candidate] = (), *, backend: str = "cpp", prelude: str = PRELUDE
) -> Request:
    history = tuple(Feedback(candidate=c, outcome="pending", detail="", speedup=None) for c in tried)
    return Request(variant=variant, backend=backend, prelude=prelude, brief=BRIEF, history=history)


def ask_until_exhausted(library: Library, variant: Variant, tried: Sequence[Candidate] = ()) -> list[Candidate]:
    generator, made = LibraryFirst(library, Wrapped()), list[Candidate]()
    while isinstance(proposal := generator.propose(request_for(variant, [*tried, *made])), Candidate):
        made.append(proposal)
    assert proposal.reason == f"asked for {variant.operator}"
    return made


def test_each_kernel_is_proposed_once_the_fastest_first_then_the_wrapped_generator_is_asked(
    library: Library, variant: Variant, make_kernel: Make
) -> None:
    library.keep([make_kernel("int slow;", 1.5), make_kernel("int fast;", 3.0)])
    assert [c.source for c in ask_until_exhausted(library, variant)] == ["int fast;", "int slow;"]


def test_a_proposal_says_where_it_came_from_and_is_of_the_project_that_asks(
    library: Library, variant: Variant, make_kernel: Make
) -> None:
    library.keep([make_kernel()])
    gpu = replace(variant, min_elements=16)
    (candidate,) = ask_until_exhausted(library, gpu)
    assert (candidate.generator, candidate.variant_id, candidate.parent) == ("library", gpu.id, "")
    assert candidate.notes == "8 threads (library: Tiny, x86-64-v3, 2001-09-09)"
    assert candidate.schedule == '{"threads":8}', "templates revise it by its schedule"
    assert (candidate.tokens_in, candidate.tokens_out, candidate.cost_usd) == (0, 0, 0.0)


def test_what_the_project_tried_is_not_proposed_again(library: Library, variant: Variant, make_kernel: Make) -> None:
    library.keep([make_kernel("int a;"), make_kernel("int b;", 1.5)])
    tried = Candidate(variant_id=variant.id, source="int  a; // by hand\n", backend="cpp", generator="manual")
    assert [c.source for c in ask_until_exhausted(library, variant, [tried])] == ["int b;"]


def test_kernels_of_other_tool_chains_come_after_those_of_this_one(
    library: Library, variant: Variant, make_kernel: Make
) -> None:
    here = make_kernel("int here;", 1.1)
    compiler = make_kernel("int compiler;", 5.0, origin=replace(here.origin, toolchain="a compiler 13"))
    torch = make_kernel("int torch;", 4.0, origin=replace(here.origin, torch="1.0"))
    again = make_kernel("int here; //", 9.0, origin=replace(here.origin, torch="1.0"))
    library.keep([compiler, torch, here, again])
    assert [c.source for c in ask_until_exhausted(library, variant)] == ["int here;", "int compiler;", "int torch;"]


def test_kernels_of_another_architecture_are_tried_too(library: Library, variant: Variant, make_kernel: Make) -> None:
    gpu = replace(variant, device="cuda", capability="sm_80")
    library.keep([make_kernel("int x;", variant=gpu, backend="cuda")])
    asked = request_for(replace(gpu, capability="sm_90"), backend="cuda")
    assert [k.source for k in proposals(library, asked)] == ["int x;"]


def test_what_cannot_be_built_here_is_not_proposed(library: Library, variant: Variant, make_kernel: Make) -> None:
    library.keep([make_kernel()])
    assert proposals(library, request_for(variant))
    assert not proposals(library, request_for(variant, backend="cuda"))
    assert not proposals(library, request_for(variant, prelude=PRELUDE + "constexpr int n = 1;\n"))
    assert not proposals(library, request_for(replace(variant, operator="exp")))


class Twins(Wrapped):
    """Writes the library's kernels anew with other comments, then one of its own, unless it is in the history."""

    sources = ("int a; // mine", "int b; // mine", "int own;")

    def __init__(self, tokens_in: int | None) -> None:
        self.tokens_in = tokens_in

    def propose(self, request: Request) -> Candidate | Exhausted:
        tried = {f.candidate.source for f in request.history}
        source = next(s for s in self.sources if s not in tried)
        return Candidate(
            variant_id=request.variant.id, source=source, backend="cpp", generator=self.name, tokens_in=self.tokens_in
        )  # fmt: skip


@pytest.mark.parametrize(("tokens_in", "source"), [(0, "int own;"), (7, "int a; // mine"), (None, "int a; // mine")])
def test_a_generator_that_writes_the_same_kernels_is_asked_again_if_that_costs_nothing(
    library: Library, variant: Variant, make_kernel: Make, tokens_in: int | None, source: str
) -> None:
    library.keep([make_kernel("int a;"), make_kernel("int b;", 1.5)])
    tried = ask_until_exhausted(library, variant)
    proposal = LibraryFirst(library, Twins(tokens_in)).propose(request_for(variant, tried))
    assert isinstance(proposal, Candidate) and proposal.source == source


def test_at_most_a_few_trials_go_to_the_library(library: Library, variant: Variant, make_kernel: Make) -> None:
    origin = make_kernel().origin
    library.keep(
        make_kernel(f"int x{i};", 1.0 + i, origin=replace(origin, toolchain=f"a compiler {i}")) for i in range(8)
    )  # fmt: skip
    made = ask_until_exhausted(library, variant)
    assert [c.source for c in made] == [f"int x{i};" for i in (7, 6, 5, 4)] and len(made) == PROPOSALS


def test_a_damaged_kernel_does_not_end_the_search(
    library: Library, variant: Variant, make_kernel: Make, warnings: pytest.LogCaptureFixture
) -> None:
    library.keep([make_kernel("int a;"), make_kernel("int b;", 3.0)])
    for path in library.folder.iterdir():
        if b"int b;" in path.read_bytes():
            path.write_bytes(b"\x80")
    assert [c.source for c in ask_until_exhausted(library, variant)] == ["int a;"]
    assert len(warnings.records) == 1


def test_the_abi_is_what_the_compiler_reads_of_a_prelude() -> None:
    assert abi_of("// a\nint x;\n") == abi_of("// b\nint  x;\n\n") != abi_of("int y;\n")


def test_a_kernel_that_the_judge_rejects_where_it_was_certified_is_removed(
    library: Library, variant: Variant, make_kernel: Make, warnings: pytest.LogCaptureFixture
) -> None:
    elsewhere = Origin(device="another", toolchain="another", torch="2.10")
    library.keep([make_kernel("int wrong;"), make_kernel("int wrong;", origin=elsewhere), make_kernel("int right;")])
    here = made_here("cpp", PRELUDE, BRIEF)
    wrong = Rejected(reason=RejectReason.WRONG_VALUE, case="c", detail="out[0]", worst_abs=1.0)

    def judged(source: str, outcome: Outcome, generator: str = "library") -> None:
        candidate = Candidate(variant_id=variant.id, source=source, backend="cpp", generator=generator)
        trial = Trial(candidate=candidate, outcome=outcome, started=1.0, seconds=1.0)
        drop_if_rejected(library, variant, node_of(id="n", number=7, parent="", trial=trial), here)

    judged("int wrong;", WorkerFailure(detail="the machine was busy"))
    judged("int wrong;", wrong, generator="template")
    judged("int wrong;", replace(wrong, reason=RejectReason.TIMEOUT))
    assert len(library.kernels()) == 3
    judged("int wrong; // again", wrong)
    left = {(k.source, k.origin == elsewhere) for k in library.kernels()}
    assert left == {("int wrong;", True), ("int right;", False)}
    assert f"kforge log {variant.label} 7" in warnings.text
