"""How a model of Wan2.2-S2V hears: wav2vec 2.0 over a bounded window, and tokens for each latent frame of the chunk."""

from __future__ import annotations

import torch
from torch import Tensor

from characters.generate.networks import Networks
from characters.model.graph import Graph
from characters.model.wav2vec2 import normalise

# The ear has two states for a frame of video. The published code takes 30 a second of the 50 and then the nearest to
# each of 25, which is up to 1/60 s away.
STATES_PER_FRAME = 2


class InjectedSound:
    """What one session's sound becomes.

    The published code hears whole recordings; live, the ear hears the seconds up to the chunk's end, and no more.

    Args:
        networks: of a model with s2v.
    """

    def __init__(self, networks: Networks) -> None:
        self._networks, self._frames = networks, networks.config.clock.frames
        self._tokens = Graph(self._listen)

    def listen(self, heard: Tensor) -> tuple[Tensor, Tensor]:
        """float32 [n], 16 kHz sound up to the chunk's end, any device -> [latents, tokens, dim] and [latents, dim]."""
        tokens = self._tokens(heard[None].to(self._networks.device, torch.float32))
        return tokens[:, :-1], tokens[:, -1]

    def _listen(self, sound: Tensor) -> Tensor:
        """[latents, tokens + 1, dim]: the frame as a whole comes last."""
        networks = self._networks
        assert networks.ear is not None and networks.speech is not None
        states = networks.ear.hear(normalise(sound).to(networks.dtype))[0]
        whole = sound.shape[1] // 640 * STATES_PER_FRAME
        first = whole - self._frames * STATES_PER_FRAME
        spoken, summary = networks.speech(states[..., first:whole:STATES_PER_FRAME])
        return torch.cat((spoken, summary[:, None]), 1)
