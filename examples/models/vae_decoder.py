"""The decoder of a Stable-Diffusion-style VAE, random weights. KernelBench form.

Latents [n, 16, h, w] -> images [n, 3, 8 h, 8 w]: a middle block with self-attention, then four levels of residual
blocks
(GroupNorm of 32 groups, SiLU, 3x3 convolution), three of them followed by a nearest upsampling and a convolution.
"""

import torch
from torch import nn
from torch.nn import functional as F

GROUPS = 32
EPS = 1e-6


class Resnet(nn.Module):
    """[n, channels, h, w] -> [n, out, h, w]."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(GROUPS, channels, eps=EPS)
        self.conv1 = nn.Conv2d(channels, out, 3, padding=1)
        self.norm2 = nn.GroupNorm(GROUPS, out, eps=EPS)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1)
        self.shortcut = nn.Conv2d(channels, out, 1) if channels != out else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return (x if self.shortcut is None else self.shortcut(x)) + h


class Attention(nn.Module):
    """Self-attention of one head over all pixels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, channels, eps=EPS)
        self.q, self.k, self.v = (nn.Linear(channels, channels) for _ in range(3))
        self.out = nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, channels, height, width = x.shape
        h = self.norm(x).view(n, channels, height * width).transpose(1, 2)
        h = F.scaled_dot_product_attention(self.q(h)[:, None], self.k(h)[:, None], self.v(h)[:, None])[:, 0]
        return x + self.out(h).transpose(1, 2).reshape(n, channels, height, width)


class UpBlock(nn.Module):
    """Three residual blocks, then (but on the last level) twice the size."""

    def __init__(self, channels: int, out: int, *, upsample: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Resnet(channels if i == 0 else out, out) for i in range(3))
        self.conv = nn.Conv2d(out, out, 3, padding=1) if upsample else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        if self.conv is None:
            return x
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class Model(nn.Module):
    """See the module's docstring. `channels` are those of the levels, from the image's side."""

    def __init__(self, channels: tuple[int, ...] = (128, 256, 512, 512), latent: int = 16) -> None:
        super().__init__()
        top = channels[-1]
        self.conv_in = nn.Conv2d(latent, top, 3, padding=1)
        self.middle = nn.Sequential(Resnet(top, top), Attention(top), Resnet(top, top))
        levels = list(reversed(channels))
        self.up = nn.Sequential(
            *(UpBlock(levels[max(i - 1, 0)], out, upsample=i + 1 < len(levels)) for i, out in enumerate(levels))
        )
        self.norm_out = nn.GroupNorm(GROUPS, channels[0], eps=EPS)
        self.conv_out = nn.Conv2d(channels[0], 3, 3, padding=1)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        x = self.up(self.middle(self.conv_in(z)))
        return self.conv_out(F.silu(self.norm_out(x)))


def get_init_inputs() -> list[object]:
    return []


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(1, 16, 128, 128)]


def get_samples(n: int) -> list[list[torch.Tensor]]:
    """Latents of different sizes: 128x128 first, then smaller."""
    return [[torch.randn(1, 16, 128 >> i % 3, 128 >> i % 3)] for i in range(n)]
