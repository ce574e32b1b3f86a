"""All passes of one window: flow matching with the history held in its place."""

from __future__ import annotations

import torch
from torch import Tensor

from characters.model.dit import DiT
from characters.model.quantise import head_scales
from characters.model.rope import Rope3D
from characters.model.sampler import along
from characters.model.window_context import WindowContext
from kernels.fp8 import FP8


class WindowSampler:
    """Makes the latents of one window. Does no host work, so that it can stand in a captured graph.

    Source: FlashHead Pro's four passes with fresh noise; LeapTalk's single pass from the reference, which draws none.

    Args:
        dit: in eval mode, on its device, in its dtype.
        observe: see `WindowContext.peaks`; q, k and v then stay in the model's dtype.
    """

    def __init__(self, dit: DiT, *, observe: bool = False) -> None:
        self._dit = dit
        config, parameter = dit.config, next(dit.parameters())
        scales = None if observe else head_scales(dit)
        self.context = WindowContext(
            config.frames,
            config.dit.num_heads,
            Rope3D(dit.head_dim, config.grid, config.dit.rope_theta),
            parameter.dtype if scales is None else FP8,
            parameter.device,
            scales=scales,
            layers=len(dit.blocks) if observe else 0,
        )
        self._config = config.sampler
        self._told = [t / 1000 for t in self._config.timesteps] or self._config.steps
        with torch.inference_mode():
            self._levels = [dit.modulate(torch.full((1,), level, device=parameter.device)) for level in self._told]

    @property
    def draws(self) -> int:
        """How many times noise is drawn for a window."""
        fresh = len(self._config.steps) - 1 if self._config.noise == "fresh" else 0
        return (self._config.source == "noise") + fresh

    def sample(self, tokens: Tensor, reference: Tensor, history: Tensor, held: Tensor, noise: Tensor) -> Tensor:
        """The latents of a window.

        Args:
            tokens: [frames, tokens, dim], what each latent frame hears.
            reference: [frames, c, h, w], latents of the portrait held still.
            history: [n, c, h, w], latents that the window begins with.
            held: bool [n, 1, 1, 1], which of them it does begin with.
            noise: [draws, frames, c, h, w].

        Returns:
            [frames, c, h, w]; its first n are the history where it is held.
        """
        steps, drawn = self._config.steps, list(noise)
        conditions = self._dit.condition(tokens)

        def begin_with_history(x: Tensor) -> Tensor:
            return torch.cat((torch.where(held, history, x[: len(history)]), x[len(history) :]))

        x = reference if self._config.source == "reference" else drawn.pop(0)
        for i, (now, told, level) in enumerate(zip(steps, self._told, self._levels, strict=True)):
            x = begin_with_history(x)
            clean = self._dit.denoise(x, level, conditions, self.context, reference=reference)
            if told != now:  # the network was told a rounded level; the way to go is that of the true one
                clean = along(x, clean, told, told - now)
            then = steps[i + 1] if i + 1 < len(steps) else self._config.end
            if self._config.noise == "fresh" and i + 1 < len(steps):
                x = (1 - then) * clean + then * drawn.pop(0)
            else:
                x = along(x, clean, now, then)
        return begin_with_history(x)
