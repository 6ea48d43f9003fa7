"""The call table itself: what it takes, and torch versions that lack one of the symbols that it finds at run time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernelforge.native.extension import extension, new_counter
from kernelforge.settings import Settings

WITHOUT_SYMBOLS = """
import sys
from dataclasses import replace
from pathlib import Path
import torch
from torch.overrides import TorchFunctionMode
from kernelforge.dispatch.loading import load
from kernelforge.native import extension
from kernelforge.settings import load_settings

extension._symbol = lambda library, name: 0

class Mode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return 7.0 if func is plain else func(*args, **(kwargs or {}))

plain, x = torch.softmax, torch.rand(4, 8)
package = load(sys.argv[1], settings=replace(load_settings({}), cache_dir=Path(sys.argv[2]), native=True))
with package.dispatch():
    for _ in range(3):
        assert torch.allclose(torch.softmax(x, 1), plain(x, 1), atol=2 / 1024)
        assert torch.equal(torch.softmax(x.double(), 1), plain(x.double(), 1))
        with Mode():
            assert torch.softmax(x, 1) == torch.softmax(x.double(), 1) == 7.0
(row,) = package.stats()
print(row.hits, dict(row.misses))
"""


@pytest.mark.parametrize(
    "counter", [[0], memoryview(bytearray(4)), memoryview(bytes(8))], ids=["list", "short", "read-only"]
)
def test_what_is_no_counter_is_refused(cache: Settings, counter: object) -> None:
    native = extension(cache)
    if native is None:
        pytest.skip("no call table here")
    table = native.Table()
    table.active = True
    with pytest.raises(TypeError, match="memoryview"):
        table.remember((torch.rand(2),), {}, None, counter, False)
    assert table.remember((torch.rand(2),), {}, None, new_counter(), False)


def test_without_the_symbols_of_torch_the_same_is_done_in_python(write: Callable[..., Path], cache: Settings) -> None:
    """Function modes are asked for, and outputs made, by functions of torch."""
    command = [sys.executable, "-c", WITHOUT_SYMBOLS, str(write("softmax")), str(cache.cache_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "3 {'dtype': 3, 'function mode': 6}", done.stderr + done.stdout
