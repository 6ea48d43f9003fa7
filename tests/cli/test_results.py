"""Results: the documents that --json prints, the tables, the hints, the exit codes of judgements."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelforge.benchmark.types import Interval
from kernelforge.package import reader
from kernelforge.package.types import Header, Package
from kernelforge.report.demo import DemoReport
from kernelforge.report.judgement import AblationRow, AuditReport, CertificateRow, EvalReport, PaperRow, TrialReport
from kernelforge.report.rows import (
    CaptureReport,
    CheckRow,
    EntryRow,
    ExportReport,
    ForgeReport,
    OperatorRow,
    PackageReport,
    RunReport,
    TrialRow,
    VariantReport,
    WholeModel,
)

ROW = OperatorRow(
    variant="0a" * 32, label="max_pool2d-0a0a0a0a", operator="max_pool2d", calls=1, share=0.062, eager_us=2812.0,
    best_us=301.5, speedup=9.33, speedup_low=9.1, speedup_high=9.5, floor_us=120.0, decision="use", trials=3,
)  # fmt: skip
WHOLE = WholeModel(
    name="resnet50", speedup=Interval(median=1.21, low=1.18, high=1.25), eager_ms=81.0, fast_ms=67.0,
    output_max_abs=2e-6, output_rel=3e-7, outputs_match=True, hits=55, misses=53,
)  # fmt: skip


def giver(value: object) -> Callable[..., object]:
    return lambda *_args, **_kwargs: value


def test_ops_json_is_a_list_with_the_promised_keys(kforge: Any, fake_verbs: Any) -> None:
    fake_verbs(list_operators=giver([ROW]))
    ran = kforge("ops", "x.kforge", "--json")
    (row,) = json.loads(ran.stdout)
    wanted = {"variant", "operator", "calls", "share", "eager_us", "best_us", "speedup", "decision"}
    assert wanted <= row.keys()
    assert (row["operator"], row["speedup"], row["decision"]) == ("max_pool2d", 9.33, "use")


def test_ops_through_a_pipe_is_one_line_a_variant(kforge: Any, fake_verbs: Any) -> None:
    fake_verbs(list_operators=giver([ROW]))
    ran = kforge("ops", "x.kforge")
    (line,) = [line for line in ran.stdout.splitlines() if "max_pool2d" in line]
    assert all(part in line for part in ("6.2%", "2.81 ms", "302 us", "120 us", "9.33x", "9.10-9.50", "use"))
    assert "\x1b" not in ran.stdout
    assert ran.stderr.strip().splitlines()[-1] == "next: kforge export x.kforge -o x.cast"


def test_ops_hides_what_is_small_and_was_never_tried_unless_asked(kforge: Any, fake_verbs: Any) -> None:
    small = replace(ROW, variant="0b" * 32, label="view-0b0b0b0b", share=0.0004, trials=0, decision="pending")
    fake_verbs(list_operators=giver([ROW, small]))
    text = kforge("ops", "x.kforge").stdout
    assert "view-0b0b0b0b" not in text
    assert text.splitlines()[-1] == "and 1 more below 0.1% of the time (--all shows them)"
    everything = kforge("ops", "x.kforge", "--all").stdout
    assert "view-0b0b0b0b" in everything
    assert "--all" not in everything
    assert len(json.loads(kforge("ops", "x.kforge", "--json").stdout)) == 2


def test_next_step_can_be_pasted_whatever_the_project_is_called(kforge: Any, fake_verbs: Any) -> None:
    fake_verbs(list_operators=giver([ROW]))
    line = kforge("ops", "my models/x.kforge").stderr.strip().splitlines()[-1]
    assert shlex.split(line) == ["next:", "kforge", "export", "my models/x.kforge", "-o", "x.cast"]


def test_quiet_says_nothing_on_stderr(kforge: Any, fake_verbs: Any) -> None:
    fake_verbs(list_operators=giver([ROW]))
    assert kforge("ops", "x.kforge", "-q").stderr == ""


def test_op_show_has_sizes_and_trials(kforge: Any, fake_verbs: Any) -> None:
    trial = TrialRow(node="cd" * 32, number=1, outcome="rejected", reason="wrong_value", detail="at n0=17: off by 1")
    fake_verbs(show_variant=giver(VariantReport(row=ROW, trials=(trial,))))
    document = json.loads(kforge("op", "show", "0a0a", "-p", "x.kforge", "--json").stdout)
    assert document["variant"] == ROW.variant
    assert document["trial_list"][0]["reason"] == "wrong_value"
    text = kforge("op", "show", "0a0a", "-p", "x.kforge").stdout
    assert "wrong_value" in text
    assert "off by 1" in text


PRELUDES = {"cpp": "// for a CPU\n", "cuda": "// for a GPU\n"}


@pytest.mark.parametrize(
    ("options", "backend"),
    [((), "cuda"), (("--backend", "cpp"), "cpp"), (("--backend", "cuda"), "cuda")],
    ids=["default", "cpp", "cuda"],
)
def test_prelude_is_printed_as_it_is(kforge: Any, fake_verbs: Any, options: tuple[str, ...], backend: str) -> None:
    fake_verbs(show_variant=giver(VariantReport(row=ROW, backend="cuda", preludes=PRELUDES)))
    command = ("op", "show", "0a0a", "-p", "x.kforge", "--prelude", *options)
    assert kforge(*command).stdout == PRELUDES[backend]
    document = json.loads(kforge(*command, "--json").stdout)
    assert document == {"variant": ROW.variant, "backend": backend, "prelude": PRELUDES[backend]}


def test_next_after_a_prelude_is_to_judge_a_file_of_the_project_s_backend(kforge: Any, fake_verbs: Any) -> None:
    fake_verbs(show_variant=giver(VariantReport(row=ROW, backend="cuda", preludes=PRELUDES)))
    command = ("op", "show", "0a0a", "-p", "x.kforge", "--prelude")
    wanted = f"next: kforge eval kernel.cu --variant {ROW.label} --project x.kforge"
    assert kforge(*command).stderr.splitlines() == [wanted]
    assert kforge(*command, "--backend", "cpp").stderr == "", "nothing could judge it here"


def test_variant_without_a_prelude_says_why(kforge: Any, fake_verbs: Any) -> None:
    refused = replace(ROW, decision="not forged: no C type for complex64")
    fake_verbs(show_variant=giver(VariantReport(row=refused)))
    ran = kforge("op", "show", "0a0a", "-p", "x.kforge", "--prelude")
    assert (ran.code, ran.stdout) == (3, "")
    assert "no C type for complex64" in ran.stderr


def test_backend_without_prelude_is_a_usage_error(kforge: Any, fake_verbs: Any) -> None:
    fake_verbs(show_variant=giver(VariantReport(row=ROW, preludes=PRELUDES)))
    ran = kforge("op", "show", "0a0a", "-p", "x.kforge", "--backend", "cpp")
    assert (ran.code, ran.stdout) == (2, "")
    assert "--prelude" in ran.stderr


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (EvalReport(outcome="accepted", speedup=Interval(median=2, low=1.9, high=2.1), audit="generated"), 0),
        (EvalReport(outcome="accepted", audit="backend"), 7),
        (EvalReport(outcome="rejected", reason="wrong_value", detail="off"), 4),
        (EvalReport(outcome="rejected", reason="delegated"), 7),
        (EvalReport(outcome="build_failure", reason="compile_error"), 5),
        (EvalReport(outcome="worker_failure", detail="eager died"), 1),
    ],
    ids=["accepted", "backend", "wrong", "delegated", "no-build", "worker"],
)
def test_eval_prints_one_object_and_its_exit_code(kforge: Any, fake_verbs: Any, report: EvalReport, code: int) -> None:
    fake_verbs(evaluate_file=giver(report))
    ran = kforge("eval", "k.cpp", "--project", "x.kforge", "--variant", "0a", "--json")
    document = json.loads(ran.stdout)
    assert ran.code == code
    assert document["outcome"] == report.outcome
    assert {"reason", "detail", "speedup", "audit"} <= document.keys()
    if report.speedup is not None:
        assert document["speedup"] == {"median": 2, "low": 1.9, "high": 2.1}


def test_capture_names_the_project_after_the_model(kforge: Any, fake_verbs: Any) -> None:
    seen: dict[str, object] = {}

    def capture_source(source: str, **options: object) -> CaptureReport:
        seen.update(options, source=source)
        return CaptureReport(
            project="resnet50.kforge", model="resnet50", device="cpu", variants=9, calls=175, coverage_wall=0.93,
            coverage_device=None, unsupported=(("einsum", 4),), warnings=("a thread was not seen",),
        )  # fmt: skip

    fake_verbs(capture_source=capture_source)
    ran = kforge("capture", "torchvision:resnet50", "--random-weights", "--samples", "2", "--device", "cpu", "--json")
    assert seen["project"] == Path("resnet50.kforge")
    assert (seen["samples"], seen["random_weights"], seen["shapes"], seen["device"]) == (2, True, "auto", "cpu")
    document = json.loads(ran.stdout)
    assert document["coverage_device"] is None
    assert document["unsupported"] == [{"operator": "einsum", "calls": 4}]
    assert "warning: a thread was not seen" in ran.stderr


def test_forge_passes_the_budget_and_suggests_export(kforge: Any, fake_verbs: Any) -> None:
    seen: dict[str, Any] = {}

    def forge_project(project: Path, **options: object) -> ForgeReport:
        seen.update(options, project=project)
        return ForgeReport(rows=(ROW,), trials=3, seconds=1.5, stopped="trials")

    fake_verbs(forge_project=forge_project)
    ran = kforge("forge", "x.kforge", "softmax", "--trials", "3", "--max-time", "1h30m", "--json")
    assert ran.code == 0
    assert (seen["budget"].trials, seen["budget"].seconds, seen["operators"]) == (3, 5400.0, ("softmax",))
    assert json.loads(ran.stdout)["trials"] == 3
    assert "kforge export" in ran.stderr.splitlines()[-1]


def test_one_trial_is_no_trials(kforge: Any, fake_verbs: Any) -> None:
    fake_verbs(forge_project=giver(ForgeReport(rows=(ROW,), trials=1, seconds=1.5, stopped="trials")))
    assert kforge("forge", "x.kforge").stderr.startswith("1 trial in 1.5s")


@pytest.mark.parametrize(("wanted", "code"), [("9", 0), ("9.2", 8)])
def test_require_speedup_looks_at_the_low_end(kforge: Any, fake_verbs: Any, wanted: str, code: int) -> None:
    fake_verbs(forge_project=giver(ForgeReport(rows=(ROW,), trials=3, seconds=1.5, stopped="trials")))
    assert kforge("forge", "x.kforge", "--require-speedup", wanted).code == code


def test_ctrl_c_once_stops_cleanly_and_prints_how_to_resume(kforge: Any, fake_verbs: Any) -> None:
    def forge_project(_project: Path, *, should_stop: Callable[[], bool], **_options: object) -> ForgeReport:
        assert not should_stop()
        os.kill(os.getpid(), signal.SIGINT)
        assert should_stop()
        return ForgeReport(rows=(ROW,), trials=1, seconds=0.5, stopped="interrupted")

    fake_verbs(forge_project=forge_project)
    ran = kforge("forge", "my x.kforge", "softmax", "--json", "--max-time", "90s", "--require-speedup", "1.1")
    assert ran.code == 130
    assert json.loads(ran.stdout)["stopped"] == "interrupted"
    resume = "resume: kforge forge 'my x.kforge' softmax --json --max-time 90s --require-speedup 1.1"
    assert resume in ran.stderr.splitlines()


def test_interrupted_run_is_resumed_by_the_same_command(kforge: Any, fake_verbs: Any) -> None:
    def run_source(_source: str, **_options: object) -> RunReport:
        os.kill(os.getpid(), signal.SIGTERM)
        return RunReport(rows=(ROW,), whole_model=WHOLE, package="m.cast", project="m.kforge", stopped="stopped")

    fake_verbs(run_source=run_source)
    options = ("--random-weights", "--dtype", "bfloat16", "--samples", "2", "--device", "cpu", "--max-time", "3m")
    ran = kforge("run", "transformers:my config.json", *options, "-o", "m.cast")
    assert ran.code == 143
    assert f"resume: kforge run 'transformers:my config.json' {' '.join(options)} -o m.cast" in ran.stderr.splitlines()


@pytest.mark.parametrize(("stopped", "resumed"), [("seconds", True), ("trials", True), ("exhausted", False)])
def test_search_that_ran_out_of_its_budget_says_how_to_go_on(
    kforge: Any, fake_verbs: Any, stopped: str, resumed: bool
) -> None:
    fake_verbs(
        forge_project=giver(ForgeReport(rows=(ROW,), trials=3, seconds=1.5, stopped=stopped)),
        run_source=giver(RunReport(rows=(ROW,), whole_model=WHOLE, package="m.cast", stopped=stopped)),
    )
    for command in (("forge", "x.kforge", "--trials", "3"), ("run", "m.py", "--max-time", "3m")):
        lines = kforge(*command).stderr.splitlines()
        assert (f"resume: kforge {' '.join(command)}" in lines) is resumed
        assert lines[-1].startswith("next: kforge ")


def test_ctrl_c_twice_kills(kforge: Any, fake_verbs: Any) -> None:
    def forge_project(_project: Path, **_options: object) -> ForgeReport:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("must not be reached")

    fake_verbs(forge_project=forge_project)
    former = signal.getsignal(signal.SIGINT)
    ran = kforge("forge", "x.kforge", "--trials", "3")
    assert (ran.code, ran.stdout) == (130, "")
    assert "resume: kforge forge x.kforge --trials 3" in ran.stderr.splitlines()
    assert signal.getsignal(signal.SIGINT) is former


USED = EntryRow(
    variant="0a" * 32, label="softmax-0a0a0a0a", operator="softmax", describe="softmax(x)", backend="cpp",
    target="x86-64-v3", decisions={"eager": "use"},
)  # fmt: skip
OFF = replace(USED, variant="0b" * 32, decisions={"eager": "eager: through dispatch not faster"})


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file for `cast` to read the entries of: it has none that serves only some sizes."""
    empty = Package(
        header=Header(name="m", device="cpu", torch="2.0.0", created_by="x"), entries=(), path=Path("m.cast"), digest=""
    )
    monkeypatch.setattr(reader, "read_package", giver(empty))


