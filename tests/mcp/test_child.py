"""Commands in processes of their own: what they print, how they fail, and that they are killed."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from kernelforge.errors import HarnessError, ModelError, NotFound, Stopped
from kernelforge.mcp.child import run_command

pytestmark = pytest.mark.slow

MODEL = """
import os, subprocess, time, torch

class Model(torch.nn.Module):
    def forward(self, x):
        {does}
        return torch.relu(x)

def get_inputs():
    return [torch.randn(8)]

def get_init_inputs():
    return []
"""


def capture(folder: Path, does: str, *, stop_when: str = "") -> object:
    (folder / "model.py").write_text(MODEL.format(does=does))
    arguments = ["capture", "--json", "--device", "cpu", "--output", str(folder / "m.kforge"), str(folder / "model.py")]
    return run_command(
        arguments, say=lambda _: None, should_stop=lambda: bool(stop_when) and (folder / stop_when).exists()
    )


def test_what_the_model_prints_is_no_part_of_the_document(tmp_path: Path) -> None:
    document = capture(tmp_path, """print('{"variants": 7}\\\\n{')""")
    assert isinstance(document, dict) and document["variants"] == 1


def test_an_error_is_of_its_kind(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no project at nowhere") as raised:
        run_command(["ops", "nowhere.kforge", "--json"], say=lambda _: None, should_stop=lambda: False)
    assert raised.value.hint
    with pytest.raises(ModelError, match="division"):
        capture(tmp_path, "1 / 0")


def test_a_process_that_dies_is_told_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="ended with status 3") as raised:
        capture(tmp_path, "os.write(2, b'a last word'); os._exit(3)")
    assert "a last word" in raised.value.hint
    assert not (tmp_path / "m.kforge").exists()


def test_it_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(Stopped):
        capture(
            tmp_path, f"subprocess.Popen(['sleep', '54321']); open({str(tmp_path / 'now')!r}, 'w'); time.sleep(600)",
            stop_when="now",
        )  # fmt: skip
    assert time.monotonic() - started < 60
    assert not [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "54321"]]
