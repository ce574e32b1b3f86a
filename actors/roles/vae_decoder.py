"""Makes pictures: a latent frame in, four I420 frames out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from actors.header import Header
from actors.loop import LoopRole
from actors.roles.i420 import rgb_to_i420
from actors.session import Session
from characters.model.autoencoder import StreamingDecoder
from characters.stream import CharacterModel


class VaeDecoder(LoopRole):
    """The streaming decoder of one session.

    Args:
        networks: loaded on this process's device.
        exact_timings: wait for the GPU before returning.
    """

    def __init__(self, networks: CharacterModel, *, exact_timings: bool = True) -> None:
        self._networks, self._exact_timings = networks, exact_timings
        self._decoder: StreamingDecoder | None = None
        self._previous: Tensor | None = None

    def reset(self, session: Session) -> None:
        """Start over from the session's portrait.

        Raises:
            UserError: the portrait does not fit the model.
        """
        self._decoder = StreamingDecoder(
            self._networks.autoencoder, self._networks.encode_portrait(session.portrait.copy())
        )
        self._previous = None

    @torch.inference_mode()
    def decode(self, latent: Tensor) -> Tensor:
        """The chunk's frames. If it raises, nothing has advanced and it can be called again.

        Args:
            latent: [channels, h, w], any float dtype, any device.

        Returns:
            uint8 [4, H * 3 / 2, W], I420, on this decoder's device.
        """
        assert self._decoder is not None, "reset comes first"
        networks = self._networks
        latent = latent[None].to(networks.device, networks.dtype, copy=True)  # the channel's slot will be overwritten
        frames = rgb_to_i420(self._decoder.decode(latent)[0])
        if self._exact_timings and networks.device.type == "cuda":
            torch.cuda.current_stream(networks.device).synchronize()
        self._previous = latent
        return frames

    def step(self, header: Header | None, inputs: Mapping[str, Tensor]) -> tuple[Header, dict[str, Tensor]]:
        """See `LoopRole.step`: "latent" in, "frames" out."""
        assert header is not None
        return header, {"frames": self.decode(inputs["latent"])}

    def snapshot(self) -> dict[str, Any]:
        """See `LoopRole.snapshot`."""
        return {} if self._previous is None else {"previous": self._previous.cpu()}

    def restore(self, state: dict[str, Any]) -> None:
        """See `LoopRole.restore`."""
        if "previous" in state:
            previous = state["previous"].to(self._networks.device)
            self._decoder = StreamingDecoder(self._networks.autoencoder, previous)
