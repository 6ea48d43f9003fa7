"""The README's figures are those of the records."""

from __future__ import annotations

import json
import re
from statistics import median

import pytest
from benchmarks.harness import ROOT
from benchmarks.tables import RESULTS

ROWS = {
    "eager": "eager", "graphed": "graphed", "graphed with the package": "graphed+package",
    "torch.compile, reduce-overhead": "compile reduce-overhead",
    "the same with the package": "backend kernelforge reduce-overhead",
}  # fmt: skip
RECORDS = ("h200_run_modes_resnet50", "h200_run_modes_qwen3_token")


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_readme_is_what_was_measured(row: str) -> None:
    line = re.search(rf"^\| {re.escape(row)} \|(.*)\|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert line is not None
    shown = [cell.strip(" *").removesuffix(" ms") for cell in line[1].split("|")]
    for cell, name in zip(shown, RECORDS, strict=True):
        (model,) = json.loads((RESULTS / f"{name}.json").read_text())["models"].values()
        digits = len(cell.partition(".")[2])
        assert cell == f"{median(model['sides'][ROWS[row]]['ms']):.{digits}f}"
