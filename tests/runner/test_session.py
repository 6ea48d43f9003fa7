"""The runner: results, everything a candidate may do to its process, and what timing reads."""

from __future__ import annotations

import errno
import os
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from kernelforge.errors import HarnessError
from kernelforge.executors.types import Limits
from kernelforge.runner.protocol import WORKSPACE, Buffer, BufferSet, RunnerDeath, RunReply, TimeReply
from kernelforge.runner.session import RunnerSession
from kernelforge.settings import Settings, load_settings

MODES = (
    "scale", "mutate", "overrun", "underrun", "segfault", "hang", "leave", "shout", "hog", "threads", "refuse",
    "alignment", "spin", "scratch", "untouched", "environment", "forge", "half", "answer", "reach",
)  # fmt: skip
CANDIDATE = (
    "enum Mode { " + ", ".join(MODES) + " };\n"
    r"""
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cerrno>
#include <ctime>
#include <fcntl.h>
#include <omp.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

static int make_inputs_writable() {
    FILE* maps = std::fopen("/proc/self/maps", "r");
    char line[512];
    unsigned long from, to;
    while (std::fgets(line, sizeof line, maps))
        if (std::strstr(line, "kforge-inputs") && std::sscanf(line, "%lx-%lx", &from, &to) == 2)
            return mprotect((void*)from, to - from, PROT_READ | PROT_WRITE) ? errno : 0;
    return -1;
}

// buffers: x [n] float32, y [n] float32 out; dims: n, mode; scalars: factor
extern "C" int kforge_invoke(void* const* buffers, const int64_t* dims, const double* scalars, void* workspace, void*) {
    float* x = (float*)buffers[0];
    float* y = (float*)buffers[1];
    const int64_t n = dims[0];
    switch (dims[1]) {
        case untouched: return 0;
        case mutate: x[n / 2] += 1; break;
        case overrun: y[n] = 0; break;
        case underrun: x[-1] = 0; break;
        case segfault: *(volatile int*)8 = 1; break;
        case leave: std::exit(0);
        case refuse: return 42;
        case forge: return make_inputs_writable();
        case environment: return std::getenv("KFORGE_TEST_SECRET") != nullptr;
        case answer: {  // a well-formed reply to RUN, on every socket that it finds
            static uint32_t reply[154] = {0x4b464f52, 1, 3};
            for (int fd = 3; fd < 4096; fd++)
                if (send(fd, reply, sizeof reply, MSG_NOSIGNAL) > 0) return 0;
            return 1;
        }
        case half: for (int64_t i = 0; i < n / 2; i++) y[i] = x[i]; return 0;
        case shout: for (int i = 0; i < 100000; i++) std::puts("a line of forty characters of output...."); break;
        case hog: for (;;) std::memset(std::malloc(16 << 20), 1, 16 << 20);
        case scratch: ((char*)workspace)[4 * n] = 0; break;
        case threads: {
            #pragma omp parallel
            { if (omp_get_thread_num() == 0) y[0] = omp_get_num_threads(); }
            return 0;
        }
        case reach: {  // how far it comes: a file, the network, undoing the fence
            y[0] = open("/tmp/kforge-reach", O_CREAT | O_WRONLY, 0600) < 0 ? errno : 0;
            sockaddr_in there{};
            there.sin_family = AF_INET;
            there.sin_port = htons((uint16_t)x[0]);
            there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            y[1] = connect(socket(AF_INET, SOCK_STREAM, 0), (sockaddr*)&there, sizeof there) ? errno : 0;
            y[2] = mount(nullptr, "/", nullptr, MS_REMOUNT | MS_BIND, nullptr) ? errno : 0;
            return 0;
        }
        case alignment: y[0] = (uintptr_t)x % 128; y[1] = (uintptr_t)y % 128; return 0;
        case spin: {
            timespec start, now;
            clock_gettime(CLOCK_MONOTONIC, &start);
            do clock_gettime(CLOCK_MONOTONIC, &now);
            while ((now.tv_sec - start.tv_sec) * 1000000000L + now.tv_nsec - start.tv_nsec < 1000000);
            break;
        }
        case hang: {
            if (int child = fork()) { std::printf("%d\n", child); std::fflush(stdout); }
            else setsid();
            for (volatile int i = 0;; i++) {}
        }
    }
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * (float)scalars[0];
    return 0;
}
extern "C" int64_t kforge_workspace(const int64_t* dims) { return dims[1] == scratch ? 4 * dims[0] : 0; }
"""
)
N = 1000
INPUT = struct.pack(f"{N}f", *range(N))
LIMITS = Limits(wall_s=20, memory_bytes=256 << 20, output_bytes=4000)


