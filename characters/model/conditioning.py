"""The conditions of a chunk, as tokens for cross-attention: speech, motion and text."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from characters.chunk import FRAMES_PER_CHUNK, MEL_BINS, MOTION_CHANNELS, MOUTH_CHANNELS
from characters.model.config import DiTConfig

# A window of 48 mel frames (see audio_features) becomes one token per video frame: 6 past, 4 own, 2 ahead.
AUDIO_TOKENS = 12
OWN_TOKENS = slice(6, 6 + FRAMES_PER_CHUNK)


class FrameConvolution(nn.Linear):
    """A convolution over time as one matrix product, several times faster than cuDNN's at these sizes.

    [batch, frames, channels] -> [batch, ceil(frames / stride), out].
    """

    def __init__(self, channels: int, out: int, kernel: int, stride: int = 1) -> None:
        super().__init__(channels * kernel, out)
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        padding = self.kernel // 2
        patches = F.pad(x, (0, 0, padding, padding)).unfold(1, self.kernel, self.stride)
        return super().forward(patches.flatten(2))


class AudioEncoder(nn.Module):
    """Log-mel window of one chunk -> a token per video frame.

    It also reads the mouth's articulation off its own tokens. Training supervises that reading, so the tokens
    learn what the mouth must do long before the video loss could teach them.
    """

    def __init__(self, width: int, layers: int, dim: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            (
                FrameConvolution(MEL_BINS, width, 5),
                FrameConvolution(width, width, 5, stride=2),
                FrameConvolution(width, width, 3, stride=2),
            )
        )
        self.position = nn.Parameter(torch.randn(AUDIO_TOKENS, width) * 0.1)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, dim)
        self.mouth = nn.Linear(width, len(MOUTH_CHANNELS))

    def forward(self, mel: Tensor) -> tuple[Tensor, Tensor]:
        """mel [batch, 48, 80] -> tokens [batch, 12, dim], mouth [batch, 4, 5] (MOUTH_CHANNELS)."""
        first, second, third = self.convolutions
        x = third(F.gelu(second(F.gelu(first(mel))))) + self.position
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return self.out(x), self.mouth(x[:, OWN_TOKENS])


class Conditioning(nn.Module):
    """All condition tokens of a chunk: 12 of audio, 4 of motion (one a frame), and text where the model has it."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        dim = config.dim
        self.text = None
        if config.text_dim:
            self.text = nn.Sequential(nn.Linear(config.text_dim, dim), nn.GELU("tanh"), nn.Linear(dim, dim))
        self.audio = None
        if config.audio_dim:
            self.audio = AudioEncoder(config.audio_dim, config.audio_layers, dim)
            self.motion = nn.Linear(len(MOTION_CHANNELS), dim)
            self.motion_position = nn.Parameter(torch.randn(FRAMES_PER_CHUNK, dim) * 0.1)
            self.free_motion = nn.Parameter(torch.randn(FRAMES_PER_CHUNK, dim) * 0.1)
            self.still = nn.Parameter(torch.randn(AUDIO_TOKENS + FRAMES_PER_CHUNK, dim) * 0.1)

    def forward(
        self,
        *,
        mel: Tensor | None = None,
        motion: Tensor | None = None,
        steered: Tensor | None = None,
        text: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Tokens of one chunk.

        Args:
            mel: [batch, 48, 80], normalised log-mel window.
            motion: [batch, 4, 12], MOTION_CHANNELS; None lets the model choose.
            steered: [batch] in {0, 1}; rows with 0 ignore `motion`. Default: all steered.
            text: [batch, n, text_dim].

        Returns:
            tokens [batch, conditions, dim] and the articulation read off the audio, [batch, 4, 5] or None.
        """
        tokens, mouth = [], None
        if self.audio is not None:
            audio, mouth = self.audio(mel)
            tokens.append(audio)
            free = self.free_motion.expand(len(audio), -1, -1)
            if motion is None:
                tokens.append(free)
            else:
                told = self.motion(motion) + self.motion_position
                tokens.append(told if steered is None else torch.where(steered[:, None, None] > 0, told, free))
        if self.text is not None:
            tokens.append(self.text(text))
        return torch.cat(tokens, 1), mouth

    def reference(self, batch: int) -> Tensor:
        """Tokens of the reference image, which nobody speaks over: [batch, conditions, dim]."""
        return self.still.expand(batch, -1, -1)