def package(*entries: EntryRow, checks: tuple[CheckRow, ...] = ()) -> PackageReport:
    return PackageReport(path="m.cast", model="m", device="cpu", format=1, size_bytes=9, entries=entries, checks=checks)


def test_export_passes_the_picks(kforge: Any, fake_verbs: Any) -> None:
    seen: dict[str, object] = {}

    def export_project(_project: Path, **options: object) -> ExportReport:
        seen.update(options)
        return ExportReport(path="m.cast", entries=1, held=1, skipped=(("gelu-22223333", "no accepted candidate"),))

    fake_verbs(export_project=export_project)
    ran = kforge("export", "x.kforge", "-o", "m.cast", "--pick", "0a0a=cdcd")
    assert (seen["output"], seen["picks"]) == (Path("m.cast"), {"0a0a": "cdcd"})
    assert "no accepted candidate" in ran.stdout


@pytest.mark.usefixtures("packed")
@pytest.mark.parametrize(("ok", "code"), [(True, 0), (False, 3)])
def test_cast_verify_fails_if_a_check_fails(kforge: Any, fake_verbs: Any, ok: bool, code: int) -> None:
    check = CheckRow(name="checksums", ok=ok, detail="" if ok else "kernels/a.so differs")
    report = PackageReport(path="m.cast", model="m", device="cpu", format=1, size_bytes=9, checks=(check,))
    fake_verbs(verify_package=giver(report))
    ran = kforge("cast", "verify", "m.cast", "--json")
    assert ran.code == code
    assert json.loads(ran.stdout)["valid"] is ok


