"""A scripted language model behind a real socket forges a variant on the CPU: repairs, tree, costs, recordings."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fakes.provider import FakeProvider, Reply, SeenRequest, hang, reply
from torch import nn
from torch.nn import functional as F
from typer.testing import CliRunner

import kernelforge
from kernelforge import forge
from kernelforge.cli.main import make_app
from kernelforge.errors import UsageError
from kernelforge.evaluate.types import Trial, WorkerFailure
from kernelforge.explain.profile import KernelProfile, Profile
from kernelforge.generate.llm.types import Completion, TokenUsage
from kernelforge.generate.types import Candidate
from kernelforge.replaying import ReplayDiffers
from kernelforge.report.rows import ForgeReport
from kernelforge.search.types import Budget
from kernelforge.store.project import Project

pytestmark = pytest.mark.slow

KEY = "sk-test-0123456789abcdef-not-to-be-seen"
PRICE = {"input": 3.0, "output": 15.0, "cache_read": 0.3, "cache_write": 3.75}
USAGE = TokenUsage(
    input_tokens=4000, output_tokens=1000, cache_read_tokens=3000, cache_write_tokens=500, reasoning_tokens=400
)
# 500 plain, 3000 read, 500 written, 1000 out, at the prices above per million.
CALL_USD = (500 * 3.0 + 3000 * 0.3 + 500 * 3.75 + 1000 * 15.0) / 1e6

HEAD = 'extern "C" int launch(const float* input, float* out, void*) {\n'
BROKEN = HEAD + "    for (int i = 0; i < 65536; ++i) out[i] = input[i] * ;\n    return 0;\n}"
WRONG = HEAD + "    for (int i = 0; i < 65535; ++i) out[i] = input[i] < 0 ? 0 : input[i];\n    return 0;\n}"
SLOW = HEAD + (
    "    for (int i = 0; i < 65536; ++i) {\n"
    "        volatile float x = input[i];\n"
    "        for (int turn = 0; turn < 20; ++turn) x = x;\n"
    "        out[i] = x < 0 ? 0 : x;\n    }\n    return 0;\n}"
)
FAST = HEAD + "    for (int i = 0; i < 65536; ++i) out[i] = input[i] < 0 ? 0 : input[i];\n    return 0;\n}"
FASTER = FAST.replace("int i = 0", "long i = 0")
SOURCES = (BROKEN, WRONG, SLOW, FAST, FASTER)


class Small(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x)


@dataclass(frozen=True)
class Site:
    project: Path
    server: FakeProvider
    recording: Path
    folder: Path
    report: object


def answers(request: SeenRequest) -> Reply:
    return answers_number(request.number)


def answers_number(number: int) -> Reply:
    source = SOURCES[number] if number < len(SOURCES) else f"{FAST}\nint unused_{number};"
    return reply(f"Idea {number + 1}.\n\n```c++\n{source}\n```\n", USAGE)


def config(server: FakeProvider) -> str:
    price = ", ".join(f"{name} = {value}" for name, value in PRICE.items())
    provider = server.toml(protocol="anthropic", api_key_env="SOME_KEY")
    return f'{provider}\n[llm.providers.fake.models."model-x"]\nmax_output_tokens = 32000\nprice = {{ {price} }}\n'


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A project of one variant, forged by the scripted model and recorded."""
    folder = tmp_path_factory.mktemp("site")
    project, recording = folder / "small.kforge", folder / "run.jsonl"
    kernelforge.capture(Small(), samples=[(torch.randn(256, 256),)], project=project)
    with FakeProvider(answers) as server, pytest.MonkeyPatch.context() as patch:
        (folder / "kforge.toml").write_text(config(server))
        patch.setenv("KFORGE_LLM_CONFIG", str(folder / "kforge.toml"))
        patch.setenv("SOME_KEY", KEY)
        patch.setenv("KFORGE_LIBRARY", "0")
        report = forge.forge_project(
            project, budget=Budget(trials=5, usd=2.0), generator="llm:fake/model-x", strategy="linear",
            policy="uniform", record=recording,
        )  # fmt: skip
        yield Site(project=project, server=server, recording=recording, folder=folder, report=report)


def test_the_first_does_not_compile_the_second_is_wrong_the_third_right_and_later_ones_faster(site: Site) -> None:
    (row,) = forge.list_operators(site.project)
    trials = forge.show_variant(site.project, row.variant).trials
    assert [t.outcome for t in trials] == ["build_failure", "rejected", "accepted", "accepted", "accepted"]
    stored = Project.open(site.project).nodes(row.variant)
    first, second, third, fourth, _ = stored
    assert [n.candidate.repairs for n in stored] == ["", first.candidate_id, second.candidate_id, "", ""]
    assert [n.parent for n in stored] == ["", "", "", third.id, fourth.id]
    assert [n.candidate.notes for n in stored] == [f"Idea {i}." for i in range(1, 6)]
    assert third.summary.speedup is not None and fourth.summary.speedup is not None
    assert fourth.summary.speedup > 2 * third.summary.speedup


