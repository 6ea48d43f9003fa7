"""A nest of loops as C++ for the CPU: plain loops that the compiler vectorises, shared among threads by OpenMP."""

from __future__ import annotations

from kernelforge.cards.types import Variant
from kernelforge.generate.emitter.expressions import c_extent
from kernelforge.generate.emitter.functions import cpu_functions
from kernelforge.generate.emitter.ir import Load, Store
from kernelforge.generate.emitter.loops import Nest, bound
from kernelforge.generate.emitter.nest_writer import NestWriter
from kernelforge.generate.emitter.schedule import Schedule
from kernelforge.generate.emitter.signature import launch_head
from kernelforge.generate.emitter.stages import Pass, keeps_loads, passes

_TAKEN = ("row", "col", "rows", "length", "columns", "kept", "workspace", "tile", "tiles", "first", "last", "width",
          "c", "item", "block", "chunk", "one_row", "one_block", "one_chunk", "begin", "end")  # fmt: skip
_CHUNK = 2048  # points of a flat nest that a thread takes at a time
_LONG = 8192  # a sum of more terms is added up in parts: in one chain of additions it would lose digits
_PART = 256


def emit_cpp(nest: Nest, schedule: Schedule, variant: Variant) -> str:
    """The source of one schedule: mapping "flat", "rows" or "tile"."""
    emitter = _Emitter(nest, schedule, variant)
    body = emitter.tiled() if schedule.mapping == "tile" else emitter.by_rows()
    return emitter.source(body)