def test_run_shows_the_whole_model(kforge: Any, fake_verbs: Any) -> None:
    report = RunReport(rows=(ROW,), whole_model=WHOLE, package="m.cast", project="m.kforge")
    fake_verbs(run_source=giver(report))
    ran = kforge("run", "m.py", "--max-time", "3m", "-o", "m.cast")
    assert ran.code == 0
    assert "1.18-1.25" in ran.stdout
    assert ran.stderr.strip().endswith("next: kforge cast inspect m.cast")


def test_run_that_wins_nothing_says_so_and_compares_nothing(kforge: Any, fake_verbs: Any) -> None:
    noise = replace(WHOLE, hits=0, misses=0, speedup=Interval(median=0.97, low=0.95, high=0.99))
    report = RunReport(rows=(), whole_model=noise, package="", project="m.kforge")
    fake_verbs(run_source=giver(report))
    text = kforge("run", "m.py").stdout
    assert "no kernel is in use, so there is nothing to compare" in text
    assert "slower than eager" not in text and "0.97x" not in text
    assert text.endswith("package  no package was written\n")
    fake_verbs(run_source=giver(replace(report, unused="m.cast")))
    assert "m.cast: its kernels made the whole model slower, so all of them are off" in kforge("run", "m.py").stdout
    fake_verbs(run_source=giver(replace(report, whole_model=WHOLE, package="m.cast")))
    assert "\npackage " not in kforge("run", "m.py").stdout


