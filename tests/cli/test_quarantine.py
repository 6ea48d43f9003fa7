"""`kforge cast quarantine`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernelforge.dispatch.machine import Machine
from kernelforge.dispatch.quarantine import Quarantine

HERE = Machine(cpu_targets=(), capabilities=(), device_names=("H200",), torch="2.13.0", driver="580.65.06")


@pytest.fixture
def quarantine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Quarantine:
    monkeypatch.setenv("KFORGE_CACHE_DIR", str(tmp_path))
    return Quarantine(tmp_path)


def test_ls_and_clear(kforge: Any, quarantine: Quarantine) -> None:
    assert "no kernel has failed here" in kforge("cast", "quarantine", "ls").stdout
    kept = [
        quarantine.add(
            binary, device="H200", machine=HERE, kernel="softmax-1a2b3c4d", package="m.cast", error=700, certain=False
        )
        for binary in ("b1", "b2")
    ]
    shown = kforge("cast", "quarantine", "ls").stdout
    for text in (
        kept[0].key[:8],
        "softmax-1a2b3c4d",
        "700",
        "suspected",
        "H200, driver 580.65.06, torch 2.13.0",
        "m.cast",
    ):
        assert text in shown
    document = json.loads(kforge("cast", "quarantine", "ls", "--json").stdout)
    assert {q["key"] for q in document["quarantined"]} == {q.key for q in kept}
    assert kforge("cast", "quarantine", "clear").code == 2
    assert kforge("cast", "quarantine", "clear", "--all", kept[0].key).code == 2
    assert kforge("cast", "quarantine", "clear", "nothing").code == 3
    assert "cleared 1 kernel" in kforge("cast", "quarantine", "clear", kept[0].key[:10]).stdout
    assert "cleared 1 kernel" in kforge("cast", "quarantine", "clear", "--all").stdout
    assert quarantine.list() == ()