def test_the_prompts_say_what_came_of_the_attempts(site: Site) -> None:
    texts = [r.text for r in site.server.requests]
    assert len(texts) == 5
    assert "Write a kernel from scratch" in texts[0] and "`F.relu`" not in texts[0]
    assert "did not pass: compile error" in texts[1] and "expected primary-expression" in texts[1]
    assert BROKEN in texts[1]
    assert "did not pass: wrong value" in texts[2] and WRONG in texts[2] and "attempt 2" in texts[2]
    assert "Make this one faster" in texts[3] and SLOW in texts[3]
    assert "Make this one faster" in texts[4] and FAST in texts[4] and "It is #4" in texts[4]
    calls = Project.open(site.project).calls()
    assert len({(c.intent.request.system, c.intent.request.stable) for c in calls}) == 1
    for call, seen in zip(calls, site.server.requests, strict=True):
        request = call.intent.request
        assert all(part in seen.text for part in (request.system, request.stable, request.turns[0].text))


def test_the_cost_is_right_to_the_cent_and_all_attempts_count(site: Site) -> None:
    calls = Project.open(site.project).calls()
    assert [c.usd for c in calls] == [pytest.approx(CALL_USD, abs=1e-9)] * 5
    for call in calls:
        assert isinstance(call.end, Completion) and call.end.usage == USAGE
    found = forge.show_cost(site.project, by="step")
    assert [(r.calls, round(r.usd, 9)) for r in found.rows] == [
        (3, round(3 * CALL_USD, 9)),
        (2, round(2 * CALL_USD, 9)),
    ]
    assert found.whole.usd == pytest.approx(5 * CALL_USD) and found.whole.unknown == 0
    assert isinstance(site.report, ForgeReport)
    assert site.report.usd == pytest.approx(5 * CALL_USD) and site.report.tokens == 25_000
    shown = CliRunner().invoke(make_app(), ["cost", str(site.project), "--by", "op"])
    assert shown.exit_code == 0 and "relu" in shown.output and f"${5 * CALL_USD:.4f}" in shown.output


