"""Reports of memory checkers, as the tools print them, in one sentence each; and where compute-sanitizer is found."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from kernelforge.runner.sanitizers import (
    ASAN,
    CUDA_TOOLS,
    UBSAN,
    asan_error,
    cuda_error,
    cuda_errors,
    find_sanitizer,
    sanitizer_command,
    trouble,
)
from kernelforge.settings import load_settings

SIZES = {"input": 4000, "out": 2000}

MEMCHECK = """\
========= COMPUTE-SANITIZER
a line of the program
========= Invalid __global__ write of size 4 bytes
=========     at relu(const float *, float *, long)+0x70 in kernel.cu:12
=========     by thread (232,0,0) in block (3,0,0)
=========     Access to 0x7f2c4fc007d0 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f2c4fc00000 of size 2,000 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: kforge_invoke [0x8ae3] in kernel.so
=========
========= Invalid __global__ write of size 4 bytes
=========     at relu(const float *, float *, long)+0x70 in kernel.cu:12
=========     by thread (233,0,0) in block (3,0,0)
=========     Access to 0x7f2c4fc007d4 is out of bounds
========= Target application returned an error
========= ERROR SUMMARY: 2 errors
"""
MEMCHECK_12 = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 16 bytes
=========     at 0x160 in /build/kernel.cu:34:relu(const float *, float *, long)
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f6510c00004 is misaligned
=========     and is inside the nearest allocation at 0x7f6510c00000 of size 4000 bytes
========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" on CUDA API call to
========= ERROR SUMMARY: 2 errors
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at total(const float *, float *)+0x90 in kernel.cu:13
=========     and Read access at total(const float *, float *)+0xa0 in kernel.cu:14 [2048 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
INITCHECK = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at add(int *)+0x70
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000fc
=========
========= ERROR SUMMARY: 1 error
"""
SYNCCHECK = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block.
=========     at total(const float *)+0xb0 in kernel.cu:20
=========     by thread (32,0,0) in block (0,0,0)
=========     Device Frame: total(const float *)+0x20 in kernel.cu:31
========= ERROR SUMMARY: 1 error
"""
WARNED = """\
========= COMPUTE-SANITIZER
========= Warning: Race reported between Read access at total(float *)+0x570
=========     and Write access at total(float *)+0x14b0 [4 hazards]
========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)
"""
UNSUPPORTED = """\
========= COMPUTE-SANITIZER
========= Error: Device not supported. Please refer to the "Supported Devices" section of the documentation
=========
"""

FOUND = {
    MEMCHECK: "Invalid __global__ write of size 4 bytes at relu(const float *, float *, long)+0x70 in kernel.cu:12 "
    "by thread (232,0,0) in block (3,0,0) Access to 0x7f2c4fc007d0 is out of bounds and is 1 bytes after the nearest "
    "allocation at 0x7f2c4fc00000 of size 2,000 bytes (out)",
    MEMCHECK_12: "Invalid __global__ read of size 16 bytes at 0x160 in /build/kernel.cu:34:relu(const float *, "
    "float *, long) by thread (0,0,0) in block (0,0,0) Address 0x7f6510c00004 is misaligned and is inside the nearest "
    "allocation at 0x7f6510c00000 of size 4000 bytes (input)",
    RACECHECK: "Race reported between Write access at total(const float *, float *)+0x90 in kernel.cu:13 and Read "
    "access at total(const float *, float *)+0xa0 in kernel.cu:14 [2048 hazards]",
    INITCHECK: "Uninitialized __global__ memory read of size 4 bytes at add(int *)+0x70 by thread (31,0,0) in block "
    "(1,0,0) Address 0x7f3c7ec000fc",
    SYNCCHECK: "Barrier error detected. Divergent thread(s) in block. at total(const float *)+0xb0 in kernel.cu:20 by "
    "thread (32,0,0) in block (0,0,0)",
}


@pytest.mark.parametrize(("report", "sentence"), FOUND.items())
def test_the_first_error_of_a_cuda_report(report: str, sentence: str) -> None:
    assert cuda_error(report, SIZES) == sentence
    assert cuda_errors(report)


def test_what_is_no_error_of_a_cuda_report() -> None:
    assert cuda_error(WARNED, SIZES) == cuda_error(UNSUPPORTED, SIZES) == ""
    assert cuda_errors(WARNED) == 0
    assert cuda_errors("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n") == 0
    assert cuda_errors(UNSUPPORTED) is None
    assert "Device not supported" in trouble(UNSUPPORTED, "exited with status 1")


def test_the_programs_own_words_are_no_report() -> None:
    own = "========= COMPUTE-SANITIZER\nERROR SUMMARY: 0 errors\nInvalid argument\n========= ERROR SUMMARY: 3 errors\n"
    assert cuda_error(own, SIZES) == ""
    assert cuda_errors(own) == 3


ASAN_HEAP = """\
=================================================================
==30722==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x6150000001d0 at pc 0x7f69 bp 0x7f69 sp 0x7f69
READ of size 4 at 0x6150000001d0 thread T1
    #0 0x7f6975467501 in launch._omp_fn.0 /cache/builds/.build-x/kernel.cpp:6
    #1 0x7f6975dddd8d  (/lib/x86_64-linux-gnu/libgomp.so.1+0x1cd8d)

