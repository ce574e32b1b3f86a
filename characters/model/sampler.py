"""Few-step sampler of one chunk at a time: flow matching from noise, context from the KV cache."""

from __future__ import annotations

import torch
from torch import Tensor

from characters.model.config import SamplerConfig
from characters.model.dit import DiT
from characters.model.graph import Graph
from characters.model.kv_cache import KVCache
from characters.model.rope import Rope3D


class Sampler:
    """Generates latents chunk by chunk.

    A pass at level t sees x_t = (1 - t) x_0 + t * noise and predicts x_0 (rectified flow, Liu et al. 2022; Lipman et
    al. 2022); the next level is reached along the straight line. With commit "reuse" the K/V of the last denoising pass
    stay in the cache; with "clean" one more pass writes them from the finished latent.

    Args:
        dit: in eval mode, on its device, in its dtype.
        reference: [batch, channels, h, w], latent of the portrait.
        seed: of the noise.
        config: steps, commit and context noise; default: the model's own.
        capture: on a GPU, replay all passes of a chunk as one CUDA graph; `sample` then returns the same buffer
            every time.
    """

    def __init__(
        self,
        dit: DiT,
        reference: Tensor,
        *,
        seed: int = 0,
        config: SamplerConfig | None = None,
        capture: bool = False,
    ) -> None:
        self.config = config or dit.config.sampler
        self._dit = dit
        self._reference = reference
        batch, device = len(reference), reference.device
        rope = Rope3D(dit.head_dim, dit.config.grid, dit.config.dit.rope_theta)
        self.cache = KVCache(
            layers=len(dit.blocks),
            batch=batch,
            heads=dit.config.dit.num_heads,
            head_dim=dit.head_dim,
            sink=dit.config.sink,
            ring=dit.config.ring,
            rope=rope,
            dtype=reference.dtype,
            device=device,
        )
        self._generator = torch.Generator(device).manual_seed(seed)
        self._levels = [torch.full((batch,), level, device=device) for level in self.config.steps]
        self._clean = torch.zeros(batch, device=device)
        self._previous = reference.clone()
        self._passes = Graph(self._denoise) if capture else self._denoise

    @property
    def index(self) -> int:
        """The chunk that `sample` will generate next."""
        return self.cache.index

    @torch.inference_mode()
    def prefill(self, tokens: Tensor) -> None:
        """Fill the cache from the reference image.

        Args:
            tokens: [batch, conditions, dim], conditions of the reference pass (`Conditioning.reference`).
        """
        self.cache.prefill()
        for _ in range(self.cache.sink):
            self.cache.begin()
            self._pass(self._reference, self._clean, tokens, self._reference)
            self.cache.commit()
        self.cache.seal()

    @torch.inference_mode()
    def sample(self, tokens: Tensor) -> Tensor:
        """Generate the next chunk. If it raises, nothing has advanced and it can be called again.

        Args:
            tokens: [batch, conditions, dim].

        Returns:
            [batch, channels, h, w], the chunk's latent.
        """
        self.cache.begin()
        clean = self._passes(self._noise(), tokens)
        self._remember(clean)
        self.cache.commit()
        return clean

    def _denoise(self, x: Tensor, tokens: Tensor) -> Tensor:
        """All passes of a chunk; no host work, so that it can be captured."""
        for step, level in enumerate(self._levels):
            clean = self._pass(x, level, tokens, self._previous)
            if step + 1 < len(self._levels):
                now, then = self.config.steps[step], self.config.steps[step + 1]
                # noise = (x - (1 - now) clean) / now, kept along the straight path to `then`.
                x = (1 - then) * clean + (then / now) * (x - (1 - now) * clean)
        if self.config.commit == "clean":
            self._pass(clean, self._clean, tokens, self._previous)
        return clean

    def _pass(self, x: Tensor, level: Tensor, tokens: Tensor, previous: Tensor) -> Tensor:
        return self._dit(x, level, tokens, self.cache, previous=previous, reference=self._reference)

    def _remember(self, latent: Tensor) -> None:
        mix = self.config.context_noise
        self._previous.copy_(latent if mix == 0 else (1 - mix) * latent + mix * self._noise())

    def _noise(self) -> Tensor:
        return torch.randn(
            self._reference.shape,
            generator=self._generator,
            device=self._reference.device,
            dtype=self._reference.dtype,
        )
