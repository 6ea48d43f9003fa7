"""A nest of loops as CUDA C++: one kernel, and a `launch` that picks between vector and scalar accesses."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernelforge.cards.types import Extent, Variant
from kernelforge.generate.emitter.cuda_text import PACK, reduction_functions
from kernelforge.generate.emitter.expressions import c_extent
from kernelforge.generate.emitter.ir import Load, Store
from kernelforge.generate.emitter.loops import Nest, bound, multiple_of
from kernelforge.generate.emitter.nest_writer import NestWriter
from kernelforge.generate.emitter.schedule import Schedule
from kernelforge.generate.emitter.signature import launch_head, wrapped
from kernelforge.generate.emitter.stages import Pass, passes
from kernelforge.operators.types import DTYPE_BYTES

_TAKEN = ("row", "col", "rows", "length", "columns", "kept", "workspace", "stream", "lane", "chunk", "vector", "first",
          "c", "k", "item", "end", "here", "blocks", "count", "point", "u", "kernel", "shared_bytes")  # fmt: skip


def emit_cuda(nest: Nest, schedule: Schedule, variant: Variant) -> str:
    """The source of one schedule; every mapping but "tile"."""
    emitter = _Emitter(nest, schedule, variant)
    if schedule.mapping in ("flat", "rows"):
        return emitter.pointwise()
    if schedule.mapping == "thread_row":
        return emitter.thread_rows()
    return emitter.shared_rows()


@dataclass(frozen=True, slots=True)
class _Kernel:
    """The parts of a file that differ between mappings: constants, the kernel's body, and the grid."""

    constants: tuple[str, ...]
    body: tuple[str, ...]
    sizes: tuple[str, ...]  # statements of launch that compute `blocks`
    empty: str  # the condition under which nothing is launched
    functions: str = ""
    shared: str = ""  # bytes of dynamic shared memory, as C


