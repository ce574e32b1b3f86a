"""Makes pictures: a latent frame in, four I420 frames out."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from actors.header import Header
from actors.loop import LoopRole
from actors.session import Session
from characters.model.frame_decoder import open_decoder
from characters.stream import CharacterModel


class VaeDecoder(LoopRole):
    """The streaming decoder of one session.

    Args:
        networks: loaded on this process's device.
        exact_timings: wait for the GPU before returning.
    """

    def __init__(self, networks: CharacterModel, *, exact_timings: bool = True) -> None:
        self._networks, self._exact_timings = networks, exact_timings
        capture = networks.device.type == "cuda"
        self._decoder = open_decoder(networks.autoencoder, networks.config, i420=True, capture=capture)
        # What a decoder elsewhere needs to go on from here.
        self._latents: deque[Tensor] = deque(maxlen=self._decoder.history)

    def reset(self, session: Session) -> None:
        """Start over from the session's portrait.

        Raises:
            UserError: the portrait does not fit the model.
        """
        portrait = self._networks.encode_portrait(session.portrait.copy())
        self._decoder.reset(portrait)
        self._latents.clear()
        self._latents.append(portrait)

    @torch.inference_mode()
    def decode(self, latent: Tensor) -> Tensor:
        """The chunk's frames. If it raises, nothing has advanced and it can be called again.

        Args:
            latent: [channels, h, w], any float dtype, any device.

        Returns:
            uint8 [4, H * 3 / 2, W], I420, on this decoder's device.
        """
        assert self._latents, "reset comes first"
        networks = self._networks
        latent = latent[None].to(networks.device, networks.dtype, copy=True)  # the channel's slot will be overwritten
        try:
            frames = self._decoder.decode(latent)
        except Exception:
            self._replay()  # it may have stopped halfway through what it remembers
            raise
        if self._exact_timings and networks.device.type == "cuda":
            torch.cuda.current_stream(networks.device).synchronize()
        self._latents.append(latent)
        return frames

    def step(self, header: Header | None, inputs: Mapping[str, Tensor]) -> tuple[Header, dict[str, Tensor]]:
        """See `LoopRole.step`: "latent" in, "frames" out."""
        assert header is not None
        return header, {"frames": self.decode(inputs["latent"])}

    def snapshot(self) -> dict[str, Any]:
        """See `LoopRole.snapshot`. The latents that the next picture depends on, not the gigabytes made from them."""
        return {"latents": torch.cat(list(self._latents)).cpu()} if self._latents else {}

    @torch.inference_mode()
    def restore(self, state: dict[str, Any]) -> None:
        """See `LoopRole.restore`."""
        if "latents" not in state:
            return
        latents = state["latents"].to(self._networks.device, self._networks.dtype).split(1)
        self._latents.clear()
        self._latents.extend(latents)
        self._replay()

    def _replay(self) -> None:
        """Bring the decoder to where it was after the newest of the remembered latents."""
        first, *others = self._latents
        self._decoder.reset(first)
        for latent in others:
            self._decoder.decode(latent)
