"""What the CUDA emitters share: accesses of a thread, and the file around a kernel."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kernelforge.cards.types import Extent, Variant
from kernelforge.generate.emitter.cuda_text import PACK
from kernelforge.generate.emitter.expressions import c_extent
from kernelforge.generate.emitter.ir import Load, Store
from kernelforge.generate.emitter.loops import Nest, multiple_of
from kernelforge.generate.emitter.nest_writer import NestWriter
from kernelforge.generate.emitter.schedule import Schedule
from kernelforge.generate.emitter.signature import launch_head, wrapped
from kernelforge.generate.emitter.stages import Pass, passes
from kernelforge.operators.types import DTYPE_BYTES

_TAKEN = ("row", "col", "rows", "length", "columns", "kept", "workspace", "stream", "lane", "chunk", "vector", "first",
          "c", "k", "item", "end", "here", "next", "left", "blocks", "block", "count", "point", "points", "u", "kernel",
          "shared_bytes", "row_values")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Version:
    """Template arguments of the kernel, and the C condition under which launch picks them ("": in all other cases)."""

    condition: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """The parts of a file that differ between mappings: constants, the kernel's body, and the grid."""

    constants: tuple[str, ...]
    body: tuple[str, ...]
    sizes: tuple[str, ...]  # statements of launch that compute `blocks`
    empty: str  # the condition under which nothing is launched
    functions: str = ""
    shared: str = ""  # bytes of dynamic shared memory, as C
    template: str = ""  # template parameters of the kernel, if not those that `checks` asks for
    versions: tuple[Version, ...] = ()  # of that template, the last one without a condition


