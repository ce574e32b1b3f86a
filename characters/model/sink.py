"""The tokens that a KV cache never forgets, and where they stand in time and space."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from characters.model.rope import Rope3D


@dataclass(frozen=True)
class Sink:
    """Where the tokens of a sink stand, in groups that share a place in time.

    Attributes:
        times: float64 [groups], places in time, in latent frames, while chunk 0 is made.
        follows: bool [groups], whether the group keeps its distance to the current chunk or stays where it is.
        group: int64 [tokens], of each token.
        space: float64 [tokens, pairs - time_pairs], angles of height and width.
        is_chunk: the sink is one chunk, and the ring starts as copies of it; else the ring starts empty.
    """

    times: Tensor
    follows: Tensor
    group: Tensor
    space: Tensor
    is_chunk: bool = False

    @classmethod
    def chunk(cls, rope: Rope3D, distance: int) -> Sink:
        """A chunk of one latent frame that stays `distance` chunks behind the current one."""
        return cls(
            times=torch.tensor([-float(distance)], dtype=torch.float64),
            follows=torch.tensor([True]),
            group=torch.zeros(rope.tokens, dtype=torch.int64),
            space=rope.space,
            is_chunk=True,
        )

    @property
    def tokens(self) -> int:
        """Of the sink."""
        return len(self.group)
