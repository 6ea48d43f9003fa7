"""A client over stdio goes from an empty folder to a package on the CPU, with the SDK's own client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from tests.mcp.conftest import data_of, over_stdio, text_of

from kernelforge import telling
from kernelforge.keeping import PHASES
from kernelforge.package.reader import read_package
from kernelforge.package.types import Use
from kernelforge.settings import load_settings
from kernelforge.store.project import Project

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MODEL = '''
import os
import torch
from torch.nn import functional as F

class Model(torch.nn.Module):
    """Max pooling is many times slower in eager mode on one thread than plain C++, so a win is certain."""

    def forward(self, x):
        print("{")
        os.system("echo a line on the standard output")
        return F.max_pool2d(x, 3, 2, 1)

def get_inputs():
    return [torch.randn(1, 16, 64, 64)]

def get_init_inputs():
    return []
'''
KERNEL = """// rows first, then columns
static inline float larger(float a, float b) { return (b > a) | (b != b) ? b : a; }
extern "C" int launch(const float* input, float* out, void*) {
  for (int64_t c = 0; c < 16; ++c)
    for (int64_t y = 0; y < 32; ++y) {
      float row[66];
      for (int64_t x = 0; x < 66; ++x) row[x] = -INFINITY;
      for (int64_t r = y ? 2 * y - 1 : 0; r <= 2 * y + 1; ++r)
        for (int64_t x = 0; x < 64; ++x) row[x + 1] = larger(row[x + 1], input[(c * 64 + r) * 64 + x]);
      for (int64_t x = 0; x < 32; ++x)
        out[(c * 32 + y) * 32 + x] = larger(larger(row[2 * x], row[2 * x + 1]), row[2 * x + 2]);
    }
  return 0;
}
"""
WRONG = KERNEL.replace("-INFINITY", "0.0f")
NO_LAUNCH = "int helper() { return 0; }\n"


@dataclass(slots=True, kw_only=True)
class Session:
    """What a client saw, by step."""

    data: dict[str, Any] = field(default_factory=dict)
    text: dict[str, str] = field(default_factory=dict)
    progress: dict[str, list[tuple[float, float | None, str | None]]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty")
    (path / "pool.py").write_text(MODEL)
    return path


@pytest.fixture(scope="module")
def session(folder: Path) -> Session:
    seen = Session()

    async def script(client: Client) -> None:
        async def call(step: str, tool: str, **arguments: Any) -> dict[str, Any]:
            told = seen.progress[step] = []

            async def note(progress: float, total: float | None, message: str | None) -> None:
                told.append((progress, total, message))

            result = await client.call_tool(tool, arguments, progress_callback=note)
            seen.text[step] = text_of(result)
            data = seen.data[step] = data_of(result)
            return data

        await call("capture", "capture", model="pool.py", device="cpu")
        await call("operators", "list_operators")
        order = (await call("order", "next_order"))["order"]["order"]
        await call("wrong", "submit_candidate", order=order, source=WRONG)
        await call("no launch", "submit_candidate", order=order, source=NO_LAUNCH)
        right = await call("right", "submit_candidate", order=order, source=KERNEL, model="me", notes="by rows")
        await call("same", "submit_candidate", order=right["order"], source=KERNEL)
        await call("result", "get_result", order=right["order"])
        await call("trial", "get_result", variant="max_pool2d", trial="1")
        await call("tree", "tree", variant="max_pool2d")
        await call("revise", "next_order", operators=["max_pool2d"], parent="3")
        await call("status", "status")
        await call("export", "export", output="pool.cast")

    over_stdio(script, "--project", "pool.kforge", folder=folder)
    return seen


def test_from_a_model_to_an_order(session: Session, folder: Path) -> None:
    captured = session.data["capture"]
    assert (captured["project"], captured["model"], captured["variants"]) == ("pool.kforge", "pool", 1)
    (row,) = session.data["operators"]["operators"]
    assert (row["operator"], row["trials"], row["decision"]) == ("max_pool2d", 0, "pending")
    assert row["label"] in session.text["operators"]
    order = session.data["order"]["order"]
    assert order["variant"] == row["variant"] and "int launch(" in order["prelude"]
    assert "running the model" in [text for _, _, text in session.progress["capture"]]


def test_verdicts_come_with_a_diagnosis(session: Session) -> None:
    wrong, no_launch, right = (session.data[step] for step in ("wrong", "no launch", "right"))
    assert (wrong["judged"]["outcome"], wrong["judged"]["reason"]) == ("rejected", "wrong_value")
    assert "usual cause" in wrong["diagnosis"] and wrong["diagnosis"] in session.text["wrong"]
    assert (no_launch["judged"]["outcome"], no_launch["judged"]["reason"]) == ("build_failure", "missing_launch")
    assert right["judged"]["outcome"] == "accepted" and right["judged"]["speedup"]["low"] > 2
    assert (right["notes"], right["model"]) == ("by rows", "me")
    # Three attempts at one order, each with an id of its own.
    numbers = [data["judged"]["number"] for data in (wrong, no_launch, right)]
    assert numbers == [1, 2, 3] and len({data["order"] for data in (wrong, no_launch, right)}) == 3


def test_the_same_text_has_the_same_verdict(session: Session) -> None:
    assert session.data["same"] == session.data["right"] == session.data["result"]
    assert session.data["trial"]["judged"] == session.data["wrong"]["judged"]
    assert session.data["trial"]["source"] == WRONG


def test_progress_tells_the_phases_in_their_order(session: Session) -> None:
    told = session.progress["right"]
    assert [text for _, _, text in told] == [phase for phase in PHASES if phase != "waiting for the device"]
    done = [number for number, _, _ in told]
    assert done == sorted(set(done)) and {total for _, total, _ in told} == {float(len(PHASES))}
    assert "waiting for the device" in [text for _, _, text in session.progress["wrong"]]


def test_how_it_stands(session: Session) -> None:
    nodes = session.data["tree"]["nodes"]
    assert [(n["number"], n["best"]) for n in nodes] == [(1, False), (2, False), (3, True)]
    assert "#3 best" in session.text["tree"]
    revise = session.data["revise"]["order"]
    assert revise["parent"]["source"] == KERNEL and revise["parent"]["number"] == 3
    assert [past["outcome"] for past in revise["history"]] == ["rejected", "build_failure", "accepted"]
    status = session.data["status"]
    assert (status["trials"], status["rows"][0]["trials"], status["rows"][0]["speedup"] > 2) == (3, 3, True)
    assert [order["order"] for order in status["orders"]] == [revise["order"]]


def test_the_package_holds_the_kernel(session: Session, folder: Path) -> None:
    exported = session.data["export"]
    assert (exported["path"], exported["entries"], exported["skipped"]) == ("pool.cast", 1, [])
    assert exported["used"][0]["dispatch"]["low"] > 1.02
    (entry,) = read_package(folder / "pool.cast").entries
    assert entry.variant.id == session.data["right"]["variant"] and isinstance(entry.decision("eager"), Use)
    assert any("certifying" in (text or "") for _, _, text in session.progress["export"])


def test_the_diagnosis_is_that_of_the_folders(session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `kforge tell` writes beside a kernel says the same of the same trial."""
    project = Project.open(folder / "pool.kforge")
    verdict = session.data["wrong"]
    order = project.order(verdict["order"])
    place = folder / "orders" / "one"
    place.mkdir(parents=True)
    (place / "order.json").write_text(
        f'{{"format": "kernelforge.order", "order": "{order.id}", "variant": "{order.variant_id}", '
        '"write": "kernel.cpp"}'
    )
    (place / "kernel.cpp").write_text(WRONG)

    @contextmanager
    def opened(*_: object) -> Iterator[Any]:
        yield NothingIsBuilt()

    monkeypatch.setattr(telling, "open_workshop", opened)
    telling.tell_orders(
        project, [place], on_event=lambda _: None, should_stop=lambda: False, settings=load_settings()
    )  # fmt: skip
    assert f"\n\n{verdict['diagnosis']}\n\n" in (place / "VERDICT.md").read_text()


class NothingIsBuilt:
    """A workshop for an order that is done already."""

    name = "cpp"
    judge = None

    @property
    def backend(self) -> NothingIsBuilt:
        return self

    def build(self, *_: object) -> None:
        return None
