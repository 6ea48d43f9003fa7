"""The audit of binaries, against `nm` and against compiled sources."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from kernelforge.audit.allowed import is_allowed
from kernelforge.audit.elf import ElfError, read_shared_object
from kernelforge.audit.symbols import audit_binary, label_of
from kernelforge.audit.types import AuditKind, AuditLabel
from kernelforge.verify.types import Rejected, RejectReason

HONEST = """
#include <cmath>
extern "C" int launch(const float* x, float* out) {
  float row[64] = {};
  #pragma omp parallel for
  for (int i = 0; i < 64; ++i) out[i] = std::exp(x[i]) + row[i];
  return 0;
}
"""


def compile_shared(source: str, folder: Path, *flags: str) -> Path:
    """Compile a source to a shared object as a candidate is."""
    (folder / "k.cpp").write_text(source)
    command = ["g++", "-O2", "-fPIC", "-fopenmp", "-c", "k.cpp", "-o", "k.o"]
    subprocess.run(command, cwd=folder, check=True)
    subprocess.run(["g++", "-shared", "k.o", "-o", "k.so", *flags], cwd=folder, check=True)
    return folder / "k.so"


def names_by_nm(path: Path) -> tuple[set[str], set[str]]:
    """Undefined and defined dynamic symbols according to nm."""
    done = subprocess.run(["nm", "-D", str(path)], capture_output=True, text=True, check=True)
    undefined: set[str] = set()
    defined: set[str] = set()
    for line in done.stdout.splitlines():
        *_, kind, name = line.split()
        (undefined if kind in "Uwv" else defined).add(name.split("@")[0])
    return undefined, defined


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm to compare with")
def test_symbols_are_those_of_nm(tmp_path: Path) -> None:
    built = compile_shared(HONEST, tmp_path)
    for path in (built, Path(torch.__file__).parent / "lib" / "libshm.so"):
        mine = read_shared_object(path)
        undefined, defined = names_by_nm(path)
        assert set(mine.undefined) == undefined and set(mine.defined) == defined


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("float row[64] = {};", "static float kept[4000]; float* row = kept; kept[int(x[0])] = 1;"), "static memory"),
        (("float row[64] = {};", "thread_local float row[4000]; row[int(x[0])] = 1;"), "static memory"),
        (("float row[64] = {};", "float* row = new float[64];"), "allocates nothing"),
    ],
)
def test_state_between_calls_is_forbidden(tmp_path: Path, change: tuple[str, str], words: str) -> None:
    """A cache of results, keyed by pointer and a few elements, fooled every check that only looks at outputs."""
    rejected = audit_binary(compile_shared(HONEST.replace(*change), tmp_path), device="cpu")
    assert isinstance(rejected, Rejected) and rejected.reason is RejectReason.FORBIDDEN
    assert words in rejected.detail


def test_printing_is_tampering(tmp_path: Path) -> None:
    source = HONEST.replace("return 0;", 'puts("here"); return 0;').replace("<cmath>", "<cmath>\n#include <cstdio>")
    rejected = audit_binary(compile_shared(source, tmp_path), device="cpu")
    assert isinstance(rejected, Rejected) and rejected.reason is RejectReason.TAMPER


def test_an_honest_kernel_is_generated(tmp_path: Path) -> None:
    label = audit_binary(compile_shared(HONEST, tmp_path), device="cpu")
    assert isinstance(label, AuditLabel) and label.kind is AuditKind.GENERATED
    assert any("libm" in e or "exp" in e for e in label.evidence)


def test_a_stripped_binary_reads_the_same(tmp_path: Path) -> None:
    path = compile_shared(HONEST, tmp_path)
    before = read_shared_object(path)
    subprocess.run(["strip", str(path)], check=True)
    assert read_shared_object(path) == before


@pytest.mark.parametrize(
    ("symbol", "kind"), [("cublasGemmEx", AuditKind.BACKEND), ("mkl_sgemm", AuditKind.BACKEND),
                         ("_ZN2at4reluERKNS_6TensorE", AuditKind.BACKEND), ("erff", AuditKind.GENERATED)],
)  # fmt: skip
def test_vendor_symbols_are_named(tmp_path: Path, symbol: str, kind: AuditKind) -> None:
    source = f'extern "C" void {symbol}(); extern "C" int launch() {{ {symbol}(); return 0; }}'
    label = audit_binary(compile_shared(source, tmp_path), device="cpu")
    assert isinstance(label, AuditLabel) and label.kind is kind
    assert kind is AuditKind.GENERATED or f"imports {symbol}" in label.evidence


@pytest.mark.parametrize(
    ("call", "header", "reason"),
    [
        ('dlopen("x", 1)', "dlfcn.h", RejectReason.DELEGATED),
        ('dlsym(nullptr, "x")', "dlfcn.h", RejectReason.DELEGATED),
        ('system("x")', "cstdlib", RejectReason.TAMPER),
        ("fork()", "unistd.h", RejectReason.TAMPER),
        ("socket(1, 1, 0)", "sys/socket.h", RejectReason.TAMPER),
        ("syscall(39)", "unistd.h", RejectReason.TAMPER),
        ("_exit(0)", "unistd.h", RejectReason.TAMPER),
        ('fopen("x", "r")', "cstdio", RejectReason.TAMPER),
        ("get_nprocs()", "sys/sysinfo.h", RejectReason.FORBIDDEN),
    ],
)
def test_reaching_out_is_rejected(tmp_path: Path, call: str, header: str, reason: RejectReason) -> None:
    source = f'#include <{header}>\nextern "C" int launch() {{ (void){call}; return 0; }}'
    verdict = audit_binary(compile_shared(source, tmp_path), device="cpu")
    assert isinstance(verdict, Rejected) and verdict.reason is reason
    assert call.split("(", maxsplit=1)[0] in verdict.detail


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 machine code")
@pytest.mark.parametrize(
    ("code", "name"), [("syscall", "syscall"), ("rdtsc", "rdtsc"), ("int $0x80", "int 0x80"), ("rdtscp", "rdtscp")]
)
def test_instructions_that_reach_out_are_rejected(tmp_path: Path, code: str, name: str) -> None:
    """A system call needs no symbol."""
    path = compile_shared(HONEST.replace("return 0;", f'asm volatile("{code}"); return 0;'), tmp_path)
    rejected = audit_binary(path, device="cpu")
    assert isinstance(rejected, Rejected) and rejected.reason is RejectReason.TAMPER
    assert f"holds {name}:" in rejected.detail
    on_cuda = audit_binary(path, device="cuda")
    assert isinstance(on_cuda, Rejected) and on_cuda.reason is RejectReason.TAMPER


def test_bytes_of_a_system_call_within_other_instructions_are_none(tmp_path: Path) -> None:
    hidden = "mov $0x050f050f, %%eax; lea 0x50f(%%rax,%%rax,2), %%rax; movabs $0x050f050f050f, %%rax"
    constants = f'asm volatile("{hidden}" ::: "rax");'
    label = audit_binary(compile_shared(HONEST.replace("return 0;", constants + " return 0;"), tmp_path), device="cpu")
    assert isinstance(label, AuditLabel), label


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump to compare with")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 machine code")
def test_no_instruction_of_the_math_library_is_misread() -> None:
    """Scalar, AVX2 and AVX-512 code of 100,000 instructions; a length that is off by one derails all that follows."""
    library = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libm.so" in line)
    assert read_shared_object(Path(library)).instructions == ()
    assert read_shared_object(Path(library.replace("libm.so", "libc.so"))).instructions != ()


@pytest.mark.parametrize(
    ("name", "allowed"),
    [("expf", True), ("__expf_finite", True), ("_ZGVdN8v_expf", True), ("GOMP_parallel", True), ("__divti3", True),
     ("__extendhfsf2", True), ("omp_get_thread_num", True), ("memcpy", True), ("_ZSt20__throw_length_errorPKc", True),
     ("GOMP_target", False), ("_r_debug", False), ("_ZNSt6thread6detachEv", False), ("expired", False),
     ("omp_set_num_threads", False), ("program_invocation_name", False), ("getauxval", False)],
)  # fmt: skip
def test_what_a_kernel_may_import(name: str, allowed: bool) -> None:
    assert is_allowed(name) is allowed


@pytest.mark.parametrize("symbol", ["system", "fork", "memfd_create"])
def test_what_the_cuda_run_time_does_not_need_is_rejected_there_too(tmp_path: Path, symbol: str) -> None:
    source = f'extern "C" int {symbol}(const char*, int); extern "C" int launch() {{ return {symbol}("x", 0); }}'
    rejected = audit_binary(compile_shared(source, tmp_path), device="cuda")
    assert isinstance(rejected, Rejected) and rejected.reason is RejectReason.TAMPER
    assert isinstance(audit_binary(compile_shared(HONEST, tmp_path), device="cuda"), AuditLabel)


def test_a_search_path_of_its_own_is_rejected(tmp_path: Path) -> None:
    verdict = audit_binary(compile_shared(HONEST, tmp_path, "-Wl,-rpath,/tmp"), device="cpu")
    assert isinstance(verdict, Rejected) and verdict.reason is RejectReason.DELEGATED


def test_torch_itself_is_a_backend() -> None:
    library = Path(torch.__file__).parent / "lib" / "libtorch_python.so"
    assert label_of(read_shared_object(library)).kind is AuditKind.BACKEND


def test_what_is_no_binary(tmp_path: Path) -> None:
    whole = compile_shared(HONEST, tmp_path).read_bytes()
    for index, data in enumerate((b"", b"text", whole[:100], whole[: len(whole) // 3], b"\x7fELF\x02\x01" + bytes(60))):
        path = tmp_path / f"bad{index}.so"
        path.write_bytes(data)
        with pytest.raises(ElfError):
            read_shared_object(path)
        verdict = audit_binary(path, device="cpu")
        assert isinstance(verdict, Rejected) and verdict.reason is RejectReason.TAMPER
