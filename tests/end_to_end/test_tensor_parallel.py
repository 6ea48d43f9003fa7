"""transformers' `tp_plan="auto"` on two processes: a package each, DTensors refused by name, collectives left alone.

What transformers hands to torch is looked at too: in inference it unwraps its DTensors itself, so that nearly all
arguments are local tensors, which kernels serve; with gradients the layers run on DTensors.
"""

from __future__ import annotations

import pytest
import torch
from tests.end_to_end.tensor_parallel_job import OPERATORS, RankReport, run_job

pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch knows no processes"),
]
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "c10d", "wait_tensor")


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def ranks(request: pytest.FixtureRequest) -> list[RankReport]:
    """What both processes report."""
    if request.param == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    return run_job(request.param)


def test_each_process_serves_its_share_from_a_package_of_its_own(ranks: list[RankReport]) -> None:
    assert [found.rank for found in ranks] == [0, 1]
    for found in ranks:
        assert found.entries >= len(OPERATORS)
        # Two layers with a softmax and a silu each, and nine norms.
        assert found.hits == 2 + 2 + 9, found
        assert found.split < 1e-4 and found.dispatched < 1e-4, found


def test_collectives_are_no_operators(ranks: list[RankReport]) -> None:
    for found in ranks:
        assert not [name for name in found.operators if any(c in name for c in COLLECTIVES)]
        # They are seen all the same, or the test would prove nothing.
        assert any("all_reduce" in name for name in found.uncovered), found.uncovered


def test_local_tensors_are_what_torch_is_given_in_inference(ranks: list[RankReport]) -> None:
    for found in ranks:
        plain = found.argument_types["Tensor"] + found.argument_types.get("Parameter", 0)
        assert plain > 0.9 * sum(found.argument_types.values()), found.argument_types


def test_gradients_are_those_without_kernels(ranks: list[RankReport]) -> None:
    for found in ranks:
        assert found.gradient_dispatched < 1e-4
        assert found.weight_gradient == 0.0
        assert found.refused, "with gradients on, the layers' calls are refused"


def test_a_dtensor_is_refused_by_name(ranks: list[RankReport]) -> None:
    for found in ranks:
        assert found.direct_right
        assert [count for reason, count in found.direct.items() if "DTensor" in reason] == [1], found.direct