def test_the_recording_replays_to_the_byte_without_key_or_server(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY")
    monkeypatch.delenv("KFORGE_LLM_CONFIG")
    asked = len(site.server.requests)
    report = forge.replay_recording(site.recording)
    assert (report.calls, report.trials, report.calls_left) == (5, 5, 0)
    assert len(site.server.requests) == asked
    shown = CliRunner().invoke(make_app(), ["replay", str(site.recording)])
    assert shown.exit_code == 0 and "nothing differs: 5 calls of fake/model-x, 5 trials" in shown.output


def edited(lines: list[str], change: Callable[[dict[str, object]], None], event: str, number: int) -> list[str]:
    """The lines with one event changed, the `number`th of its kind."""
    found = [i for i, line in enumerate(lines) if json.loads(line).get("event") == event]
    document = json.loads(lines[found[number]])
    change(document)
    return [*lines[: found[number]], json.dumps(document), *lines[found[number] + 1 :]]


@pytest.mark.parametrize(
    ("where", "change", "says"),
    [
        (("exchange", 2), lambda d: d.update(reply=d["reply"].replace("20", "21")), "trial 3 has another candidate"),
        (("trial", 1), lambda d: d["outcome"].update(detail="another"), "call 3 has another prompt"),
        (("exchange", 3), lambda d: d["request"].update(system="Be nice."), "call 4 has another prompt"),
        (("trial", 2), lambda d: d.update(parent="x"), "trial 3 has another candidate"),
    ],
)  # fmt: skip
def test_whatever_differs_is_found_and_shown(
    where: tuple[str, int], change: Callable[[dict[str, object]], None], says: str, site: Site, tmp_path: Path
) -> None:
    lines = site.recording.read_text().splitlines()
    (tmp_path / "edited.jsonl").write_text("\n".join(edited(lines, change, *where)) + "\n")
    with pytest.raises(ReplayDiffers, match=says):
        forge.replay_recording(tmp_path / "edited.jsonl")


def test_a_recording_that_was_cut_off_replays_as_far_as_it_goes(site: Site, tmp_path: Path) -> None:
    text = site.recording.read_text()
    (tmp_path / "cut.jsonl").write_text(text[: text.rindex('"event":"trial"')])
    report = forge.replay_recording(tmp_path / "cut.jsonl")
    assert (report.trials, report.calls_left) == (4, 1)
    for damaged in (
        "",
        "{}\n",
        "[1]\n",
        text.replace("kernelforge.recording", "another"),
        text.replace('"turns":[[', '"turns":[[['),
    ):
        (tmp_path / "damaged.jsonl").write_text(damaged)
        with pytest.raises(kernelforge.errors.ProjectError, match="cannot be read"):
            forge.replay_recording(tmp_path / "damaged.jsonl")


def test_the_recorded_kernels_are_judged_again_where_they_are_told(site: Site, tmp_path: Path) -> None:
    project = tmp_path / "again.kforge"
    kernelforge.capture(Small(), samples=[(torch.randn(256, 256),)], project=project)
    asked = len(site.server.requests)
    report = forge.forge_project(project, budget=Budget(), generator=f"replay:{site.recording}")
    assert report.trials == 5 and (report.tokens, report.usd) == (0, 0.0), "nobody is paid for it now"
    (row,) = forge.list_operators(project)
    trials = forge.show_variant(project, row.variant).trials
    kinds = {n.candidate.source.strip(): n.kind for n in Project.open(project).nodes(row.variant)}
    assert len(trials) == 5 and kinds.keys() == set(SOURCES)
    assert (kinds[BROKEN], kinds[WRONG]) == ("build_failure", "rejected")
    assert len(site.server.requests) == asked


def test_what_others_do_meanwhile_ends_a_recording(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(site.project, tmp_path / "small.kforge")
    project = Project.open(tmp_path / "small.kforge")
    (record,) = (r for card in project.cards() for r in card.variants)

    def meddle(request: SeenRequest) -> Reply:
        if request.number == 1:
            other = Candidate(variant_id=record.variant.id, source="// theirs", backend="cpp", generator="manual")
            project.append(Trial(candidate=other, outcome=WorkerFailure(detail="x"), started=1.0, seconds=1.0))
        return answers_number(request.number)

    with FakeProvider(meddle) as server:
        (tmp_path / "kforge.toml").write_text(config(server))
        monkeypatch.setenv("KFORGE_LLM_CONFIG", str(tmp_path / "kforge.toml"))
        kept: dict[str, Any] = {"generator": "llm:fake/model-x", "policy": "uniform", "strategy": "best-of-n"}
        forge.forge_project(project.path, budget=Budget(trials=2), record=tmp_path / "run.jsonl", **kept)
        assert "others work on its variants" in caplog.text
        report = forge.replay_recording(tmp_path / "run.jsonl")
        assert report.trials < 2, "as far as it is only ours"
        waiting = [o for o in project.orders() if o.state == "waiting"]
        if waiting:
            with pytest.raises(UsageError, match="to be judged or mended"):
                forge.forge_project(project.path, budget=Budget(trials=1), record=tmp_path / "more.jsonl", **kept)


def test_what_a_profiler_said_is_in_the_recording(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts tell of it, so a replay needs it too."""
    shutil.copytree(site.project, tmp_path / "small.kforge")
    project = Project.open(tmp_path / "small.kforge")
    (record,) = (r for card in project.cards() for r in card.variants)
    newest = project.nodes(record.variant.id)[-1]
    kernel = KernelProfile(name="made_up", grid=1, block=32, duration_us=7.0)
    profile = Profile(device="a GPU", dims={}, cold=False, kernels=(kernel,), recorded=1.0)
    project.keep_profile(newest.summary.binary, profile)
    with FakeProvider([answers_number(7)]) as server:
        (tmp_path / "kforge.toml").write_text(config(server))
        monkeypatch.setenv("KFORGE_LLM_CONFIG", str(tmp_path / "kforge.toml"))
        forge.forge_project(
            project.path, budget=Budget(trials=1), generator="llm:fake/model-x", policy="uniform", strategy="linear",
            record=tmp_path / "more.jsonl",
        )  # fmt: skip
        assert "made_up" in server.requests[0].text
    assert forge.replay_recording(tmp_path / "more.jsonl").trials == 1
    text = (tmp_path / "more.jsonl").read_text()
    (tmp_path / "less.jsonl").write_text(text.replace('"profiles":[{', '"profiles":[],"left_out":[{'))
    with pytest.raises(ReplayDiffers, match="another prompt"):
        forge.replay_recording(tmp_path / "less.jsonl")


def test_the_key_is_nowhere(site: Site, tmp_path: Path) -> None:
    forge.export_project(site.project, output=site.folder / "small.cast")
    CliRunner().invoke(make_app(), ["project", "pack", str(site.project), "-o", str(site.folder / "small.anvil")])
    looked = [path for path in site.folder.rglob("*") if path.is_file()]
    assert len(looked) > 8
    assert all(KEY.encode() not in path.read_bytes() for path in looked)
    assert all(request.key == KEY for request in site.server.requests), "it was used"


def test_who_stops_twice_does_not_wait_for_the_model(site: Site, tmp_path: Path) -> None:
    shutil.copytree(site.project, tmp_path / "small.kforge")
    with FakeProvider(lambda _: hang()) as server:
        (tmp_path / "kforge.toml").write_text(config(server))
        settings = {"KFORGE_LLM_CONFIG": str(tmp_path / "kforge.toml"), "SOME_KEY": KEY, "KFORGE_LIBRARY": "0"}
        command = [sys.executable, "-m", "kernelforge", "forge", "small.kforge", "--generator", "llm:fake/model-x"]
        with subprocess.Popen(
            command, env={**os.environ, **settings}, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as process:  # fmt: skip
            while not server.requests and process.poll() is None:
                time.sleep(0.05)
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
            assert process.poll() is None, "once: what was asked may have been paid for"
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=20)
    assert process.returncode == 130 and b"resume: kforge forge small.kforge --generator llm:fake/model-x" in said
    calls = Project.open(tmp_path / "small.kforge").calls()[5:]
    assert calls and all(call.end is None and call.usd is None for call in calls)
