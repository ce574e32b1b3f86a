"""Makes pictures: a latent frame in, four I420 frames out. A process has the whole picture or a band of its rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from actors.channels.protocol import ChannelAborted
from actors.pipeline.header import Header
from actors.pipeline.loop import LoopRole
from actors.pipeline.session import SessionSpec
from actors.roles.decoder_group import DecoderGroup
from characters.generate.stream import CharacterModel
from characters.model.frame_decoder import FrameDecoder, open_decoder
from kernels.comm.breakable_group import ExchangeBroken


class VaeDecoder(LoopRole):
    """The streaming decoder of one session, or of one band of its picture.

    What several processes remember is one state: whenever their channels are new, all of them go on from where the
    first was last seen.

    Args:
        networks: loaded on this process's device.
        band, bands: of this process, from the top, and how many there are.
        exact_timings: wait for the GPU before returning.
    """

    def __init__(self, networks: CharacterModel, band: int = 0, bands: int = 1, *, exact_timings: bool = True) -> None:
        self._networks, self._band, self._bands, self._exact_timings = networks, band, bands, exact_timings
        self._group: DecoderGroup | None = None
        self._decoder: FrameDecoder | None = self._open() if bands == 1 else None
        # The newest of what it was sent, the portrait at first: what a decoder elsewhere needs to go on from here.
        self._latents: deque[Tensor] = deque()
        self.drops = bands == 1

    def reset(self, session: SessionSpec) -> None:
        """Start over from the session's portrait, or be ready to when all bands have met.

        Raises:
            UserError: the portrait does not fit the model.
        """
        self._latents = deque([self._networks.encode_portrait(session.portrait.copy())])
        if self._bands == 1:
            self._replay()

    @torch.inference_mode()
    def connect(self, path: str) -> None:
        """See `LoopRole.connect`.

        Raises:
            RuntimeError: another band did not come.
        """
        if self._bands == 1:
            return
        self._leave()
        # The DiT's processes meet at `path` itself.
        self._group = DecoderGroup(f"{path}-decoder", self._band, self._bands, self._networks.device)
        self._decoder = self._open()
        self._latents = deque(self._group.agree(list(self._latents)))
        self._replay()

    @torch.inference_mode()
    def decode(self, latent: Tensor) -> Tensor:
        """The chunk's frames. If the whole picture's raises, nothing has advanced and it can be called again.

        Args:
            latent: [channels, h, w], any float dtype, any device.

        Returns:
            uint8 [4, H * 3 / 2, W], I420 of the whole picture, on this decoder's device.

        Raises:
            ExchangeBroken: another band's process has gone.
        """
        assert self._latents and self._decoder is not None, "reset and connect come first"
        networks = self._networks
        latent = latent[None].to(networks.device, networks.dtype, copy=True)  # the channel's slot will be overwritten
        try:
            frames = self._decoder.decode(latent)
        except Exception:
            if self._bands == 1:
                self._replay()  # it may have stopped halfway through what it remembers
            raise
        if self._exact_timings and networks.device.type == "cuda":
            torch.cuda.current_stream(networks.device).synchronize()
        if self._group is not None:
            self._group.check()
        self._latents.append(latent)
        if len(self._latents) > self._decoder.history:
            self._latents.popleft()
        return frames

    def step(self, header: Header | None, inputs: Mapping[str, Tensor]) -> tuple[Header, dict[str, Tensor]]:
        """See `LoopRole.step`: "latent" in, "frames" out."""
        assert header is not None
        try:
            return header, {"frames": self.decode(inputs["latent"])}
        except ExchangeBroken as error:  # nothing is wrong with this process
            raise ChannelAborted(str(error)) from error

    def abort(self) -> None:
        """See `LoopRole.abort`."""
        if self._group is not None:
            self._group.abort("the session's channels were aborted")

    def close(self) -> None:
        """See `LoopRole.close`."""
        self._leave()

    def snapshot(self) -> dict[str, Any]:
        """See `LoopRole.snapshot`. The latents that the next picture depends on, not the gigabytes made from them."""
        return {"latents": torch.cat(list(self._latents)).cpu()} if self._latents else {}

    @torch.inference_mode()
    def restore(self, state: dict[str, Any]) -> None:
        """See `LoopRole.restore`."""
        if "latents" not in state:
            return
        self._latents = deque(state["latents"].to(self._networks.device, self._networks.dtype).split(1))
        if self._bands == 1:
            self._replay()

    def _open(self) -> FrameDecoder:
        networks = self._networks
        return open_decoder(
            networks.autoencoder,
            networks.config,
            i420=True,
            capture=networks.device.type == "cuda",
            rows=None if self._group is None else self._group.rows,
        )

    @torch.inference_mode()
    def _replay(self) -> None:
        """Bring the decoder to where it was after the newest of the remembered latents."""
        assert self._decoder is not None
        first, *others = self._latents
        self._decoder.reset(first)
        for latent in others:
            self._decoder.decode(latent)

    def _leave(self) -> None:
        if self._group is not None:
            self._decoder = None  # with the graphs that hold the group's collectives
            self._group.close()
            self._group = None