@pytest.mark.parametrize(
    ("stopped", "words"),
    [
        ("seconds", "--max-time is spent (the next trial would not fit)"), ("trials", "--trials is spent"),
        ("tokens", "--budget-tokens is spent (the next proposal would not fit)"),
        ("exhausted", "no variant is left to try"), ("stopped", "stopped"),
    ],
)  # fmt: skip
def test_why_a_search_ended_is_told_in_the_words_of_the_options(
    kforge: Any, fake_verbs: Any, stopped: str, words: str
) -> None:
    report = ForgeReport(rows=(ROW,), trials=2, seconds=4.0, stopped=stopped, busy_s={"judge": 2.0})
    fake_verbs(forge_project=giver(report))
    ran = kforge("forge", "x.kforge")
    assert ran.stderr.splitlines()[:2] == [f"2 trials in 4.0s; ended by: {words}", "busy: judge 50%"]
    assert json.loads(kforge("forge", "x.kforge", "--json").stdout)["stopped"] == stopped


def test_demo_json_has_the_promised_keys(kforge: Any, fake_verbs: Any) -> None:
    report = DemoReport(rows={"resnet50": (ROW,)}, whole_model={"resnet50": WHOLE}, seconds=200, peak_rss_bytes=2**31)
    fake_verbs(demo=giver(report))
    document = json.loads(kforge("demo", "--json").stdout)
    assert document["whole_model"]["resnet50"]["speedup"] == {"median": 1.21, "low": 1.18, "high": 1.25}
    assert document["operators"]["resnet50"][0]["decision"] == "use"
    assert document["package_runs"] == {}


