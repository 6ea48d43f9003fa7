"""What a language model, a coding agent or a person is told to write a kernel. Owns `Prompt`, `prompt_for`. Pure.

The texts are the files in `prompts/`; here they are filled in. What is the same in every round of a variant comes first
and is byte-identical, so that a provider can cache it. Nothing of the judge's seeds, cases and tolerances is in it.
"""

from __future__ import annotations

import importlib
import importlib.resources
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from string import Template

from kernelforge.capture.types import DimRef, DtypeRef, ScalarRef, TensorRef, Value
from kernelforge.cards.types import SizePoint, Variant
from kernelforge.digest import digest
from kernelforge.errors import NotFound
from kernelforge.generate.source import MOST_NOTES
from kernelforge.generate.types import Feedback, Request, Usage
from kernelforge.operators import Entry, get_operator
from kernelforge.wording import plural, three_digits

LANGUAGE = {"cuda": "CUDA C++", "cpp": "C++17"}
FILE_OF = {"cuda": "kernel.cu", "cpp": "kernel.cpp"}
"""What the one file of a candidate is called."""

MOST_SIZES = 12
NEWEST, FASTEST = 8, 3
"""Of the trials so many are told of: the newest ones and the fastest ones, with the parent and its other revisions."""

_STREAM = {
    "cuda": (
        "- Everything runs on `stream`, also copies and memsets. `launch` returns what `cudaGetLastError()` says.\n"
        "- Thread block clusters, cooperative launches and, between the kernels of one call, programmatic dependent\n"
        "  launch are allowed (`cudaLaunchKernelEx`).\n"
        "  A first line `// kforge: arch=a` compiles for the architecture's own instructions (sm_90a: wgmma);\n"
        "  a line of notes is then the second one."
    ),
    "cpp": "- Threads only through OpenMP, whose regions end before `launch` returns.",
}
_MEND = {
    "compile_error": "compile",
    "missing_launch": "signature", "wrong_meta": "signature",
    "crash": "crash", "launch_error": "crash",
    "oob": "memory", "uninitialised": "memory", "undefined_behaviour": "memory", "mutated_input": "memory",
    "nondeterministic": "memory", "oom": "memory",
    "wrong_value": "value", "precision_downgrade": "value",
    "timeout": "timeout", "build_timeout": "timeout",
}  # fmt: skip
"""Reason of a failure -> the file that says how to mend it; all others broke a rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One question in three parts, the first two of which are the same for all rounds of a variant.

    Attributes:
        system: the rules. variant: operator, prelude and machine. round: what was tried, and what is wanted now.
    """

    system: str
    variant: str
    round: str

    @property
    def text(self) -> str:
        """All of it, as one document."""
        return f"{self.system}\n{self.variant}\n{self.round}"

    @property
    def digest(self) -> str:
        return digest([self.system, self.variant, self.round])


def prompt_for(request: Request, *, into_folder: bool = False) -> Prompt:
    """The prompt of a request.

    Args:
        into_folder: the answer is a file beside the prompt, and no reply.
    """
    file = FILE_OF[request.backend]
    answer = _fill("folder", file=file, notes=str(MOST_NOTES)) if into_folder else _fill("reply")
    return Prompt(
        system=_fill(
            "system", language=LANGUAGE[request.backend], stream_rule=_STREAM[request.backend]
        ),
        variant=_variant(request), round=f"{_round(request)}\n{answer}",
    )  # fmt: skip


def _variant(request: Request) -> str:
    usage = request.usage
    facts = [fact for fact in (request.brief, *usage.target) if fact]
    return _fill(
        "variant", meaning=meaning(request.variant), reference=reference(request.variant),
        describe=f"`{request.variant.describe()}`", share=f"{100 * usage.share:.1f}%",
        captured=f"{three_digits(usage.captured_us)} microseconds a call" if usage.captured_us else "an unknown time",
        sizes="\n".join(map(_size_row, *_sizes(usage.points))), more_sizes=_more_sizes(usage.points),
        prelude=request.prelude.rstrip(), target="\n".join(f"- {fact}" for fact in facts),
    )  # fmt: skip


