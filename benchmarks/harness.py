"""What every benchmark shares: the environment of a record, and writing it. A record is raw: tables derive from it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def environment() -> dict[str, object]:
    """Where and with what the figures were made."""
    import torch

    facts: dict[str, object] = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        # Of paths only the names: where they lay says nothing, and names somebody's machine.
        "command": " ".join(Path(word).name if word.startswith("/") else word for word in sys.argv),
        # On a machine that got the files without the history, BENCH_COMMIT says which they are.
        "commit": os.environ.get("BENCH_COMMIT") or _git("rev-parse", "--verify", "HEAD"),
        "modified": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processor": _processor(),
    }
    if torch.cuda.is_available():
        query = "name,driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw"
        facts["gpu"] = _run("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader")
        facts["nvcc"] = _run("nvcc", "--version").splitlines()[-1:]
    return facts


def write_record(path: Path, results: Mapping[str, object]) -> None:
    """Write one record as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"environment": environment(), **results}, indent=1) + "\n")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _git(*arguments: str) -> str:
    return _run("git", "-C", str(ROOT), *arguments)


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
