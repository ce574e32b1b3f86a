"""Five tokens a latent frame, and one for the frame as a whole, from the states of a wav2vec 2.0 (Wan2.2-S2V)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# A token sees the frames of video up to 8 before the last one of its own latent frame.
REACH = 8
FRAMES_PER_LATENT = 4


@dataclass
class SpeechTokensConfig:
    """Sizes of `SpeechTokens`.

    Attributes:
        layers: states of the ear that are mixed, its input among them.
        dim: channels of a state.
        tokens: that carry sound; one more of a latent frame is learned.
    """

    layers: int = 25
    dim: int = 1024
    tokens: int = 4


class SpeechTokens(nn.Module):
    """The ear's states, mixed with learned weights, through three causal convolutions.

    Sound before the chunk is not heard: its first frame stands in for what came before, as in the published code.

    Args:
        config: sizes.
        dim: channels of a token.
    """

    def __init__(self, config: SpeechTokensConfig, dim: int) -> None:
        super().__init__()
        self.tokens = config.tokens
        self.weights = nn.Parameter(torch.full((1, config.layers, 1, 1), 0.01))
        self.conv1_local = nn.Conv1d(config.dim, dim // 4 * config.tokens, 3)
        self.conv1_global = nn.Conv1d(config.dim, dim // 4, 3)
        self.conv2 = nn.Conv1d(dim // 4, dim // 2, 3, stride=2)
        self.conv3 = nn.Conv1d(dim // 2, dim, 3, stride=2)
        self.final_linear = nn.Linear(dim, dim)
        self.padding_tokens = nn.Parameter(torch.zeros(1, 1, 1, dim))

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens of one chunk.

        Args:
            states: [layers, dim, 4 * frames], one a frame of video.

        Returns:
            [frames, tokens + 1, dim], and [frames, dim] for the frame as a whole.
        """
        mix = F.silu(self.weights[0])
        mixed = (states * mix).sum(0) / mix.sum()
        x = torch.cat((mixed[:, :1].expand(-1, REACH - FRAMES_PER_LATENT + 1), mixed), 1)[None]
        local = self.conv1_local(x).unflatten(1, (self.tokens, -1))[0]
        spoken = self._fold(local).transpose(0, 1)
        spoken = torch.cat((spoken, self.padding_tokens[0].expand(len(spoken), -1, -1)), 1)
        return spoken, self.final_linear(self._fold(self.conv1_global(x))[0])

    def _fold(self, x: Tensor) -> Tensor:
        """[n, dim / 4, frames of video] -> [n, latent frames, dim]."""
        for following in (self.conv2, self.conv3, None):
            x = x.transpose(1, 2)
            x = F.silu(F.layer_norm(x, x.shape[-1:], eps=1e-6))
            if following is not None:
                x = following(x.transpose(1, 2))
        return x
