"""A nest of loops as CUDA C++: one kernel per mapping, and a `launch` that picks between vector and scalar accesses."""

from __future__ import annotations

import re

from kernelforge.cards.types import Variant
from kernelforge.generate.emitter.cuda_text import reduction_functions
from kernelforge.generate.emitter.cuda_writer import CudaWriter, Kernel, indented
from kernelforge.generate.emitter.emit_straddle import StraddlingRows
from kernelforge.generate.emitter.ir import Load, Store
from kernelforge.generate.emitter.loops import Nest, bound
from kernelforge.generate.emitter.schedule import Schedule
from kernelforge.generate.emitter.stages import Pass


def emit_cuda(nest: Nest, schedule: Schedule, variant: Variant) -> str:
    """The source of one schedule; every mapping but "tile"."""
    if schedule.mapping == "straddle":
        return StraddlingRows(nest, schedule, variant).source()
    if schedule.mapping in ("flat", "rows"):
        return _Pointwise(nest, schedule, variant).source()
    if schedule.mapping == "thread_row":
        return _ThreadRows(nest, schedule, variant).source()
    return _SharedRows(nest, schedule, variant).source()


class _Pointwise(CudaWriter):
    """No reduction: points, or rows of points, shared out to threads."""

    def source(self) -> str:
        step = self.plan[-1]
        body = [*self._pointwise_indices(), *self.outer_indices(), *self.pointers()]
        body += [*self.rows.hoisted(self.roots(step)), *self._unrolled(step, tail=not self.nest.outer)]
        parts = Kernel(
            constants=self._pointwise_constants(), body=tuple(body), sizes=tuple(self._pointwise_grid()),
            empty=self._no_points(),
        )  # fmt: skip
        return self.file(parts)

    def _pointwise_indices(self) -> list[str]:
        """`row` and `first`, the row and column of this thread's first access."""
        vec, block = (" * VEC", "THREADS * UNROLL * VEC") if self.schedule.vector > 1 else ("", "THREADS * UNROLL")
        if not self.nest.outer:
            place = "static_cast<Index>(blockIdx.x) * (THREADS * UNROLL) + threadIdx.x"
            return [f"const Index first = ({place}){vec};" if vec else f"const Index first = {place};"]
        if self.schedule.mapping == "rows":
            column = "blockIdx.x % chunks * (THREADS * UNROLL) + threadIdx.x"
            return [
                f"const Index chunks = (length + {block} - 1) / ({block});", "const Index row = blockIdx.x / chunks;",
                f"const Index first = ({column}){vec};" if vec else f"const Index first = {column};",
            ]  # fmt: skip
        vectors = "const Index vectors = (length + VEC - 1) / VEC;" if vec else "const Index vectors = length;"
        return [
            vectors, "const Index point = static_cast<Index>(blockIdx.x) * THREADS + threadIdx.x;",
            f"const Index row = point / vectors, first = point % vectors{vec};", "if (row >= rows) return;",
        ]  # fmt: skip

    def _no_points(self) -> str:
        return "rows == 0 || length == 0" if self.nest.outer else "length == 0"

    def _pointwise_constants(self) -> tuple[str, ...]:
        lines = [f"constexpr int THREADS = {self.schedule.threads};"]
        if self._uses_unroll:
            lines.append(f"constexpr int UNROLL = {self.schedule.unroll};  // accesses of a thread, in flight at once")
        return tuple(lines)

    @property
    def _uses_unroll(self) -> bool:
        return not (self.nest.outer and self.schedule.mapping == "flat")

    def _pointwise_grid(self) -> list[str]:
        vector = f" * {self.schedule.vector}" if self.schedule.vector > 1 else ""
        if not self.nest.outer:
            return [f"constexpr int64_t BLOCK = int64_t(THREADS) * UNROLL{vector};  // points of a block",
                    "const unsigned blocks = unsigned((int64_t(length) + BLOCK - 1) / BLOCK);"]  # fmt: skip
        checks, always = self.checks() if self.schedule.vector > 1 else ([], True)
        width = str(self.schedule.vector) if always else f"({' && '.join(checks)} ? {self.schedule.vector} : 1)"
        if self.schedule.mapping == "rows":
            return [f"const int64_t chunk = int64_t(THREADS) * UNROLL * {width};  // points of a block",
                    "const unsigned blocks = unsigned(rows * ((length + chunk - 1) / chunk));"]  # fmt: skip
        return [f"const int64_t vectors = (int64_t(length) + {width} - 1) / {width};",
                "const unsigned blocks = unsigned((rows * vectors + THREADS - 1) / THREADS);"]  # fmt: skip

    def _unrolled(self, step: Pass, *, tail: bool) -> list[str]:
        """Up to UNROLL vectors; behind the last whole one of a flat nest, single points."""
        vector = self.schedule.vector > 1
        main = self.vector_loop(step, "")
        lines = []
        if tail and vector:
            _, scalar = self.point(step, "j", "")
            lines = ["if (col + VEC <= length) {", *indented(main), "} else {",
                     "  for (Index j = col; j < length; ++j) {", *indented(indented(scalar)), "  }", "}"]  # fmt: skip
        else:
            lines = ["if (col < length) {", *indented(main), "}"]
        if not self._uses_unroll:
            return ["const Index col = first;", *lines]
        step_text = "u * THREADS * VEC" if vector else "u * THREADS"
        return [
            "#pragma unroll",
            "for (int u = 0; u < UNROLL; ++u) {",
            f"  const Index col = first + {step_text};",
            *indented(lines),
            "}",
        ]


