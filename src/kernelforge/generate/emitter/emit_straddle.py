"""Pointwise nests with a value per row (a batch norm's scale) in CUDA, for rows of any length.

The whole tensor is one run of 16-byte accesses; where an access straddles the end of a row, its last points take the
values of the next row.
"""

from __future__ import annotations

import re

from kernelforge.cards.types import Extent, Variant
from kernelforge.generate.emitter.cuda_writer import CudaWriter, Kernel, Version, indented
from kernelforge.generate.emitter.ir import Load, Program, Store
from kernelforge.generate.emitter.loops import Nest, multiple_of
from kernelforge.generate.emitter.schedule import Schedule
from kernelforge.generate.emitter.signature import wrapped
from kernelforge.generate.emitter.stages import Pass


def can_straddle(nest: Nest) -> bool:
    """Whether every access either walks through all points in memory order, or stands still along the row."""
    program = nest.program
    along = [a for a in program.accesses() if a.strides[nest.row] != Extent(0)]
    return (
        bool(nest.outer)
        and not program.reduced
        and all(_is_dense(program, access) for access in along)
        and all(store in along for store in program.stores)
    )


def _is_dense(program: Program, access: Load | Store) -> bool:
    step = Extent(1)
    for axis, stride in zip(reversed(program.axes), reversed(access.strides), strict=True):
        if stride != step:
            return False
        step = step.times(axis.size)
    return True


class StraddlingRows(CudaWriter):
    """The mapping "straddle"; its schedule's vector is more than 1."""

    def __init__(self, nest: Nest, schedule: Schedule, variant: Variant) -> None:
        super().__init__(nest, schedule, variant)
        self._step = self.plan[-1]
        self._invariants = self.rows.invariants(self.roots(self._step))
        self._row_lines = self.rows.hoisted(self.roots(self._step))
        self._fields = {v: self.rows.known[v] for v in self._invariants}

    def source(self) -> str:
        schedule, vector = self.schedule, self.schedule.vector
        constants = (
            f"constexpr int THREADS = {schedule.threads};",
            f"constexpr int UNROLL = {schedule.unroll};  // accesses of a thread, in flight at once",
        )
        versions = self._versions()
        scalar = versions[-1].arguments == "1, false"
        width = f"(length >= {vector} ? {vector} : 1)" if scalar else str(vector)
        grid = (f"const int64_t block = int64_t(THREADS) * UNROLL * {width};  // points of a block",
                "const unsigned blocks = unsigned((int64_t(points) + block - 1) / block);")  # fmt: skip
        return self.file(
            Kernel(
                constants=constants, body=tuple(self._body()), sizes=grid, empty="points == 0",
                functions="\n".join(self._row_values()), template="int VEC, bool STRADDLES", versions=versions,
            )
        )  # fmt: skip

    def _sizes(self) -> dict[str, Extent]:
        return {"points": self.nest.points, "length": self.nest.length}

    def _versions(self) -> tuple[Version, ...]:
        """Rows of whole accesses, rows that accesses straddle, and rows shorter than an access."""
        vector, length = self.schedule.vector, self.nest.length
        if multiple_of(length, self.variant) % vector == 0:
            return (Version("", f"{vector}, false"),)
        straddling = Version("", f"{vector}, true")
        if length.constant is not None:
            return (straddling,)
        versions = [Version(f"length % {vector} == 0", f"{vector}, false"), straddling]
        if length.evaluate({d.name: d.low for d in self.variant.dims}) < vector:
            versions[1] = Version(f"length >= {vector}", straddling.arguments)
            versions.append(Version("", "1, false"))
        return tuple(versions)

    # ---- what is the same along a row ----
    def _row_values(self) -> list[str]:
        """`RowValues`, and the function that makes them for a row."""
        fields = [f"{self.writer.c_type(self.program.values[v].kind)} {name};" for v, name in self._fields.items()]
        names = ", ".join(self._fields.values())
        return [
            "// What is the same along a row.", f"struct RowValues {{ {' '.join(fields)} }};", "",
            wrapped("__device__ __forceinline__ RowValues row_values(", [*self._row_parameters(), "Index row"], ") {"),
            *indented(self._row_body()), f"  return {{{names}}};", "}", "",
        ]  # fmt: skip

    def _row_body(self) -> list[str]:
        pointers = _used(self.pointers(), self._row_lines)
        return [*_used(self.outer_indices(), pointers), *pointers, *self._row_lines]

    def _row_names(self) -> dict[str, str]:
        """The parameters of `row_values` but the row, with their types."""
        types = {t: f"{kind}{self.restrict}" for t, kind in self.types.items()}
        types |= {d.name: "Index" for d in self.variant.dims} | {s.name: "double" for s in self.variant.scalars}
        text = "\n".join(self._row_body())
        return {name: kind for name, kind in types.items() if re.search(rf"\b{name}\b", text)}

    def _row_parameters(self) -> list[str]:
        return [f"{kind} {name}" for name, kind in self._row_names().items()]

    def _row_call(self, row: str) -> str:
        return f"row_values({', '.join([*self._row_names(), row])})"

    def row_name(self, access: Load | Store) -> str:
        """Accesses that move along the row are addressed by the point's index."""
        return access.tensor if access.strides[self.nest.row] != Extent(0) else super().row_name(access)

    # ---- the kernel ----
    def _body(self) -> list[str]:
        whole = multiple_of(self.nest.points, self.variant) % self.schedule.vector == 0
        tail = [] if whole else ["} else {", *indented(self._tail(self._step))]
        return [
            "#pragma unroll",
            "for (int u = 0; u < UNROLL; ++u) {",
            "  const Index col = ((static_cast<Index>(blockIdx.x) * UNROLL + u) * THREADS + threadIdx.x) * VEC;",
            f"  if ({'col < points' if whole else 'col + VEC <= points'}) {{", *indented(indented(self._main())),
            *indented([*tail, "}"]), "}",
        ]  # fmt: skip

    def _main(self) -> list[str]:
        """VEC adjacent points, of one row or of two."""
        self.rows.known.update(self._fields)
        loads, loop, stores = self.vector_parts(self._step, "")
        chosen = [
            f"const {self.writer.c_type(self.program.values[v].kind)} {name} = k < left ? here.{name} : next.{name};"
            for v, name in self._fields.items()
        ]
        return [
            *loads,
            "const Index row = col / length, left = (row + 1) * length - col;  // points of the row from here on",
            f"const RowValues here = {self._row_call('row')};",
            "const RowValues next =", f"    STRADDLES && left < VEC ? {self._row_call('row + 1')} : here;",
            "#pragma unroll", "for (int k = 0; k < VEC; ++k) {", *indented([*chosen, *loop]), "}", *stores,
        ]  # fmt: skip

    def _tail(self, step: Pass) -> list[str]:
        """The last points, one by one."""
        self.rows.known.update({v: f"here.{name}" for v, name in self._fields.items()})
        _, body = self.point(step, "j", "")
        return ["for (Index j = col; j < points; ++j) {",
                f"  const RowValues here = {self._row_call('j / length')};", *indented(body), "}"]  # fmt: skip


def _used(declarations: list[str], lines: list[str]) -> list[str]:
    """The declarations `... name = ...;` whose name occurs in the lines."""
    text = "\n".join(lines)
    return [d for d in declarations if re.search(rf"\b{d.split(' = ')[0].split()[-1]}\b", text)]
