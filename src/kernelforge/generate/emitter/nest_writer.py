"""What the emitters of all backends share: row pointers, offsets, and the places of accesses."""

from __future__ import annotations

from abc import ABC, abstractmethod

from kernelforge.cards.types import Extent, Variant
from kernelforge.generate.emitter.expressions import Backend, Writer, atom, c_extent, scaled
from kernelforge.generate.emitter.ir import Count, Load, Program, Reduce, ReduceKind, Store
from kernelforge.generate.emitter.loops import Nest
from kernelforge.generate.emitter.schedule import Schedule
from kernelforge.generate.emitter.signature import tensor_declarations
from kernelforge.generate.emitter.stages import Pass, RowWriter


class NestWriter(ABC):
    """Names and addresses of one nest in one source. `index` is the C type of an index.

    Args:
        taken: identifiers that the backend's own text uses.
        fast: hardware approximations are exact enough.
    """

    index = "int64_t"

    def __init__(
        self, nest: Nest, schedule: Schedule, variant: Variant, backend: Backend, taken: tuple[str, ...], *,
        fast: bool = False,
    ) -> None:  # fmt: skip
        self.nest = nest
        self.schedule = schedule
        self.variant = variant
        self.types = tensor_declarations(variant, backend)
        names = (*taken, *self.types, *(d.name for d in variant.dims), *(s.name for s in variant.scalars))
        self.writer = Writer(nest.program, backend, fast=fast, taken=names)
        self.rows = RowWriter(nest, self.writer, self._load)
        for index, value in enumerate(nest.program.values):
            if isinstance(value.definition, Count):
                self.rows.known[index] = f"{nest.program.compute}(length)"

    @property
    def program(self) -> Program:
        return self.nest.program

    @abstractmethod
    def _load(self, access: Load) -> str: ...

    @abstractmethod
    def _stored(self, store: Store, text: str) -> str: ...

    def roots(self, step: Pass) -> list[int]:
        reduced = [self.program.arguments(r)[0] for r in step.reduces]
        return reduced + [self.program.stores[i].value for i in step.stores]

    def reduce_kind(self, reduce: int) -> ReduceKind:
        definition = self.program.values[reduce].definition
        assert isinstance(definition, Reduce)
        return definition.kind

    def row_store(self, position: int) -> tuple[list[str], str]:
        """A store of a value that is the same for the whole row: statements before it, and the store itself."""
        store = self.program.stores[position]
        lines = self.rows.hoisted([store.value])
        statements, (text,) = self.rows.point([store.value], {})
        return [*lines, *statements], f"{self.place(store, '')} = {self._stored(store, text)};"

    def row_name(self, access: Load | Store) -> str:
        """The pointer to the access' row: the tensor itself where that is the same for all rows."""
        moves = any(access.strides[a] != Extent(0) for a in self.row_axes())
        return f"{access.tensor}_row" if moves else access.tensor

    def row_axes(self) -> tuple[int, ...]:
        inner = (self.nest.inner,) if self.nest.inner is not None and self.schedule.mapping != "flat" else ()
        return (*self.nest.outer, *inner)

    def outer_indices(self) -> list[str]:
        """`i0`, `i1`, ... from `row`, where there is more than one outer axis."""
        if len(self.nest.outer) < 2:
            return []
        lines, rest = [], "row"
        for axis in reversed(self.nest.outer):
            size = atom(c_extent(self.program.axes[axis].size))
            last = axis == self.nest.outer[0]
            lines.append(f"const {self.index} i{axis} = {rest}" + (";" if last else f" % {size};"))
            rest = f"{rest} / {size}"
        return lines

    def pointers(self) -> list[str]:
        lines = {}
        for access in self.program.accesses():
            offsets = self.offsets(access.strides)
            if offsets:
                place = " + ".join([access.tensor, *offsets])
                lines[access.tensor] = f"{self.types[access.tensor]} {access.tensor}_row = {place};"
        return list(lines.values())

    def offsets(self, strides: tuple[Extent, ...]) -> list[str]:
        single = len(self.nest.outer) == 1
        index = {axis: "row" if single else f"i{axis}" for axis in self.nest.outer}
        if self.nest.inner is not None:
            index[self.nest.inner] = "first"
        return [scaled(index[axis], strides[axis]) for axis in self.row_axes() if strides[axis] != Extent(0)]

    def place(self, access: Load | Store, column: str) -> str:
        terms = [scaled(column, access.strides[self.nest.row])] if access.strides[self.nest.row] != Extent(0) else []
        if self.nest.inner is not None and access.strides[self.nest.inner] != Extent(0):
            terms.append(scaled("c", access.strides[self.nest.inner]))
        return f"{self.row_name(access)}[{' + '.join(terms) or '0'}]"
