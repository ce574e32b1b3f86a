"""Real networks in all processes but the decoder's, which keeps what it is sent."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from actors.header import Header
from actors.loop import LoopRole
from actors.roles.factory import build_roles
from actors.topology import Stage, Topology


class Recorder(LoopRole):
    """In the decoder's place."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._latents: dict[int, np.ndarray] = {}
        self._frames = torch.zeros(shape, dtype=torch.uint8)

    def latents(self) -> dict[int, np.ndarray]:
        """float32 [channels, h, w] of each chunk, by its index; one that came again has replaced the first."""
        return dict(self._latents)

    def step(self, header: Header | None, inputs: Mapping[str, Tensor]) -> tuple[Header, dict[str, Tensor]]:
        assert header is not None
        self._latents[header.index] = inputs["latent"].float().numpy().copy()
        return header, {"frames": self._frames}


def build(topology: Topology, stage: Stage) -> dict[str, LoopRole]:
    """A factory for `actors.stage`."""
    if stage.name == "decoder":
        return {"decoder": Recorder(topology.outputs("decoder")[0].spec.shape)}
    return build_roles(topology, stage)
