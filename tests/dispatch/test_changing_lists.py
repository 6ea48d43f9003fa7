"""Arguments that change while a call is looked up: each test in a process of its own, for what goes wrong is memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.dispatch.conftest import N0, handwritten, variant_of

from kernelforge.capture.types import TensorRef
from kernelforge.cards.types import Extent, TensorPattern
from kernelforge.package.types import Header
from kernelforge.package.writer import write_package
from kernelforge.settings import Settings

PAIR = TensorPattern(shape=(N0, Extent(16)), stride=(Extent(16), Extent(1)), dtype="float32", alignment=16)
CAT = """
extern "C" int launch(const float* a, const float* b, int64_t n0, float* out, void* workspace) {
  for (int64_t row = 0; row < n0; ++row)
    for (int i = 0; i < 8; ++i) out[16 * row + i] = a[8 * row + i], out[16 * row + 8 + i] = b[8 * row + i];
  return 0;
}
"""
COMMON = """
import gc, sys, threading, time, torch
from dataclasses import replace
from pathlib import Path
from kernelforge.dispatch.loading import load
from kernelforge.settings import load_settings

package = load(sys.argv[1], settings=replace(load_settings({}), cache_dir=Path(sys.argv[2])))
pair = [torch.ones(4, 8), torch.ones(4, 8)]
"""
CASES: Mapping[str, str] = {
    # A collection that begins while the output is made runs a finalizer.
    "finalizer": """
class Replaces:
    def __del__(self):
        pair[:] = [torch.full((4, 8), 2.0) for _ in range(2)]

with package.dispatch():
    torch.cat(pair, 1)
    gc.set_threshold(1, 1, 1)
    for _ in range(4000):
        pair[:] = [torch.ones(4, 8), torch.ones(4, 8)]
        garbage = Replaces()
        garbage.me = garbage
        del garbage
        result = torch.cat(pair, 1)
        assert (result == 1).all() or (result == 2).all()
""",
    "threads": """
stop = False

def change():
    while not stop:
        pair[0], pair[1] = torch.full((4, 8), 1.0), torch.full((4, 8), 2.0)

def call():
    while not stop:
        assert torch.cat(pair, 1).shape == (4, 16)

sys.setswitchinterval(1e-6)
with package.dispatch():
    threads = [threading.Thread(target=target) for target in (change, change, call, call)]
    for thread in threads:
        thread.start()
    time.sleep(3)
    stop = True
    for thread in threads:
        thread.join()
""",
}


@pytest.mark.parametrize("case", CASES)
def test_a_list_may_change_meanwhile(case: str, cache: Settings, tmp_path: Path) -> None:
    variant = replace(variant_of("cat", {"tensors": (TensorRef(0), TensorRef(1)), "dim": 1}, inputs=2), outputs=(PAIR,))
    path = tmp_path / "cat.cast"
    write_package(
        path,
        [handwritten(variant, CAT, cache)],
        header=Header(name="cat", device="cpu", torch=torch.__version__, created_by="test"),
    )
    command = [sys.executable, "-X", "faulthandler", "-c", COMMON + CASES[case] + "print(package.stats()[0].hits > 9)"]
    done = subprocess.run([*command, str(path), str(cache.cache_dir)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr[-2000:]