def test_version_knows_torch(kforge: Any) -> None:
    document = json.loads(kforge("version", "--json").stdout)
    assert document["torch"][0].isdigit()
    assert {"kernelforge", "python"} <= document.keys()


JUDGED = EvalReport(outcome="accepted", audit="generated", explanation=("accepted: 2.00x",))


@pytest.mark.parametrize(
    ("certificate", "code"),
    [
        (None, 0),
        (CertificateRow(outcome="accepted", cases=30), 0),
        (CertificateRow(outcome="rejected", reason="oob"), 4),
        (CertificateRow(outcome="rejected", reason="tamper"), 7),
        (CertificateRow(outcome="worker_failure", detail="eager died"), 1),
    ],
)
def test_a_certificate_that_was_asked_for_counts(
    kforge: Any, fake_verbs: Any, certificate: CertificateRow | None, code: int
) -> None:
    fake_verbs(evaluate_file=giver(replace(JUDGED, certificate=certificate)))
    ran = kforge("eval", "k.cpp", "-p", "x.kforge", "-V", "0a", "--certify", "--json")
    document = json.loads(ran.stdout)
    assert ran.code == code
    assert document["certificate"] == (None if certificate is None else certificate.to_json())


def test_the_papers_protocol_is_shown_and_decides_nothing(kforge: Any, fake_verbs: Any) -> None:
    seen: dict[str, object] = {}
    wrong = replace(JUDGED, paper=PaperRow(correct=False, speedup=None, note="off; no decision uses it"))

    def evaluate_file(_source: Path, **options: object) -> EvalReport:
        seen.update(options)
        return wrong

    fake_verbs(evaluate_file=evaluate_file)
    command = ("eval", "k.cpp", "-p", "x.kforge", "-V", "0a", "--protocol", "paper")
    ran = kforge(*command)
    assert ran.code == 0
    assert (seen["paper"], seen["certify"]) == (True, False)
    assert "no decision uses it" in ran.stdout
    document = json.loads(kforge(*command, "--json").stdout)
    assert document["paper"] == {"correct": False, "speedup": None, "note": "off; no decision uses it"}
    assert kforge("eval", "k.cpp", "-V", "0a", "--protocol", "papers").code == 2


