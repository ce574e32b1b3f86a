"""Sound that enters between blocks: each latent frame's tokens attend to that frame's sound (Wan2.2-S2V)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from characters.model.block import Conditions, CrossAttention, Residual, takes
from kernels.fp8 import store
from kernels.residual_norm import residual_norm

EPS = 1e-5


class Heard(NamedTuple):
    """What one injector makes of a chunk's sound.

    Attributes:
        conditions: [frames, tokens, heads, head_dim] each.
        shift, scale: [frames, dim].
    """

    conditions: Conditions
    shift: Tensor
    scale: Tensor


class Injector(nn.Module):
    """Adaptive norm by a frame's sound as a whole, then cross-attention to its tokens, added to the stream.

    Args:
        dim: channels of a token.
        heads: of the attention.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention = CrossAttention(dim, heads)
        self.adain = nn.Linear(dim, 2 * dim)

    def hear(self, tokens: Tensor, whole: Tensor) -> Heard:
        """tokens [frames, tokens, dim], whole [frames, dim], from `SpeechTokens`."""
        given = store(tokens, takes(self.attention.k))
        return Heard(self.attention.condition(given), *self.adain(F.silu(whole)).chunk(2, -1))

    def forward(self, residual: Residual, heard: Heard, rows: list[slice]) -> Residual:
        """One injection.

        Args:
            residual: of [rows, dim].
            heard: of this injector.
            rows: of each latent frame among them, in order; empty for frames that another GPU has.
        """
        streams, branches = [], []
        for frame, own in enumerate(rows):
            branch = None if residual.branch is None else residual.branch[own]
            x, h = residual_norm(
                residual.x[own], branch, residual.gate,
                scale=heard.scale[frame], shift=heard.shift[frame], eps=EPS, to=self.attention.takes,
            )  # fmt: skip
            streams.append(x)
            branches.append(self.attention(h, Conditions(*(x[frame] for x in heard.conditions))))
        return Residual(torch.cat(streams), torch.cat(branches))
