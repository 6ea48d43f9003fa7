"""`eval`, `op show --trial` and `audit` on a real project with a real judge, quick and on one thread."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelforge import auditing, judging
from kernelforge.benchmark.protocol import Protocol
from kernelforge.build.backends import get_backend
from kernelforge.capture.types import TensorRef
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import Extent, OperatorCard, SizePoint, TensorPattern, Variant, VariantRecord
from kernelforge.errors import EnvironmentMissing
from kernelforge.evaluate.judge import Judge
from kernelforge.evaluate.types import Scored
from kernelforge.generate.types import Candidate
from kernelforge.search.types import Node
from kernelforge.settings import Settings, load_settings
from kernelforge.store.project import Project
from kernelforge.verify.types import Rejected, RejectReason
from kernelforge.workshop import Workshop

HEAD = 'extern "C" int launch(const float* input, float* out, void* workspace) {\n'
RELU = HEAD + "  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];\n  return 0;\n}\n"
SOURCES = (RELU, RELU.replace("0.0f", "0.5f"), RELU.replace("return 0;", "return nothing;"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A project of one variant of relu whose nodes 1, 2 and 3 are right, wrong, and not to be built."""

    project: Path
    workshop: Workshop
    nodes: tuple[Node, ...]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("judgement")
    settings = load_settings({"KFORGE_CACHE_DIR": str(folder / "cache")})
    examples = ExampleStore(folder / "examples")
    record = relu_record(examples.put([torch.linspace(-2, 2, 4000).reshape(4, 1000)]))
    card = OperatorCard(operator="relu", model="tiny", device="cpu", variants=(record,))
    path = folder / "tiny.kforge"
    project = Project.create(
        path, model="tiny", device="cpu", cards=(card,), capture_info={}, examples=examples.root
    )  # fmt: skip
    backend = get_backend("cpp", settings)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    # The machines that run tests are busy, and the verdicts are what is tested, not the times.
    quick = Protocol(budget_s=0.1, min_pairs=4, busy_share=1.0)
    with Judge(settings, device="cpu", backend=backend, threads=1, protocol=quick) as judge:
        nodes = tuple(project.append(judge.evaluate(candidate(record, s), record, project.examples)) for s in SOURCES)
        yield Bench(
            project=path, workshop=Workshop(settings=settings, backend=backend, judge=judge), nodes=nodes
        )  # fmt: skip
    torch.set_num_threads(before)


def relu_record(example: str) -> VariantRecord:
    pattern = TensorPattern(shape=(Extent(4), Extent(1000)), stride=(Extent(1000), Extent(1)), dtype="float32")
    variant = Variant(
        operator="relu", arguments=(("input", TensorRef(0)), ("inplace", False)), tensors=(pattern,), outputs=(pattern,)
    )
    point = SizePoint(dims={}, scalars={}, calls=3, eager_us=20.0, example=example)
    return VariantRecord(variant=variant, points=(point,), share=0.5)


def candidate(record: VariantRecord, source: str) -> Candidate:
    return Candidate(variant_id=record.variant.id, source=source, backend="cpp", generator="manual")


