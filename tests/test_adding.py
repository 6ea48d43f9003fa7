"""`kforge add` on a real project with a real judge: files, parents, duplicates, the torch ABI, folders of kernels."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.conftest import kforge  # noqa: F401 - a fixture
from tests.cli.test_judgement import RELU, relu_record
from tests.torch_kernels import RELU as TORCH_RELU
from tests.torch_kernels import WRONG

from kernelforge import adding, judging
from kernelforge.audit.types import TORCH_TIER
from kernelforge.benchmark.clock import was_disturbed
from kernelforge.benchmark.protocol import Protocol
from kernelforge.build.backends import get_backend
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import OperatorCard
from kernelforge.dispatch.loading import load
from kernelforge.errors import NotFound, PackageError, UsageError
from kernelforge.evaluate.judge import Judge
from kernelforge.evaluate.types import Scored, WorkerFailure
from kernelforge.importing import find_kernels, operator_of
from kernelforge.package.serial import make_entry
from kernelforge.package.types import MODES, Header, Use
from kernelforge.package.writer import write_package
from kernelforge.report.asking import TellReport
from kernelforge.search.lineage import best_node, ranked_nodes
from kernelforge.search.strategies import get_strategy
from kernelforge.search.study import Study
from kernelforge.search.types import Node
from kernelforge.search.winners import choose_winner
from kernelforge.settings import load_settings
from kernelforge.store.project import Project
from kernelforge.workshop import Workshop

BAD = RELU.replace("0.0f", "0.5f")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """An empty project of one variant of relu, and an open workshop."""

    project: Path
    workshop: Workshop


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, torch_cache: Path) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("adding")
    settings = load_settings({"KFORGE_CACHE_DIR": str(torch_cache)})
    examples = ExampleStore(folder / "examples")
    record = relu_record(examples.put([torch.linspace(-2, 2, 4000).reshape(4, 1000)]))
    unforgeable = replace(record, variant=replace(record.variant, max_elements=5000), forgeable="for a test", share=0.1)
    card = OperatorCard(operator="relu", model="tiny", device="cpu", variants=(record, unforgeable))
    path = folder / "tiny.kforge"
    Project.create(path, model="tiny", device="cpu", cards=(card,), capture_info={}, examples=examples.root)
    backend = get_backend("cpp", settings)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    quick = Protocol(budget_s=0.1, min_pairs=4, busy_share=1.0)
    with Judge(settings, device="cpu", backend=backend, threads=1, protocol=quick) as judge:
        yield Shop(project=path, workshop=Workshop(settings=settings, backend=backend, judge=judge))
    torch.set_num_threads(before)


@pytest.fixture
def site(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    project = tmp_path / "tiny.kforge"
    shutil.copytree(shop.project, project)
    monkeypatch.chdir(tmp_path)

    @contextmanager
    def opened(*_: object) -> Any:
        yield shop.workshop

    for module in (adding, judging):
        monkeypatch.setattr(module, "open_workshop", opened)
    monkeypatch.setenv("KFORGE_CACHE_DIR", str(shop.workshop.settings.cache_dir))
    return Project.open(project)


def label(project: Project) -> str:
    return next(r for c in project.cards() for r in c.variants if not r.forgeable).variant.label


def nodes_of(project: Project) -> Sequence[Node]:
    return project.nodes(project.record(label(project)).variant.id)


def write(name: str, source: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return path


def add(project: Project, *files: Path, said: list[str] | None = None, **options: Any) -> TellReport:
    stop: Callable[[], bool] = options.pop("should_stop", lambda: False)
    return adding.add_files(
        project, files, variant=label(project), on_event=(said if said is not None else []).append, should_stop=stop,
        settings=load_settings(), **options,
    )  # fmt: skip


def test_files_become_nodes_below_what_they_revise(site: Project) -> None:
    said: list[str] = []
    report = add(
        site, write("a.cpp", RELU), write("b.cpp", "// half\n" + BAD), write("c.cpp", "int launch(;"), said=said
    )  # fmt: skip
    assert [row.outcome for row in report.rows] == ["accepted", "rejected", "build_failure"]
    assert [line[:5] for line in said] == ["[1/3]", "[2/3]", "[3/3]"] and "b.cpp" in said[1]
    first, second, _ = nodes_of(site)
    assert [n.candidate.generator for n in nodes_of(site)] == ["manual"] * 3
    assert (first.candidate.notes, second.candidate.notes, first.parent) == ("a.cpp", "half", "")
    # Below a failed one too: what is wrong with it is mended there.
    child = write("d.cpp", RELU.replace("++i", "i += 1"))
    assert add(site, child, parent="2", notes="mended").rows[0].outcome == "accepted"
    newest = nodes_of(site)[-1]
    assert (newest.parent, newest.candidate.parent, newest.candidate.notes) == (
        second.id,
        second.candidate_id,
        "mended",
    )
    orders = site.orders(closed=True)
    assert [o.state for o in orders] == ["done"] * 4 and orders[-1].reason == adding.BY_HAND


def test_a_known_text_is_not_judged_again(site: Project) -> None:
    add(site, write("a.cpp", RELU))
    again = add(site, write("b.cpp", "// other words\n" + RELU + "\n\n"), write("c.cpp", BAD), write("d.cpp", BAD))
    known, new, twin = again.rows
    assert (known.number, known.outcome, known.why) == (1, "accepted", "known: its text is trial 1")
    assert new.outcome == "rejected" and (twin.outcome, twin.why) == ("", "the same text as c.cpp")
    assert len(nodes_of(site)) == 2
    same_binary = RELU.replace("int64_t i", "int64_t index").replace("i <", "index <").replace("++i", "++index")
    same_binary = same_binary.replace("[i]", "[index]")
    add(site, write("e.cpp", same_binary))
    outcome = nodes_of(site)[-1].outcome
    first = nodes_of(site)[0].outcome
    assert isinstance(outcome, Scored) and isinstance(first, Scored)
    # What others disturbed is not handed on.
    if not was_disturbed(first.measurement):
        assert outcome.measurement.environment["measured_as"] == "trial 1"


def test_without_judging_the_next_search_gets_it(site: Project) -> None:
    report = add(site, write("a.cpp", RELU), judge=False)
    assert (report.rows[0].why, report.left, len(nodes_of(site))) == (adding.QUEUED, 0, 0)
    study = Study(site, [site.record(label(site))], strategy=get_strategy("best-first"))
    claimed = study.claim()
    assert claimed is not None and claimed.candidate is not None and claimed.candidate.source == RELU
    study.release(claimed)
    assert add(site, write("b.cpp", RELU)).rows[0].why == adding.LATER


def test_stopped_between_two_kernels(site: Project) -> None:
    answers = iter((False, False, True))
    report = add(site, write("a.cpp", RELU), write("b.cpp", BAD), should_stop=lambda: next(answers))
    assert (len(report.rows), report.left, len(nodes_of(site))) == (1, 1, 1)
    assert [o.state for o in site.orders()] == ["delivered"]


def test_what_cannot_be_added_is_said_before_anything_is_stored(site: Project, tmp_path: Path) -> None:
    good = write("good.cpp", RELU)
    for wrong, words in (
        (tmp_path / "none.cpp", "does not exist"), (tmp_path, "is no file"), (write("empty.cpp", " \n"), "is empty"),
    ):  # fmt: skip
        with pytest.raises(NotFound, match=words):
            add(site, good, wrong)
    with pytest.raises(UsageError, match="is CUDA"):
        add(site, good, write("kernel.cu", RELU))
    with pytest.raises(NotFound, match="has no node"):
        add(site, good, parent="7")
    assert site.orders(closed=True) == () and nodes_of(site) == ()


@pytest.mark.slow
def test_the_torch_abi_is_a_weaker_tier(kforge: Any, site: Project, shop: Shop, tmp_path: Path) -> None:  # noqa: F811
    report = add(site, write("fast.cpp", TORCH_RELU), write("wrong.cpp", WRONG))
    right, wrong = report.rows
    assert (right.outcome, right.audit) == ("accepted", "torch"), right
    assert (wrong.outcome, wrong.reason) == ("rejected", "wrong_value"), wrong
    assert TORCH_TIER in right.line
    node = nodes_of(site)[0]
    assert isinstance(node.outcome, Scored) and node.outcome.measurement.speedup.median > 0
    # It is seen everywhere.
    for command in (
        ("tree", label(site)), ("op", "show", label(site)), ("op", "show", label(site), "--trial", "1"),
        ("audit", "1", "-V", label(site)),
    ):  # fmt: skip
        shown = kforge(*command, "-p", str(site.path))
        assert "torch ABI" in shown.stdout, command
    # It wins nothing, and is not exported, picked by hand or not.
    record = site.record(label(site))
    assert ranked_nodes(nodes_of(site)) == () and best_node(nodes_of(site)) is None
    assert choose_winner(record, nodes_of(site)).node is None
    with pytest.raises(UsageError, match="torch ABI"):
        choose_winner(record, nodes_of(site), pick="1")
    refused = kforge("export", str(site.path), "-o", "x.cast", "--pick", f"{label(site)}=1")
    assert refused.code == 2 and "torch ABI" in refused.stderr and not Path("x.cast").exists()
    artifact = replace(node.outcome.artifact, path=site.binary(node.outcome.artifact.digest), source=TORCH_RELU)
    certificate = shop.workshop.judge.certify(artifact, record, site.examples)
    assert isinstance(certificate, WorkerFailure) and "torch ABI" in certificate.detail
    _cannot_be_packed_or_dispatched(node.candidate, replace(node.outcome, artifact=artifact), record, tmp_path)
    # It may be revised.
    assert kforge("ask", label(site), "--parent", "1", "-o", "orders", "-p", str(site.path)).code == 0
    assert TORCH_TIER in next(Path("orders").glob("*/parent.md")).read_text()
    child = write("child.cpp", RELU)
    assert add(site, child, parent="1").rows[0].audit == "generated"
    best = best_node(nodes_of(site))
    assert best is not None and (best.number, best.parent) == (3, node.id)


def _cannot_be_packed_or_dispatched(candidate: Any, scored: Scored, record: Any, folder: Path) -> None:
    header = Header(name="tiny", device="cpu", torch=torch.__version__, created_by="a test")
    package = folder / "by_hand.cast"
    with pytest.raises(PackageError, match="unknown backend 'torch'"):
        write_package(package, [entry_of(candidate, scored, record)], header=header)
    # Not even under a false name.
    posed = replace(scored, artifact=replace(scored.artifact, backend="cpp"))
    write_package(package, [entry_of(candidate, posed, record)], header=header)
    (state,) = load(package).states
    assert state.kernel is None and "does not load" in state.reason


def entry_of(candidate: Any, scored: Scored, record: Any) -> Any:
    return make_entry(
        variant=record.variant, candidate=candidate, scored=scored, node="n",
        decisions={mode: Use() for mode in MODES},
    )  # fmt: skip


@pytest.mark.slow
def test_eval_judges_the_torch_abi_too(kforge: Any, site: Project) -> None:  # noqa: F811
    file = write("fast.cpp", TORCH_RELU)
    ran = kforge("eval", str(file), "-V", label(site), "-p", str(site.path), "--json")
    document = json.loads(ran.stdout)
    assert (ran.code, document["outcome"], document["audit"]) == (0, "accepted", "torch")
    assert TORCH_TIER in " ".join(document["explanation"])
    refused = kforge("eval", str(file), "-V", label(site), "-p", str(site.path), "--certify")
    assert refused.code == 2 and "torch ABI" in refused.stderr


def test_a_folder_of_the_original_system(site: Project) -> None:
    root = Path("orig/individual_op_kernels")
    write(f"{root}/torch_nn_functional_relu/kernel.cpp", RELU)
    write(f"{root}/torch_relu/kernel.cpp", BAD)
    write(f"{root}/torch_nn_functional_softmax/kernel.cpp", RELU)
    write(f"{root}/torch_mystery/kernel.cpp", RELU)
    write(f"{root}/torch_nn_functional_relu/kernel.cu", RELU)
    write(f"{root}/torch_Tensor_relu_/kernel.cpp", "  ")
    said: list[str] = []
    report = adding.add_folder(
        site, Path("orig"), on_event=said.append, should_stop=lambda: False, settings=load_settings()
    )  # fmt: skip
    told = {(Path(r.path).parent.name, Path(r.path).suffix, r.label): r.outcome or r.why for r in report.rows}
    unforgeable = next(r.variant.label for c in site.cards() for r in c.variants if r.forgeable)
    assert told == {
        ("torch_nn_functional_relu", ".cpp", label(site)): "accepted",
        ("torch_nn_functional_relu", ".cpp", unforgeable): "for a test",
        ("torch_nn_functional_relu", ".cu", "relu"): "it is CUDA, and the model was captured on the CPU",
        ("torch_relu", ".cpp", label(site)): "rejected",
        ("torch_relu", ".cpp", unforgeable): "for a test",
        ("torch_Tensor_relu_", ".cpp", "relu"): "it is empty",
        ("torch_mystery", ".cpp", "torch_mystery"): "no operator is known by that name",
        ("torch_nn_functional_softmax", ".cpp", "softmax"): "the model does not call softmax",
    }
    assert len(said) == 2
    with pytest.raises(NotFound, match="no kernel of the original system"):
        adding.add_folder(site, Path(), on_event=said.append, should_stop=lambda: False, settings=load_settings())


def test_the_folder_of_one_operator_is_taken_too(tmp_path: Path) -> None:
    place = tmp_path / "individual_op_kernels" / "torch_nn_functional_relu"
    place.mkdir(parents=True)
    (place / "kernel.cu").write_text("// one")
    for folder in (place, place.parent, tmp_path):
        (found,) = find_kernels(folder)
        assert (found.name, found.path.resolve()) == (place.name, (place / "kernel.cu").resolve())


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("torch_nn_functional_conv2d", "conv2d"), ("torch_nn_functional_softmax", "softmax"),
        ("torch_softmax", "softmax"),
        ("torch_add", "add"), ("torch_Tensor_add_", "add"), ("aten_add_Tensor", "add"), ("aten__softmax", "softmax"),
        ("torch_nn_functional_log_softmax", "log_softmax"), ("layer_norm", "layer_norm"), ("torch_nothing", ""),
        ("torch_nn_functional_scaled_dot_product_attention", "scaled_dot_product_attention"), ("kernels", ""), ("", ""),
    ],
)  # fmt: skip
def test_names_of_folders(name: str, operator: str) -> None:
    assert operator_of(name) == operator


@pytest.mark.parametrize(
    "place",
    [
        "individual_op_kernels/torch_relu/kernel.cu", "torch_relu/kernel.cu",
        "kernels/generated/individual_op_kernels/torch_relu/kernel.cu",
        "model/kernels/generated/individual_op_kernels/torch_relu/kernel.cu",
        "trees/torch_relu/kernels/kernel_0.cu", "model/trees/torch_relu/kernels/kernel_0.cu",
        "torch_relu/kernels/kernel_0.cu",
    ],
)  # fmt: skip
def test_places_of_kernels(tmp_path: Path, place: str) -> None:
    write(str(tmp_path / place), RELU)
    (found,) = find_kernels(tmp_path)
    assert (found.name, found.path) == ("torch_relu", tmp_path / place)


def test_a_tree_is_taken_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    for number in (10, 2, 0):
        write(str(tmp_path / f"trees/torch_relu/kernels/kernel_{number}.cu"), RELU)
    assert [f.path.stem for f in find_kernels(tmp_path)] == ["kernel_0", "kernel_2", "kernel_10"]
