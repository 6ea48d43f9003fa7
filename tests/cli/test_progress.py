"""Progress: one line per finished trial without a terminal, a live line with one, nothing under -q."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from kernelforge.build.types import BuildFailure
from kernelforge.cli.output import Output
from kernelforge.cli.progress import Progress
from kernelforge.evaluate.types import Trial
from kernelforge.generate.types import Candidate
from kernelforge.search.events import PhaseChanged, SearchProgress, TrialFinished, VariantExhausted
from kernelforge.search.types import Node, node_of


def failed_node() -> Node:
    candidate = Candidate(variant_id="v", source="x", backend="cpp", generator="template", notes="rows=4")
    outcome = BuildFailure(reason="compile_error", detail="kernel.cpp:3: no\nmore")
    trial = Trial(candidate=candidate, outcome=outcome, started=0, seconds=1)
    return node_of(id="ab" * 32, number=7, parent="", trial=trial)


def feed(progress: Progress) -> None:
    progress(PhaseChanged(variant="softmax-11112222", trial=1, phase="build"))
    progress(SearchProgress(done=1, expected=40, eta_s=80))
    progress(TrialFinished(variant="softmax-11112222", node=failed_node(), best_speedup=2.5))
    progress(VariantExhausted(variant="softmax-11112222", reason="no more schedules"))


def test_one_line_per_finished_trial(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(Output()) as progress:
        feed(progress)
        status = progress.status()
    captured = capsys.readouterr()
    assert captured.out == ""
    trial, exhausted = captured.err.splitlines()
    assert "softmax-11112222" in trial
    assert "#7  compile_error: kernel.cpp:3: no  [rows=4]" in trial
    assert "best 2.50x" in exhausted
    assert "1m 20s left" in status
    assert "softmax-11112222 build" in status


@pytest.mark.parametrize(("done", "expected", "words"), [(0, 1, "[0/1] trial"), (1, 2, "[1/2] trials")])
def test_trials_are_counted_in_the_right_number(done: int, expected: int, words: str) -> None:
    progress = Progress(Output(quiet=True))
    progress(SearchProgress(done=done, expected=expected, eta_s=None))
    assert progress.status() == words


def test_what_happened_before_counts_and_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(Output())
    progress.past("a note")
    progress.past(SearchProgress(done=3, expected=40, eta_s=80))
    progress.past(TrialFinished(variant="softmax-11112222", node=failed_node(), best_speedup=2.5))
    assert capsys.readouterr() == ("", "")
    assert progress.status().startswith("[4/40] trials") and "best 2.50x" in progress.status()
    progress("another")
    assert capsys.readouterr().err == "another\n"


def test_quiet_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(Output(quiet=True)) as progress:
        feed(progress)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_live_line_and_keeps_the_finished_ones() -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_progress import feed\nfrom kernelforge.cli.progress import Progress\n"
        "from kernelforge.cli.output import Output\nwith Progress(Output(color=False)) as p: feed(p)\n"
    )
    leader, follower = pty.openpty()
    # The environment is this process's own, with a terminal that can move its cursor.
    done = subprocess.Popen(
        [sys.executable, "-c", script, os.path.dirname(__file__)],  # noqa: PTH120
        stderr=follower, stdout=subprocess.PIPE, env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )  # fmt: skip
    os.close(follower)
    seen = b""
    while True:
        try:
            chunk = os.read(leader, 4096)
        except OSError:  # Linux reports the end of a pseudo terminal so
            break
        if not chunk:
            break
        seen += chunk
    os.close(leader)
    out, _ = done.communicate(timeout=20)
    assert (done.returncode, out) == (0, b"")
    text = seen.decode()
    assert "[2/40]" in text or "[1/40]" in text
    assert "compile_error" in text
    assert "\x1b[2K" in text  # the live line is erased, not left behind
