"""One block of the DiT, with Wan's parameter names."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from kernels.cross_attend import cross_attend
from kernels.fp8 import Precision, Quantised
from kernels.gelu import gelu
from kernels.residual_norm import residual_norm

EPS = 1e-6


class LayerContext(Protocol):
    """One layer's self-attention, with the chunks that a chunk may see."""

    def attend(self, qkv: Tensor, norm_q: Tensor, norm_k: Tensor, to: Precision) -> Tensor | Quantised:
        """Norm and rotate q and k, then attend.

        Args:
            qkv: [batch, tokens, 3 * dim], or [rows, 3 * dim] of a batch of one.
            norm_q, norm_k: [dim], weights of the RMS norms.
            to: how the result is stored.

        Returns:
            [batch, tokens, dim] or [rows, dim].
        """


class Conditions(NamedTuple):
    """Keys and values of condition tokens in one layer: [(batch or frames,) conditions, heads, head_dim] each."""

    k: Tensor
    v: Tensor


class Residual(NamedTuple):
    """The residual stream and the branch that the next norm will add to it: x + gate * branch."""

    x: Tensor
    branch: Tensor | None = None
    gate: Tensor | None = None

    def sum(self) -> Tensor:
        """The stream with its branch added."""
        # As `residual_norm` adds it, so that a part of a pipeline rounds as the whole model does.
        return (
            self.x if self.branch is None else self.x + (self.branch if self.gate is None else self.gate * self.branch)
        )


def takes(layer: nn.Module) -> Precision:
    """How a layer wants its input stored."""
    return getattr(layer, "takes", None)


class SelfAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        # Wan normalises q and k over the full width, before the split into heads.
        self.norm_q, self.norm_k = nn.RMSNorm(dim, eps=EPS), nn.RMSNorm(dim, eps=EPS)
        # Once quantised: one product in place of three, and the scales [3, heads] of q, k and v in the KV cache.
        self.qkv: nn.Module | None = None
        self.register_buffer("head_scales", None)

    @property
    def takes(self) -> Precision:
        """See `takes`."""
        return takes(self.q if self.qkv is None else self.qkv)

    def forward(self, x: Tensor | Quantised, context: LayerContext) -> Tensor:
        qkv = torch.cat((self.q(x), self.k(x), self.v(x)), -1) if self.qkv is None else self.qkv(x)
        return self.o(context.attend(qkv, self.norm_q.weight, self.norm_k.weight, takes(self.o)))


class CrossAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.norm_q, self.norm_k = nn.RMSNorm(dim, eps=EPS), nn.RMSNorm(dim, eps=EPS)

    @property
    def takes(self) -> Precision:
        """See `takes`."""
        return takes(self.q)

    def condition(self, tokens: Tensor | Quantised) -> Conditions:
        """Keys and values of tokens [..., conditions, dim], as k takes them; valid as long as the tokens stay."""
        k, v = self.k(tokens), self.v(tokens)
        return Conditions(*(x.unflatten(-1, (self.heads, -1)) for x in (self.norm_k(k), v)))

    def forward(self, x: Tensor | Quantised, conditions: Conditions) -> Tensor:
        # Of a window the conditions have an axis of frames, and the rows of each latent frame attend to its own.
        return self.o(cross_attend(self.q(x), self.norm_q.weight, *conditions, eps=EPS, to=takes(self.o)))


class Block(nn.Module):
    """Self-attention, cross-attention and feed-forward, modulated by the timestep (adaLN)."""

    def __init__(self, dim: int, ffn_dim: int, heads: int) -> None:
        super().__init__()
        self.self_attn = SelfAttention(dim, heads)
        self.norm3 = nn.LayerNorm(dim, eps=EPS)
        self.cross_attn = CrossAttention(dim, heads)
        self.ffn = nn.Sequential(nn.Linear(dim, ffn_dim), nn.GELU(approximate="tanh"), nn.Linear(ffn_dim, dim))
        self.modulation = nn.Parameter(torch.randn(1, 6, dim) / dim**0.5)

    def forward(
        self, residual: Residual, modulation: Tensor, conditions: Conditions, context: LayerContext
    ) -> Residual:
        """One layer.

        Args:
            residual: x [batch, tokens, dim], or [rows, dim] of a batch of one.
            modulation: [6, ...vector], see `Modulation`.
            conditions: of this layer.
            context: of this layer.

        Returns:
            The stream with the feed-forward's branch still to be added.
        """
        shift1, scale1, gate1, shift2, scale2, gate2 = modulation
        x, h = residual_norm(*residual, scale=scale1, shift=shift1, eps=EPS, to=self.self_attn.takes)
        branch = self.self_attn(h, context)
        norm = self.norm3
        x, h = residual_norm(x, branch, gate1, weight=norm.weight, bias=norm.bias, eps=EPS, to=self.cross_attn.takes)
        branch = self.cross_attn(h, conditions)
        up, _, down = self.ffn
        x, h = residual_norm(x, branch, scale=scale2, shift=shift2, eps=EPS, to=takes(up))
        return Residual(x, down(gelu(up(h), takes(down))), gate2)