def meaning(variant: Variant) -> str:
    """What the operator computes, in a sentence."""
    try:
        get_operator(variant.operator)
        module = importlib.import_module(f"kernelforge.operators.{variant.operator}")
    except (NotFound, ImportError):  # an operator of a plug-in
        return f"`{variant.operator}`"
    return " ".join((module.__doc__ or variant.operator).split())


def reference(variant: Variant) -> str:
    """The call in plain PyTorch, over the tensors' names in the prelude."""
    operator = get_operator(variant.operator)
    arguments = dict(variant.arguments)

    def covered(entry: Entry) -> int:
        fixed = sum(arguments.get(key) == value for key, value in entry.preset.items())
        return fixed + sum(name in entry.parameters for name in arguments)

    entry = max(operator.entries, key=covered)
    names = variant.tensor_names()
    given = [f"{key}={_python(value, names)}" for key, value in arguments.items() if key not in entry.preset]
    outputs = ", ".join(variant.output_names()) if variant.outputs else "_"
    return f"{outputs} = {entry.target}({', '.join(given)})"


def _python(value: Value, names: Sequence[str]) -> str:
    match value:
        case TensorRef():
            return names[value.index]
        case DimRef() | ScalarRef():
            return value.name
        case DtypeRef():
            return f"torch.{value.name}"
        case tuple():
            return "[" + ", ".join(_python(item, names) for item in value) + "]"
        case _:
            return repr(value)


def _sizes(points: Sequence[SizePoint]) -> tuple[list[SizePoint], list[float]]:
    """The sizes that matter most with their part of the variant's time."""
    whole = sum(p.calls * p.eager_us for p in points)
    ranked = sorted(points, key=lambda p: (-p.calls * p.eager_us, -p.calls, sorted(p.dims.items())))[:MOST_SIZES]
    return ranked, [p.calls * p.eager_us / whole if whole > 0 else 0.0 for p in ranked]


def _size_row(point: SizePoint, part: float) -> str:
    values = [f"{name}={value}" for name, value in (*point.dims.items(), *point.scalars.items())]
    return f"| {', '.join(values) or 'fixed'} | {point.calls} | {100 * part:.0f}% | {three_digits(point.eager_us)} us |"


def _more_sizes(points: Sequence[SizePoint]) -> str:
    return f"and {plural(len(points) - MOST_SIZES, 'more size')}" if len(points) > MOST_SIZES else ""


def useless_reply(why: str) -> str:
    """What is said after a reply in which there is no kernel."""
    return _fill("again", why=why)


def _repair(attempts: Sequence[Feedback]) -> str:
    *earlier, last = attempts
    tried = "".join(f"- {_kind(f)}: {f.detail.partition(chr(10))[0]}\n" for f in earlier)
    return _fill(
        "repair", kind=_kind(last), attempt=f" It was attempt {len(attempts)}." if earlier else "",
        source=_code(last.candidate.source), diagnosis=_quoted(last.detail),
        advice=_fill(f"mend_{_MEND.get(last.reason, 'rules')}"),
        earlier=f"What came of the attempts before:\n\n{tried}\n" if earlier else "",
    )  # fmt: skip


def _kind(feedback: Feedback) -> str:
    return (feedback.reason or feedback.outcome).replace("_", " ")


def _round(request: Request) -> str:
    if request.attempts:
        return _repair(request.attempts)
    history = _limits(request.usage) + _history(request) + _beside(request.beside)
    if request.parent is None:
        different = " Its design must differ from all of the above." if request.history else ""
        return _fill("scratch", history=history, different=different)
    judged = next((f for f in reversed(request.history) if f.candidate.id == request.parent.id), None)
    return _fill(
        "revise", history=history, parent_name=_name(judged), source=_code(request.parent.source),
        diagnosis=_quoted(judged.detail if judged is not None else "nothing yet"),
    )  # fmt: skip


