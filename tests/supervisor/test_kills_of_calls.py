"""`kill -9` of searches while a language model is asked: accounts add up, and no reply is asked for twice."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.fakes.provider import FakeProvider, Reply, SeenRequest, reply
from tests.supervisor.conftest import Site, ended, until

from kernelforge.generate.llm.account import Call
from kernelforge.generate.llm.reply import Reply as Kernel
from kernelforge.generate.llm.reply import read_reply
from kernelforge.generate.llm.types import Completion, TokenUsage
from kernelforge.store.project import Project
from kernelforge.supervisor import control
from kernelforge.supervisor.folder import RunFolder

KILLS = int(os.environ.get("KFORGE_KILLS", "6"))
SEED = int(os.environ.get("KFORGE_SEED", "11"))
CALL_USD = 0.01
"""A thousand tokens in, at ten dollars a million; none out."""


def answers(request: SeenRequest) -> Reply:
    """Each time another kernel, after a while; now and then none."""
    chance = random.Random(f"{SEED} {request.number}")
    text = "I do not know." if chance.random() < 0.1 else f"```c++\nint launch(); int k_ {request.number};\n```\n"
    return reply(text, TokenUsage(input_tokens=1000, output_tokens=0), delay_s=chance.uniform(0.0, 0.4))


def kernel_of(call: Call) -> str:
    """The source that a call brought, or ""."""
    found = read_reply(call.end) if isinstance(call.end, Completion) else ""
    return found.source if isinstance(found, Kernel) else ""


def check(site: Site, server: FakeProvider) -> None:
    """What must hold at any time."""
    site.check()
    project = Project.open(site.path)
    asked, calls = len(server.requests), project.calls()
    assert asked <= len(calls), "a call without its intent"
    with_kernel = [call for call in calls if kernel_of(call)]
    assert max(Counter(call.intent.order for call in with_kernel).values(), default=0) <= 1, "asked again for nothing"
    assert len({kernel_of(call) for call in with_kernel}) == len(with_kernel)
    for call in calls:
        assert call.usd == (pytest.approx(CALL_USD) if isinstance(call.end, Completion) else None)


@pytest.mark.slow
@pytest.mark.timeout(120 + 20 * KILLS)
def test_whenever_a_search_is_killed_the_account_is_right(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_JUDGE_S", "0.01")
    monkeypatch.setenv("FAKE_MODEL", "fake/x")
    chance = random.Random(SEED)
    with FakeProvider(answers) as server:
        config = tmp_path / "kforge.toml"
        price = "price = { input = 10.0, output = 10.0 }"
        config.write_text(f"{server.toml(protocol='openai')}\n[llm.providers.fake.models.x]\n{price}\n")
        monkeypatch.setenv("KFORGE_LLM_CONFIG", str(config))
        folder = site.start()
        for _ in range(KILLS):
            seen = len(server.requests)
            until(lambda seen=seen: len(server.requests) > seen)  # type: ignore[misc]
            time.sleep(chance.uniform(0.0, 0.8))
            _kill(folder)
            check(site, server)
            control.resume(folder)
        seen = len(server.requests)
        until(lambda: len(server.requests) > seen)
        control.stop(folder)
        assert ended(folder).state == "stopped"
        check(site, server)
    calls = Project.open(site.path).calls()
    received = {kernel_of(call) for call in calls} - {""}
    delivered = {o.candidate.source for o in Project.open(site.path).orders(closed=True) if o.candidate is not None}
    assert received == delivered, "a reply that was paid for is lost, or a kernel is nobody's"
    open_calls = sum(call.end is None for call in calls)
    assert open_calls <= 3 * KILLS, "more than the calls in flight"
    print(
        f"{KILLS} kills: {len(calls)} calls, {open_calls} of unknown end; {len(received)} kernels received and "
        f"delivered, {site.trials} judged"
    )


def _kill(folder: RunFolder) -> None:
    os.killpg(int(folder.worker(0).owner.split(":")[1]), signal.SIGKILL)
    until(lambda: 0 not in folder.status().live)
