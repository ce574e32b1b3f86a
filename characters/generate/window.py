"""The generator that makes a window of frames at a time and goes on from the frames that were shown last.

Source: SoulX-FlashHead and LeapTalk. History is pixels: the last frames, decoded and held to the portrait's colours,
are encoded again. So a window can be cut at any frame that was shown, and the next one goes on from there.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from characters.generate.generator import Clock, StageClock
from characters.generate.hearing import Hearing, WaveHearing
from characters.generate.networks import Networks
from characters.generate.window_maker import WindowMaker


class WindowGenerator:
    """See `Generator`.

    Args:
        networks: of a window model.
        i420: make I420 instead of RGB.
        exact_timings: wait for the GPU after each chunk.
        maker: of these networks, shared with other sessions of this process; default: one of its own.
    """

    emits: Literal["latents", "frames"] = "frames"

    def __init__(
        self, networks: Networks, *, i420: bool = True, exact_timings: bool = True, maker: WindowMaker | None = None
    ) -> None:
        window = networks.config.window
        assert window is not None
        self._networks, self._window, self._exact_timings = networks, window, exact_timings
        self._maker = maker or WindowMaker(networks, i420=i420)
        self.clock = Clock(window.fps, window.fresh)
        self.hearing: Hearing = WaveHearing(window.heard, self.clock.samples)
        self.timings: dict[str, float] = {}
        self._random = torch.Generator(networks.device)
        self._portrait: tuple[Tensor, Tensor] | None = None  # its latents and its colours
        self._frames = torch.zeros(0)  # float32 [pixels, H, W, 3], what the newest window was copied to
        self._made = torch.zeros(0)
        self._shown: Tensor | None = None  # the newest window's frames, float [pixels, 3, H, W] in [0, 1]
        self._next = window.fresh  # of its fresh frames, so many are shown

    @torch.inference_mode()
    def start(self, portrait: np.ndarray, seed: int = 0) -> None:
        """See `Generator.start`. The first start of a `WindowMaker` on a GPU captures its graph: that takes a while."""
        networks, window, config = self._networks, self._window, self._networks.config
        self._portrait = self._maker.prepare(networks.picture(portrait))
        shape = (self._maker.draws, window.frames, config.latent_channels, *config.latent_size)
        self._noise = torch.zeros(shape, device=networks.device)
        self._frames = torch.zeros(window.pixels, config.height, config.width, 3, device=networks.device)
        self._random.manual_seed(seed)
        self._shown, self._next = None, window.fresh

    @torch.inference_mode()
    def generate(self, heard: Tensor) -> Tensor:
        """The next chunk's frames. If it raises, nothing has advanced and it can be called again.

        Args:
            heard: float32 [n], from `hearing`, on any device.

        Returns:
            uint8 [frames, H * 3 / 2, W] in I420, or [frames, H, W, 3] in RGB.
        """
        assert self._portrait is not None, "start comes first"
        networks, maker, window = self._networks, self._maker, self._window
        clock, state = StageClock(networks.device, self._exact_timings), self._random.get_state()
        try:
            self._noise.normal_(generator=self._random)
            sound = heard[None].to(networks.device, torch.float32)
            history, shown = self._frames[: window.history], maker.nothing_shown
            if self._shown is not None:
                history, shown = self._shown[self._next :][: window.history].permute(0, 2, 3, 1), maker.shown
            with maker.turn:
                made = maker.make(sound, self._noise, history, shown, *self._portrait)
                assert maker.frames is not None
                self._made, self._frames = _kept(self._made, made), _kept(self._frames, maker.frames)
        except Exception:
            self._random.set_state(state)
            raise
        clock.stage("window")
        self._shown, self._next, self.timings = self._frames.permute(0, 3, 1, 2), window.fresh, clock.seconds
        return self._made

    def cut(self, shown: int) -> None:
        """Go on after the first `shown` frames of the newest chunk; the rest of it is never shown.

        Args:
            shown: 0 to the clock's frames.
        """
        if not 0 <= shown <= self._window.fresh:
            raise ValueError(f"a chunk has {self._window.fresh} frames; it cannot be cut at {shown}")
        self._next = shown

    def snapshot(self) -> dict[str, Any]:
        """See `Generator.snapshot`: the frames that the next window begins with."""
        if self._shown is None:
            return {}
        return {"history": self._shown[self._next :][: self._window.history].cpu()}

    @torch.inference_mode()
    def restore(self, state: dict[str, Any]) -> None:
        """See `Generator.restore`."""
        if "history" in state:
            self._shown, self._next = state["history"].to(self._networks.device), 0

    def cancel(self) -> None:
        """See `Generator.cancel`: it never waits for another process."""

    def close(self) -> None:
        """See `Generator.close`."""
        self._portrait = self._shown = None
        self._frames = self._made = torch.zeros(0)


def _kept(into: Tensor, made: Tensor) -> Tensor:
    """What a maker made, `into` this session's own memory on a GPU: there the next session's window takes its place."""
    if not made.is_cuda:
        return made
    into = into if into.shape == made.shape else torch.empty_like(made)
    return into.copy_(made)