def _beside(others: int) -> str:
    """Whoever is asked at the same time gets the same facts; what is alike is refused."""
    if not others:
        return ""
    who = "Another one is" if others == 1 else f"{others} others are"
    return f"\n{who} writing a kernel for this variant at this moment. Leave the {_ordinal(others)} to them.\n"


def _ordinal(others: int) -> str:
    return "first idea that comes to mind" if others == 1 else f"first {others} ideas that come to mind"


def _limits(usage: Usage) -> str:
    """What the judge has found out so far. Changes with the trials, so it is no part of the variant's text."""
    if usage.eager_us is None or usage.floor_us is None:
        return ""
    return (
        f"As the judge times a call, PyTorch takes {three_digits(usage.eager_us)} microseconds, and no kernel can take "
        f"less than {three_digits(usage.floor_us)}: by then a kernel has just been launched and its bytes moved.\n\n"
    )


def _history(request: Request) -> str:
    """A line per trial that is worth telling, oldest first."""
    if not request.history:
        return ""
    parent = request.parent.id if request.parent is not None else None
    fastest = _fastest_first(request.history)
    chosen = {
        *map(id, request.history[-NEWEST:]), *map(id, fastest[:FASTEST]),
        *(id(f) for f in request.history if parent and parent in (f.candidate.id, f.candidate.parent)),
    }  # fmt: skip
    told = [f for f in request.history if id(f) in chosen]
    by_candidate = {f.candidate.id: f for f in request.history}
    left_out = len(request.history) - len(told)
    head = f"{plural(len(request.history), 'kernel')} tried so far"
    if fastest:
        head += f"; the fastest is {_name(fastest[0])}"
    lines = [f"{head}{f' ({left_out} are left out here)' if left_out else ''}:", ""]
    lines += [_history_line(f, by_candidate.get(f.candidate.parent)) for f in told]
    return "\n".join(lines) + "\n"


def _fastest_first(history: Sequence[Feedback]) -> list[Feedback]:
    """By the kernels' own times, for a ratio is also high where PyTorch was disturbed; on the newest trial's device."""
    timed = [f for f in history if f.speedup is not None]
    here = [f for f in timed if f.device == timed[-1].device]
    unknown = float("inf")
    return sorted(here, key=lambda f: (f.disturbed, unknown if f.us is None else f.us, -(f.speedup or 0.0)))


def _history_line(feedback: Feedback, parent: Feedback | None) -> str:
    first = feedback.detail.partition("\n")[0]
    notes = " ".join(feedback.candidate.notes.split())[:MOST_NOTES]
    of = f", a revision of #{parent.number}" if parent is not None and parent.number else ""
    text = f"- {_name(feedback)}{of}"
    text += f": {notes}" if notes else ""
    return text if feedback.speedup is not None else f"{text}: {first}"


def _name(feedback: Feedback | None) -> str:
    if feedback is None:
        return "a kernel that was not judged here"
    number = f"#{feedback.number}" if feedback.number else "a kernel"
    if feedback.speedup is not None:
        own = "" if feedback.us is None else f"{three_digits(feedback.us)} us, "
        busy = ", timed while others used the machine" if feedback.disturbed else ""
        return f"{number} ({own}{three_digits(feedback.speedup)}x of PyTorch's speed{busy})"
    return f"{number} ({feedback.outcome.replace('_', ' ')})"


def _code(source: str) -> str:
    """A source as a code block that nothing in it can end."""
    longest = max((len(run) for run in re.findall(r"`+", source)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}c++\n{source.rstrip()}\n{fence}"


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines())


def _fill(name: str, **values: str) -> str:
    # Only the file's own names: a source that is put in may hold any dollar sign.
    return _template(name).substitute(values)


@lru_cache
def _template(name: str) -> Template:
    return Template(importlib.resources.files("kernelforge.generate.prompts").joinpath(f"{name}.md").read_text())
