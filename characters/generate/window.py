"""The generator that makes a window of frames at a time and goes on from the frames that were shown last.

Source: SoulX-FlashHead and LeapTalk. History is pixels: the last frames, decoded and held to the portrait's colours,
are encoded again. So a window can be cut at any frame that was shown, and the next one goes on from there.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from characters.generate.generator import StageClock
from characters.generate.hearing import hearing_of
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
        config, window = networks.config, networks.config.window
        assert window is not None
        self._networks, self._window, self._exact_timings = networks, window, exact_timings
        self._maker = maker or WindowMaker(networks, i420=i420)
        self.clock, self.hearing = config.clock, hearing_of(config)
        self.timings: dict[str, float] = {}
        self._random = torch.Generator(networks.device)
        self._portrait: tuple[Tensor, Tensor] | None = None  # its latents and its colours
        self._nothing = torch.zeros(0)  # float32 [history, 3, H, W], in place of what has not been shown yet
        self._made = torch.zeros(0)
        self._shown: Tensor | None = None  # the newest window's frames, float [pixels, 3, H, W] in [0, 1]
        self._next = window.fresh  # of its fresh frames, so many are shown
        self._before: tuple[Tensor, int] | None = None  # the same of the window before it

    @torch.inference_mode()
    def start(self, portrait: np.ndarray, seed: int = 0) -> None:
        """See `Generator.start`. The first start of a `WindowMaker` on a GPU captures its graph: that takes a while."""
        networks, window, config = self._networks, self._window, self._networks.config
        self._portrait = self._maker.prepare(networks.picture(portrait))
        shape = (self._maker.draws, window.frames, config.latent_channels, *config.latent_size)
        self._noise = torch.zeros(shape, device=networks.device)
        self._nothing = torch.zeros(window.history, 3, config.height, config.width, device=networks.device)
        self._random.manual_seed(seed)
        self._shown, self._next, self._before = None, window.fresh, None

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
            history, shown = self._nothing, maker.nothing_shown
            if self._shown is not None:
                history, shown = self._shown[self._next :][: window.history], maker.shown
            with maker.turn:
                made = maker.make(sound, self._noise, history.permute(0, 2, 3, 1), shown, *self._portrait)
                assert maker.frames is not None
                # Into this session's own memory: the next session's window takes the maker's.
                self._made = _copy(self._made, made)
                frames = _copy(None if self._before is None else self._before[0], maker.frames.permute(0, 3, 1, 2))
        except Exception:
            self._random.set_state(state)
            raise
        clock.stage("window")
        if self._shown is not None:
            # What was shown, not what the window made of it: a cut after a few frames goes on from some of these.
            frames[: window.history] = history
            self._before = self._shown, self._next
        self._shown, self._next, self.timings = frames, window.fresh, clock.seconds
        return self._made

    def cut(self, shown: int) -> None:
        """Go on after the first `shown` frames of the newest chunk; the rest of it is never shown.

        Args:
            shown: at most the clock's frames. Below 0 none of it is shown, and so many frames of the chunk before it
                are not shown either; what is further back than that chunk's beginning is not known any more.
        """
        if shown > self._window.fresh:
            raise ValueError(f"a chunk has {self._window.fresh} frames; it cannot be cut at {shown}")
        if shown < 0 and self._before is not None:
            (self._shown, before), self._before = self._before, None
            shown += before
        self._next = max(0, shown)

    def snapshot(self) -> dict[str, Any]:
        """See `Generator.snapshot`: the frames that the next window begins with."""
        if self._shown is None:
            return {}
        return {"history": self._shown[self._next :][: self._window.history].cpu()}

    @torch.inference_mode()
    def restore(self, state: dict[str, Any]) -> None:
        """See `Generator.restore`."""
        if "history" in state:
            self._shown, self._next, self._before = state["history"].to(self._networks.device), 0, None

    def cancel(self) -> None:
        """See `Generator.cancel`: it never waits for another process."""

    def close(self) -> None:
        """See `Generator.close`."""
        self._portrait = self._shown = self._before = None
        self._made = torch.zeros(0)


def _copy(into: Tensor | None, made: Tensor) -> Tensor:
    """A copy, in the memory of `into` if that has the shape."""
    into = torch.empty_like(made) if into is None or into.shape != made.shape else into
    return into.copy_(made)
