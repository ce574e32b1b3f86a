"""All of a window in one captured graph, for all sessions of a process."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from characters.generate.networks import Networks
from characters.model.calibrate import calibrate_window
from characters.model.graph import Graph
from characters.model.quantise import needs_calibration
from characters.model.taehv import TinyVae
from characters.model.wan_vae.stream import fastest_convolutions
from characters.model.wan_vae.vae import WanVae
from characters.model.wav2vec2 import RATE, normalise
from characters.model.window_sampler import WindowSampler
from kernels.i420 import signal_to_i420, signal_to_rgb
from kernels.lab_match import lab_match, lab_statistics, signal_to_unit


class WindowMaker:
    """Encodes the history, hears, denoises, decodes, matches colours and converts: a window from beginning to end.

    Sessions take turns. What is theirs goes in as tensors, so that they share one graph and its buffers; the parts are
    methods of their own, so that each can be timed.

    Args:
        networks: of a window model.
        i420: make I420 instead of RGB.

    Attributes:
        networks: as given.
        turn: held by the session that makes a window, until it has copied what it wants of it.
        frames: float32 [pixels, H, W, 3] in [0, 1], all of the newest window's; the next one overwrites them.
    """

    def __init__(self, networks: Networks, *, i420: bool = True) -> None:
        window = networks.config.window
        assert window is not None and networks.ear is not None and networks.projection is not None
        assert isinstance(networks.autoencoder, WanVae | TinyVae)
        self.networks, self._window, self._i420 = networks, window, i420
        self._ear, self._projection, self._autoencoder = networks.ear, networks.projection, networks.autoencoder
        self.nothing_shown, self.shown = (torch.tensor(x, device=networks.device) for x in (False, True))
        # A session's first window begins with the portrait's first latent, all others with the whole history.
        self._always = torch.arange(window.history_latents, device=networks.device).view(-1, 1, 1, 1) == 0
        self.turn = threading.Lock()
        self.frames: Tensor | None = None
        self._encoding, self._decoding = self._autoencoder.workspace(), self._autoencoder.workspace()
        self._sampler: WindowSampler | None = None
        self._graph = Graph(self._make, networks.device)

    @property
    def draws(self) -> int:
        """How many times noise is drawn for a window."""
        assert self._sampler is not None, "prepare comes first"
        return self._sampler.draws

    @torch.inference_mode()
    def prepare(self, picture: Tensor) -> tuple[Tensor, Tensor]:
        """What is to be known of a portrait; the first one also sets static FP8 scales and captures the graph.

        Args:
            picture: [1, 3, H, W] in [0, 1].

        Returns:
            Its latents, held still for a window, [frames, c, h, w]; and its colours, float32 [2, 3].
        """
        networks, window = self.networks, self._window
        with self.turn:
            with fastest_convolutions(picture.dtype):
                still = picture.expand(window.pixels, -1, -1, -1)
                reference = self._autoencoder.encode_clip(still).to(networks.dtype)
            colours = lab_statistics(picture[0].permute(1, 2, 0))
            if self._sampler is None:
                silence = torch.zeros(1, round(window.heard * RATE), device=networks.device)
                if needs_calibration(networks.dit):
                    generator = torch.Generator(networks.device).manual_seed(0)
                    noise = torch.randn(silence.shape, generator=generator, device=networks.device)
                    calibrate_window(networks.dit, reference, [self.hear(sound) for sound in (silence, noise)])
                self._sampler = WindowSampler(networks.dit)
                if networks.device.type == "cuda":
                    drawn = torch.zeros(self.draws, *reference.shape, device=networks.device)
                    nothing = picture.permute(0, 2, 3, 1).float().expand(window.history, -1, -1, -1)
                    self._graph(silence, drawn, nothing, self.nothing_shown, reference, colours)
        return reference, colours

    def make(
        self, sound: Tensor, noise: Tensor, history: Tensor, shown: Tensor, reference: Tensor, colours: Tensor
    ) -> Tensor:
        """A window; the caller has the `turn`. The next call overwrites what it returns.

        Args:
            sound: float32 [1, n], mono at 16 kHz, the window's own at its end.
            noise: float32 [draws, frames, c, h, w].
            history: float32 [history, H, W, 3] in [0, 1], frames that were shown.
            shown: `nothing_shown` of this session yet, then `shown`.
            reference, colours: from `prepare`.

        Returns:
            The fresh frames: uint8 [fresh, H * 3 / 2, W] in I420, or [fresh, H, W, 3] in RGB. All are in `frames`.
        """
        return self._graph(sound, noise, history, shown, reference, colours)

    def _make(
        self, sound: Tensor, noise: Tensor, history: Tensor, shown: Tensor, reference: Tensor, colours: Tensor
    ) -> Tensor:
        latents = self.denoise(self.hear(sound), noise, self.encode(history), shown, reference)
        self.frames = self.colour(*self.decode(latents), colours)
        return self.convert(self.frames)

    def encode(self, history: Tensor) -> Tensor:
        """Shown frames -> [history_latents, c, h, w]."""
        frames = history.permute(0, 3, 1, 2).to(next(self._autoencoder.parameters()).dtype)
        with fastest_convolutions(frames.dtype):
            return self._autoencoder.encode_clip(frames, self._encoding).to(self.networks.dtype)

    def hear(self, sound: Tensor) -> Tensor:
        """[1, n] -> [frames, tokens, dim], what each latent frame attends to."""
        window = self._window
        dtype = next(self._ear.parameters()).dtype
        positions = round(window.heard * window.fps)
        with fastest_convolutions(dtype):
            states = self._ear(normalise(sound).to(dtype), positions)
        return self._projection(states[:, -window.pixels :])[0]

    def denoise(self, tokens: Tensor, noise: Tensor, history: Tensor, shown: Tensor, reference: Tensor) -> Tensor:
        """All passes of the DiT -> [frames, c, h, w]."""
        assert self._sampler is not None, "prepare comes first"
        history = torch.where(shown, history, reference[: len(history)])
        return self._sampler.sample(tokens, reference, history, self._always | shown, noise.to(reference.dtype))

    def decode(self, latents: Tensor) -> tuple[Tensor, Tensor | None]:
        """See `WanVae.decode_signal`."""
        latents = latents.to(next(self._autoencoder.parameters()).dtype)
        with fastest_convolutions(latents.dtype):
            return self._autoencoder.decode_signal(latents, self._decoding)

    def colour(self, signal: Tensor, bias: Tensor | None, colours: Tensor) -> Tensor:
        """What the decoder made, with the portrait's colours -> `frames`."""
        return lab_match(signal, bias, colours) if self._window.colour else signal_to_unit(signal, bias)

    def convert(self, frames: Tensor) -> Tensor:
        """The fresh ones of `frames` as they are shown."""
        fresh = frames[self._window.history :] * 2 - 1
        return signal_to_i420(fresh) if self._i420 else signal_to_rgb(fresh)
