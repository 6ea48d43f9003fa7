"""A small decoder of the Qwen3 shape, random weights, greedy decoding with a growing key-value cache. KernelBench form.

RMSNorm before attention and MLP, grouped-query attention with RMSNorm on queries and keys, rotary positions, SwiGLU,
tied embeddings; attention is written out, with a float32 softmax, as in the eager attention of Hugging Face.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Config:
    """Sizes of the model."""

    vocab: int = 2048
    hidden: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    intermediate: int = 768
    theta: float = 1e6
    eps: float = 1e-6


Cache = list[tuple[torch.Tensor, torch.Tensor]]


class RMSNorm(nn.Module):
    """Over the last dim, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        return self.weight * x.to(dtype)


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """(a, b) -> (-b, a), a and b being the halves of the last dim."""
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def rotary_tables(positions: torch.Tensor, config: Config, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, each [1, 1, length, head_dim]."""
    powers = torch.arange(0, config.head_dim, 2, device=positions.device, dtype=torch.float32) / config.head_dim
    angles = positions.to(torch.float32)[:, None] * (1.0 / config.theta**powers)[None, :]
    angles = torch.cat((angles, angles), dim=-1)[None, None]
    return angles.cos().to(dtype), angles.sin().to(dtype)


class Attention(nn.Module):
    """[batch, length, hidden] -> the same, over all keys of the cache."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.q_proj = nn.Linear(config.hidden, config.heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.hidden, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.eps)
        self.k_norm = RMSNorm(config.head_dim, config.eps)

    def forward(
        self,
        x: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor,
        past: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        batch, length, _ = x.shape
        config, (cos, sin) = self.config, rotary
        shape = (batch, length, -1, config.head_dim)
        q = self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2)
        v = self.v_proj(x).view(shape).transpose(1, 2)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        groups = config.heads // config.kv_heads
        keys, values = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        scores = torch.matmul(q, keys.transpose(2, 3)) * config.head_dim**-0.5 + mask
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        mixed = torch.matmul(weights, values).transpose(1, 2).reshape(batch, length, -1)
        return self.o_proj(mixed), (k, v)


class Layer(nn.Module):
    """Attention and SwiGLU, each with its norm and residual."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.input_norm = RMSNorm(config.hidden, config.eps)
        self.attention = Attention(config)
        self.post_norm = RMSNorm(config.hidden, config.eps)
        self.gate = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor,
        past: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        mixed, cache = self.attention(self.input_norm(x), rotary, mask, past)
        x = x + mixed
        h = self.post_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h)), cache


class Model(nn.Module):
    """Token ids [batch, length] -> logits [batch, length, vocab] and the new cache."""

    def __init__(self, **sizes: int) -> None:
        super().__init__()
        self.config = config = Config(**sizes)
        self.embedding = nn.Embedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.eps)

    def forward(self, ids: torch.Tensor, past: Cache | None = None) -> tuple[torch.Tensor, Cache]:
        length = ids.shape[1]
        seen = 0 if past is None else past[0][0].shape[2]
        x = self.embedding(ids)
        positions = torch.arange(seen, seen + length, device=ids.device)
        rotary = rotary_tables(positions, self.config, x.dtype)
        visible = torch.arange(seen + length, device=ids.device)[None, :] <= positions[:, None]
        lowest = torch.finfo(x.dtype).min
        mask = torch.zeros(visible.shape, dtype=x.dtype, device=x.device).masked_fill(~visible, lowest)[None, None]
        cache: Cache = []
        for index, layer in enumerate(self.layers):
            x, entry = layer(x, rotary, mask, None if past is None else past[index])
            cache.append(entry)
        return F.linear(self.norm(x), self.embedding.weight), cache

    def generate(self, ids: torch.Tensor, new_tokens: int) -> torch.Tensor:
        """Greedy decoding: ids [batch, length] -> [batch, length + new_tokens]."""
        logits, cache = self(ids)
        for step in range(new_tokens):
            following = logits[:, -1:].argmax(dim=-1)
            ids = torch.cat((ids, following), dim=1)
            if step + 1 < new_tokens:
                logits, cache = self(following, cache)
        return ids


def get_init_inputs() -> dict[str, int]:
    return {"vocab": 2048, "hidden": 256, "layers": 4, "heads": 4, "kv_heads": 2}


def get_inputs() -> list[object]:
    return [torch.randint(2048, (1, 17)), 16]


def get_samples(n: int) -> list[list[object]]:
    """Prompts of different lengths and batch sizes, 16 new tokens each."""
    return [[torch.randint(2048, (1 + i % 2, 128 + 45 * i)), 16] for i in range(n)]


def run(model: Model, ids: torch.Tensor, new_tokens: int) -> torch.Tensor:
    return model.generate(ids, new_tokens)
