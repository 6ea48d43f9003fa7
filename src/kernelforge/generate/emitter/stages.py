"""A nest as a sequence of passes over a row: what each pass reduces, and what is worth keeping for the next one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernelforge.generate.emitter.expressions import Writer
from kernelforge.generate.emitter.ir import Const, Load, Reduce
from kernelforge.generate.emitter.loops import Nest


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One loop over the row.

    Attributes:
        reduces: values of kind Reduce that this pass computes.
        stores: positions of the program's stores that this pass writes, one per point.
        row_stores: stores of values that are the same for the whole row, written once after the loop.
        reads, keeps: values kept from earlier passes, and those to keep after this one, in the order of their arrays.
    """

    reduces: tuple[int, ...] = ()
    stores: tuple[int, ...] = ()
    row_stores: tuple[int, ...] = ()
    reads: tuple[int, ...] = ()
    keeps: tuple[int, ...] = ()


def keeps_loads(nest: Nest) -> bool:
    """On the CPU, reading a float32 row again costs what reading its copy would; a 16-bit one is converted again."""
    return any(load.dtype in ("float16", "bfloat16") for load in nest.program.loads())


def passes(nest: Nest, *, keep_loads: bool) -> tuple[Pass, ...]:
    """The passes of a nest: one per level of reductions, then one that stores (empty if all results are per row).

    Args:
        keep_loads: a loaded value is worth keeping, not only a computed one.
    """
    program, varying = nest.program, nest.row_varying
    depth = [0] * len(program.values)
    for index, value in enumerate(program.values):
        below = max((depth[a] for a in program.arguments(index)), default=0)
        depth[index] = below + 1 if isinstance(value.definition, Reduce) else below
    levels = max(depth)
    roots: list[list[int]] = []
    for level in range(levels):
        reduces = [
            i for i, v in enumerate(program.values) if isinstance(v.definition, Reduce) and depth[i] == level + 1
        ]
        roots.append(reduces)
    element_stores = [i for i, s in enumerate(program.stores) if varying[s.value] or not program.reduced]
    row_stores = [i for i in range(len(program.stores)) if i not in element_stores]
    final = [program.stores[i].value for i in element_stores]
    arguments = [[program.arguments(r)[0] for r in level] for level in roots] + [final]
    result: list[Pass] = []
    reads: tuple[int, ...] = ()
    for level, reduces in enumerate([*roots, []]):
        later = [v for group in arguments[level + 1 :] for v in group]
        keeps = _worth_keeping(nest, keep_loads, _computed(nest, arguments[level], reads), later, reads)
        last = level == levels
        result.append(
            Pass(
                reduces=tuple(reduces), stores=tuple(element_stores) if last else (),
                row_stores=tuple(row_stores) if last else (), reads=reads, keeps=() if last else keeps,
            )
        )  # fmt: skip
        reads = keeps
    return tuple(result)


def _computed(nest: Nest, roots: list[int], reads: tuple[int, ...]) -> set[int]:
    """Row-varying values that a pass evaluates."""
    varying, found, stack = nest.row_varying, set[int](), list(roots)
    while stack:
        value = stack.pop()
        if not varying[value] or value in found:
            continue
        found.add(value)
        if value not in reads:
            stack.extend(nest.program.arguments(value))
    return found


def _worth_keeping(
    nest: Nest, keep_loads: bool, computed: set[int], later: list[int], reads: tuple[int, ...]
) -> tuple[int, ...]:
    """The least computed values from which later passes can go on, if one array holds them; else nothing."""
    varying, leaves, seen, stack = nest.row_varying, set[int](), set[int](), list(later)
    while stack:
        value = stack.pop()
        if not varying[value] or value in seen:
            continue
        seen.add(value)
        if value in computed:
            leaves.add(value)
        elif not isinstance(nest.program.values[value].definition, Load):
            stack.extend(nest.program.arguments(value))
    if not keep_loads:
        leaves = {v for v in leaves if not isinstance(nest.program.values[v].definition, Load)}
    real = all(nest.program.values[v].kind == "real" for v in leaves)
    return tuple(sorted(leaves)) if len(leaves) == 1 and real else tuple(r for r in reads if r in leaves)


class RowWriter:
    """Writes the statements of passes; what is known of the current row carries over from pass to pass."""

    def __init__(self, nest: Nest, writer: Writer, load: Callable[[Load], str]) -> None:
        self._nest = nest
        self._writer = writer
        self._load = load
        self.known: dict[int, str] = {}

    def hoisted(self, roots: list[int]) -> list[str]:
        """Statements for everything that the roots need and that is the same along the row."""
        lines: list[str] = []
        for value in self.invariants(roots):
            text = self._writer.value(value, self.known, lines, self._load)
            if not text.replace("_", "").isalnum():
                kind = self._writer.c_type(self._nest.program.values[value].kind)
                lines.append(f"const {kind} {self._writer.names[value]} = {text};")
                text = self._writer.names[value]
            self.known[value] = text
        return lines

    def invariants(self, roots: list[int]) -> list[int]:
        """The row-invariant values that row-varying ones use, constants left out."""
        varying, program = self._nest.row_varying, self._nest.program
        found, seen, stack = set[int](), set[int](), list(roots)
        while stack:
            value = stack.pop()
            if value in seen:
                continue
            seen.add(value)
            if varying[value]:
                stack.extend(program.arguments(value))
            elif value not in self.known and not isinstance(program.values[value].definition, Const):
                found.add(value)
        return sorted(found)

    def point(self, roots: list[int], kept: dict[int, str]) -> tuple[list[str], list[str]]:
        """Statements at one point of the row, and the expressions of the roots after them."""
        lines: list[str] = []
        known = {**self.known, **kept}
        texts = [self._writer.value(r, known, lines, self._load) for r in roots]
        self.at_point = known
        return lines, texts