def build(source: str, target: Path, *flags: str) -> Path:
    """Compile as the build stage does: OpenMP, but not linked with libgomp."""
    (target.parent / "candidate.cpp").write_text(source)
    compiled = [
        "g++",
        "-O1",
        "-fPIC",
        "-fopenmp",
        *flags,
        "-c",
        str(target.parent / "candidate.cpp"),
        "-o",
        f"{target}.o",
    ]
    subprocess.run(compiled, check=True)
    subprocess.run(["g++", "-shared", *flags, f"{target}.o", "-o", str(target)], check=True)
    return target


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return load_settings({"KFORGE_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))})


@pytest.fixture(scope="module")
def candidate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(CANDIDATE, tmp_path_factory.mktemp("candidate") / "candidate.so")


@pytest.fixture
def session(candidate: Path, settings: Settings) -> Iterator[RunnerSession]:
    with RunnerSession(candidate, device="cpu", limits=LIMITS, threads=2, settings=settings) as made:
        yield made


def work(mode: str, *, n: int = N, kind: str = "input", alignment: int = 64, factor: float = 2.0) -> BufferSet:
    data = INPUT[: 4 * n] if n <= N else bytes(4 * n)
    first = Buffer(kind="inout" if kind == "inout" else "input", data=data, size_bytes=4 * n, alignment=alignment)
    second = Buffer(kind="output", data=None, size_bytes=4 * n, alignment=alignment)
    return BufferSet(buffers=(first, second), dims=(n, MODES.index(mode)), scalars=(factor,))


def run(session: RunnerSession, mode: str, **options: int | str | float) -> RunReply | RunnerDeath:
    given = work(mode, **options)  # type: ignore[arg-type]
    return session.run(given.buffers, given.dims, given.scalars)


def answered(reply: RunReply | RunnerDeath) -> RunReply:
    assert isinstance(reply, RunReply), reply
    return reply


def timed(reply: TimeReply | RunnerDeath) -> TimeReply:
    assert isinstance(reply, TimeReply), reply
    return reply


def floats(data: bytearray) -> list[float]:
    return list(struct.unpack(f"{len(data) // 4}f", data))


def test_right_result_and_nothing_to_complain_about(session: RunnerSession) -> None:
    reply = answered(run(session, "scale", factor=3.0))
    assert floats(reply.outputs[0]) == [3.0 * i for i in range(N)]
    assert (reply.error, reply.inputs_changed, reply.canaries_broken) == ("", (), ())
    assert 0 < reply.seconds <= reply.wall_s


def test_it_reaches_neither_files_nor_the_network(session: RunnerSession) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = struct.pack("f", listener.getsockname()[1]) + INPUT[4:]
        request = work("reach")
        first = replace(request.buffers[0], data=port)
        reply = answered(session.run((first, request.buffers[1]), request.dims, request.scalars))
    Path("/tmp/kforge-reach").unlink(missing_ok=True)
    file, network, undone = (int(value) for value in floats(reply.outputs[0])[:3])
    # As root all of it is to be had; elsewhere it is as much as the system allows, and the session says how much.
    if os.geteuid() == 0 and Path("/proc/self/ns/net").exists() and _may_unshare():
        assert session.fences == {"user", "network", "files"}
    assert (file == errno.EROFS) == ("files" in session.fences)
    assert (network == errno.ENETUNREACH) == ("network" in session.fences)
    assert undone != 0


def _may_unshare() -> bool:
    return subprocess.run(["unshare", "--net", "--mount", "--ipc", "true"], check=False).returncode == 0


def test_process_holds_neither_python_nor_torch(session: RunnerSession, candidate: Path) -> None:
    maps = Path(f"/proc/{session.pid}/maps").read_text()
    assert candidate.name in maps
    assert "python" not in maps.lower() and "torch" not in maps.lower()


def test_changed_input_is_named_and_inout_comes_back(session: RunnerSession) -> None:
    assert answered(run(session, "mutate")).inputs_changed == (0,)
    reply = answered(run(session, "mutate", kind="inout"))
    assert reply.inputs_changed == ()
    assert floats(reply.outputs[0])[N // 2] == N // 2 + 1 and len(reply.outputs) == 2


@pytest.mark.parametrize("alignment", [4, 64])
def test_writes_outside_break_canaries(session: RunnerSession, alignment: int) -> None:
    assert answered(run(session, "overrun", alignment=alignment)).canaries_broken == (1,)
    assert answered(run(session, "underrun", alignment=alignment)).canaries_broken == (0,)
    assert answered(run(session, "scratch", alignment=alignment)).canaries_broken == (WORKSPACE,)


@pytest.mark.parametrize("alignment", [1, 4, 16, 64])
def test_pointers_are_aligned_as_asked_and_no_better(session: RunnerSession, alignment: int) -> None:
    x, y = floats(answered(run(session, "alignment", alignment=alignment)).outputs[0])[:2]
    period = 2 * alignment if alignment < 64 else 64
    assert x % period == y % period == alignment % period


def test_untouched_outputs_differ_from_call_to_call(session: RunnerSession) -> None:
    session.load(3, work("untouched"))
    first, second = (answered(session.run_slot(3)).outputs[0] for _ in range(2))
    assert first != second and set(first) | set(second) == {0xFF, 0x7F}


def test_each_call_gets_fresh_inputs_and_poison(session: RunnerSession) -> None:
    session.load(0, work("mutate", kind="inout"))
    replies = [answered(session.run_slot(0)) for _ in range(3)]
    assert len({bytes(r.outputs[0]) for r in replies}) == 1
    session.load(0, work("half"))
    assert answered(session.run_slot(0)).outputs[0][2 * N :] != INPUT[2 * N :]


def test_reply_of_the_candidate_is_worthless(session: RunnerSession) -> None:
    reply = run(session, "answer")
    assert isinstance(reply, RunnerDeath) and reply.kind == "protocol"


def test_launch_error_is_a_status(session: RunnerSession) -> None:
    reply = answered(run(session, "refuse"))
    assert (reply.error, reply.status, reply.outputs) == ("launch", 42, ())
    assert answered(run(session, "scale")).error == ""


def test_inputs_arena_cannot_be_made_writable(session: RunnerSession) -> None:
    assert answered(run(session, "forge")).status == 13  # EACCES


def test_our_environment_stays_here(candidate: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFORGE_TEST_SECRET", "key")
    with RunnerSession(candidate, device="cpu", limits=LIMITS, threads=1, settings=settings) as session:
        assert answered(run(session, "environment")).status == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change user")
def test_candidate_does_not_run_as_root(session: RunnerSession) -> None:
    assert psutil.Process(session.pid).uids().real >= 1 << 30


@pytest.mark.parametrize(("mode", "words"), [("segfault", "SIGSEGV"), ("leave", "status 0")])
def test_crashes(session: RunnerSession, mode: str, words: str) -> None:
    reply = run(session, mode)
    assert isinstance(reply, RunnerDeath) and reply.kind == "crash" and words in reply.detail
    assert session.run_slot(0) == reply == session.death


def test_hang_is_killed_with_its_children(candidate: Path, settings: Settings) -> None:
    with RunnerSession(candidate, device="cpu", limits=Limits(wall_s=0.5), threads=1, settings=settings) as session:
        started = time.monotonic()
        reply = run(session, "hang")
        assert isinstance(reply, RunnerDeath) and reply.kind == "timeout"
        assert time.monotonic() - started < 5.5
        assert not alive(session.pid) and not alive(int(reply.output))


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_output_is_bounded(session: RunnerSession) -> None:
    assert answered(run(session, "shout")).error == ""
    assert 0 < len(session.output()) <= LIMITS.output_bytes


def test_memory_hog_is_oom_and_loaded_buffers_are_not(candidate: Path, settings: Settings) -> None:
    limits = Limits(wall_s=20, memory_bytes=64 << 20)
    with RunnerSession(candidate, device="cpu", limits=limits, threads=1, settings=settings) as session:
        assert answered(run(session, "scale", n=16 << 20)).error == ""
        reply = run(session, "hog")
        assert isinstance(reply, RunnerDeath) and reply.kind == "oom"


def test_openmp_resolves_against_the_runner(session: RunnerSession) -> None:
    assert floats(answered(run(session, "threads")).outputs[0])[0] == 2


@pytest.mark.parametrize(
    "source", ['extern "C" int kforge_invoke() { extern int nowhere(); return nowhere(); }', "int x;"]
)
def test_binary_that_does_not_load(source: str, settings: Settings, tmp_path: Path) -> None:
    path = build(source, tmp_path / "candidate.so")
    with RunnerSession(path, device="cpu", limits=LIMITS, threads=1, settings=settings) as session:
        reply = run(session, "scale")
        assert isinstance(reply, RunnerDeath) and reply.kind == "load"
        assert "nowhere" in reply.detail or "kforge_invoke" in reply.detail


def test_missing_artifact_is_a_harness_error(settings: Settings, tmp_path: Path) -> None:
    session = RunnerSession(tmp_path / "none.so", device="cpu", limits=LIMITS, threads=1, settings=settings)
    with pytest.raises(HarnessError), session:
        pass


def test_spin_of_a_millisecond_reads_a_millisecond(session: RunnerSession) -> None:
    sets = [work("spin"), work("spin")]
    cold = timed(session.time(sets, iterations=15, flush_bytes=1 << 20))
    assert 0.95e6 < statistics.median(cold.samples_ns) < 1.1e6
    assert cold.total_ns == sum(cold.samples_ns) <= cold.wall_s * 1e9
    batch = timed(session.time(sets, iterations=15, batch=True))
    assert batch.samples_ns == () and 15e6 <= batch.total_ns <= batch.wall_s * 1e9


def test_timing_rotates_and_collects(session: RunnerSession) -> None:
    for slot, factor in enumerate((1.0, 2.0, 3.0)):
        session.load(slot, work("scale", factor=factor))
    reply = timed(session.time_slots(0, 3, iterations=7, warmup=0, collect=True))
    assert [floats(outputs[0])[1] for outputs in reply.outputs] == [1.0, 2.0, 3.0]
    session.load(2, work("mutate"))
    assert timed(session.time_slots(0, 3, iterations=7, collect=True)).inputs_changed == (0,)
    session.load(1, work("refuse"))
    failed = timed(session.time_slots(0, 3, iterations=7, warmup=0))
    assert (failed.error, failed.status, failed.failed_at) == ("launch", 42, 1)
    with pytest.raises(HarnessError):
        session.time_slots(0, 4, iterations=1)


def test_runner_dies_with_its_owner(candidate: Path, settings: Settings) -> None:
    owner = f"""
import pathlib, kernelforge.runner.session as s, kernelforge.runner.protocol as p, kernelforge.settings as g
from kernelforge.executors.types import Limits
with s.RunnerSession(pathlib.Path({str(candidate)!r}), device="cpu", limits=Limits(), threads=1,
                     settings=g.load_settings({{"KFORGE_CACHE_DIR": {str(settings.cache_dir)!r}}})) as session:
    print(session.pid, flush=True)
    two = (p.Buffer(kind="input", data=bytes(4), size_bytes=4), p.Buffer(kind="output", data=None, size_bytes=4))
    session.run(two, (1, {MODES.index("hang")}), (1.0,))
"""
    with subprocess.Popen([sys.executable, "-c", owner], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        time.sleep(0.3)
        strays = psutil.Process(pid).children(recursive=True)
        process.kill()
    deadline = time.monotonic() + 5
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    for stray in strays:  # the candidate's own child is beyond a dead owner's reach
        stray.kill()
    assert not alive(pid)


def test_sanitised_runner_sees_one_element_past_the_end(settings: Settings, tmp_path: Path) -> None:
    source = CANDIDATE.replace("case overrun: y[n] = 0;", "case overrun: y[0] = x[n];")
    path = build(source, tmp_path / "candidate.so", "-fsanitize=address")
    with RunnerSession(path, device="cpu", limits=LIMITS, threads=1, settings=settings, sanitize=True) as session:
        assert answered(run(session, "scale")).error == ""
        reply = run(session, "overrun")
        assert isinstance(reply, RunnerDeath) and reply.kind == "crash"
        assert "heap-buffer-overflow" in reply.output


def wrapper(folder: Path, after: str) -> tuple[str, ...]:
    """A checker that runs its command line and then writes a report."""
    script = folder / "checker"
    script.write_text(f'#!/bin/bash\n"$@"\n{after}\n')
    script.chmod(0o755)
    return (str(script),)


def test_a_checker_around_the_runner_may_finish_its_report(candidate: Path, settings: Settings, tmp_path: Path) -> None:
    around = wrapper(tmp_path, "sleep 0.3; echo the report; exit 86")
    with RunnerSession(
        candidate, device="cpu", limits=LIMITS, threads=1, settings=settings, wrapper=around, exact=True
    ) as session:
        assert answered(run(session, "scale")).error == ""
        end = session.finish()
        assert "status 86" in end.detail and end.output == "the report\n"
        assert session.finish() == end == session.death


# Answers READY and LOAD, and RUN with a device error that has destroyed the context, as the CUDA flavour does.
DYING_RUNNER = """#!{python}
import socket, struct, sys
channel = socket.socket(fileno=int(sys.argv[sys.argv.index("--control") + 1]))
def answer(op, nonce, flags=0, error=0):
    reply = struct.pack("<5IiqqQQ24s24s512s", 0x4B464F52, 1, op, flags, error, 0, 0, -1, nonce, 0, b"", b"", b"gone")
    channel.send(reply)
answer(1, 0)
while True:
    data = socket.recv_fds(channel, 1 << 17, 2)[0]
    op, (nonce,) = struct.unpack_from("<3I", data)[2], struct.unpack_from("<Q", data, 40)
    answer(op, nonce, *((1, 6) if op == 3 else (0, 0)))
    if op == 3:
        sys.exit(0)
"""


def test_a_checkers_report_is_read_although_the_context_is_gone(
    candidate: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = tmp_path / "runner"
    runner.write_text(DYING_RUNNER.format(python=sys.executable))
    runner.chmod(0o755)
    monkeypatch.setattr("kernelforge.runner.session.runner_binary", lambda *_: runner)
    around = wrapper(tmp_path, "sleep 0.3; echo the report; exit 86")
    with RunnerSession(
        candidate, device="cpu", limits=LIMITS, threads=1, settings=settings, wrapper=around, exact=True
    ) as session:
        assert answered(run(session, "scale")).error == "async"
        end = session.finish()
        assert "status 86" in end.detail and end.output == "the report\n"