def test_op_show_explains_one_trial(kforge: Any, fake_verbs: Any) -> None:
    trial = TrialRow(node="cd" * 32, number=4, outcome="accepted", notes="k.cpp")
    fake_verbs(show_trial=giver(TrialReport(label="gelu-0a0a", trial=trial, explanation=("likely limiter: x",))))
    command = ("op", "show", "gelu", "-p", "x.kforge", "--trial", "4")
    ran = kforge(*command)
    assert "likely limiter: x" in ran.stdout
    assert ran.stderr.strip() == "next: kforge audit 4 --variant gelu-0a0a --project x.kforge"
    document = json.loads(kforge(*command, "--json").stdout)
    assert (document["number"], document["explanation"]) == (4, ["likely limiter: x"])
    assert kforge(*command, "--prelude").code == 2


AUDITED = AuditReport(
    node="ab" * 32, number=3, variant="0a" * 32, variant_label="gelu-0a0a0a0a", outcome="accepted", label="generated",
    label_now="generated", ablation=AblationRow(status="shown", detail="seen"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, 0), ({"label": "backend"}, 7), ({"ablation": AblationRow(status="not_shown", detail="")}, 7),
        ({"kernels": ("_Z4reluPKfPf",), "launched": (("_Z4reluPKfPf", 2),), "launched_source": "by ncu"}, 0),
        ({"kernels": ("_Z4reluPKfPf",), "launched": (("ampere_sgemm", 1),), "launched_source": "by ncu"}, 7),
        ({"launched": (("ampere_sgemm", 1),), "launched_source": "by ncu"}, 0),
        ({"outcome": "build_failure", "reason": "compile_error", "label": None}, 5),
        ({"outcome": "rejected", "reason": "wrong_value", "label": None}, 4),
        ({"outcome": "rejected", "reason": "delegated", "label": None}, 7),
        ({"outcome": "worker_failure", "label": None}, 1),
    ],
)  # fmt: skip
def test_audit_prints_one_object_and_its_exit_code(
    kforge: Any, fake_verbs: Any, change: dict[str, Any], code: int
) -> None:
    fake_verbs(audit_node=giver(replace(AUDITED, **change)))
    ran = kforge("audit", "3", "-V", "gelu", "-p", "x.kforge", "--json")
    assert ran.code == code
    document = json.loads(ran.stdout)
    assert (document["number"], document["own_work"]) == (3, code == 0)


def test_audit_of_a_failed_node_says_where_its_explanation_is(kforge: Any, fake_verbs: Any) -> None:
    failed = replace(AUDITED, outcome="rejected", reason="oob", label=None)
    fake_verbs(audit_node=giver(failed))
    ran = kforge("audit", "3", "-V", "gelu", "-p", "x.kforge")
    assert ran.stderr.strip() == "next: kforge op show gelu-0a0a0a0a --trial 3 --project x.kforge"


def test_export_counts_also_what_is_in_the_package_and_off(kforge: Any, fake_verbs: Any) -> None:
    skipped = (("softmax-0b0b0b0b", "not faster"),)
    report = ExportReport(path="m.cast", entries=0, held=1, skipped=skipped, size_bytes=10957)
    fake_verbs(export_project=giver(report))
    assert "1 kernel, 0 in use, 10.7 KiB" in kforge("export", "x.kforge").stdout
    document = json.loads(kforge("export", "x.kforge", "--json").stdout)
    assert (document["entries"], document["held"]) == (0, 1)
    fake_verbs(export_project=giver(replace(report, entries=1)))
    assert "1 kernel, 10.7 KiB" in kforge("export", "x.kforge").stdout