class _Emitter(NestWriter):
    def __init__(self, nest: Nest, schedule: Schedule, variant: Variant) -> None:
        super().__init__(nest, schedule, variant, "cpp", _TAKEN)
        self._plan = passes(nest, keep_loads=keeps_loads(nest))
        self._functions: set[str] = set()

    # ---- the file ----
    def source(self, body: list[str]) -> str:
        functions = cpu_functions(self.writer.functions | self._functions)
        constants = []
        if self.schedule.mapping == "tile":
            constants.append(
                f"constexpr int64_t TILE = {self.schedule.vector};  // columns that go through the passes together"
            )
        if not self.nest.outer and not self.program.reduced:
            constants.append(f"constexpr int64_t CHUNK = {_CHUNK};  // points that a thread takes at a time")
        if any(map(self._in_parts, self._plan)):
            constants.append(f"constexpr int64_t PART = {_PART};  // terms of a sum that are added up on their own")
        constants.append(
            f"constexpr int64_t GRAIN = {self.schedule.grain};  // points below which one thread does it all"
        )
        head = f"// {self.program.title} on the CPU. Schedule: {self.schedule.describe()}"
        lines = [
            launch_head(self.variant, "cpp"),
            "  (void)workspace;",
            *("  " + line for line in body),
            "  return 0;",
            "}",
        ]
        # Pragmas start at the margin.
        lines = [line.lstrip() if line.lstrip().startswith("#pragma") else line.rstrip() for line in lines]
        return "\n".join([head, *([functions] if functions else []), *constants, "", *lines, ""])

    def _sizes(self) -> list[str]:
        lines = []
        if self.nest.outer:
            lines.append(f"const int64_t rows = {c_extent(self.nest.rows)};")
        lines.append(f"const int64_t length = {c_extent(self.nest.length)};")
        if self.nest.inner is not None:
            lines.append(f"const int64_t columns = {c_extent(self.program.axes[self.nest.inner].size)};")
        return lines

    @property
    def _points(self) -> str:
        factors = ["rows"] * bool(self.nest.outer) + ["length"] + ["columns"] * (self.nest.inner is not None)
        return " * ".join(factors)

    # ---- a row at a time ----
    def by_rows(self) -> list[str]:
        outer = bool(self.nest.outer)
        plan = self._plan
        lines = [*self._sizes(), *self._empty()]
        if not outer and not self.program.reduced:
            lines += self.rows.hoisted([s.value for s in self.program.stores])
            chunk = ["const int64_t first = chunk * CHUNK, last = std::min(first + CHUNK, length);"]
            chunk += self._loop(plan[-1], "last", start="first")
            return [*lines, *self._shared("chunk", "(length + CHUNK - 1) / CHUNK", chunk)]
        inner = [*self.outer_indices(), *self.pointers()]
        kept = self._kept()
        if self.schedule.cache == "buffer":
            inner.append(f"{self.program.compute} kept[{bound(self.nest.length, self.variant)}];")
        for step in plan:
            inner += self._pass(step, kept)
        if not outer:
            return [*lines, *inner]
        return [*lines, *self._shared("row", "rows", inner)]

    def _shared(self, index: str, count: str, body: list[str]) -> list[str]:
        """`body` for every index below `count`, shared among threads where there is enough to do.

        A branch and no `if` clause: that would still enter a parallel region, and turn an inner `simd` off with it.
        """
        loop = f"for (int64_t {index} = 0; {index} < {count}; ++{index}) one_{index}({index});"
        return [
            f"const auto one_{index} = [=](int64_t {index}) {{", *("  " + line for line in body), "};",
            f"if ({self._points} < GRAIN) {{", f"  {loop}", "} else {", "#pragma omp parallel for schedule(static)",
            f"  {loop}", "}",
        ]  # fmt: skip

    def _empty(self) -> list[str]:
        """A reduction over nothing still has a result, so only a space without rows ends early."""
        if self.program.reduced and not self.nest.outer:
            return []
        test = "rows" if self.program.reduced else self._points
        return [f"if ({test} == 0) return 0;"]

    def _kept(self) -> str:
        if self.schedule.cache == "output":
            return self.place(self.program.stores[0], "col")
        return "kept[col]" if self.schedule.cache == "buffer" else ""

    def _pass(self, step: Pass, kept: str) -> list[str]:
        roots = self.roots(step)
        lines = self.rows.hoisted(roots)
        for reduce in step.reduces:
            zero = self.writer.zero_point(self.reduce_kind(reduce))
            lines.append(f"{self.program.compute} {self.writer.names[reduce]} = {zero};")
        if roots and self._in_parts(step):
            part = [f"{self.program.compute} {self._part(r)} = {self._zero(r)};" for r in step.reduces]
            part += self._loop(step, "end", start="begin", kept=kept, total="_part")
            part += [self._combined(r) for r in step.reduces]
            lines += self._parts(part)
        elif roots:
            lines += self._loop(step, "length", kept=kept)
        for reduce in step.reduces:
            self.rows.known[reduce] = self.writer.names[reduce]
        for position in step.row_stores:
            statements, write = self.row_store(position)
            lines += [*statements, write]
        return lines

    def _in_parts(self, step: Pass) -> bool:
        long = bound(self.nest.length, self.variant) > _LONG
        return long and any(self.reduce_kind(r) == "sum" for r in step.reduces)

    def _parts(self, body: list[str]) -> list[str]:
        return [
            "for (int64_t begin = 0; begin < length; begin += PART) {",
            "  const int64_t end = std::min(begin + PART, length);", *("  " + line for line in body), "}",
        ]  # fmt: skip

    def _part(self, reduce: int) -> str:
        return self.writer.names[reduce] + "_part"

    def _zero(self, reduce: int) -> str:
        return self.writer.zero_point(self.reduce_kind(reduce))

    def _combined(self, reduce: int, suffix: str = "") -> str:
        total, part = self.writer.names[reduce] + suffix, self._part(reduce) + suffix
        return self.writer.combine(self.reduce_kind(reduce), total, part)

    def _loop(
        self, step: Pass, end: str, *, start: str = "0", kept: str = "", index: str = "col", total: str = "",
        clauses: bool = True,
    ) -> list[str]:  # fmt: skip
        """The loop of a pass over `index`; running reductions are variables, or arrays over it (`total`)."""
        lines = [" ".join(["#pragma omp simd", *(self._clause(r, total) for r in step.reduces if clauses)])]
        lines.append(f"for (int64_t {index} = {start}; {index} < {end}; ++{index}) {{")
        reads = dict.fromkeys(step.reads, kept) if kept else {}
        roots = self.roots(step)
        body, texts = self.rows.point(roots, reads)
        for reduce, text in zip(step.reduces, texts, strict=False):
            body += self._accumulate(reduce, text, total)
        for position, text in zip(step.stores, texts[len(step.reduces) :], strict=True):
            store = self.program.stores[position]
            body.append(f"{self.place(store, 'col')} = {self._stored(store, text)};")
        if kept and step.keeps and step.keeps != step.reads:
            value = step.keeps[0]
            body.append(f"{kept} = {self.rows.at_point[value]};")
        return [*lines, *("  " + line for line in body), "}"]

    def _clause(self, reduce: int, suffix: str) -> str:
        kind = self.reduce_kind(reduce)
        symbol = {"sum": "+", "max": "max", "amax": "max", "amin": "min"}[kind]
        return f"reduction({symbol} : {self.writer.names[reduce]}{suffix})"

    def _accumulate(self, reduce: int, text: str, suffix: str) -> list[str]:
        kind = self.reduce_kind(reduce)
        total = self.writer.names[reduce] + suffix
        if kind == "sum" or text.replace("_", "").isalnum():
            return [self.writer.combine(kind, total, text)]
        return [f"const {self.program.compute} item = {text};", self.writer.combine(kind, total, "item")]

    # ---- accesses ----
    def _load(self, access: Load) -> str:
        place = self.place(access, "col")
        if access.dtype == "float16":
            self._functions.add("half")
            return self._real(f"half_to_float({place})")
        if access.dtype == "bfloat16":
            return self._real(f"kf::bf16_to_float({place})")
        if access.dtype == "float32":
            return self._real(place)
        return place

    def _real(self, text: str) -> str:
        return f"double({text})" if self.program.compute == "double" else text

    def _stored(self, store: Store, text: str) -> str:
        if store.dtype == "float16":
            self._functions.add("half")
            return f"float_to_half({text})"
        if store.dtype == "bfloat16":
            return f"kf::float_to_bf16({text})"
        if store.dtype in ("float32", "float64", "bool", "int64"):
            return text if (store.dtype == "float32") == (self.program.compute == "float") else f"float({text})"
        return f"static_cast<{self.types[store.tensor].rstrip('*')}>({text})"

    # ---- a tile of columns at a time: the reduced axis is not the last in memory ----
    def tiled(self) -> list[str]:
        rows = "rows * tiles" if self.nest.outer else "tiles"
        inner = ["const int64_t first = block % tiles * TILE;"]
        if self.nest.outer:
            inner.append("const int64_t row = block / tiles;")
        inner.append("const int64_t width = columns - first < TILE ? columns - first : TILE;")
        inner += [*self.outer_indices(), *self.pointers()]
        for step in self._plan:
            inner += self._tile_pass(step, self._kept())
        return [
            *self._sizes(), "const int64_t tiles = (columns + TILE - 1) / TILE;", f"if ({rows} == 0) return 0;",
            *self._shared("block", rows, inner),
        ]  # fmt: skip

    def _tile_pass(self, step: Pass, kept: str) -> list[str]:
        roots = self.roots(step)
        lines = self._column_values(roots)
        for reduce in step.reduces:
            lines += self._zeros(self.writer.names[reduce], reduce)
        if roots and self._in_parts(step):
            part = [line for r in step.reduces for line in self._zeros(self._part(r), r)]
            loop = self._loop(step, "width", kept=kept, index="c", total="_part[c]", clauses=False)
            part += ["for (int64_t col = begin; col < end; ++col) {", *("  " + line for line in loop), "}"]
            sums = [self._combined(r, "[c]") for r in step.reduces]
            part += ["for (int64_t c = 0; c < width; ++c) {", *("  " + line for line in sums), "}"]
            lines += self._parts(part)
        elif roots:
            loop = self._loop(step, "width", kept=kept, index="c", total="[c]", clauses=False)
            lines += ["for (int64_t col = 0; col < length; ++col) {", *("  " + line for line in loop), "}"]
        for reduce in step.reduces:
            self.rows.known[reduce] = f"{self.writer.names[reduce]}[c]"
        for position in step.row_stores:
            store = self.program.stores[position]
            statements, (text,) = self.rows.point([store.value], {})
            body = [*statements, f"{self.place(store, '')} = {self._stored(store, text)};"]
            lines += ["for (int64_t c = 0; c < width; ++c) {", *("  " + line for line in body), "}"]
        return lines

    def _zeros(self, name: str, reduce: int) -> list[str]:
        kind = self.program.compute
        return [f"{kind} {name}[TILE];", f"std::fill_n({name}, TILE, {kind}({self._zero(reduce)}));"]

    def _column_values(self, roots: list[int]) -> list[str]:
        """What is the same along the row: one number per column of the tile."""
        lines: list[str] = []
        for value in self.rows.invariants(roots):
            name = f"column_{self.writer.names[value]}"
            body, (text,) = self.rows.point([value], {})
            lines += [
                f"{self.program.compute} {name}[TILE];",
                "#pragma omp simd",
                "for (int64_t c = 0; c < width; ++c) {",
            ]
            lines += [*("  " + line for line in body), f"  {name}[c] = {text};", "}"]
            self.rows.known[value] = f"{name}[c]"
        return lines
