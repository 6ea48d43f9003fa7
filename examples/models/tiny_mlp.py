"""A few layers that run in a blink: linear, GELU, layer norm, softmax. KernelBench form."""

import torch
from torch import nn


class Model(nn.Module):
    """[batch, features] -> [batch, classes], rows sum to 1."""

    def __init__(self, features: int = 64, hidden: int = 256, classes: int = 10) -> None:
        super().__init__()
        self.inner = nn.Linear(features, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.outer = nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(nn.functional.gelu(self.inner(x)))
        return torch.softmax(self.outer(x), dim=-1)


def get_init_inputs() -> list[int]:
    return [64, 256, 10]


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(32, 64)]


def get_samples(n: int) -> list[list[torch.Tensor]]:
    return [[torch.randn(32 * (i + 1), 64)] for i in range(n)]
