"""Who does a candidate's work, by what its binary asks of the process. Owns `audit_binary`.

Runs before any code of the candidate does. Static evidence is a tripwire for what no kernel needs (loading further
code, processes, files, sockets, threads of its own, system calls in its machine code); the label `backend` marks
binaries that lean on a vendor's library or on a framework. Both are computed from the binary alone, never from what a
candidate says of itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from kernelforge.audit.allowed import is_allowed
from kernelforge.audit.elf import ElfError, SharedObject, read_shared_object
from kernelforge.audit.types import TORCH_TIER, AuditKind, AuditLabel
from kernelforge.verify.checks.strays import BACKEND_LIBRARIES
from kernelforge.verify.types import Rejected, RejectReason

Audit: TypeAlias = "AuditLabel | Rejected"

_WHERE = "the binary's dynamic symbols"

_BACKEND_SYMBOLS = (
    "cublas", "cudnn", "cusparse", "cusolver", "cufft", "cutensor", "nccl", "mkl_", "MKL_", "cblas_", "LAPACKE_",
    "dnnl_", "aoti_torch_", "THPVariable", "_ZN2at", "_ZNK2at", "_ZN3c10", "_ZNK3c10", "_ZN5torch", "_ZN4dnnl",
    "sgemm_", "dgemm_", "omp_target", "nvrtc", "Py", "_Py", "TVMFFIFunction", "TVMFFIEnv",
)  # fmt: skip
_LOADERS = {"dlopen", "dlmopen", "dlsym", "dlvsym", "dlinfo", "dl_iterate_phdr", "__libc_dlopen_mode", "__libc_dlsym"}
_PROCESSES = {
    "system", "popen", "fork", "vfork", "clone", "clone3", "execve", "execv", "execvp", "execvpe", "execl", "execlp",
    "execle", "fexecve", "posix_spawn", "posix_spawnp", "kill", "killpg", "tgkill", "ptrace", "prctl", "setsid",
    "process_vm_readv", "process_vm_writev", "syscall", "unshare", "setns", "seccomp", "personality", "daemon",
    "_exit", "_Exit", "exit", "quick_exit", "raise",
}  # fmt: skip
_FILES = {
    "open", "open64", "openat", "openat64", "creat", "fopen", "fopen64", "freopen", "fdopen", "opendir", "mmap",
    "mmap64", "mprotect", "mremap", "memfd_create", "shm_open", "read", "pread", "write", "pwrite", "send", "sendto",
    "sendmsg", "recv", "recvfrom", "recvmsg", "dup", "dup2", "dup3", "fcntl", "ioctl", "unlink", "rename", "readlink",
    "socket", "socketpair", "connect", "bind", "listen", "accept", "pipe", "pipe2", "getenv", "secure_getenv", "setenv",
    "putenv", "environ", "setrlimit", "mlock", "madvise", "puts", "printf", "fprintf", "dprintf", "vprintf", "vfprintf",
    "__printf_chk", "__fprintf_chk", "__vprintf_chk", "__vfprintf_chk", "putchar", "putc", "fputc", "fputs", "fwrite",
    "perror", "stdout", "stderr", "_ZSt4cout", "_ZSt4cerr", "writev", "fflush",
}  # fmt: skip
_ALLOCATORS = {
    "malloc", "calloc", "realloc", "reallocarray", "free", "posix_memalign", "aligned_alloc", "memalign", "valloc",
    "pvalloc", "strdup", "sbrk", "brk", "_Znwm", "_Znam", "_ZnwmSt11align_val_t", "_ZnamSt11align_val_t",
    "_ZnwmRKSt9nothrow_t", "_ZnamRKSt9nothrow_t", "_ZdlPv", "_ZdaPv", "_ZdlPvm", "_ZdaPvm",
}  # fmt: skip
MAX_STATIC_BYTES = 1024
"""Of writable memory that outlives a call. The linker's own few words fit; a cache of earlier results does not."""
_HIDERS = {
    "pthread_create", "thrd_create", "sigaction", "signal", "setitimer", "timer_create", "atexit", "on_exit",
    "__cxa_thread_atexit", "setjmp", "longjmp", "sigsetjmp", "siglongjmp", "omp_set_num_threads", "usleep", "nanosleep",
    "sleep", "clock_gettime", "gettimeofday", "clock", "time", "rand", "random", "srand", "getrandom", "backtrace",
}  # fmt: skip


