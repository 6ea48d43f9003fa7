"""`model.generate` of transformers: captured on a few short prompts, served on many that are up to 4,000 tokens long.

The kernels are the template generator's first proposals, unjudged: guards and ranges are the matter here. Eligible are
all calls of operators for which the package has an entry; each either hits or misses, whatever the reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest
import torch
from benchmarks.unjudged_packages import template_candidates, write_unjudged

import kernelforge
from kernelforge.cards.types import VariantRecord
from kernelforge.dispatch.loading import LoadedPackage
from kernelforge.settings import load_settings
from kernelforge.store.project import Project

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

Cache = Literal["growing", "static"]
CAPTURED = (17, 24, 30, 41)
"""Tokens of the captured prompts, each with CAPTURED_NEW new ones."""
CAPTURED_NEW = 5
MOST_VARIANTS = 8
LEAST_HITS = 0.95
VOCAB = 512
LONG = pytest.mark.skipif(not os.environ.get("KFORGE_LONG"), reason="takes minutes; `make generation-test` runs it")
EVERYTHING = (
    "add", "cos", "mean", "mul", "neg", "pow", "rsqrt", "silu", "sin", "softmax", "where",
)  # fmt: skip


@dataclass(frozen=True)
class Decoder:
    """A decoder of the Qwen3 architecture with random weights."""

    model: Any

    def decode(self, ids: torch.Tensor, new_tokens: int, cache: Cache) -> torch.Tensor:
        """Greedy decoding: ids [1, length] -> [1, length + new_tokens]."""
        options = {}
        if cache == "static":
            # One of its own, as large as this prompt wants: the model would keep the largest that it ever needed.
            options["cache"] = transformers.StaticCache(
                config=self.model.config, max_cache_len=ids.shape[1] + new_tokens
            )
        with torch.no_grad():
            tokens = self.model.generate(
                ids, max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False, pad_token_id=0, **options
            )
        assert isinstance(tokens, torch.Tensor)
        return tokens


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """A model this small gains nothing from more, and where others work threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=8192, attn_implementation="eager",
    )  # fmt: skip
    return Decoder(transformers.Qwen3ForCausalLM(config).eval())


def prompt(length: int) -> torch.Tensor:
    return torch.randint(1, VOCAB, (1, length), generator=torch.Generator().manual_seed(length))


Records: TypeAlias = "Mapping[str, list[VariantRecord]]"
"""Variants that can be forged, by operator, the most called first."""


def capture(decoder: Decoder, cache: Cache, lengths: Sequence[int], new_tokens: int, project: Path) -> Records:
    samples = [(prompt(length), new_tokens, cache) for length in lengths]
    kernelforge.capture(decoder.decode, samples=samples, project=project, device="cpu", repeats=0)
    return {
        card.operator: sorted((r for r in card.variants if not r.forgeable), key=lambda r: -r.calls)
        for card in Project.open(project).cards()
    }


@dataclass(frozen=True)
class Captured:
    """What a few short prompts gave."""

    cache: Cache
    records: Records


@pytest.fixture(scope="module", params=["growing", "static"])
def captured(request: pytest.FixtureRequest, decoder: Decoder, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    project = tmp_path_factory.mktemp(request.param) / "decoder.kforge"
    return Captured(request.param, capture(decoder, request.param, CAPTURED, CAPTURED_NEW, project))


def package_of(records: Records, operators: tuple[str, ...], path: Path) -> LoadedPackage:
    """A loaded package of at most MOST_VARIANTS kernels for each operator."""
    chosen = [r for name in operators for r in records[name][:MOST_VARIANTS]]
    kernels = template_candidates(chosen)
    assert {variant.operator for variant, _ in kernels} == set(operators)
    return kernelforge.load(write_unjudged(path, kernels, load_settings()))


def calls_of(package: LoadedPackage) -> dict[str, tuple[int, int]]:
    """By operator: calls that hit, calls that missed."""
    found: dict[str, tuple[int, int]] = {}
    for row in package.stats():
        hits, _ = found.get(row.operator, (0, 0))
        # Each row of an operator names all its misses, each by the reason why this variant refused.
        found[row.operator] = (hits + row.hits, sum(row.misses.values()))
    return found


def serve(decoder: Decoder, package: LoadedPackage, lengths: list[int], new_tokens: int, cache: Cache) -> float:
    """Decode prompts of these lengths; returns the share of eligible calls that hit."""
    for length in lengths:
        ids = prompt(length)
        want = decoder.decode(ids, new_tokens, cache)
        with package.dispatch(decoder.model):
            got = decoder.decode(ids, new_tokens, cache)
        assert torch.equal(got, want), f"other tokens after a prompt of {length}"
    counts = calls_of(package).values()
    hits, misses = sum(h for h, _ in counts), sum(m for _, m in counts)
    return hits / (hits + misses)


def test_prompts_longer_than_captured_hit(decoder: Decoder, captured: Captured, tmp_path: Path) -> None:
    package = package_of(captured.records, ("softmax", "silu", "where"), tmp_path / "decoder.cast")
    share = serve(decoder, package, [16, 250, 1500], 12, captured.cache)
    # Without room for longer texts most of softmax and where would miss; one call of 12 is the prompt's own.
    assert share >= 0.9, package.stats()


def test_more_prompts_and_tokens_make_no_more_variants(decoder: Decoder, captured: Captured, tmp_path: Path) -> None:
    lengths = (*CAPTURED, 53, 60)
    more = capture(decoder, captured.cache, lengths, 2 * CAPTURED_NEW, tmp_path / "more.kforge")
    assert {name: len(found) for name, found in more.items()} == {
        name: len(found) for name, found in captured.records.items()
    }


@LONG
@pytest.mark.timeout(1800)
def test_twenty_prompts_hit_with_the_tokens_of_eager(decoder: Decoder, captured: Captured, tmp_path: Path) -> None:
    package = package_of(captured.records, EVERYTHING, tmp_path / "decoder.cast")
    per_operator = {name: sum(e.variant.operator == name for e in package.package.entries) for name in EVERYTHING}
    assert max(per_operator.values()) <= MOST_VARIANTS
    lengths = [round(16 * (4000 / 16) ** (i / 19)) for i in range(20)]
    assert (lengths[0], lengths[-1]) == (16, 4000)
    share = serve(decoder, package, lengths, 128, captured.cache)
    print(f"\n{captured.cache} cache: {share:.2%} of eligible calls hit\n{package.stats()}")
    assert share >= LEAST_HITS, package.stats()
