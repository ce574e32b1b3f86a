"""The video diffusion transformer: one class for every size, with Wan's blocks and parameter names.

Source of the architecture: Wan 2.1 technical report (2025), DiT (Peebles and Xie 2023). Where the context lives is
not the model's concern: self-attention is handed to a `Context`, which is the KV cache when a stream runs and a whole
clip when the model trains.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from characters.model.conditioning import Conditioning
from characters.model.config import ModelConfig
from characters.model.kv_cache import attention


class LayerContext(Protocol):
    """Where one layer's self-attention finds the chunks that a chunk may see."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k, v [batch, tokens, heads, head_dim], not rotated -> [batch, tokens, dim]."""


class Context(Protocol):
    """The context of all layers: `KVCache` or `ClipWindow`."""

    def layer(self, index: int) -> LayerContext:
        """The context of one layer."""


class SelfAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        # Wan normalises q and k over the full width, before the split into heads.
        self.norm_q, self.norm_k = nn.RMSNorm(dim, eps=1e-6), nn.RMSNorm(dim, eps=1e-6)

    def project(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k = self.norm_q(self.q(x)), self.norm_k(self.k(context))
        return tuple(y.unflatten(-1, (self.heads, -1)) for y in (q, k, self.v(context)))

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        return self.o(context.attend(*self.project(x, x)))


class CrossAttention(SelfAttention):
    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.o(attention(*self.project(x, tokens)))


class Block(nn.Module):
    """Self-attention, cross-attention and feed-forward, modulated by the timestep (adaLN)."""

    def __init__(self, dim: int, ffn_dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6, elementwise_affine=False)
        self.self_attn = SelfAttention(dim, heads)
        self.norm3 = nn.LayerNorm(dim, eps=1e-6)
        self.cross_attn = CrossAttention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6, elementwise_affine=False)
        self.ffn = nn.Sequential(nn.Linear(dim, ffn_dim), nn.GELU(approximate="tanh"), nn.Linear(ffn_dim, dim))
        self.modulation = nn.Parameter(torch.randn(1, 6, dim) / dim**0.5)

    def forward(self, x: Tensor, modulation: Tensor, tokens: Tensor, context: LayerContext) -> Tensor:
        """x [batch, tokens, dim], modulation [batch, 6, dim], tokens [batch, conditions, dim] -> like x."""
        shift1, scale1, gate1, shift2, scale2, gate2 = (self.modulation + modulation).split(1, 1)
        x = x + gate1 * self.self_attn(self.norm1(x) * (1 + scale1) + shift1, context)
        x = x + self.cross_attn(self.norm3(x), tokens)
        return x + gate2 * self.ffn(self.norm2(x) * (1 + scale2) + shift2)


class Head(nn.Module):
    def __init__(self, dim: int, out: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=1e-6, elementwise_affine=False)
        self.head = nn.Linear(dim, out)
        self.modulation = nn.Parameter(torch.randn(1, 2, dim) / dim**0.5)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        shift, scale = (self.modulation + embedding[:, None]).split(1, 1)
        return self.head(self.norm(x) * (1 + scale) + shift)


class DiT(nn.Module):
    """One chunk in, one chunk out.

    Args:
        config: a checked `ModelConfig`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        dit = config.dit
        self.config = config
        channels = config.latent_channels
        inputs = channels * (1 + dit.concat_previous + dit.concat_reference)
        # Wan's patch embedding is a strided convolution; over unfolded patches it is this matrix product.
        self.patch_embedding = nn.Linear(inputs * dit.patch**2, dit.dim)
        self.time_embedding = nn.Sequential(nn.Linear(dit.freq_dim, dit.dim), nn.SiLU(), nn.Linear(dit.dim, dit.dim))
        self.time_projection = nn.Sequential(nn.SiLU(), nn.Linear(dit.dim, 6 * dit.dim))
        self.conditioning = Conditioning(dit)
        self.blocks = nn.ModuleList(Block(dit.dim, dit.ffn_dim, dit.num_heads) for _ in range(dit.num_layers))
        self.head = Head(dit.dim, channels * dit.patch**2)

    @property
    def head_dim(self) -> int:
        """Channels of one attention head."""
        return self.config.dit.dim // self.config.dit.num_heads

    def patchify(self, latent: Tensor) -> Tensor:
        """[batch, channels, h, w] -> [batch, tokens, channels * patch^2]."""
        return F.pixel_unshuffle(latent, self.config.dit.patch).flatten(2).transpose(1, 2)

    def unpatchify(self, tokens: Tensor) -> Tensor:
        """Inverse of `patchify`."""
        return F.pixel_shuffle(tokens.transpose(1, 2).unflatten(2, self.config.grid), self.config.dit.patch)

    def forward(
        self,
        noisy: Tensor,
        level: Tensor,
        tokens: Tensor,
        context: Context,
        *,
        previous: Tensor | None = None,
        reference: Tensor | None = None,
    ) -> Tensor:
        """One denoising pass.

        Args:
            noisy: [batch, channels, h, w], (1 - level) * latent + level * noise.
            level: [batch], noise level in [0, 1].
            tokens: [batch, conditions, dim], from `conditioning`.
            context: the KV cache, or a clip in training.
            previous, reference: [batch, channels, h, w], for models that take them (see `DiTConfig`).

        Returns:
            [batch, channels, h, w], the predicted clean latent.
        """
        dit = self.config.dit
        inputs = [noisy]
        inputs += [previous] if dit.concat_previous else []
        inputs += [reference] if dit.concat_reference else []
        x = self.patch_embedding(self.patchify(torch.cat(inputs, 1)))
        embedding = self.time_embedding(timestep_embedding(level * 1000, dit.freq_dim).to(x.dtype))
        modulation = self.time_projection(embedding).unflatten(-1, (6, -1))
        for layer, block in enumerate(self.blocks):
            x = block(x, modulation, tokens, context.layer(layer))
        out = self.unpatchify(self.head(x, embedding))
        if dit.prediction == "velocity":
            return noisy - level[:, None, None, None] * out
        return out + reference if dit.residual_reference else out


def timestep_embedding(timestep: Tensor, dim: int) -> Tensor:
    """Sinusoidal embedding, [batch] -> float32 [batch, dim], cosines first (as in Wan)."""
    half = dim // 2
    freqs = torch.exp(-math.log(10000.0) / half * torch.arange(half, dtype=torch.float32, device=timestep.device))
    angles = timestep.float()[:, None] * freqs
    return torch.cat((angles.cos(), angles.sin()), -1)
