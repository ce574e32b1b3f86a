"""Three-dimensional rotary position embedding (RoPE, Su et al. 2021), as Wan splits it: time, height, width."""

from __future__ import annotations

import torch
from torch import Tensor


def split_pairs(head_dim: int) -> tuple[int, int, int]:
    """Complex pairs of a head given to (time, height, width); 22/21/21 at head dimension 128."""
    pairs = head_dim // 2
    third = pairs // 3
    return pairs - 2 * third, third, third


class Rope3D:
    """cos and sin tables for the tokens of a latent frame at any position in time.

    Angles are computed in float64 from the absolute position before they are rounded, so a stream of days stays as
    exact as its first second.

    Args:
        head_dim: channels of one head.
        grid: (rows, columns) of tokens in a latent frame.
        theta: RoPE base of the time, height and width axes.

    Attributes:
        tokens: of a latent frame.
        pairs: complex pairs of a head; the first `time_pairs` of them turn with time.
        time_freqs: float64 [time_pairs], radians a latent frame, on the CPU.
        space: float64 [tokens, pairs - time_pairs], angles of height and width.
    """

    def __init__(self, head_dim: int, grid: tuple[int, int], theta: list[float]) -> None:
        counts = split_pairs(head_dim)
        # Wan's frequencies of an axis with n pairs: theta ** (-i / n).
        freqs = [base ** (-torch.arange(n, dtype=torch.float64) / n) for base, n in zip(theta, counts, strict=True)]
        rows, columns = grid
        self.tokens = rows * columns
        self.pairs = head_dim // 2
        self.time_pairs = counts[0]
        self.time_freqs = freqs[0]
        height = torch.arange(rows, dtype=torch.float64)[:, None, None] * freqs[1]
        width = torch.arange(columns, dtype=torch.float64)[None, :, None] * freqs[2]
        self.space = torch.cat((height.expand(rows, columns, -1), width.expand(rows, columns, -1)), -1).reshape(
            self.tokens, -1
        )

    def table(
        self, position: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> tuple[Tensor, Tensor]:
        """cos, sin of the latent frame at `position`: two [tokens, pairs] tensors."""
        time = (self.time_freqs * float(position)).expand(self.tokens, -1)
        angles = torch.cat((time, self.space), -1)
        return angles.cos().to(device, dtype), angles.sin().to(device, dtype)
