"""From the hidden states of an ear to the tokens that each latent frame of a window attends to.

Source: SoulX-FlashHead's `AudioProjModel`, whose parameter names it keeps. A latent frame covers `stride` frames of
video; it hears the ear's features of its frames, and of two more on either side at its ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

REACH = 2  # positions that are heard on either side of a frame


@dataclass
class AudioProjectionConfig:
    """Sizes; the defaults are those of FlashHead Pro and LeapTalk.

    Attributes:
        layers, dim: of the ear's hidden states.
        hidden: width inside.
        tokens: of a latent frame.
        out: width of a token.
        stride: frames of video that a latent frame covers, all but the first.
    """

    layers: int = 12
    dim: int = 768
    hidden: int = 512
    tokens: int = 32
    out: int = 1536
    stride: int = 4


class AudioProjection(nn.Module):
    """The projection.

    Args:
        config: sizes.
    """

    def __init__(self, config: AudioProjectionConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or AudioProjectionConfig()
        width = config.layers * config.dim
        self.proj1 = nn.Linear((2 * REACH + 1) * width, config.hidden)
        self.proj1_vf = nn.Linear((config.stride + 2 * REACH) * width, config.hidden)
        self.proj2 = nn.Linear(config.hidden, config.hidden)
        self.proj3 = nn.Linear(config.hidden, config.tokens * config.out)
        self.norm = nn.LayerNorm(config.out)

    def forward(self, states: Tensor) -> Tensor:
        """Tokens of a window.

        Args:
            states: [batch, 1 + stride * n, layers, dim], the ear's, a position a frame of video.

        Returns:
            [batch, 1 + n, tokens, out].
        """
        positions = states.shape[1]
        # Positions past an end are those of the end: nothing beyond the window is heard.
        reach = torch.arange(-REACH, REACH + 1, device=states.device)
        around = (torch.arange(positions, device=states.device)[:, None] + reach).clamp(0, positions - 1)
        heard = states[:, around]  # [batch, positions, 2 * REACH + 1, layers, dim]
        first = self.proj1(heard[:, 0].flatten(1))[:, None]
        groups = heard[:, 1:].unflatten(1, (-1, self.config.stride))
        # The first of a group gives what came before it too, the last what comes after it, the middle ones themselves.
        parts = [groups[:, :, 0, : REACH + 1], groups[:, :, 1:-1, REACH], groups[:, :, -1, REACH:]]
        later = self.proj1_vf(torch.cat(parts, 2).flatten(2))
        x = F.relu(self.proj2(F.relu(torch.cat((first, later), 1))))
        x = self.proj3(x).unflatten(-1, (self.config.tokens, self.config.out))
        # In float32 whatever the rest works in: the tokens' statistics decide what all layers hear.
        norm = self.norm
        return F.layer_norm(x.float(), norm.normalized_shape, norm.weight.float(), norm.bias.float(), norm.eps).to(
            x.dtype
        )
