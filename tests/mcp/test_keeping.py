"""A kept workshop with a judge that does nothing: turns, phases, giving up, and when it is closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from kernelforge import workshop as workshop_module
from kernelforge.errors import Stopped
from kernelforge.evaluate import judge as judge_module
from kernelforge.keeping import KeptWorkshop
from kernelforge.settings import Settings, load_settings


class FakeJudge:
    """Notes when it is opened and closed."""

    opened: list[FakeJudge]

    def __init__(self, _settings: Settings, *, on_phase: Callable[[str, float], None], **_: object) -> None:
        self.on_phase, self.closed = on_phase, False
        self.opened.append(self)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def judges(monkeypatch: pytest.MonkeyPatch) -> list[FakeJudge]:
    opened: list[FakeJudge] = []
    monkeypatch.setattr(FakeJudge, "opened", opened, raising=False)
    monkeypatch.setattr(judge_module, "Judge", FakeJudge)
    monkeypatch.setattr(workshop_module, "get_backend", lambda *_: None)
    return opened


def use(
    kept: KeptWorkshop, body: Callable[[Any], None], *, should_stop: Callable[[], bool] = lambda: False
) -> list[str]:
    """One use; what it said."""
    said: list[str] = []
    with kept.opener(say=said.append, should_stop=should_stop)("cpu", load_settings({})) as workshop:
        body(workshop.judge)
    return said


def judgement(judge: Any) -> None:
    for phase in ("build", "audit", "bench", "cases", "runner's start", "verify", "timing", "replay", "runner's end"):
        judge.on_phase(phase, 0.1)


def test_the_judge_stays_open_and_says_what_it_does(judges: list[FakeJudge]) -> None:
    kept = KeptWorkshop()
    known = ["preparing cases", "verifying", "timing, if it is right"]
    assert use(kept, judgement) == ["waiting for the judge", "waiting for the device", *known]
    assert use(kept, judgement) == ["waiting for the judge", *known]
    assert len(judges) == 1 and not judges[0].closed
    assert kept.close()
    assert judges[0].closed
    use(kept, judgement)
    assert len(judges) == 2 and kept.close()


def test_one_at_a_time(judges: list[FakeJudge]) -> None:
    kept, inside, most = KeptWorkshop(), [0], [0]

    def body(_judge: object) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.02)
        inside[0] -= 1

    threads = [threading.Thread(target=use, args=(kept, body)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most[0], len(judges)) == (1, 1)
    assert kept.close()


def test_who_is_stopped_while_it_waits_leaves(judges: list[FakeJudge]) -> None:
    kept = KeptWorkshop()

    def body(_judge: object) -> None:
        with pytest.raises(Stopped, match="before its turn"):
            use(kept, judgement, should_stop=lambda: True)
        assert not kept.close(wait_s=0.0), "somebody uses it"

    use(kept, body)
    assert kept.close()


def test_a_judgement_is_given_up_between_phases_and_leaves_no_judge_open(judges: list[FakeJudge]) -> None:
    kept = KeptWorkshop()
    reached: list[str] = []

    def body(judge: Any) -> None:
        # Between its start and its end a runner would stay behind.
        judge.on_phase("runner's start", 0.1)
        reached.append("started")
        judge.on_phase("verify", 0.1)
        reached.append("verified")

    with pytest.raises(Stopped, match="before it had its verdict"):
        use(kept, body, should_stop=lambda: True)
    assert reached == ["started"] and judges[0].closed


def test_it_is_closed_when_it_was_idle(judges: list[FakeJudge]) -> None:
    kept = KeptWorkshop(idle_s=0.05)
    use(kept, lambda _judge: time.sleep(0.2))
    deadline = time.monotonic() + 5
    while not judges[0].closed and time.monotonic() < deadline:
        time.sleep(0.01)
    assert judges[0].closed


def test_it_is_closed_for_who_wants_to_be_alone(judges: list[FakeJudge]) -> None:
    kept = KeptWorkshop()
    use(kept, judgement)
    said: list[str] = []
    with kept.alone(say=said.append, should_stop=lambda: False):
        assert judges[0].closed
    assert said == ["waiting for the judge"]