@pytest.fixture(autouse=True)
def same_tools(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands judge with the bench's judge, and build in its cache."""

    @contextmanager
    def open_workshop(_device: str, _settings: Settings) -> Iterator[Workshop]:
        yield bench.workshop

    monkeypatch.setattr(judging, "open_workshop", open_workshop)
    monkeypatch.setenv("KFORGE_CACHE_DIR", str(bench.workshop.settings.cache_dir))


def test_audit_of_an_honest_kernel(kforge: Any, bench: Bench) -> None:
    ran = kforge("audit", "1", "-V", "relu", "-p", str(bench.project), "--json")
    document = json.loads(ran.stdout)
    assert (ran.code, document["own_work"], document["label"], document["label_now"]) == (
        0, True, "generated", "generated",
    )  # fmt: skip
    assert document["node"] == bench.nodes[0].id
    assert document["ablation"]["status"] == "shown"
    assert "launch" in [f["name"] for f in document["functions"]]
    assert ".text" in [s["name"] for s in document["sections"]]
    assert document["undefined"] and document["kernels"] == []


def test_audit_says_what_it_cannot_have(kforge: Any, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise EnvironmentMissing("no CUDA device is available to torch", hint="use --device cpu")

    monkeypatch.setattr(auditing, "get_backend", missing)
    ran = kforge("audit", bench.nodes[0].id[:10], "-p", str(bench.project))
    assert ran.code == 0
    assert "unavailable: no CUDA device is available to torch" in ran.stdout


@pytest.mark.parametrize(("number", "code", "word"), [(2, 4, "wrong_value"), (3, 5, "compile_error")])
def test_a_node_without_a_binary(kforge: Any, bench: Bench, number: int, code: int, word: str) -> None:
    ran = kforge("audit", str(number), "-V", "relu", "-p", str(bench.project))
    assert ran.code == code
    assert word in ran.stdout and "only an accepted candidate's binary is kept" in ran.stdout
    assert ran.stderr.splitlines()[-1].startswith("next: kforge op show relu-")


@pytest.mark.parametrize(
    ("words", "hint"),
    [(("9", "-V", "relu"), "it has nodes 1 to 3"), (("zz",), "op show VARIANT"), (("1",), "--variant"),
     (("1", "-V", "gelu"), "variants: relu-"), (("",), "op show VARIANT")],
)  # fmt: skip
def test_no_such_node(kforge: Any, bench: Bench, words: tuple[str, ...], hint: str) -> None:
    ran = kforge("audit", *words, "-p", str(bench.project))
    assert (ran.code, ran.stdout) == (3, "")
    assert hint in ran.stderr.splitlines()[1]


@pytest.mark.parametrize("damage", ["blob changed", "blob gone", "database"])
def test_a_damaged_project(kforge: Any, bench: Bench, tmp_path: Path, damage: str) -> None:
    copy = tmp_path / "copy.kforge"
    shutil.copytree(bench.project, copy)
    outcome = bench.nodes[0].outcome
    assert isinstance(outcome, Scored)
    blob = copy / "blobs" / outcome.artifact.digest
    if damage == "blob changed":
        blob.write_bytes(blob.read_bytes() + b"x")
    elif damage == "blob gone":
        blob.unlink()
    else:
        (copy / "nodes.db").write_bytes(b"garbage" * 100)
    ran = kforge("audit", "1", "-V", "relu", "-p", str(copy), "--json")
    assert (ran.code, json.loads(ran.stdout)["error"]["exit_code"]) == (3, 3)
    assert ran.stderr.startswith("error: ") and "\nhint: " in ran.stderr


def test_one_trial_explained(kforge: Any, bench: Bench) -> None:
    document = json.loads(kforge("op", "show", "relu", "--trial", "3", "-p", str(bench.project), "--json").stdout)
    assert document["explanation"][1].startswith("line 3: 'nothing' was not declared")
    assert document["explanation"][2] == "    return nothing;"
    wrong = kforge("op", "show", "relu", "--trial", bench.nodes[1].id[:12], "-p", str(bench.project)).stdout
    assert "usual cause: " in wrong and "look at: " in wrong
    right = kforge("op", "show", "relu", "--trial", "1", "-p", str(bench.project)).stdout
    assert "likely limiter: " in right and "its 32 kB move at" in right


def test_eval_with_the_certificate_and_the_papers_protocol(kforge: Any, bench: Bench, tmp_path: Path) -> None:
    source = tmp_path / "relu.cpp"
    source.write_text(RELU + "// by hand\n")
    options = ("-V", "relu", "-p", str(bench.project), "--certify", "--protocol", "paper", "--json")
    ran = kforge("eval", str(source), *options)
    document = json.loads(ran.stdout)
    assert (ran.code, document["outcome"], document["certificate"]["outcome"]) == (0, "accepted", "accepted")
    assert document["certificate"]["cases"] > 0
    assert document["paper"]["correct"] is True and document["paper"]["speedup"] > 0
    source.write_text(RELU.replace("0.0f : input", "0.0f : 1.05f * input"))
    off = kforge("eval", str(source), *options)
    told = json.loads(off.stdout)
    assert (off.code, told["reason"], told["certificate"], told["paper"]["correct"]) == (4, "wrong_value", None, True)
    assert "no decision uses it" in told["paper"]["note"]


def test_eval_names_both_trials_of_a_failed_certificate(
    kforge: Any, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = Rejected(reason=RejectReason.OUT_OF_BOUNDS, case="n0=1", detail="reads behind its input")
    monkeypatch.setattr(Judge, "certify", lambda *_args: refused)
    (tmp_path / "relu.cpp").write_text(RELU + "// certified in vain\n")
    ran = kforge("eval", str(tmp_path / "relu.cpp"), "-V", "relu", "-p", str(bench.project), "--certify")
    first, second = Project.open(bench.project).nodes(bench.nodes[0].variant_id)[-2:]
    assert isinstance(first.outcome, Scored) and second.outcome == refused
    assert ran.code == 4
    lines = [" ".join(line.split()) for line in ran.stdout.splitlines()]
    assert f"trial {second.number}, node {second.id[:16]}" in lines
    assert f"gate passed, as trial {first.number}; the failed certificate is a trial of its own" in lines


def test_eval_of_a_file_that_is_no_text(kforge: Any, bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "k.cpp").write_bytes(b"\xff\xfe\x00")
    ran = kforge("eval", str(tmp_path / "k.cpp"), "-V", "relu", "-p", str(bench.project))
    assert (ran.code, ran.stdout) == (3, "")
    assert "it is no text" in ran.stderr
    (tmp_path / "k.cpp").write_text(RELU + "\0")
    assert "is no text" in kforge("eval", str(tmp_path / "k.cpp"), "-V", "relu", "-p", str(bench.project)).stderr


def test_eval_of_cuda_for_a_variant_of_the_cpu(kforge: Any, bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(RELU)
    ran = kforge("eval", str(tmp_path / "k.cu"), "-V", "relu", "-p", str(bench.project))
    assert (ran.code, ran.stdout) == (2, "") and "was captured on the CPU" in ran.stderr


def test_eval_of_another_kind_of_file_leaves_no_trial(kforge: Any, bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "relu.txt").write_text(RELU)
    before = kforge("op", "show", "relu", "-p", str(bench.project), "--json").stdout
    ran = kforge("eval", str(tmp_path / "relu.txt"), "-V", "relu", "-p", str(bench.project))
    assert (ran.code, ran.stdout) == (2, "")
    assert kforge("op", "show", "relu", "-p", str(bench.project), "--json").stdout == before


def test_the_next_step_after_a_rejection_shows_that_trial(kforge: Any, bench: Bench, tmp_path: Path) -> None:
    source = tmp_path / "half.cc"
    source.write_text(SOURCES[1] + "// by hand\n")
    ran = kforge("eval", str(source), "-V", "relu", "-p", str(bench.project))
    assert ran.code == 4
    words = ran.stderr.splitlines()[-1].removeprefix("next: kforge ").split()
    shown = json.loads(kforge(*words, "--json").stdout)
    assert (shown["reason"], shown["notes"]) == ("wrong_value", "half.cc")
    assert f"{shown['number']}, node {shown['node'][:16]}" in ran.stdout


def test_the_tree_of_a_variant_and_what_a_trial_changed(kforge: Any, bench: Bench) -> None:
    tree = kforge("tree", "relu", "-p", str(bench.project))
    assert tree.code == 0 and "#1" in tree.stdout and "wrong_value" in tree.stdout
    nodes = json.loads(kforge("tree", "relu", "-p", str(bench.project), "--json").stdout)["nodes"]
    assert [n["number"] for n in nodes] == [*range(1, len(nodes) + 1)]
    diff = kforge("diff", "2", "1", "-V", "relu", "-p", str(bench.project))
    assert diff.code == 0 and diff.stdout.startswith("--- #1") and diff.stdout.endswith("\n")
    assert kforge("diff", "99", "-V", "relu", "-p", str(bench.project)).code == 3


def test_an_export_to_nowhere_fails_before_it_certifies(kforge: Any, bench: Bench, tmp_path: Path) -> None:
    ran = kforge("export", str(bench.project), "-o", str(tmp_path / "none" / "a.cast"))
    assert ran.code != 0 and "there is no folder" in ran.stderr
    assert "certifying" not in ran.stderr and "provisional" not in ran.stderr


def test_a_project_is_packed_unpacked_and_merged(kforge: Any, bench: Bench, tmp_path: Path) -> None:
    packed = kforge("project", "pack", str(bench.project), "-o", str(tmp_path / "p.anvil"))
    assert packed.code == 0 and "p.anvil: " in packed.stdout and "project unpack" in packed.stderr
    assert kforge("project", "unpack", str(tmp_path / "p.anvil"), "-o", str(tmp_path / "q.kforge")).code == 0
    assert kforge("project", "unpack", str(tmp_path / "p.anvil"), "-o", str(tmp_path / "q.kforge")).code == 2
    merged = json.loads(kforge("project", "merge", str(bench.project), str(tmp_path / "q.kforge"), "--json").stdout)
    assert merged["trials"] == 0 and merged["known"] > 0
    tree = kforge("tree", "relu", "-p", str(tmp_path / "q.kforge"))
    assert tree.stdout == kforge("tree", "relu", "-p", str(bench.project)).stdout