0x6150000001d0 is located 0 bytes to the right of 4000-byte region [0x615000000040,0x6150000001d0)
allocated by thread T0 here:
"""
ASAN_STACK = """\
==7==ERROR: AddressSanitizer: stack-buffer-overflow on address 0x7ffd at pc 0x55 bp 0x7ffd sp 0x7ffd
WRITE of size 4 at 0x7ffd thread T0
    #0 0x55 in launch kernel.cpp:9
Address 0x7ffd is located in stack of thread T0 at offset 96 in frame
  This frame has 1 object(s):
    [32, 96) 'kept' (line 5) <== Memory access at offset 96 overflows this variable
"""
UBSAN_INDEX = "kernel.cpp:7:25: runtime error: signed integer overflow: 2 * 1073741824 cannot be represented in 'int'\n"
UBSAN_HEADER = """\
/usr/lib/gcc/include/avxintrin.h:880:10: runtime error: load of misaligned address 0x6150 for type 'const __m256'
    #0 0x7f8677ca67e5 in _mm256_load_ps /usr/lib/gcc/include/avxintrin.h:880
    #1 0x7f8677ca67e5 in launch /cache/builds/.build-x/kernel.cpp:4
"""


def test_reports_of_instrumented_code() -> None:
    after = "heap-buffer-overflow: read of 4 bytes at kernel.cpp:6, 0 bytes after a buffer of 4000 bytes (input)"
    assert asan_error(ASAN_HEAP, SIZES) == (ASAN, after)
    newer = ASAN_HEAP.replace("to the right of", "after")
    assert asan_error(newer, SIZES) == (ASAN, after)
    stack = "stack-buffer-overflow: write of 4 bytes at kernel.cpp:9, overflows the local variable kept"
    assert asan_error(ASAN_STACK, SIZES) == (ASAN, stack)
    overflow = "signed integer overflow: 2 * 1073741824 cannot be represented in 'int' at kernel.cpp:7:25"
    assert asan_error("noise\n" + UBSAN_INDEX, SIZES) == (UBSAN, overflow)
    misaligned = "load of misaligned address 0x6150 for type 'const __m256' at kernel.cpp:4"
    assert asan_error(UBSAN_HEADER, SIZES) == (UBSAN, misaligned)
    assert asan_error("an error of the program\n", SIZES) is None


def test_each_tool_has_its_command() -> None:
    for tool in CUDA_TOOLS:
        command = sanitizer_command(Path("/x/compute-sanitizer"), tool)
        assert command[:3] == ("/x/compute-sanitizer", "--tool", tool) and "--error-exitcode" in command
        assert ("--racecheck-detect-level" in command) == (tool == "racecheck")


def test_the_sanitizer_is_found_in_path_cuda_home_and_beside_nvcc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(load_settings({}), nvcc="", cuda_home=str(tmp_path / "home"))
    known: dict[str, str] = {}
    monkeypatch.setattr(shutil, "which", known.get)

    def install(*parts: str) -> Path:
        path = tmp_path.joinpath(*parts)
        path.parent.mkdir(parents=True)
        path.touch()
        return path

    beside = install("toolkit", "bin", "compute-sanitizer")
    (tmp_path / "nvcc").symlink_to(beside.with_name("nvcc"))
    beside.with_name("nvcc").touch()
    known["nvcc"] = str(tmp_path / "nvcc")
    assert find_sanitizer(settings) == beside
    home = install("home", "compute-sanitizer", "compute-sanitizer")
    assert find_sanitizer(settings) == home
    known["compute-sanitizer"] = str(install("path", "compute-sanitizer"))
    assert find_sanitizer(settings) == tmp_path / "path" / "compute-sanitizer"
