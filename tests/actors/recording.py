"""Real networks in all processes; the decoder's keeps what it is sent, and either makes pictures of it or does not."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from actors.pipeline.header import Header
from actors.pipeline.loop import LoopRole
from actors.pipeline.topology import StageSpec, Topology
from actors.roles.decoder import Decoder
from actors.room.factory import build_roles


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


def build(topology: Topology, stage: StageSpec) -> dict[str, LoopRole]:
    """A factory for `actors.pipeline.stage`."""
    if stage.name == "decoder":
        return {"decoder": Recorder(topology.outputs("decoder")[0].spec.shape)}
    return build_roles(topology, stage)


def build_with_film(topology: Topology, stage: StageSpec) -> dict[str, LoopRole]:
    """A factory for `StageSpec`: role "decoder" has an attribute `film`, a list of latents and frames, as arrays."""
    roles = build_roles(topology, stage)
    decoder = roles.get("decoder")
    if isinstance(decoder, Decoder):
        film: list[tuple[np.ndarray, np.ndarray]] = []
        step = decoder.step

        def step_and_keep(header: Header | None, inputs: Mapping[str, Tensor]) -> tuple[Header, dict[str, Tensor]]:
            header, outputs = step(header, inputs)
            film.append((inputs["latent"].float().numpy().copy(), outputs["frames"].numpy().copy()))
            return header, outputs

        decoder.step, decoder.film = step_and_keep, film
    return roles
