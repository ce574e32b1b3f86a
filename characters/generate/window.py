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
from characters.model.colour import LabMatch
from characters.model.graph import Graph
from characters.model.rope import Rope3D
from characters.model.taehv import TinyVae
from characters.model.wan_vae.vae import WanVae
from characters.model.wav2vec2 import normalise
from characters.model.window_context import WindowContext
from characters.model.window_sampler import WindowSampler
from kernels.i420 import signal_to_i420, signal_to_rgb


class WindowGenerator:
    """See `Generator`.

    Args:
        networks: of a window model.
        i420: make I420 instead of RGB.
        exact_timings: wait for the GPU after each chunk.
    """

    emits: Literal["latents", "frames"] = "frames"

    def __init__(self, networks: Networks, *, i420: bool = True, exact_timings: bool = True) -> None:
        config, window = networks.config, networks.config.window
        assert window is not None and networks.ear is not None and networks.projection is not None
        assert isinstance(networks.autoencoder, WanVae | TinyVae)
        self._networks, self._window, self._i420, self._exact_timings = networks, window, i420, exact_timings
        self._autoencoder = networks.autoencoder
        self.clock, self.hearing = config.clock, hearing_of(config)
        self.timings: dict[str, float] = {}
        rope = Rope3D(networks.dit.head_dim, config.grid, config.dit.rope_theta)
        self._sampler = WindowSampler(networks.dit, WindowContext(window.frames, rope, networks.device))
        shape = (self._sampler.draws, window.frames, config.latent_channels, *config.latent_size)
        self._noise = torch.zeros(shape, device=networks.device)
        self._random = torch.Generator(networks.device)
        self._reference: Tensor | None = None
        self._match: LabMatch | None = None
        self._shown: Tensor | None = None  # the newest window's frames, float [pixels, 3, H, W] in [0, 1]
        self._next = window.fresh  # of its fresh frames, so many are shown
        self._before: tuple[Tensor, int] | None = None  # the same of the window before it
        self._begin, self._go_on = Graph(self._first), Graph(self._following)

    @torch.inference_mode()
    def start(self, portrait: np.ndarray, seed: int = 0) -> None:
        """See `Generator.start`."""
        networks, window = self._networks, self._window
        picture = networks.picture(portrait)
        self._reference = self._encode(picture.expand(window.pixels, -1, -1, -1)).to(networks.dtype)
        self._match = LabMatch(picture[0]) if window.colour else None
        self._random.manual_seed(seed)
        self._shown, self._next, self._before = None, window.fresh, None
        # Graphs hold the reference and the colours that they were captured with.
        self._begin, self._go_on = Graph(self._first), Graph(self._following)

    @torch.inference_mode()
    def generate(self, heard: Tensor) -> Tensor:
        """The next chunk's frames. If it raises, nothing has advanced and it can be called again.

        Args:
            heard: float32 [n], from `hearing`, on any device.

        Returns:
            uint8 [frames, H * 3 / 2, W] in I420, or [frames, H, W, 3] in RGB.
        """
        assert self._reference is not None, "start comes first"
        networks = self._networks
        clock, state = StageClock(networks.device, self._exact_timings), self._random.get_state()
        try:
            self._noise.normal_(generator=self._random)
            sound = heard[None].to(networks.device, torch.float32)
            noise = self._noise.to(networks.dtype)
            history = None if self._shown is None else self._shown[self._next :][: self._window.history]
            frames = self._begin(sound, noise) if history is None else self._go_on(sound, noise, history)
            fresh = frames[self._window.history :].permute(0, 2, 3, 1).contiguous() * 2 - 1
            made = signal_to_i420(fresh) if self._i420 else signal_to_rgb(fresh)
        except Exception:
            self._random.set_state(state)
            raise
        clock.stage("window")
        self._before = None if self._shown is None else (self._shown, self._next)
        # What was shown, not what the window made of it: a cut after a few frames goes on from some of these.
        frames = frames.clone() if history is None else torch.cat((history, frames[self._window.history :]))
        self._shown, self._next, self.timings = frames, self._window.fresh, clock.seconds
        return made

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
        self._reference = self._shown = self._before = None

    def _first(self, sound: Tensor, noise: Tensor) -> Tensor:
        assert self._reference is not None
        return self._make(sound, noise, self._reference[:1])

    def _following(self, sound: Tensor, noise: Tensor, history: Tensor) -> Tensor:
        return self._make(sound, noise, self._encode(history).to(self._networks.dtype))

    def _make(self, sound: Tensor, noise: Tensor, history: Tensor) -> Tensor:
        """All of a window; no host work, so that it can be captured. float [pixels, 3, H, W] in [0, 1]."""
        networks, window = self._networks, self._window
        assert networks.ear is not None and networks.projection is not None and self._reference is not None
        positions = round(window.heard * window.fps)
        states = networks.ear(normalise(sound).to(networks.dtype), positions)[:, -window.pixels :]
        tokens = networks.projection(states)[0]
        latents = self._sampler.sample(tokens, self._reference, history, noise)
        own = next(self._autoencoder.parameters()).dtype
        frames = self._autoencoder.decode_clip(latents.to(own)).float().clamp(0, 1)
        return frames if self._match is None else self._match(frames)

    def _encode(self, frames: Tensor) -> Tensor:
        return self._autoencoder.encode_clip(frames.to(next(self._autoencoder.parameters()).dtype))
