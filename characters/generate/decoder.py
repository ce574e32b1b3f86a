"""Latents in, pictures out, for one session; a process has the whole picture or a band of its rows."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor

from characters.generate.generator import StageClock
from characters.generate.group import PicturePeers
from characters.generate.networks import Networks
from characters.model.frame_decoder import FrameDecoder, open_decoder
from characters.model.taehv import TinyVae


class LatentDecoder:
    """The streaming decoder of one session, or of one band of its picture.

    What several processes remember is one state: at every `connect` all of them go on from where the first was last
    seen.

    Args:
        networks: loaded on this process's device.
        band, bands: of this process, from the top, and how many there are.
        i420: make I420 instead of RGB.
        exact_timings: wait for the GPU before returning.

    Attributes:
        timings: seconds of the newest chunk, under "decode".
    """

    def __init__(
        self, networks: Networks, band: int = 0, bands: int = 1, *, i420: bool = True, exact_timings: bool = True
    ) -> None:
        self._networks, self._band, self._bands = networks, band, bands
        self._i420, self._exact_timings = i420, exact_timings
        self.whole = bands == 1
        self.timings: dict[str, float] = {}
        self._peers: PicturePeers | None = None
        self._decoder: FrameDecoder | None = self._open() if self.whole else None
        # The newest of what it was sent, the portrait at first: what a decoder elsewhere needs to go on from here.
        self._latents: deque[Tensor] = deque()

    def start(self, portrait: np.ndarray) -> None:
        """Begin a session with its portrait, or be ready to when all bands have met.

        Args:
            portrait: uint8 [H, W, 3], RGB, of the model's frame size.

        Raises:
            UserError: the portrait does not fit the model.
        """
        self._latents = deque([self._networks.encode_portrait(portrait)])
        if self.whole:
            self._replay()

    @torch.inference_mode()
    def connect(self, path: str) -> None:
        """Meet the other bands, which all call this at once.

        Args:
            path: of a file that does not exist yet, the same for all bands and different at every call.

        Raises:
            RuntimeError: another band did not come.
        """
        if self.whole:
            return
        self.close()
        self._peers = PicturePeers(path, self._band, self._bands, self._networks.device)
        self._decoder = self._open()
        self._remember(self._peers.agree(torch.cat(list(self._latents)).cpu()))
        self._replay()

    @torch.inference_mode()
    def decode(self, latent: Tensor) -> Tensor:
        """The chunk's frames. If the whole picture's raises, nothing has advanced and it can be called again.

        Args:
            latent: [channels, h, w], or [latents, channels, h, w]; any float dtype, any device.

        Returns:
            On this decoder's device, of the whole picture: uint8 [4 * latents, H * 3 / 2, W] in I420, or
            [4 * latents, H, W, 3] in RGB; on a GPU the next call may overwrite it.

        Raises:
            ExchangeBroken: another band's process has gone, or `cancel` was called.
        """
        assert self._latents and self._decoder is not None, "start and connect come first"
        networks = self._networks
        clock = StageClock(networks.device, self._exact_timings)
        # A copy: the channel's slot will be overwritten.
        latents = latent.reshape(-1, *latent.shape[-3:]).to(networks.device, networks.dtype, copy=True).split(1)
        try:
            if len(latents) == 1:
                frames = self._decoder.decode(latents[0])
            else:
                axis = 0 if self._i420 else 1
                frames = torch.cat([self._decoder.decode(one).clone() for one in latents], axis)
        except Exception:
            if self.whole:
                self._replay()  # it may have stopped halfway through what it remembers
            raise
        clock.stage("decode")
        if self._peers is not None:
            self._peers.check()
        self._latents.extend(latents)
        while len(self._latents) > self._decoder.history:
            self._latents.popleft()
        self.timings = clock.seconds
        return frames if self._i420 else frames[0]

    def snapshot(self) -> dict[str, Any]:
        """The latents that the next picture depends on, not the gigabytes made from them."""
        return {"latents": torch.cat(list(self._latents)).cpu()} if self._latents else {}

    @torch.inference_mode()
    def restore(self, state: dict[str, Any]) -> None:
        """After `start`: go on where a `snapshot` was taken."""
        if "latents" not in state:
            return
        self._remember(state["latents"])
        if self.whole:
            self._replay()

    def cancel(self) -> None:
        """From any thread: a `decode` that waits for another process stops waiting."""
        if self._peers is not None:
            self._peers.abort("the session's channels were aborted")

    def close(self) -> None:
        """Let go of the other bands."""
        if self._peers is not None:
            self._decoder = None  # with the graphs that hold the group's collectives
            self._peers.close()
            self._peers = None

    def _open(self) -> FrameDecoder:
        networks = self._networks
        rows = None if self._peers is None else self._peers.rows
        assert not isinstance(networks.autoencoder, TinyVae)
        return open_decoder(networks.autoencoder, networks.config, i420=self._i420, capture=True, rows=rows)

    def _remember(self, latents: Tensor) -> None:
        self._latents = deque(latents.to(self._networks.device, self._networks.dtype).split(1))

    @torch.inference_mode()
    def _replay(self) -> None:
        """Bring the decoder to where it was after the newest of the remembered latents."""
        assert self._decoder is not None
        first, *others = self._latents
        self._decoder.reset(first)
        for latent in others:
            self._decoder.decode(latent)
