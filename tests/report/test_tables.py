"""Tables: every number is there, nothing is clipped, long text wraps, and JSON never holds what JSON cannot."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from kernelforge.benchmark.types import Interval
from kernelforge.report.grid import Cell, Column, Grid, Record, grid_rich, grid_text
from kernelforge.report.judgement import AblationRow, AuditReport, CertificateRow, EvalReport, PaperRow, TrialReport
from kernelforge.report.judgement_tables import audit_grids, evaluation_grids, explanation_grid, trial_grids
from kernelforge.report.rows import (
    CheckRow,
    DimRow,
    DoctorLine,
    EntryRow,
    OperatorRow,
    PackageReport,
    TrialRow,
    WholeModel,
    dispatch_of,
    least_elements_of,
    used_decision,
)
from kernelforge.report.tables import (
    dim_grid,
    doctor_grid,
    operator_grid,
    package_grids,
    trial_grid,
    variant_grid,
    whole_model_grid,
)

USED = OperatorRow(
    variant="0a" * 32, label="adaptive_avg_pool2d-0a0a0a0a", operator="adaptive_avg_pool2d", calls=3584, share=0.999,
    eager_us=99.9e3, best_us=99.9e3, speedup=99.9, speedup_low=98.8, speedup_high=100.4, floor_us=99.9e3,
    decision="use", trials=3, describe="input [1, 64, 112, 112] float32 contiguous, " * 6,
)  # fmt: skip
SKIPPED = OperatorRow(
    variant="0b" * 32, label="scaled_dot_product_attention-0b0b0b0b", operator="scaled_dot_product_attention", calls=1,
    share=0.0001, eager_us=0.4, decision="not forged: no file for this operator in operators/, so it stays with eager",
)  # fmt: skip
NEW = OperatorRow(variant="0c" * 32, label="gelu-0c0c0c0c", operator="gelu", calls=1, share=0.0, eager_us=1.0)
LOST = OperatorRow(
    variant="0d" * 32, label="relu-0d0d0d0d", operator="relu", calls=2, share=0.01, eager_us=1.0, best_us=1.1,
    speedup=0.9, speedup_low=0.8, speedup_high=1.1, decision="eager: not faster",
)  # fmt: skip
WHOLE = WholeModel(
    name="qwen3_small", speedup=Interval(median=1.01, low=0.98, high=1.03), eager_ms=1812, fast_ms=1800,
    output_max_abs=2.1e-6, output_rel=3e-7, outputs_match=True, hits=15500, misses=10053, tokens_equal=True,
)  # fmt: skip
ROWS = [NEW, SKIPPED, USED, LOST]
JUDGED = EvalReport(
    outcome="accepted", speedup=Interval(median=2.0, low=1.9, high=2.1), audit="generated",
    evidence=("imports x",) * 40,
    explanation=("accepted: 2.00x", "likely limiter: " + "word " * 40),
    certificate=CertificateRow(outcome="rejected", reason="oob", detail="word " * 40),
    paper=PaperRow(correct=True, speedup=312.0, note="1 captured input; no decision uses it"),
)  # fmt: skip
AUDITED = AuditReport(
    node="ab" * 32, number=3, variant="0c" * 32, variant_label="gelu-0c0c0c0c", outcome="accepted", label="generated",
    label_now="generated", binary="cd" * 32, size_bytes=15248, needed=("libm.so.6",), undefined=("expf",) * 60,
    functions=(("_Z11gelu_kernelIfEvPKT_PS0_l", 491),) * 20, sections=((".text", 1200), (".comment", 80)),
    kernels=("_Z11gelu_kernelIfEvPKT_PS0_l",), kernel_source="device code, by cuobjdump",
    ablation=AblationRow(status="shown", detail="word " * 30),
)  # fmt: skip


def all_grids(width: int | None) -> list[Grid]:
    sizes = DimRow(name="n0", low=1, high=512, observed=tuple((float(i), 28) for i in range(1, 128)))
    trial = TrialRow(
        node="ab" * 32,
        number=12,
        outcome="rejected",
        reason="precision_downgrade",
        detail="word " * 60,
        notes="n " * 40,
    )
    return [
        operator_grid(ROWS, width=width), whole_model_grid([WHOLE]), variant_grid(USED), dim_grid([sizes]),
        trial_grid([trial]),
        *evaluation_grids(EvalReport(outcome="rejected", reason="oob", detail="word " * 60), certify=True),
        *evaluation_grids(JUDGED, certify=True), *audit_grids(AUDITED), *audit_grids(replace(AUDITED, label=None)),
        *trial_grids(TrialReport(label="gelu-0c0c0c0c", trial=trial, explanation=("word " * 60, "    x" * 50))),
        doctor_grid([DoctorLine(name="nvcc", status="warn", detail="word " * 40, fix="word " * 40)]),
    ]  # fmt: skip


def on_terminal(grid: Grid, width: int) -> str:
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=True, color_system=None, soft_wrap=True).print(
        grid_rich(grid, width=width)
    )
    return file.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    for grid in all_grids(width):
        for text in (on_terminal(grid, width), grid_text(grid, width=width)):
            assert max(len(line) for line in text.splitlines()) <= width


@pytest.mark.parametrize("width", [80, 120, None])
def test_operator_table_says_everything_at_every_width(width: int | None) -> None:
    text = grid_text(operator_grid(ROWS, width=width), width=width)
    flat = " ".join(text.split())
    for part in ("99.9%", "3584", "99.9 ms", "99.9x", "98.8-100", "<0.1%", "no file for this operator", "not faster"):
        assert part in flat
    assert "1 of 4 variants use a generated kernel, 99.9% of the captured time" in flat


@pytest.mark.parametrize("width", [80, 160, None])
def test_columns_of_the_operator_table_say_one_thing_each(width: int | None) -> None:
    dispatch = Interval(median=1.0, low=0.99, high=1.01)
    row = replace(
        LOST, eager_us=5.0, judged_eager_us=1.8, best_us=1.0, speedup=1.8, speedup_low=1.7, speedup_high=1.9,
        dispatch=dispatch, decision="eager: through dispatch not faster beyond noise: 1.00x [0.99, 1.01]",
    )  # fmt: skip
    grid = operator_grid([row, NEW], width=width)
    titles = [c.title for c in grid.columns]
    judged, new = ([c.text for c in r.cells] for r in grid.records)
    for title, text in (("in model", "5.00 us"), ("kernel", "1.00 us"), ("search", "1.80x"), ("dispatch", "1.00x")):
        assert judged[titles.index(title)] == text
    assert new[titles.index("in model")] == "1.00 us", "the same thing before and after a trial"
    assert new[titles.index("dispatch")] == "-"
    assert "1.80 us" in grid_text(grid), "eager beside the candidate is there too"
    assert any("in model: a call as captured" in line for line in grid.footer)
    assert any(line.startswith("dispatch: ") for line in grid.footer)
    assert len(operator_grid([NEW], width=width).footer) == 1


def test_one_variant_shows_its_name_in_the_package() -> None:
    narrowed = replace(
        USED, packaged="relu-12345678", decision="use: from 4096 elements on; through dispatch 3.00x [2.90, 3.10]",
        dispatch=Interval(median=3.0, low=2.9, high=3.1),
    )  # fmt: skip
    text = grid_text(variant_grid(narrowed))
    assert "relu-12345678, from 4096 elements on" in text
    assert "3.00x  (95% interval 2.90-3.10)" in text
    assert "in package" not in grid_text(variant_grid(USED))
    assert "not tried" in grid_text(variant_grid(NEW))
    assert "none was accepted" in grid_text(variant_grid(replace(NEW, trials=2)))


def test_operator_table_starts_with_the_largest_share() -> None:
    records = operator_grid(ROWS).records
    assert [r.cells[0].text for r in records] == [USED.label, LOST.label, SKIPPED.label, NEW.label]


def test_a_long_label_keeps_the_digits_that_commands_accept() -> None:
    text = grid_text(operator_grid([SKIPPED], width=80), width=80)
    assert "...-0b0b0b0b" in text


def test_without_a_limit_a_record_is_one_line() -> None:
    lines = grid_text(operator_grid(ROWS)).splitlines()
    assert sum("scaled_dot_product" in line for line in lines) == 1
    assert any("stays with eager" in line and "scaled_dot_product" in line for line in lines)


@pytest.mark.parametrize("width", [80, 160, None])
def test_small_variants_that_were_never_tried_are_only_counted(width: int | None) -> None:
    tried = replace(NEW, label="erf-0e0e0e0e", trials=1)
    grid = operator_grid([*ROWS, tried], width=width, least_share=0.001, how_to_see_all="--all shows them")
    assert [r.cells[0].text.rpartition("-")[2] for r in grid.records] == ["0a0a0a0a", "0d0d0d0d", "0e0e0e0e"]
    assert grid.footer[-1] == "and 2 more below 0.1% of the time (--all shows them)"
    assert "1 of 5 variants use a generated kernel" in grid.footer[0], "the hidden ones count"
    assert len(operator_grid([*ROWS, tried], width=width).records) == 5
    assert operator_grid(ROWS, least_share=0.001).footer[-1] == "and 2 more below 0.1% of the time"


@pytest.mark.parametrize("width", [80, 160, None])
def test_timing_while_others_used_the_machine_has_a_footnote(width: int | None) -> None:
    footnote = "* others used the machine while this was timed"
    text = grid_text(operator_grid([replace(USED, disturbed=True), LOST], width=width), width=width)
    assert "99.9x*" in text
    assert "0.90x*" not in text
    assert footnote in text.splitlines()
    assert len({line.index(number) for line in text.splitlines() for number in ("9.9x", ".90x") if number in line}) == 1
    assert "*" not in grid_text(operator_grid([USED, LOST], width=width), width=width)


def test_every_other_table_with_a_speedup_has_the_footnote_too() -> None:
    speedup = Interval(median=2.0, low=1.9, high=2.1)
    trial = TrialRow(node="ab" * 32, number=1, outcome="accepted", speedup=speedup, disturbed=True)
    judged = EvalReport(outcome="accepted", speedup=speedup, disturbed=True)
    for marked, plain in (
        (trial_grid([trial]), trial_grid([replace(trial, disturbed=False)])),
        (variant_grid(replace(USED, disturbed=True)), variant_grid(USED)),
        (*evaluation_grids(judged, certify=False), *evaluation_grids(replace(judged, disturbed=False), certify=False)),
    ):
        assert "x*" in grid_text(marked)
        assert "* others used the machine while this was timed" in grid_text(marked).splitlines()
        assert "*" not in grid_text(plain)


def test_whole_model_says_what_it_does_not_show() -> None:
    text = " ".join(grid_text(whole_model_grid([WHOLE]), width=80).split())
    assert "the same tokens" in text
    assert "no clear difference in speed" in text
    assert "15500 calls dispatched, 10053 left to eager" in text


def test_a_speed_up_that_the_times_do_not_give_is_explained() -> None:
    text = " ".join(grid_text(whole_model_grid([replace(WHOLE, eager_ms=1000, fast_ms=800, pairs=37)])).split())
    assert "speed-up: median of 37 pairs" in text, "1.25 is not 1.01"
    assert "median of" not in grid_text(whole_model_grid([replace(WHOLE, pairs=37)]))


def test_without_a_dispatched_call_nothing_is_compared() -> None:
    text = grid_text(whole_model_grid([replace(WHOLE, hits=0, misses=3)]))
    assert "none of 3 calls was dispatched, so there is nothing to compare" in text
    assert "x" not in text.splitlines()[2].replace("qwen3_small", "")


def test_the_speed_ups_of_a_package_are_called_as_in_the_operator_table() -> None:
    entry = EntryRow(
        variant="0a" * 32, label="relu-0a0a0a0a", operator="relu", describe="", backend="cpp", target="x86-64",
        speedup=Interval(median=2.0, low=1.9, high=2.1),
    )  # fmt: skip
    report = PackageReport(path="m.cast", model="m", device="cpu", format=1, size_bytes=9, entries=(entry,))
    text = "\n".join(map(grid_text, package_grids(report)))
    assert "dispatch  95% interval" in text and "speed-up  95%" not in text


def test_a_wrong_output_is_said_in_words() -> None:
    wrong = WholeModel(
        name="m", speedup=Interval(median=0.9, low=0.8, high=0.95), eager_ms=1, fast_ms=1.1, output_max_abs=0.5,
        output_rel=0.2, outputs_match=False, hits=1, misses=0, tokens_equal=False,
    )  # fmt: skip
    text = " ".join(grid_text(whole_model_grid([wrong]), width=80).split())
    assert all(words in text for words in ("DIFFERS", "OTHER TOKENS", "slower than eager"))


def test_many_sizes_are_abridged_with_their_number() -> None:
    sizes = DimRow(name="n0", low=1, high=512, observed=tuple((float(i), 28) for i in range(1, 128)))
    text = grid_text(dim_grid([sizes]))
    assert "118 more" in text
    assert "127 (28)" in text


def test_a_flexible_cell_keeps_its_line_breaks() -> None:
    columns = (Column(title="a"), Column(title="b", flexible=True))
    text = grid_text(Grid(columns=columns, records=(Record((Cell("x"), Cell("one\n  two"))),), header=False))
    assert text.splitlines() == ["x  one", "     two"]


def test_an_empty_table_is_no_error() -> None:
    assert "0 of 0 variants" in grid_text(operator_grid([]))


@pytest.mark.parametrize(
    ("decision", "least", "dispatch"),
    [
        (used_decision(Interval(median=3.0, low=2.9, high=3.1)), 0, Interval(median=3.0, low=2.9, high=3.1)),
        (used_decision(Interval(median=3.0, low=2.9, high=3.1), 4096), 4096, Interval(median=3.0, low=2.9, high=3.1)),
        ("use", 0, None),
        ("eager: through dispatch slower than eager: 0.90x [0.85, 0.95] (others used 40% of the CPUs)", 0,
         Interval(median=0.9, low=0.85, high=0.95)),
        ("eager: slower than eager: 0.90x [0.85, 0.95]", 0, None),
        ("use: through dispatch 17.72x [17.01, 18.26]", 0, Interval(median=17.72, low=17.01, high=18.26)),
        ("eager: through dispatch slower than eager: 0.003x [<0.001, 0.004]", 0,
         Interval(median=0.003, low=0.001, high=0.004)),
        ("eager: the whole model was slower with it: 0.990x [0.985, 0.995]", 0, None),
    ],
)  # fmt: skip
def test_a_decision_tells_what_it_was_based_on(decision: str, least: int, dispatch: Interval | None) -> None:
    assert (least_elements_of(decision), dispatch_of(decision)) == (least, dispatch)


def test_a_decision_has_the_digits_of_the_table() -> None:
    dispatch = Interval(median=17.718, low=0.0031, high=140.2)
    assert used_decision(dispatch) == "use: through dispatch 17.7x [0.003, 140]"
    assert dispatch_of(used_decision(dispatch)) == Interval(median=17.7, low=0.003, high=140)


def test_json_holds_no_nan() -> None:
    row = OperatorRow(
        variant="v", label="l", operator="o", calls=1, share=math.nan, eager_us=math.inf, speedup=-math.inf
    )
    document = json.loads(json.dumps(row.to_json(), allow_nan=False))
    assert (document["share"], document["eager_us"], document["speedup"]) == (None, None, None)


def test_modes_with_one_decision_share_a_phrase() -> None:
    entry = EntryRow(
        variant="v", label="l", operator="o", describe="o(x)", backend="cpp", target="x86-64-v3",
        decisions={"compiled": "eager: not measured", "eager": "use", "graphed": "eager: not measured"},
    )  # fmt: skip
    report = PackageReport(path="m.cast", model="m", device="cpu", format=1, size_bytes=1, entries=(entry,))
    text = grid_text(package_grids(report)[1])
    assert "o(x); eager mode: use; compiled and graphed mode: off (not measured)" in text


def test_a_kernel_that_is_intact_but_off_is_not_called_ok() -> None:
    used = EntryRow(
        variant="0a" * 32, label="l", operator="softmax", describe="d", backend="cpp", target="t",
        decisions={"eager": "use"},
    )  # fmt: skip
    off = replace(used, variant="0b" * 32, decisions={"eager": "eager: through dispatch not faster"})
    checks = (
        CheckRow(name="integrity", ok=True, detail="whole"), CheckRow(name="0a" * 4, ok=True, detail="softmax: on"),
        CheckRow(name="0b" * 4, ok=True, detail="softmax: through dispatch not faster"),
        CheckRow(name="0c" * 4, ok=False, detail="softmax: does not load"),
    )  # fmt: skip
    report = PackageReport(
        path="m.cast", model="m", device="cpu", format=1, size_bytes=1, entries=(used, off), checks=checks
    )
    lines = [" ".join(line.split()) for line in grid_text(package_grids(report)[2]).splitlines()]
    assert lines[1:] == [
        "ok integrity whole", "ok 0a0a0a0a softmax: on",
        "off 0b0b0b0b softmax: intact, but not used: through dispatch not faster",
        "fail 0c0c0c0c softmax: does not load",
    ]  # fmt: skip
    assert report.valid is False


def test_the_judgement_of_a_file_shows_certificate_and_paper_apart() -> None:
    text = " ".join(grid_text(evaluation_grids(JUDGED, certify=True)[0], width=80).split())
    assert "certificate rejected: oob" in text
    assert "paper correct, 312x (1 captured input; no decision uses it)" in text
    plain = replace(JUDGED, certificate=None, paper=None)
    assert "certificate not tried" in " ".join(grid_text(evaluation_grids(plain, certify=True)[0]).split())
    assert "certificate" not in grid_text(evaluation_grids(plain, certify=False)[0])


def test_source_lines_of_an_explanation_keep_their_columns() -> None:
    lines = ("line 2: no", "    for (i) {", "         ^")
    assert grid_text(explanation_grid(lines), width=80).splitlines() == ["Explanation", *lines]


def test_the_audit_of_a_node_says_who_did_it_first() -> None:
    head, evidence = (grid_text(grid, width=200) for grid in audit_grids(AUDITED))
    assert "does its own work" in head and "gelu_kernel (device code, by cuobjdump)" in head
    assert "expf" in evidence and "and 20 more" in evidence
    assert "gelu_kernel (491 B)" in evidence and "and 8 more" in evidence
    assert ".comment" not in evidence


@pytest.mark.parametrize(
    ("change", "own"),
    [
        ({}, True),
        ({"label": "backend"}, False),
        ({"label_now": "tamper"}, False),
        ({"ablation": AblationRow(status="not_shown", detail="")}, False),
        ({"ablation": AblationRow(status="unavailable", detail="no GPU")}, True),
        ({"label": None, "ablation": None}, False),
    ],
)
def test_what_counts_as_a_nodes_own_work(change: dict[str, Any], own: bool) -> None:
    assert replace(AUDITED, **change).own_work is own


def test_what_is_unavailable_is_said_with_its_reason() -> None:
    row = AblationRow(status="unavailable", detail="no CUDA device is available to torch")
    text = grid_text(audit_grids(replace(AUDITED, ablation=row))[0])
    assert "unavailable: no CUDA device is available to torch" in text
    assert "does its own work" not in text and "it was not run here" in text


def test_the_audit_of_a_failed_node_says_that_there_is_no_binary() -> None:
    failed = AuditReport(
        node="ab" * 32, number=3, variant="v", variant_label="gelu-0c0c0c0c", outcome="build_failure",
        reason="compile_error", detail="kernel.cpp:2: no",
    )  # fmt: skip
    (grid,) = audit_grids(failed)
    text = grid_text(grid)
    assert "build_failure: compile_error" in text and "only an accepted candidate's binary is kept" in text