class _SharedRows(CudaWriter):
    """A row is shared by the threads of a part of a warp, or of a block."""

    def source(self) -> str:
        schedule, block = self.schedule, self.schedule.mapping == "block_row"
        body = [*self._row_setup(block), *self._kept_array()]
        for step in self.plan:
            body += self._row_pass(step, self._kept())
        kinds = {self.reduce_kind(r) for step in self.plan for r in step.reduces}
        rows = "rows" if self.nest.outer else "1"
        threads = f"unsigned((int64_t({rows}) * LANES + THREADS - 1) / THREADS)"
        item = "sizeof(double)" if self.program.compute == "double" else "sizeof(float)"
        parts = Kernel(
            constants=self._row_constants(block), body=tuple(body),
            sizes=(f"const unsigned blocks = {rows if block else threads};",), empty=f"{rows} == 0",
            functions="\n".join(reduction_functions(kind, self.program.compute, block) for kind in sorted(kinds)),
            shared=f"size_t(length) * {item}" if schedule.cache == "shared" else "",
        )  # fmt: skip
        return self.file(parts)

    def _row_constants(self, block: bool) -> tuple[str, ...]:
        schedule = self.schedule
        lanes = schedule.threads if block else schedule.lanes
        constants = [f"constexpr int THREADS = {schedule.threads};"]
        constants.append(f"constexpr int LANES = {'THREADS' if block else lanes};  // threads that share a row")
        if schedule.cache == "registers":
            items = -(-bound(self.nest.length, self.variant) // (lanes * schedule.vector)) * schedule.vector
            constants.append(f"constexpr int ITEMS = {items};  // of a row, per thread")
        return tuple(constants)

    def _kept(self) -> str:
        """Where a kept value of the current point lies."""
        by_vector = {"registers": "kept[chunk][k]", "shared": "kept[col + k]"}
        one_by_one = {"registers": "kept[chunk]", "shared": "kept[col]"}
        return (by_vector if self.schedule.vector > 1 else one_by_one).get(self.schedule.cache, "")

    def _kept_array(self) -> list[str]:
        compute, cache = self.program.compute, self.schedule.cache
        if cache == "shared":
            return [f"extern __shared__ {compute} kept[];  // each thread reads back only what it wrote"]
        if cache == "registers" and any(step.keeps for step in self.plan):
            return [f"{compute} kept[{'ITEMS / VEC][VEC' if self.schedule.vector > 1 else 'ITEMS'}];"]
        return []

    def _row_setup(self, block: bool) -> list[str]:
        if block:
            lines = ["const Index row = blockIdx.x;"] if self.nest.outer else []
            lines += ["const Index lane = threadIdx.x;", "const Index end = length;"]
        else:
            rows = "rows" if self.nest.outer else "1"
            # No early return: all lanes of a warp take part in its shuffles.
            lines = [
                "const Index thread = static_cast<Index>(blockIdx.x) * THREADS + threadIdx.x;",
                "const Index lane = thread % LANES;",
                f"const Index end = thread / LANES < {rows} ? length : 0;  // lanes behind the last row do nothing",
            ]
            if self.nest.outer:
                lines.append("const Index row = end ? thread / LANES : rows - 1;")
        return [*lines, *self.outer_indices(), *self.pointers()]

    def _row_pass(self, step: Pass, kept: str) -> list[str]:
        lines = self.rows.hoisted(self.roots(step))
        for reduce in step.reduces:
            zero = self.writer.zero_point(self.reduce_kind(reduce))
            lines.append(f"{self.program.compute} {self.writer.names[reduce]} = {zero};")
        if self.roots(step):
            body = self.vector_loop(step, kept)
            vector = " * VEC" if self.schedule.vector > 1 else ""
            if self.schedule.cache == "registers":
                count = "ITEMS / VEC" if vector else "ITEMS"
                index = f"(chunk * LANES + lane){vector}" if vector else "chunk * LANES + lane"
                lines += [
                    "#pragma unroll", f"for (int chunk = 0; chunk < {count}; ++chunk) {{",
                    f"  const Index col = {index};", "  if (col < end) {", *indented(indented(body)), "  }", "}",
                ]  # fmt: skip
            else:
                lines += [
                    f"#pragma unroll {max(1, self.schedule.unroll)}",
                    f"for (Index col = lane{vector}; col < end; col += LANES{vector}) {{", *indented(body), "}",
                ]  # fmt: skip
        for reduce in step.reduces:
            name = self.writer.names[reduce]
            lines.append(f"{name} = all_{self.reduce_kind(reduce)}<LANES>({name});")
            self.rows.known[reduce] = name
        rows = "rows" if self.nest.outer else "1"
        test = "lane == 0" + ("" if self.schedule.mapping == "block_row" else f" && thread / LANES < {rows}")
        for position in step.row_stores:
            statements, write = self.row_store(position)
            lines += [*statements, f"if ({test}) {write}"]
        return lines


class _ThreadRows(CudaWriter):
    """One thread per row: the reduced axis is not the last in memory."""

    def source(self) -> str:
        inner = self.nest.inner is not None
        points = " * ".join(["rows"] * bool(self.nest.outer) + ["columns"] * inner) or "1"
        body = [
            "const Index point = static_cast<Index>(blockIdx.x) * THREADS + threadIdx.x;",
            f"if (point >= {points}) return;",
        ]
        if inner:
            body.append("const Index first = point % columns;  // adjacent threads on adjacent columns")
        if self.nest.outer:
            body.append(f"const Index row = point{' / columns' if inner else ''};")
        body += [*self.outer_indices(), *self.pointers()]
        constants = [f"constexpr int THREADS = {self.schedule.threads};"]
        kept = ""
        if self.schedule.cache == "registers":
            constants.append(f"constexpr int ITEMS = {bound(self.nest.length, self.variant)};  // of a row at most")
            if any(step.keeps for step in self.plan):
                body.append(f"{self.program.compute} kept[ITEMS];")
            kept = "kept[col]"
        for step in self.plan:
            body += self._thread_pass(step, kept)
        count = " * ".join(f"int64_t({factor})" for factor in points.split(" * "))
        grid = (f"const unsigned blocks = unsigned(({count} + THREADS - 1) / THREADS);",)
        empty = " || ".join(f"{p} == 0" for p in points.split(" * "))
        return self.file(Kernel(tuple(constants), tuple(body), grid, empty))

    def place(self, access: Load | Store, column: str) -> str:
        # The inner axis is in the row's pointer already.
        term = super().place(access, column)
        return re.sub(r" \+ c( \* [^\]]*)?\]", "]", re.sub(r"\[c( \* [^\]]*)?\]", "[0]", term))

    def _thread_pass(self, step: Pass, kept: str) -> list[str]:
        lines = self.rows.hoisted(self.roots(step))
        for reduce in step.reduces:
            zero = self.writer.zero_point(self.reduce_kind(reduce))
            lines.append(f"{self.program.compute} {self.writer.names[reduce]} = {zero};")
        if self.roots(step):
            _, body = self.point(step, "col", kept)
            if kept:
                lines += [
                    "#pragma unroll",
                    "for (int col = 0; col < ITEMS; ++col) {",
                    "  if (col < length) {",
                    *indented(indented(body)),
                    "  }",
                    "}",
                ]
            else:
                lines += [
                    f"#pragma unroll {max(1, self.schedule.unroll)}",
                    "for (Index col = 0; col < length; ++col) {",
                    *indented(body),
                    "}",
                ]
        for reduce in step.reduces:
            self.rows.known[reduce] = self.writer.names[reduce]
        for position in step.row_stores:
            statements, write = self.row_store(position)
            lines += [*statements, write]
        return lines
