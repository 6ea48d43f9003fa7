"""`ask` and `tell` on a real project with a real judge: from an order to a verdict, and what goes wrong between."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_judgement import RELU, Bench, bench  # noqa: F401 - a fixture

from kernelforge import telling
from kernelforge.errors import Stopped, UsageError
from kernelforge.explain.profile import KernelProfile, Profile
from kernelforge.report.asking import VerdictReport
from kernelforge.search.strategies import get_strategy
from kernelforge.search.study import Study
from kernelforge.search.types import Node
from kernelforge.settings import load_settings
from kernelforge.store.project import Project

WRONG = RELU.replace("0.0f", "0.25f")
BROKEN = RELU.replace("return 0;", "return 0")


@pytest.fixture
def site(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811
    """A copy of the project, judged by the open workshop."""
    project = tmp_path / "tiny.kforge"
    shutil.copytree(bench.project, project)
    monkeypatch.chdir(tmp_path)

    @contextmanager
    def opened(*_: object) -> Any:
        yield bench.workshop

    monkeypatch.setattr(telling, "open_workshop", opened)
    monkeypatch.setenv("KFORGE_CACHE_DIR", str(bench.workshop.settings.cache_dir))
    return project


def folders(where: str = "orders") -> list[Path]:
    return sorted(p.parent for p in Path(where).glob("*/order.json"))


def test_from_orders_to_verdicts(kforge: Any, site: Path) -> None:
    asked = kforge("ask", "relu", "-n", "3", "-o", "orders")
    assert asked.code == 0 and asked.stdout.count("kernel.cpp") == 3
    first, second, third = folders()
    assert {p.name for p in first.iterdir()} >= {"order.json", "PROMPT.md", "prelude.h"}
    (first / "kernel.cpp").write_text("// in two halves\n" + RELU.replace("++i", "i += 1"))
    (second / "kernel.cpp").write_text(BROKEN)
    told = kforge("tell", "orders", "--model", "me")
    assert told.code == 0
    verdict = json.loads((first / "verdict.json").read_text())
    assert verdict["outcome"] == "accepted"
    assert (first / "VERDICT.md").read_text().startswith("# relu-")
    assert "expected" in (second / "VERDICT.md").read_text(), "the compiler's words"
    assert not (third / "verdict.json").exists() and "no kernel.cpp yet" in told.stdout
    node = Project.open(site).nodes(verdict["variant"])[verdict["number"] - 1]
    assert (node.candidate.generator, node.candidate.model, node.candidate.notes) == ("agent", "me", "in two halves")
    # Told again nothing is judged; mended it is one more attempt at the same order.
    again = json.loads(kforge("tell", "orders", "--json").stdout)["verdicts"]
    assert {v["why"] for v in again} == {
        "judged before: accepted", "judged before: build_failure", "no kernel.cpp yet"
    }  # fmt: skip
    (second / "kernel.cpp").write_text("// mended\n" + WRONG)
    kforge("tell", str(second))
    assert json.loads((second / "verdict.json").read_text())["outcome"] == "rejected"
    orders = [o for o in Project.open(site).orders(closed=True) if o.state == "done"]
    assert len(orders) == 3


def test_what_a_profiler_found_is_told_everywhere(
    kforge: Any, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """By a stand-in for the profiler: there is none on the CPU, which is told and changes no verdict."""
    kforge("ask", "relu", "-n", "2", "-o", "orders")
    first, second = folders()
    (first / "kernel.cpp").write_text("// in two halves\n" + RELU.replace("++i", "i += 1"))
    told = kforge("tell", str(first), "--profile")
    assert told.code == 0 and "is not profiled: only kernels of a GPU are profiled" in told.stderr
    assert json.loads((first / "verdict.json").read_text())["outcome"] == "accepted"

    def profiled(project: Project, _record: object, node: Node, **_: object) -> Profile:
        kernel = KernelProfile(name="halves", grid=8, block=64, duration_us=9.0, units={"l2": 12.0})
        found = Profile(device="GPU", dims={}, cold=False, kernels=(kernel,), recorded=1.0)
        project.keep_profile(node.summary.binary, found)
        return found

    monkeypatch.setattr(telling, "profile_node", profiled)
    (second / "kernel.cpp").write_text("// by twos\n" + RELU.replace("i < 4000", "i + 1 <= 4000"))
    kforge("tell", str(second), "--profile")
    said = "halves, 8 blocks of 64 threads, 9 us: bound by latency"
    verdict = json.loads((second / "verdict.json").read_text())
    assert said in (second / "VERDICT.md").read_text() and said in verdict["explanation"][-1]
    number = str(verdict["number"])
    assert said in kforge("op", "show", "relu", "--trial", number, "--json").stdout
    kforge("ask", "relu", "--parent", number, "-o", "more")
    (order,) = folders("more")
    assert said in (order / "PROMPT.md").read_text() and said in (order / "parent.md").read_text()


def test_a_revision_hangs_below_what_it_revises(kforge: Any, site: Path) -> None:
    assert kforge("ask", "relu", "--parent", "1", "-o", "orders").code == 0
    (order,) = folders()
    assert (order / "parent.cpp").read_text() == RELU
    assert "accepted" in (order / "parent.md").read_text()
    assert "Make this one faster. It is #1" in (order / "PROMPT.md").read_text()
    (order / "kernel.cpp").write_text("// other\n" + RELU.replace("return 0;", "return 0 + 0;"))
    kforge("tell", "orders")
    project = Project.open(site)
    (*_, newest) = project.nodes(project.record("relu").variant.id)
    assert newest.parent == project.nodes(newest.variant_id)[0].id
    refused = kforge("ask", "relu", "--parent", "2", "-o", "orders")
    assert refused.code == 2 and "trial 2 is not valid" in refused.stderr


def test_orders_are_told_in_another_copy_too(kforge: Any, site: Path, tmp_path: Path) -> None:
    """The machine that judges unpacked the project before, or without, the orders."""
    copy = tmp_path / "copy.kforge"
    shutil.copytree(site, copy)
    kforge("ask", "relu", "--parent", "1", "-o", "orders", "-p", str(site))
    (order,) = folders()
    (order / "kernel.cpp").write_text("// elsewhere\n" + WRONG)
    assert kforge("tell", "orders", "-p", str(copy)).code == 0
    nodes = Project.open(copy).nodes(Project.open(copy).record("relu").variant.id)
    assert (nodes[-1].kind, nodes[-1].parent) == ("rejected", nodes[0].id)


def interrupted(project: Path, *places: Path, died: bool = False) -> None:
    """`kforge tell` that is stopped when the kernels are delivered, or dies while it judges one."""
    opened = Project.open(project)
    report = telling.tell_orders(
        opened, places, on_event=lambda _: None, should_stop=lambda: True, settings=load_settings()
    )  # fmt: skip
    assert report.left == len(places)
    if died:
        gone = Study(opened, [opened.record("relu")], strategy=get_strategy("best-first"), owner="host:1:0")
        assert gone.claim(lease_s=-1.0) is not None


@pytest.mark.parametrize("died", [False, True], ids=["stopped", "died"])
@pytest.mark.parametrize("further", [False, True], ids=["first attempt", "further attempt"])
def test_a_kernel_whose_judgement_was_interrupted_is_judged_when_it_is_told_again(
    kforge: Any, site: Path, further: bool, died: bool
) -> None:
    before = len(Project.open(site).nodes(Project.open(site).record("relu").variant.id))
    kforge("ask", "relu", "-o", "orders")
    (place,) = folders()
    if further:
        (place / "kernel.cpp").write_text("// first\n" + BROKEN.replace("4000", "3999"))
        assert kforge("tell", "orders").code == 0
    (place / "kernel.cpp").write_text("// interrupted\n" + WRONG)
    interrupted(site, place, died=died)
    (told,) = json.loads(kforge("tell", "orders", "--json").stdout)["verdicts"]
    assert (told["outcome"], told["why"]) == ("rejected", "")
    assert json.loads((place / "verdict.json").read_text())["number"] == before + 1 + further
    project = Project.open(site)
    assert len(project.nodes(project.record("relu").variant.id)) == before + 1 + further
    assert project.orders() == ()


def test_interrupted_in_another_copy_it_is_judged_once(kforge: Any, site: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.kforge"
    shutil.copytree(site, copy)
    kforge("ask", "relu", "-o", "orders", "-p", str(site))
    (place,) = folders()
    (place / "kernel.cpp").write_text("// elsewhere\n" + WRONG)
    interrupted(copy, place)
    interrupted(copy, place)
    assert len(Project.open(copy).orders()) == 1
    kforge("tell", "orders", "-p", str(copy))
    assert json.loads((place / "verdict.json").read_text())["outcome"] == "rejected"
    assert Project.open(copy).orders() == ()


def test_the_same_text_in_two_folders_is_judged_once(kforge: Any, site: Path) -> None:
    kforge("ask", "relu", "-n", "2", "-o", "orders")
    for place in folders():
        (place / "kernel.cpp").write_text(WRONG)
    first, second = json.loads(kforge("tell", "orders", "--json").stdout)["verdicts"]
    told = {row["outcome"]: row["why"] for row in (first, second)}
    assert told["rejected"] == "" and "was proposed before" in told[""]
    assert Project.open(site).orders() == ()


@pytest.mark.parametrize("further", [False, True], ids=["first attempt", "further attempt"])
def test_a_text_that_was_stopped_is_judged_when_it_is_submitted_again(
    kforge: Any, site: Path, further: bool
) -> None:  # fmt: skip
    kforge("ask", "relu", "-o", "orders")
    project, order = Project.open(site), folders()[0]
    order_id = json.loads((order / "order.json").read_text())["order"]

    def submit(source: str, *, stop: bool = False, to: str = order_id) -> VerdictReport:
        return telling.judge_source(
            project, to, source, on_event=lambda _: None, should_stop=lambda: stop, settings=load_settings(),
            opener=vars(telling)["open_workshop"],
        )  # fmt: skip

    if further:
        assert submit(BROKEN.replace("4000", "3999")).judged is not None
    with pytest.raises(Stopped):
        submit(WRONG, stop=True)
    with pytest.raises(Stopped):
        submit("// with a comment\n" + WRONG, stop=True)
    (open_order,) = project.orders()
    assert (open_order.state, open_order.id == order_id) == ("delivered", not further)
    report = submit(WRONG)
    assert report.judged is not None and (report.judged.outcome, report.order) == ("rejected", open_order.id)
    assert project.orders() == ()
    # Judged, it is known: to another order, and to the first one.
    assert submit(WRONG, to=report.order).judged == report.judged
    if further:
        with pytest.raises(UsageError, match="was proposed before") as raised:
            submit(WRONG)
        assert f"it is trial {report.judged.number} of" in raised.value.hint


def test_a_text_that_waits_under_another_order_is_judged_and_the_order_has_its_end(kforge: Any, site: Path) -> None:
    kforge("ask", "relu", "-n", "2", "-o", "orders")
    first, second = (json.loads((place / "order.json").read_text())["order"] for place in folders())
    project = Project.open(site)

    def submit(order: str, *, stop: bool) -> VerdictReport:
        return telling.judge_source(
            project, order, WRONG, on_event=lambda _: None, should_stop=lambda: stop, settings=load_settings(),
            opener=vars(telling)["open_workshop"],
        )  # fmt: skip

    with pytest.raises(Stopped):
        submit(first, stop=True)
    report = submit(second, stop=False)
    assert report.judged is not None and (report.judged.outcome, report.order) == ("rejected", first)
    assert project.orders() == ()


def test_what_cannot_be_told_is_said_and_the_rest_is_judged(kforge: Any, site: Path) -> None:
    kforge("ask", "relu", "-n", "4", "-o", "orders")
    empty, binary, other, good = folders()
    (empty / "kernel.cpp").write_text("  \n")
    (binary / "kernel.cpp").write_bytes(b"\xff\xfe\x00")
    document = json.loads((other / "order.json").read_text())
    (other / "order.json").write_text(json.dumps({**document, "variant": "f" * 64}))
    (other / "kernel.cpp").write_text(RELU)
    (good / "kernel.cpp").write_text("// fourth\n" + BROKEN)
    told = kforge("tell", "orders", "--json")
    rows = {Path(v["path"]).name: v for v in json.loads(told.stdout)["verdicts"]}
    assert rows[empty.name]["why"] == "kernel.cpp is empty"
    assert rows[binary.name]["why"] == "kernel.cpp cannot be read: it is no text"
    assert rows[other.name]["why"] == "its variant is none of this project"
    assert rows[good.name]["outcome"] == "build_failure"
    (good / "order.json").write_text("{")
    damaged = kforge("tell", "orders")
    assert damaged.code != 0 and "order.json cannot be read" in damaged.stderr
    nothing = kforge("tell", str(site))
    assert nothing.code == 3 and "no work order in" in nothing.stderr


def test_orders_are_leased_and_count_as_under_way(kforge: Any, site: Path) -> None:
    kforge("ask", "relu", "-n", "2", "-o", "orders")
    project = Project.open(site)
    study = Study(project, [project.record("relu")], strategy=get_strategy("best-first"))
    assert len(study.under_way(project.orders())) == 2
    assert project.orders()[0].expires - project.orders()[0].created == pytest.approx(24 * 3600)


def test_a_folder_that_cannot_be_written_gives_the_orders_back(kforge: Any, site: Path, tmp_path: Path) -> None:
    (tmp_path / "orders").write_text("a file")
    refused = kforge("ask", "relu", "-n", "2", "-o", "orders")
    assert refused.code == 2 and "cannot be written to" in refused.stderr
    assert Project.open(site).orders() == ()


def test_the_first_prompts_name_the_machine_and_those_asked_at_once_differ(
    kforge: Any, site: Path, tmp_path: Path
) -> None:
    cards = Project.open(site).cards()
    Project.create(tmp_path / "new.kforge", model="tiny", device="cpu", cards=cards, capture_info={"coverage": 1.0})
    assert kforge("ask", "relu", "-n", "3", "-o", "orders", "-p", "new.kforge").code == 0
    texts = [(folder / "PROMPT.md").read_text() for folder in folders()]
    assert len(set(texts)) == 3 and all(re.search(r"\d threads?, which eager uses too", text) for text in texts)
    assert sum("at this moment" in text for text in texts) == 2