class CudaWriter(NestWriter):
    index = "Index"

    def __init__(self, nest: Nest, schedule: Schedule, variant: Variant) -> None:
        # 16-bit results hide the 2 ulp of float32 that the hardware's exponential and division lose.
        fast = all(DTYPE_BYTES[s.dtype] == 2 for s in nest.program.stores)
        super().__init__(nest, schedule, variant, "cuda", _TAKEN, fast=fast)
        self.plan = passes(nest, keep_loads=True)
        self._packs: dict[str, Load] = {}
        self._column = "col + k"

    # ---- accesses ----
    def is_packed(self, access: Load | Store) -> bool:
        return self.schedule.vector > 1 and access.strides[self.nest.row] == Extent(1)

    def _load(self, access: Load) -> str:
        if self.is_packed(access) and self._column != "j":
            self._packs[access.tensor] = access
            place = f"{access.tensor}_pack.item[k]"
        else:
            place = self.place(access, self._column)
        return self._real(access.dtype, place)

    def _real(self, dtype: str, place: str) -> str:
        compute = self.program.compute
        if dtype in ("float16", "bfloat16") or (
            (dtype == "float32") != (compute == "float") and dtype.startswith("float")
        ):
            return f"{compute}({place})"
        return place

    def _stored(self, store: Store, text: str) -> str:
        target = self.types[store.tensor].removesuffix("*")
        same = {"float32": "float", "float64": "double", "bool": "bool", "int64": "int64_t"}
        return text if same.get(store.dtype) in (self.program.compute, "bool", "int64_t") else f"{target}({text})"

    def point(self, step: Pass, column: str, kept: str) -> tuple[list[str], list[str]]:
        """Loads of packs before a point's loop over k, and the statements of the point itself."""
        self._packs, self._column = {}, column
        reads = dict.fromkeys(step.reads, kept) if kept else {}
        body, texts = self.rows.point(self.roots(step), reads)
        for reduce, text in zip(step.reduces, texts, strict=False):
            body += self._accumulate(reduce, text)
        stores: list[str] = []
        for index, text in zip(step.stores, texts[len(step.reduces) :], strict=True):
            store = self.program.stores[index]
            if self.is_packed(store) and column != "j":
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

    def vector_loop(self, step: Pass, kept: str) -> list[str]:
        """The statements for VEC adjacent points from `col` on."""
        loads, body, stores = self.vector_parts(step, kept)
        if self.schedule.vector > 1:
            body = ["#pragma unroll", "for (int k = 0; k < VEC; ++k) {", *indented(body), "}"]
        return [*loads, *body, *stores]

    def vector_parts(self, step: Pass, kept: str) -> tuple[list[str], list[str], list[str]]:
        """Packed loads, the statements for point `col + k`, and packed stores."""
        column = "col + k" if self.schedule.vector > 1 else "col"
        packed, body = self.point(step, column, kept)
        loads, stores = [], []
        for tensor, access in self._packs.items():
            element = self._element(tensor)
            loads.append(f"const Pack<{element}, VEC> {tensor}_pack = load<VEC>({self.row_name(access)} + col);")
        loads += [f"Pack<{self._element(t)}, VEC> {t}_packed;" for t in packed]
        for tensor in packed:
            store = next(s for s in self.program.stores if s.tensor == tensor)
            stores.append(f"store({self.row_name(store)} + col, {tensor}_packed);")
        return loads, body, stores

    def _element(self, tensor: str) -> str:
        return self.types[tensor].removeprefix("const ").removesuffix("*")

    # ---- the file ----
    def file(self, parts: Kernel) -> str:
        name, vector = self.program.title, self.schedule.vector
        template, versions = self._template(parts)
        body = "\n".join(parts.body)
        dims = [d.name for d in self.variant.dims if re.search(rf"\b{d.name}\b", body)]
        parameters = [
            f"{kind}{self.restrict} {tensor}"
            for tensor, kind in self.types.items()
            if re.search(rf"\b{tensor}\b", body)
        ]
        arguments = [t for t in self.types if re.search(rf"\b{t}\b", body)]
        for size, extent in self._sizes().items():
            if re.search(rf"\b{size}\b", body) and extent.constant is None:
                parameters.append(f"Index {size}")
                arguments.append(size)
        parameters += [f"Index {d}" for d in dims] + [f"double {s.name}" for s in self.variant.scalars]
        arguments += [f"Index({d})" for d in dims] + [s.name for s in self.variant.scalars]
        constants = [f"using Index = {'int64_t' if self.nest.wide else 'unsigned'};", *parts.constants]
        constants += [
            f"constexpr Index {n} = {e.constant};" for n, e in self._sizes().items() if e.constant is not None
        ]
        if vector > 1 and not template:
            constants.insert(1, f"constexpr int VEC = {vector};  // elements per access")
        head = [f"// {name} in CUDA. Schedule: {self.schedule.describe()}", *constants, ""]
        if vector > 1:
            head.append(PACK.replace("$STORE", _STREAMING if self.schedule.streaming else _PLAIN))
        kernel = [parts.functions] if parts.functions else []
        kernel += [f"template <{template}>"] if template else []
        kernel += [
            "__global__ void __launch_bounds__(THREADS)",
            wrapped(f"{name}_kernel(", parameters, ") {"),
            *indented(parts.body),
            "}",
            "",
        ]
        launch = self._launch(parts, name, arguments, versions)
        return "\n".join(
            line if not line.lstrip().startswith("#pragma") else line.lstrip() for line in [*head, *kernel, *launch, ""]
        )

    def _template(self, parts: Kernel) -> tuple[str, tuple[Version, ...]]:
        """Template parameters of the kernel, "" if it is no template, and its versions."""
        if parts.template:
            return parts.template, parts.versions
        checks, always = self.checks() if self.schedule.vector > 1 else ([], True)
        if always:
            return "", (Version("", ""),)
        return "int VEC", (Version(" && ".join(checks), str(self.schedule.vector)), Version("", "1"))

    @property
    def restrict(self) -> str:
        return "" if self.variant.mutates else " __restrict__"

    def _launch(self, parts: Kernel, name: str, arguments: list[str], versions: tuple[Version, ...]) -> list[str]:
        def call(vector: str) -> list[str]:
            kernel = f"{name}_kernel{vector}"
            lines = []
            if parts.shared:
                lines.append("if (shared_bytes > 48 * 1024)")
                lines.append(
                    f"  cudaFuncSetAttribute({kernel}, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes));"
                )
            shared = "shared_bytes" if parts.shared else "0"
            lines.append(wrapped(f"{kernel}<<<blocks, THREADS, {shared}, stream>>>(", arguments, ");"))
            return lines

        lines = [launch_head(self.variant, "cuda"), "  (void)workspace;", *indented(list(self._size_lines()))]
        lines += [f"  if ({parts.empty}) return 0;", *indented(list(parts.sizes))]
        if parts.shared:
            lines.append(f"  const size_t shared_bytes = {parts.shared};")
        calls = [call(f"<{version.arguments}>" if version.arguments else "") for version in versions]
        if len(calls) == 1:
            return [*lines, *indented(calls[0]), "  return cudaGetLastError();", "}"]
        for position, (version, text) in enumerate(zip(versions, calls, strict=True)):
            test = f"if ({version.condition}) {{" if version.condition else "{"
            lines += [f"  {'} else ' if position else ''}{test}", *indented(indented(text))]
        lines.append("  }")
        return [*lines, "  return cudaGetLastError();", "}"]

    def _sizes(self) -> dict[str, Extent]:
        sizes = {"rows": self.nest.rows} if self.nest.outer else {}
        sizes["length"] = self.nest.length
        if self.nest.inner is not None:
            sizes["columns"] = self.program.axes[self.nest.inner].size
        return sizes

    def _size_lines(self) -> list[str]:
        """Sizes that depend on dims, in launch; the others are constants of the file, so that their loops unroll."""
        return [f"const Index {n} = Index({c_extent(e)});" for n, e in self._sizes().items() if e.constant is None]

    def checks(self) -> tuple[list[str], bool]:
        """What must be a multiple of the vector for packed accesses, as C conditions; and whether it always is.

        A flat nest needs nothing: its last vector is cut by a scalar loop, and only its base must be aligned.
        """
        if not self.nest.outer and not self.program.reduced:
            return [], True
        needs = {self.nest.length}
        for access in self.program.accesses():
            if self.is_packed(access):
                needs.update(access.strides[a] for a in self.nest.outer if access.strides[a] != Extent(0))
        vector = self.schedule.vector
        open_needs = sorted((n for n in needs if multiple_of(n, self.variant) % vector), key=str)
        return [f"({c_extent(n)}) % {vector} == 0" for n in open_needs], not open_needs


def indented(lines: Iterable[str]) -> list[str]:
    return ["  " + part for line in lines for part in line.split("\n")]


_PLAIN = "*reinterpret_cast<Pack<T, VEC>*>(place) = pack;"
_STREAMING = """\
if constexpr (sizeof(pack) == 16) __stcs(reinterpret_cast<uint4*>(place), reinterpret_cast<const uint4&>(pack));
  else if constexpr (sizeof(pack) == 8) __stcs(reinterpret_cast<uint2*>(place), reinterpret_cast<const uint2&>(pack));
  else *reinterpret_cast<Pack<T, VEC>*>(place) = pack;"""
