"""Running a package needs no compiler and starts no process: it loads and serves where there is nothing but Python."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from kernelforge.settings import Settings

PROGRAM = """
import subprocess, sys

def started(*arguments, **_):
    raise AssertionError(f"a process was started: {arguments}")

subprocess.Popen.__init__ = started
import torch
import kernelforge

package = kernelforge.load(sys.argv[1])
x = torch.linspace(-4, 4, 64 * 64).reshape(64, 64)
want = x.abs()
with torch.no_grad(), package.dispatch():
    assert torch.equal(torch.abs(x), want)
(row,) = package.stats()
assert (row.state, row.hits) == ("on", 1), row
sys.argv = ["kforge", "cast", "run", sys.argv[1], sys.argv[2], "--device", "cpu", "--max-time", "1s"]
from kernelforge.cli.main import main
main()
"""
MODEL = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.abs(x)

def get_inputs():
    return [torch.rand(64, 64)]
"""


def test_a_package_runs_without_compilers(write: Callable[..., Path], settings: Settings, tmp_path: Path) -> None:
    package = write("abs", torch_version=torch.__version__.split("+")[0])
    model = tmp_path / "net.py"
    model.write_text(MODEL)
    nowhere = str(tmp_path / "nowhere")
    kept = {name: value for name, value in os.environ.items() if name in {"HOME", "LD_LIBRARY_PATH", "PYTHONPATH"}}
    environment = {
        **kept, "PATH": "", "CUDA_HOME": nowhere, "KFORGE_CXX": nowhere, "KFORGE_NVCC": nowhere,
        "KFORGE_CONFIG_DIR": str(settings.config_dir), "KFORGE_CACHE_DIR": str(tmp_path / "empty"),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(package), str(model)], env=environment, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "match" in done.stdout and "1 on" in done.stdout
    built = {path.name for path in (tmp_path / "empty").glob("*")}
    assert built <= {"packages", "slots", "machine"}, f"something was built: {built}"
