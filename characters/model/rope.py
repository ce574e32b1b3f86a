"""Three-dimensional rotary position embedding (RoPE, Su et al. 2021), as Wan splits it: time, height, width."""

from __future__ import annotations

import torch
from torch import Tensor


def split_pairs(head_dim: int) -> tuple[int, int, int]:
    """Complex pairs of a head given to (time, height, width); 22/21/21 at head dimension 128."""
    pairs = head_dim // 2
    third = pairs // 3
    return pairs - 2 * third, third, third


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate neighbouring pairs of channels.

    Args:
        x: [..., tokens, heads, head_dim].
        cos, sin: [..., tokens, 1, head_dim / 2], broadcast against x.

    Returns:
        A tensor like x.
    """
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class Rope3D:
    """cos and sin tables for the tokens of a chunk at any position in time.

    Angles are computed in float64 from the absolute chunk index and reduced before they are rounded, so a stream of
    days stays as exact as its first second.

    Args:
        head_dim: channels of one head.
        grid: (rows, columns) of tokens in a chunk.
        theta: RoPE base of the time, height and width axes.
    """

    def __init__(self, head_dim: int, grid: tuple[int, int], theta: list[float]) -> None:
        counts = split_pairs(head_dim)
        # Wan's frequencies of an axis with n pairs: theta ** (-i / n).
        freqs = [base ** (-torch.arange(n, dtype=torch.float64) / n) for base, n in zip(theta, counts, strict=True)]
        rows, columns = grid
        self.tokens = rows * columns
        self.pairs = head_dim // 2
        self.time_pairs = counts[0]
        self._time_freqs = freqs[0]
        height = torch.arange(rows, dtype=torch.float64)[:, None, None] * freqs[1]
        width = torch.arange(columns, dtype=torch.float64)[None, :, None] * freqs[2]
        self._space = torch.cat((height.expand(rows, columns, -1), width.expand(rows, columns, -1)), -1).reshape(
            self.tokens, -1
        )

    def time_angles(self, position: int) -> Tensor:
        """float64 [time_pairs] on the CPU: angles of a chunk index, reduced to (-pi, pi]."""
        angles = self._time_freqs * float(position)
        return torch.atan2(angles.sin(), angles.cos())

    def table(self, position: int, *, dtype: torch.dtype, device: torch.device | str) -> tuple[Tensor, Tensor]:
        """cos, sin of one chunk: two [tokens, 1, head_dim / 2] tensors."""
        angles = torch.cat((self.time_angles(position).expand(self.tokens, -1), self._space), -1)[:, None]
        return angles.cos().to(device, dtype), angles.sin().to(device, dtype)

    def move(self, cos: Tensor, sin: Tensor, position: int) -> None:
        """Rewrite tables made by `table` for another chunk index, in place: only the time part changes."""
        angles = self.time_angles(position)
        cos[..., : self.time_pairs] = angles.cos().to(cos.device, cos.dtype)
        sin[..., : self.time_pairs] = angles.sin().to(sin.device, sin.dtype)
