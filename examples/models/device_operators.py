"""A model of single operators at the sizes that diffusion and language models run on a data-centre GPU.

KernelBench form. Meant for bfloat16 on CUDA; `get_init_inputs` takes no sizes, `get_samples` none but the real ones.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    """Group norm, SiLU, padding and nearest up-sampling of a VAE decoder, and the softmax of a long prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.group_norm = nn.GroupNorm(32, 128)
        nn.init.normal_(self.group_norm.weight)
        nn.init.normal_(self.group_norm.bias)

    def forward(self, image: torch.Tensor, latent: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """image [1, 128, 1024, 1024], latent [1, 512, 128, 128], scores [32768, 2048]."""
        normed = F.silu(self.group_norm(image))
        padded = F.pad(image, (0, 1, 0, 1))
        upsampled = F.interpolate(latent, scale_factor=2.0, mode="nearest")
        return normed, padded, upsampled, torch.softmax(scores, dim=-1)


def get_init_inputs() -> list[object]:
    return []


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(1, 128, 1024, 1024), torch.randn(1, 512, 128, 128), torch.randn(32768, 2048)]