class _Emitter(NestWriter):
    index = "Index"

    def __init__(self, nest: Nest, schedule: Schedule, variant: Variant) -> None:
        # 16-bit results hide the 2 ulp of float32 that the hardware's exponential and division lose.
        fast = all(DTYPE_BYTES[s.dtype] == 2 for s in nest.program.stores)
        super().__init__(nest, schedule, variant, "cuda", _TAKEN, fast=fast)
        self._plan = passes(nest, keep_loads=True)
        self._packs: dict[str, Load] = {}
        self._column = "col + k"

    # ---- accesses ----
    def _is_packed(self, access: Load | Store) -> bool:
        return self.schedule.vector > 1 and access.strides[self.nest.row] == Extent(1)

    def _load(self, access: Load) -> str:
        if self._is_packed(access) and self._column != "j":
            self._packs[access.tensor] = access
            place = f"{access.tensor}_pack.item[k]"
        else:
            place = self.place(access, self._column)
        return self._real(access.dtype, place)

    def _real(self, dtype: str, place: str) -> str:
        compute = self.program.compute
        if dtype in ("float16", "bfloat16") or (dtype == "float32") != (compute == "float") and dtype.startswith("float"):
            return f"{compute}({place})"
        return place

    def _stored(self, store: Store, text: str) -> str:
        target = self.types[store.tensor].removesuffix("*")
        same = {"float32": "float", "float64": "double", "bool": "bool", "int64": "int64_t"}
        return text if same.get(store.dtype) in (self.program.compute, "bool", "int64_t") else f"{target}({text})"

    def _point(self, step: Pass, column: str, kept: str) -> tuple[list[str], list[str]]:
        """Loads of packs before a point's loop over k, and the statements of the point itself."""
        self._packs, self._column = {}, column
        reads = {v: kept for v in step.reads} if kept else {}
        body, texts = self.rows.point(self.roots(step), reads)
        for reduce, text in zip(step.reduces, texts, strict=False):
            body += self._accumulate(reduce, text)
        stores: list[str] = []
        for index, text in zip(step.stores, texts[len(step.reduces) :], strict=True):
            store = self.program.stores[index]
            if self._is_packed(store) and column != "j":
                body.append(f"{store.tensor}_packed.item[k] = {self._stored(store, text)};")
                stores.append(store.tensor)
            else:
                body.append(f"{self.place(store, column)} = {self._stored(store, text)};")
        if kept and step.keeps and step.keeps != step.reads:
            body.append(f"{kept} = {self.rows.at_point[step.keeps[0]]};")
        return stores, body

    def _accumulate(self, reduce: int, text: str) -> list[str]:
        kind, total = self.reduce_kind(reduce), self.writer.names[reduce]
        if kind == "max":
            return [f"{total} = {'fmaxf' if self.program.compute == 'float' else 'fmax'}({total}, {text});"]
        if kind == "sum" or text.isidentifier():
            return [self.writer.combine(kind, total, text)]
        return [f"const {self.program.compute} item = {text};", self.writer.combine(kind, total, "item")]

    def _vector_loop(self, step: Pass, kept: str) -> list[str]:
        """The statements for VEC adjacent points from `col` on: packed loads, a loop over k, packed stores."""
        column = "col + k" if self.schedule.vector > 1 else "col"
        stores, body = self._point(step, column, kept)
        lines = []
        for tensor, access in self._packs.items():
            element = self._element(tensor)
            lines.append(f"const Pack<{element}, VEC> {tensor}_pack = load<VEC>({self.row_name(access)} + col);")
        lines += [f"Pack<{self._element(t)}, VEC> {t}_packed;" for t in stores]
        if self.schedule.vector > 1:
            lines += ["#pragma unroll", "for (int k = 0; k < VEC; ++k) {", *_indented(body), "}"]
        else:
            lines += body
        for tensor in stores:
            store = next(s for s in self.program.stores if s.tensor == tensor)
            lines.append(f"store({self.row_name(store)} + col, {tensor}_packed);")
        return lines

    def _element(self, tensor: str) -> str:
        return self.types[tensor].removeprefix("const ").removesuffix("*")

    # ---- the file ----
    def _file(self, parts: _Kernel) -> str:
        name, vector = self.program.title, self.schedule.vector
        checks = self._checks() if vector > 1 else ([], True)
        template = vector > 1 and not checks[1]
        body = "\n".join(parts.body)
        dims = [d.name for d in self.variant.dims if re.search(rf"\b{d.name}\b", body)]
        restrict = "" if self.variant.mutates else " __restrict__"
        parameters = [f"{kind}{restrict} {tensor}" for tensor, kind in self.types.items() if re.search(rf"\b{tensor}\b", body)]
        arguments = [t for t in self.types if re.search(rf"\b{t}\b", body)]
        for size in ("rows", "length", "columns"):
            if re.search(rf"\b{size}\b", body):
                parameters.append(f"Index {size}")
                arguments.append(size)
        parameters += [f"Index {d}" for d in dims] + [f"double {s.name}" for s in self.variant.scalars]
        arguments += [f"Index({d})" for d in dims] + [s.name for s in self.variant.scalars]
        constants = [f"using Index = {'int64_t' if self.nest.wide else 'unsigned'};", *parts.constants]
        if vector > 1 and not template:
            constants.insert(1, f"constexpr int VEC = {vector};  // elements per access")
        head = [f"// {name} in CUDA. Schedule: {self.schedule.describe()}", *constants, ""]
        if vector > 1:
            head.append(PACK.replace("$STORE", _STREAMING if self.schedule.streaming else _PLAIN))
        kernel = [parts.functions] if parts.functions else []
        kernel += ["template <int VEC>"] if template else []
        kernel += ["__global__ void __launch_bounds__(THREADS)", wrapped(f"{name}_kernel(", parameters, ") {"), *_indented(parts.body), "}", ""]
        launch = self._launch(parts, name, arguments, checks[0] if template else [])
        return "\n".join(line if not line.lstrip().startswith("#pragma") else line.lstrip() for line in [*head, *kernel, *launch, ""])

    def _launch(self, parts: _Kernel, name: str, arguments: list[str], checks: list[str]) -> list[str]:
        def call(vector: str) -> list[str]:
            kernel = f"{name}_kernel{vector}"
            lines = []
            if parts.shared:
                lines.append(f"cudaFuncSetAttribute({kernel}, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes));")
            shared = "shared_bytes" if parts.shared else "0"
            lines.append(wrapped(f"{kernel}<<<blocks, THREADS, {shared}, stream>>>(", arguments, ");"))
            return lines

        lines = [launch_head(self.variant, "cuda"), "  (void)workspace;", *_indented(list(self._size_lines()))]
        lines += [f"  if ({parts.empty}) return 0;", *_indented(list(parts.sizes))]
        if parts.shared:
            lines.append(f"  const size_t shared_bytes = {parts.shared};")
        if checks:
            lines += [f"  if ({' && '.join(checks)}) {{", *_indented(_indented(call(f"<{self.schedule.vector}>")))]
            lines += ["  } else {", *_indented(_indented(call("<1>"))), "  }"]
        else:
            lines += _indented(call(""))
        return [*lines, "  return cudaGetLastError();", "}"]

    def _size_lines(self) -> list[str]:
        lines = [f"const Index rows = Index({c_extent(self.nest.rows)});"] if self.nest.outer else []
        lines.append(f"const Index length = Index({c_extent(self.nest.length)});")
        if self.nest.inner is not None:
            lines.append(f"const Index columns = Index({c_extent(self.program.axes[self.nest.inner].size)});")
        return lines

    def _checks(self) -> tuple[list[str], bool]:
        """What must be a multiple of the vector for packed accesses, as C conditions; and whether it always is.

        A flat nest needs nothing: its last vector is cut by a scalar loop, and only its base must be aligned.
        """
        if not self.nest.outer and not self.program.reduced:
            return [], True
        needs = {self.nest.length}
        for access in (*self.program.loads(), *self.program.stores):
            if self._is_packed(access):
                needs.update(access.strides[a] for a in self.nest.outer if access.strides[a] != Extent(0))
        vector = self.schedule.vector
        open_needs = sorted((n for n in needs if multiple_of(n, self.variant) % vector), key=str)
        return [f"({c_extent(n)}) % {vector} == 0" for n in open_needs], not open_needs

    # ---- pointwise ----
    def pointwise(self) -> str:
        by_row = bool(self.nest.outer)
        step = self._plan[-1]
        unroll, vector = self.schedule.unroll, self.schedule.vector
        setup: list[str] = []
        if by_row and self.schedule.mapping == "rows":
            setup += ["const Index chunks = (length + THREADS * UNROLL * VEC - 1) / (THREADS * UNROLL * VEC);",
                      "const Index row = blockIdx.x / chunks;",
                      "const Index first = (blockIdx.x % chunks * (THREADS * UNROLL) + threadIdx.x) * VEC;"]  # fmt: skip
        elif by_row:
            setup += ["const Index vectors = (length + VEC - 1) / VEC;",
                      "const Index point = static_cast<Index>(blockIdx.x) * THREADS + threadIdx.x;",
                      "const Index row = point / vectors, first = point % vectors * VEC;", "if (row >= rows) return;"]  # fmt: skip
        else:
            setup.append("const Index first = (static_cast<Index>(blockIdx.x) * (THREADS * UNROLL) + threadIdx.x) * VEC;")
        setup += [*self.outer_indices(), *self.pointers(), *self.rows.hoisted(self.roots(step))]
        body = [*setup, *self._unrolled(step, tail=not by_row)]
        if vector == 1:
            body = [re.sub(r" \* VEC\b|\(length \+ VEC - 1\) / VEC", lambda m: "length" if "length" in m[0] else "", b) for b in body]
            body = [b.replace("(THREADS * UNROLL)", "THREADS * UNROLL").replace("% chunks * THREADS * UNROLL +", "% chunks * (THREADS * UNROLL) +") for b in body]
        return self._file(_Kernel(self._pointwise_constants(), tuple(body), tuple(self._pointwise_grid()), self._no_points()))

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
        checks, always = self._checks() if self.schedule.vector > 1 else ([], True)
        width = str(self.schedule.vector) if always else f"({' && '.join(checks)} ? {self.schedule.vector} : 1)"
        if self.schedule.mapping == "rows":
            return [f"const int64_t chunk = int64_t(THREADS) * UNROLL * {width};  // points of a block",
                    "const unsigned blocks = unsigned(rows * ((length + chunk - 1) / chunk));"]  # fmt: skip
        return [f"const int64_t vectors = (int64_t(length) + {width} - 1) / {width};",
                "const unsigned blocks = unsigned((rows * vectors + THREADS - 1) / THREADS);"]  # fmt: skip

    def _unrolled(self, step: Pass, *, tail: bool) -> list[str]:
        """Up to UNROLL vectors; behind the last whole one of a flat nest, single points."""
        vector = self.schedule.vector > 1
        main = self._vector_loop(step, "")
        lines = []
        if tail and vector:
            _, scalar = self._point(step, "j", "")
            lines = ["if (col + VEC <= length) {", *_indented(main), "} else {",
                     "  for (Index j = col; j < length; ++j) {", *_indented(_indented(scalar)), "  }", "}"]  # fmt: skip
        else:
            lines = ["if (col < length) {", *_indented(main), "}"]
        if not self._uses_unroll:
            return ["const Index col = first;", *lines]
        step_text = "u * THREADS * VEC" if vector else "u * THREADS"
        return ["#pragma unroll", "for (int u = 0; u < UNROLL; ++u) {", f"  const Index col = first + {step_text};", *_indented(lines), "}"]

    # ---- rows shared by the threads of a warp or of a block ----
    def shared_rows(self) -> str:
        schedule, block = self.schedule, self.schedule.mapping == "block_row"
        lanes = schedule.threads if block else schedule.lanes
        constants = [f"constexpr int THREADS = {schedule.threads};"]
        constants.append("constexpr int LANES = THREADS;  // threads that share a row" if block
                         else f"constexpr int LANES = {lanes};  // threads that share a row")  # fmt: skip
        length = bound(self.nest.length, self.variant)
        if schedule.cache == "registers":
            chunk = lanes * schedule.vector
            constants.append(f"constexpr int ITEMS = {-(-length // chunk) * schedule.vector};  // of a row, per thread")
        body = self._row_setup(block)
        kept = {"registers": "kept[chunk][k]" if schedule.vector > 1 else "kept[chunk]", "shared": "kept[col + k]"}.get(schedule.cache, "")
        if schedule.vector == 1:
            kept = kept.replace("col + k", "col")
        if schedule.cache == "registers" and any(step.keeps for step in self._plan):
            body.append(f"{self.program.compute} kept[{'ITEMS / VEC][VEC' if schedule.vector > 1 else 'ITEMS'}];")
        if schedule.cache == "shared":
            body.append(f"extern __shared__ {self.program.compute} kept[];  // each thread reads back only what it wrote")
        for step in self._plan:
            body += self._row_pass(step, kept)
        kinds = {self.reduce_kind(r) for step in self._plan for r in step.reduces}
        rows = "rows" if self.nest.outer else "1"
        grid = f"const unsigned blocks = {rows};" if block else f"const unsigned blocks = unsigned((int64_t({rows}) * LANES + THREADS - 1) / THREADS);"
        item = "sizeof(double)" if self.program.compute == "double" else "sizeof(float)"
        functions = "\n".join(reduction_functions(kind, self.program.compute, block) for kind in sorted(kinds))
        return self._file(_Kernel(
            tuple(constants), tuple(body), (grid,), f"{rows} == 0", functions,
            f"size_t(length) * {item}" if schedule.cache == "shared" else "",
        ))  # fmt: skip

    def _row_setup(self, block: bool) -> list[str]:
        if block:
            lines = ["const Index row = blockIdx.x;"] if self.nest.outer else []
            lines += ["const Index lane = threadIdx.x;", "const Index end = length;"]
        else:
            rows = "rows" if self.nest.outer else "1"
            # No early return: all lanes of a warp take part in its shuffles.
            lines = ["const Index thread = static_cast<Index>(blockIdx.x) * THREADS + threadIdx.x;",
                     "const Index lane = thread % LANES;",
                     f"const Index end = thread / LANES < {rows} ? length : 0;  // lanes behind the last row do nothing"]  # fmt: skip
            if self.nest.outer:
                lines.append("const Index row = end ? thread / LANES : rows - 1;")
        return [*lines, *self.outer_indices(), *self.pointers()]

    def _row_pass(self, step: Pass, kept: str) -> list[str]:
        lines = self.rows.hoisted(self.roots(step))
        for reduce in step.reduces:
            zero = self.writer.zero_point(self.reduce_kind(reduce))
            lines.append(f"{self.program.compute} {self.writer.names[reduce]} = {zero};")
        if self.roots(step):
            body = self._vector_loop(step, kept)
            vector = " * VEC" if self.schedule.vector > 1 else ""
            if self.schedule.cache == "registers":
                count = "ITEMS / VEC" if vector else "ITEMS"
                index = f"(chunk * LANES + lane){vector}" if vector else "chunk * LANES + lane"
                lines += ["#pragma unroll", f"for (int chunk = 0; chunk < {count}; ++chunk) {{", f"  const Index col = {index};",
                          "  if (col < end) {", *_indented(_indented(body)), "  }", "}"]  # fmt: skip
            else:
                lines += [f"#pragma unroll {max(1, self.schedule.unroll)}",
                          f"for (Index col = lane{vector}; col < end; col += LANES{vector}) {{", *_indented(body), "}"]  # fmt: skip
        for reduce in step.reduces:
            name = self.writer.names[reduce]
            lines.append(f"{name} = all_{self.reduce_kind(reduce)}<LANES>({name});")
            self.rows.known[reduce] = name
        for index in step.row_stores:
            store = self.program.stores[index]
            lines += self.rows.hoisted([store.value])
            statements, (text,) = self.rows.point([store.value], {})
            test = "lane == 0" if self.schedule.mapping == "block_row" else "lane == 0 && thread / LANES < " + ("rows" if self.nest.outer else "1")
            lines += [*statements, f"if ({test}) {self.place(store, '')} = {self._stored(store, text)};"]
        return lines

    # ---- one thread per row: the reduced axis is not the last in memory ----
    def thread_rows(self) -> str:
        inner = self.nest.inner is not None
        points = " * ".join(["rows"] * bool(self.nest.outer) + ["columns"] * inner) or "1"
        body = ["const Index point = static_cast<Index>(blockIdx.x) * THREADS + threadIdx.x;", f"if (point >= {points}) return;"]
        if inner:
            body.append("const Index first = point % columns;  // adjacent threads on adjacent columns")
        if self.nest.outer:
            body.append(f"const Index row = point{' / columns' if inner else ''};")
        body += [*self.outer_indices(), *self.pointers()]
        constants = [f"constexpr int THREADS = {self.schedule.threads};"]
        kept = ""
        if self.schedule.cache == "registers":
            constants.append(f"constexpr int ITEMS = {bound(self.nest.length, self.variant)};  // of a row at most")
            if any(step.keeps for step in self._plan):
                body.append(f"{self.program.compute} kept[ITEMS];")
            kept = "kept[col]"
        for step in self._plan:
            body += self._thread_pass(step, kept)
        grid = (f"const unsigned blocks = unsigned((int64_t({points.replace(' * ', ') * int64_t(')}) + THREADS - 1) / THREADS);",)
        empty = " || ".join(f"{p} == 0" for p in points.split(" * "))
        return self._file(_Kernel(tuple(constants), tuple(body), grid, empty))

    def place(self, access: Load | Store, column: str) -> str:
        if self.schedule.mapping != "thread_row":
            return super().place(access, column)
        # The inner axis is in the row's pointer already.
        term = super().place(access, column)
        return re.sub(r" \+ c( \* [^\]]*)?\]", "]", re.sub(r"\[c( \* [^\]]*)?\]", "[0]", term))

    def _thread_pass(self, step: Pass, kept: str) -> list[str]:
        lines = self.rows.hoisted(self.roots(step))
        for reduce in step.reduces:
            zero = self.writer.zero_point(self.reduce_kind(reduce))
            lines.append(f"{self.program.compute} {self.writer.names[reduce]} = {zero};")
        if self.roots(step):
            _, body = self._point(step, "col", kept)
            if kept:
                lines += ["#pragma unroll", "for (int col = 0; col < ITEMS; ++col) {", "  if (col < length) {", *_indented(_indented(body)), "  }", "}"]
            else:
                lines += [f"#pragma unroll {max(1, self.schedule.unroll)}", "for (Index col = 0; col < length; ++col) {", *_indented(body), "}"]
        for reduce in step.reduces:
            self.rows.known[reduce] = self.writer.names[reduce]
        for index in step.row_stores:
            store = self.program.stores[index]
            lines += self.rows.hoisted([store.value])
            statements, (text,) = self.rows.point([store.value], {})
            lines += [*statements, f"{self.place(store, '')} = {self._stored(store, text)};"]
        return lines


def _indented(lines: object) -> list[str]:
    return ["  " + part for line in lines for part in str(line).split("\n")]  # type: ignore[attr-defined]


_PLAIN = "*reinterpret_cast<Pack<T, VEC>*>(place) = pack;"
_STREAMING = """\
if constexpr (sizeof(pack) == 16) __stcs(reinterpret_cast<uint4*>(place), reinterpret_cast<const uint4&>(pack));
  else if constexpr (sizeof(pack) == 8) __stcs(reinterpret_cast<uint2*>(place), reinterpret_cast<const uint2&>(pack));
  else *reinterpret_cast<Pack<T, VEC>*>(place) = pack;"""
