"""The template generator: order, history, what it declines, and the data that its sources come from."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from kernelforge.capture.types import ScalarRef
from kernelforge.cards.types import Extent, Scalar, Variant
from kernelforge.digest import canonical_json
from kernelforge.generate.emitter.graph import trace
from kernelforge.generate.generators.template import GENERATOR, distance
from kernelforge.generate.types import Candidate, Exhausted, Feedback, Request
from kernelforge.operators import get_operator

Propose = Callable[[str, str, str], list[tuple[Variant, Candidate]]]


def request(variant: Variant, *history: Candidate, backend: str = "cpp") -> Request:
    feedback = tuple(Feedback(candidate=c, outcome="scored", detail="", speedup=1.0) for c in history)
    return Request(variant=variant, backend=backend, prelude="", brief="", history=feedback)


@pytest.mark.parametrize("backend", ["cpp", "cuda"])
def test_proposals_differ_end_and_are_deterministic(propose: Propose, case_name: str, backend: str) -> None:
    found = [candidate for _, candidate in propose(case_name, "float32", backend)]
    assert 1 <= len(found) <= 40
    assert len({c.source for c in found}) == len(found)
    assert [c.source for _, c in propose(case_name, "float32", backend)] == [c.source for c in found]
    assert all(json.loads(c.schedule) and c.notes and c.generator == "template" for c in found)


def test_a_source_in_the_history_is_not_proposed_again_whatever_its_origin(propose: Propose) -> None:
    variant, first = propose("softmax", "float32", "cpp")[0]
    second = GENERATOR.propose(request(variant, replace(first, generator="manual", schedule="")))
    assert isinstance(second, Candidate)
    assert second.source != first.source


def test_when_all_are_tried_the_generator_says_so(propose: Propose) -> None:
    found = propose("relu", "float32", "cpp")
    end = GENERATOR.propose(request(found[0][0], *(c for _, c in found)))
    assert isinstance(end, Exhausted)
    assert "tried" in end.reason


def test_an_operator_without_family_or_file_is_declined_by_name(propose: Propose) -> None:
    variant, _ = propose("relu", "float32", "cpp")[0]
    for name in ("linear", "no_such_operator"):
        end = GENERATOR.propose(request(replace(variant, operator=name)))
        assert isinstance(end, Exhausted)
        assert name in end.reason


def test_a_template_declines_a_layout_that_it_does_not_do(propose: Propose) -> None:
    variant, _ = propose("max_pool", "float32", "cpp")[0]
    strides = (Extent(4416), Extent(1), Extent(192), Extent(6))
    channels_last = replace(variant, tensors=(replace(variant.tensors[0], stride=strides),))
    end = GENERATOR.propose(request(channels_last))
    assert isinstance(end, Exhausted)
    assert "contiguous" in end.reason


def test_the_emitter_follows_a_channels_last_layout(propose: Propose) -> None:
    variant, _ = propose("batch_norm", "float32", "cpp")[0]
    strides = (Extent(4416), Extent(1), Extent(192), Extent(6))
    tensors = (replace(variant.tensors[0], stride=strides), *variant.tensors[1:])
    outputs = (replace(variant.outputs[0], stride=strides),)
    made = GENERATOR.propose(request(replace(variant, tensors=tensors, outputs=outputs)))
    assert isinstance(made, Candidate)
    assert "const int64_t length = 6;" in made.source


def test_the_graph_of_an_operator_is_plain_json_without_its_sizes(propose: Propose) -> None:
    variant, _ = propose("softmax_cast", "bfloat16", "cpp")[0]
    graph = trace(variant, get_operator("softmax").call)
    assert [node.op for node in graph.nodes] == ["_to_copy", "_softmax"]
    text = canonical_json(graph.to_json())
    assert "70" not in text


def test_a_varying_scalar_becomes_a_parameter_of_launch(propose: Propose) -> None:
    variant, _ = propose("layer_norm", "float32", "cpp")[0]
    arguments = tuple((k, ScalarRef("eps") if k == "eps" else v) for k, v in variant.arguments)
    made = GENERATOR.propose(
        request(replace(variant, arguments=arguments, scalars=(Scalar(name="eps", low=1e-6, high=1e-4),)))
    )
    assert isinstance(made, Candidate)
    assert "double eps" in made.source
    assert "float(eps)" in made.source


def test_sixteen_byte_accesses_need_an_aligned_base(propose: Propose) -> None:
    variant, candidate = propose("relu", "float16", "cuda")[0]
    assert "constexpr int VEC = 8;" in candidate.source
    unaligned = replace(variant, tensors=(replace(variant.tensors[0], alignment=2),))
    made = GENERATOR.propose(request(unaligned, backend="cuda"))
    assert isinstance(made, Candidate)
    assert "VEC" not in made.source


def test_a_revision_is_the_untried_schedule_that_differs_least(propose: Propose) -> None:
    found = [c for _, c in propose("softmax", "float32", "cuda")]
    variant = propose("softmax", "float32", "cuda")[0][0]
    parent = found[-1]
    revised = GENERATOR.propose(replace(request(variant, parent, backend="cuda"), parent=parent))
    assert isinstance(revised, Candidate) and revised.parent == parent.id
    others = [c for c in found if c.source != parent.source]
    assert distance(revised.schedule, parent.schedule) == min(distance(c.schedule, parent.schedule) for c in others)
    assert revised.source != GENERATOR.propose(request(variant, parent, backend="cuda")).source  # type: ignore[union-attr]


def test_another_mapping_is_another_design() -> None:
    assert distance('{"mapping":"flat","vector":4}', '{"mapping":"flat","vector":8}') == 1
    assert distance('{"mapping":"flat","vector":4}', '{"mapping":"rows","vector":4}') == 3
    assert distance("", '{"mapping":"rows"}') == 3