_NEVER_ON_CUDA = {
    "system", "popen", "fork", "vfork", "execve", "execv", "execvp", "execvpe", "execl", "execlp", "execle", "fexecve",
    "posix_spawn", "posix_spawnp", "killpg", "tgkill", "ptrace", "process_vm_readv", "process_vm_writev", "unshare",
    "setns", "seccomp", "personality", "daemon", "memfd_create",
}  # fmt: skip
"""What CUDA's static run time has no use for either; it imports most other names that a CPU kernel must not."""
_NEVER_PREFIXES = ("_ZNSt6thread", "_ZNSt13basic_filebuf", "_ZNSt14basic_ofstream", "_ZNSt14basic_ifstream")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One reason to reject, with the evidence."""

    reason: RejectReason
    detail: str


def audit_binary(path: Path, *, device: str) -> Audit:
    """Label a built candidate, or reject it.

    Args:
        path: the shared object. device: "cpu" or "cuda"; a binary with CUDA's static run time in it legitimately
            imports loaders, files and threads, so there those names are evidence, not a verdict.

    Returns:
        The label, or Rejected with `delegated` (it loads further code), `tamper` (it reaches out of the process) or
        `forbidden` (it keeps state, or imports what no kernel needs).
    """
    try:
        binary = read_shared_object(path)
    except ElfError as error:
        return Rejected(reason=RejectReason.TAMPER, case=_WHERE, detail=f"the binary cannot be audited: {error}")
    finding = _finding(binary, static_cuda=device == "cuda")
    if finding is not None:
        return Rejected(reason=finding.reason, case=_WHERE, detail=finding.detail)
    return label_of(binary)


def audit_torch_module(path: Path) -> Audit:
    """Label a binary of the torch ABI, or reject it for what not even torch's headers bring along.

    What it computes itself cannot be told: all of torch is in its process.
    """
    try:
        binary = read_shared_object(path)
    except ElfError as error:
        return Rejected(reason=RejectReason.TAMPER, case=_WHERE, detail=f"the binary cannot be audited: {error}")
    found = sorted(n for n in binary.undefined if n in _NEVER_ON_CUDA or n.startswith(_NEVER_PREFIXES))
    if found:
        detail = _sentence(found, "starts processes or threads, or opens files")
        return Rejected(reason=RejectReason.TAMPER, case=_WHERE, detail=detail)
    needs = [f"needs {n}" for n in binary.needed]
    return AuditLabel(kind=AuditKind.TORCH, evidence=(TORCH_TIER, *needs))


def label_of(binary: SharedObject) -> AuditLabel:
    """`backend` if the binary leans on a vendor's library or a framework, else `generated`; with the evidence."""
    libraries = [n for n in binary.needed if n.lower().startswith(BACKEND_LIBRARIES)]
    symbols = [s for s in binary.undefined if s.startswith(_BACKEND_SYMBOLS)]
    evidence = [f"needs {n}" for n in binary.needed] + [f"imports {s}" for s in binary.undefined[:64]]
    if libraries or symbols:
        proof = [f"needs {n}" for n in libraries] + [f"imports {s}" for s in symbols]
        return AuditLabel(kind=AuditKind.BACKEND, evidence=tuple(proof[:32]))
    return AuditLabel(kind=AuditKind.GENERATED, evidence=tuple(evidence))


def _finding(binary: SharedObject, *, static_cuda: bool) -> Finding | None:
    if binary.search_paths:
        detail = f"the binary names library search paths of its own: {', '.join(binary.search_paths)}"
        return Finding(reason=RejectReason.DELEGATED, detail=detail)
    if binary.instructions:
        return Finding(reason=RejectReason.TAMPER, detail=_code_sentence(binary.instructions))
    imported = set(binary.undefined)
    if static_cuda:
        found = sorted(n for n in imported if n in _NEVER_ON_CUDA or n.startswith(_NEVER_PREFIXES))
        what = "starts processes or threads, or opens files"
        return Finding(reason=RejectReason.TAMPER, detail=_sentence(found, what)) if found else None
    loaders = sorted(imported & _LOADERS)
    if loaders:
        return Finding(reason=RejectReason.DELEGATED, detail=_sentence(loaders, "loads further code at run time"))
    for names, what in (
        (_PROCESSES, "starts, ends or reaches into processes"), (_FILES, "reaches files, sockets or memory mappings"),
        (_HIDERS, "starts threads, installs handlers, draws random numbers or reads clocks"),
    ):  # fmt: skip
        found = sorted(imported & names)
        if found:
            return Finding(reason=RejectReason.TAMPER, detail=_sentence(found, what))
    allocators = sorted(imported & _ALLOCATORS)
    if allocators:
        detail = f"the binary imports {', '.join(allocators)}: a kernel allocates nothing; use the workspace"
        return Finding(reason=RejectReason.FORBIDDEN, detail=detail)
    if binary.static_bytes > MAX_STATIC_BYTES:
        detail = (
            f"the binary keeps {binary.static_bytes} bytes of writable static memory: a kernel has no state between "
            "calls; make tables const, and use the workspace for what changes"
        )
        return Finding(reason=RejectReason.FORBIDDEN, detail=detail)
    if binary.ifuncs:
        return Finding(reason=RejectReason.TAMPER, detail=_sentence(binary.ifuncs, "runs code while it is loaded"))
    return _unusual(binary)


def _unusual(binary: SharedObject) -> Finding | None:
    """Names that are on no list of harmful ones, and on none of harmless ones either."""
    replaced = sorted(set(binary.defined) & (_LOADERS | _PROCESSES | _FILES | _ALLOCATORS | _HIDERS))
    if replaced:
        detail = f"the binary exports {', '.join(replaced)}: a kernel does not replace functions of the system"
        return Finding(reason=RejectReason.TAMPER, detail=detail)
    other = sorted(n for n in binary.undefined if not is_allowed(n) and not n.startswith(_BACKEND_SYMBOLS))
    if other:
        detail = (
            f"the binary imports {', '.join(other[:8])}: a kernel needs arithmetic, memcpy and the like, and OpenMP"
        )
        return Finding(reason=RejectReason.FORBIDDEN, detail=detail)
    return None


def _code_sentence(instructions: Iterable[str]) -> str:
    held = ", ".join(instructions)
    return f"the machine code holds {held}: a kernel makes no system calls, reads no clocks and keeps its code"


def _sentence(symbols: Iterable[str], what: str) -> str:
    return f"the binary imports {', '.join(symbols)}: a kernel that {what} is not judged; compute with the inputs only"