@pytest.mark.usefixtures("packed")
@pytest.mark.parametrize(("entries", "usable"), [((USED, OFF), True), ((OFF,), False), ((), False)])
def test_cast_verify_suggests_to_load_only_what_is_used(
    kforge: Any, fake_verbs: Any, entries: tuple[EntryRow, ...], usable: bool
) -> None:
    integrity = CheckRow(name="integrity", ok=True)
    fake_verbs(verify_package=giver(package(*entries, checks=(integrity,))))
    ran = kforge("cast", "verify", "m.cast")
    assert ran.code == 0
    assert ("next: in Python: kernelforge.load" in ran.stderr) is usable
    assert ("uses no kernel" in ran.stderr) is not usable


@pytest.mark.parametrize(
    ("report", "following"),
    [
        (EvalReport(outcome="accepted", audit="generated", number=3), "eval k.cpp --variant gelu --certify"),
        (EvalReport(outcome="rejected", reason="wrong_value", number=3), "op show gelu --trial 3"),
        (EvalReport(outcome="build_failure", reason="compile_error", number=3), "op show gelu --trial 3"),
        (EvalReport(outcome="rejected", reason="wrong_value"), "op show gelu"),
    ],
    ids=["accepted", "rejected", "no-build", "no-number"],
)
def test_eval_says_which_trial_it_made_and_what_next(
    kforge: Any, fake_verbs: Any, report: EvalReport, following: str
) -> None:
    fake_verbs(evaluate_file=giver(replace(report, node="cd" * 32)))
    ran = kforge("eval", "k.cpp", "-p", "x.kforge", "-V", "gelu")
    assert ("3, node cdcdcdcdcdcdcdcd" in ran.stdout) is (report.number == 3)
    words = ["next:", "kforge", *following.split(), "--project", "x.kforge"]
    assert shlex.split(ran.stderr.splitlines()[-1]) == words
    assert (
        json.loads(kforge("eval", "k.cpp", "-p", "x.kforge", "-V", "gelu", "--json").stdout)["number"] == report.number
    )


def test_eval_leaves_the_compilers_own_symbols_to_json(kforge: Any, fake_verbs: Any) -> None:
    own = ("_ITM_deregisterTMCloneTable", "__cxa_finalize", "__gmon_start__", "workspace_bytes")
    evidence = ("needs libm.so.6", *(f"imports {name}" for name in own), "imports expf")
    fake_verbs(evaluate_file=giver(replace(JUDGED, evidence=evidence)))
    command = ("eval", "k.cpp", "-p", "x.kforge", "-V", "gelu")
    assert "generated (needs libm.so.6; imports expf)" in kforge(*command).stdout
    assert json.loads(kforge(*command, "--json").stdout)["evidence"] == list(evidence)
    fake_verbs(evaluate_file=giver(replace(JUDGED, evidence=evidence[1:-1])))
    assert "generated\n" in kforge(*command).stdout


@pytest.mark.parametrize("backend", ["cpp", "cuda"])
def test_op_show_of_what_no_template_makes_suggests_a_kernel_by_hand(
    kforge: Any, fake_verbs: Any, backend: str
) -> None:
    report = VariantReport(row=ROW, backend=backend, preludes=PRELUDES, has_template=False)
    fake_verbs(show_variant=giver(report))
    file = {"cpp": "kernel.cpp", "cuda": "kernel.cu"}[backend]
    ran = kforge("op", "show", "0a0a", "-p", "x.kforge")
    assert ran.stderr.splitlines() == [f"next: kforge eval {file} --variant {ROW.label} --project x.kforge"]
    fake_verbs(show_variant=giver(replace(report, has_template=True)))
    ran = kforge("op", "show", "0a0a", "-p", "x.kforge")
    assert ran.stderr.splitlines() == [f"next: kforge forge x.kforge {ROW.label}"]
    fake_verbs(show_variant=giver(replace(report, preludes={})))
    assert kforge("op", "show", "0a0a", "-p", "x.kforge").stderr == "", "no kernel of it can be judged either"
