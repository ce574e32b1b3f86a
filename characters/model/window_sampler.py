"""All passes of one window: flow matching with the history held in its place."""

from __future__ import annotations

import torch
from torch import Tensor

from characters.model.dit import DiT
from characters.model.sampler import along
from characters.model.window_context import WindowContext


class WindowSampler:
    """Makes the latents of one window. Does no host work, so that it can stand in a captured graph.

    Source: FlashHead Pro's four passes with fresh noise; LeapTalk's single pass from the reference, which draws none.

    Args:
        dit: in eval mode, on its device, in its dtype.
        context: for its windows.
    """

    def __init__(self, dit: DiT, context: WindowContext) -> None:
        self._dit, self._context = dit, context
        self._config, device = dit.config.sampler, next(dit.parameters()).device
        self._told = [t / 1000 for t in self._config.timesteps] or self._config.steps
        with torch.inference_mode():
            self._levels = [dit.modulate(torch.full((1,), level, device=device)) for level in self._told]

    @property
    def draws(self) -> int:
        """How many times noise is drawn for a window."""
        fresh = len(self._config.steps) - 1 if self._config.noise == "fresh" else 0
        return (self._config.source == "noise") + fresh

    def sample(self, tokens: Tensor, reference: Tensor, history: Tensor, noise: Tensor) -> Tensor:
        """The latents of a window.

        Args:
            tokens: [frames, tokens, dim], what each latent frame hears.
            reference: [frames, c, h, w], latents of the portrait held still.
            history: [n, c, h, w], latents that the window begins with.
            noise: [draws, frames, c, h, w].

        Returns:
            [frames, c, h, w]; its first n are the history.
        """
        steps, drawn = self._config.steps, list(noise)
        conditions = self._dit.condition(tokens)
        x = reference if self._config.source == "reference" else drawn.pop(0)
        for i, (now, told, level) in enumerate(zip(steps, self._told, self._levels, strict=True)):
            x = _begin_with(history, x)
            clean = self._dit.denoise(x, level, conditions, self._context, reference=reference)
            if told != now:  # the network was told a rounded level; the way to go is that of the true one
                clean = along(x, clean, told, told - now)
            then = steps[i + 1] if i + 1 < len(steps) else self._config.end
            if self._config.noise == "fresh" and i + 1 < len(steps):
                x = (1 - then) * clean + then * drawn.pop(0)
            else:
                x = along(x, clean, now, then)
        return _begin_with(history, x)


def _begin_with(history: Tensor, x: Tensor) -> Tensor:
    return torch.cat((history, x[len(history) :]))
