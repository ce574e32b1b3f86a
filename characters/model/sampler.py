"""Few-step sampler of one chunk at a time: flow matching from noise, context from the KV cache."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from characters.model.block import Conditions
from characters.model.config import SamplerConfig
from characters.model.dit import DiT, Modulation
from characters.model.framepack import portrait_sink
from characters.model.graph import Graph
from characters.model.injector import Heard
from characters.model.kv_cache import KVCache
from characters.model.quantise import head_scales, takes_static
from characters.model.rope import Rope3D
from characters.model.sink import Sink
from kernels.comm.exchange import Exchange
from kernels.fp8 import FP8


class Sampler:
    """Generates latents chunk by chunk.

    A pass at level t sees x_t = (1 - t) x_0 + t * noise and predicts x_0 (rectified flow, Liu et al. 2022; Lipman et
    al. 2022); the next level is reached along the straight line. With commit "reuse" the K/V of the last denoising pass
    stay in the cache; with "clean" one more pass writes them from the finished latent. With "level" every pass has a
    cache of its own (LiveAvatar, Alibaba 2025).

    Each GPU of a plan has a sampler of its own. All draw the same noise from the same seed, so noise need not travel:
    only the exchange's heads and the residual stream between parts of a pipeline do.

    Args:
        dit: in eval mode, on its device, in its dtype; the whole model, or a part of a pipeline, for which the sampler
            must take one pass a chunk (`check_plan`).
        reference: [batch, channels, h, w], latent of the portrait.
        seed: of the noise.
        config: steps, commit and context noise; default: the model's own.
        capture: on a GPU, replay all passes of a chunk as one CUDA graph; `sample` then returns the same buffer
            every time.
        exchange: joins the ranks of a sequence group; default: a group of one.
        observe: see `KVCache`; the cache then stays in the model's dtype.
        ring: chunks in the ring; default: the model's.
    """

    def __init__(
        self,
        dit: DiT,
        reference: Tensor,
        *,
        seed: int = 0,
        config: SamplerConfig | None = None,
        capture: bool = False,
        exchange: Exchange | None = None,
        observe: bool = False,
        ring: int | None = None,
    ) -> None:
        self.config = config or dit.config.sampler
        self._dit = dit
        self._reference = reference
        batch, device = len(reference), reference.device
        scales = None if observe else head_scales(dit)
        rope, ring = Rope3D(dit.head_dim, dit.config.grid, dit.config.dit.rope_theta), ring or dit.config.ring
        s2v = dit.config.s2v
        cache = functools.partial(
            KVCache,
            layers=len(dit.blocks),
            batch=batch,
            heads=dit.config.dit.num_heads,
            head_dim=dit.head_dim,
            sink=Sink.chunk(rope, ring) if s2v is None else portrait_sink(rope, dit.config.grid, s2v.distance),
            ring=ring,
            rope=rope,
            dtype=reference.dtype if scales is None else FP8,
            device=device,
            exchange=exchange,
            scales=scales,
            outputs=FP8 if takes_static(dit) else reference.dtype,
            observe=observe,
            frames=dit.config.frames,
        )
        self._caches = [cache() for _ in self.config.steps] if self.config.commit == "level" else [cache()]
        self.cache = self._caches[-1]
        self._generator = torch.Generator(device).manual_seed(seed)
        # Drawn in float32 whatever the model's dtype, so that a seed means the same noise in all of them.
        frames = (dit.config.frames,) if dit.config.frames > 1 else (batch,)
        self._noise = torch.zeros((*frames, *reference.shape[1:]), device=device)
        self._previous = reference.clone()
        with torch.inference_mode():
            self._levels = [self._modulate(level) for level in self.config.steps]
            self._clean = self._modulate(0.0)
        self._conditions: list[Conditions] | None = None
        self._capture = capture
        self._graphs: dict[tuple[int, int], Graph] = {}  # one for each exchange and length of the context

    @property
    def index(self) -> int:
        """The chunk that `sample` will generate next."""
        return self.cache.index

    @property
    def exchange(self) -> Exchange:
        """Joins the sequence group. Another exchange of the same group may replace it between two chunks."""
        return self.cache.exchange

    @exchange.setter
    def exchange(self, exchange: Exchange) -> None:
        for cache in self._caches:
            cache.exchange = exchange

    @property
    def peaks(self) -> Tensor | None:
        """The largest magnitudes of q, k and v in all caches, float32 [layers, 3, heads], if they are observed."""
        found = [cache.peaks for cache in self._caches if cache.peaks is not None]
        return torch.stack(found).amax(0) if found else None

    @torch.inference_mode()
    def tell(self, tokens: Tensor) -> None:
        """Set conditions that stay from chunk to chunk, such as a text; `sample` then needs no tokens.

        Args:
            tokens: [batch, conditions, dim], as many as the last time.
        """
        told = self._dit.condition(tokens)
        if self._conditions is None:
            self._conditions = told
            return
        for kept, new in zip(self._conditions, told, strict=True):  # in place: a captured graph reads them
            kept.k.copy_(new.k)
            kept.v.copy_(new.v)

    @torch.inference_mode()
    def prefill(self, tokens: Tensor, hidden: Tensor | None = None, clip: Tensor | None = None) -> Tensor:
        """Fill the caches from the reference image.

        Args:
            tokens: [batch, conditions, dim], conditions of the reference pass (`Conditioning.reference`).
            hidden: [1, rows, dim], what the part before returned; for all parts of a pipeline but the first.
            clip: [19, channels, h, w], latents of the portrait held still, for models that pack it.

        Returns:
            What the next part's `prefill` takes.
        """
        cache, dit = self.cache, self._dit
        cache.prefill()
        cache.begin()
        cache.prepare()
        if hidden is not None:
            stream = hidden[0].clone()
        elif clip is not None:
            stream = dit.embed_portrait(self._reference, clip, cache)
        else:
            stream = dit.embed(self._reference, cache, previous=self._reference, reference=self._reference)
        made = dit.run(stream, self._clean, dit.condition(tokens), cache).sum()
        cache.seal()
        for other in self._caches[:-1]:
            other.copy_sink(cache)
        return made[None]

    @torch.inference_mode()
    def sample(
        self, tokens: Tensor | None = None, hidden: Tensor | None = None, sound: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """Generate the next chunk. If it raises, nothing has advanced and it can be called again.

        Args:
            tokens: [batch, conditions, dim]; default: those of `tell`.
            hidden: [rows, dim], what the part before returned; for all parts of a pipeline but the first. May be
                overwritten.
            sound: [frames, tokens, dim] and [frames, dim], for models into which sound is injected.

        Returns:
            [batch, channels, h, w], the chunk's latent; or [rows, dim], what the next part takes.
        """
        assert tokens is not None or self._conditions is not None, "call tell first, or give tokens"
        for cache in self._caches:
            cache.begin()
        self._noise.normal_(generator=self._generator)
        clean = self._run(tokens, hidden, sound)
        if self._dit.config.dit.concat_previous:
            self._remember(clean)
        for cache in self._caches:
            cache.commit()
        return clean

    @torch.inference_mode()
    def warm(
        self, tokens: Tensor | None = None, hidden: Tensor | None = None, sound: tuple[Tensor, Tensor] | None = None
    ) -> None:
        """Capture now what `sample` would capture at its first call with the current exchange; nothing advances.

        Args:
            tokens, hidden, sound: like those that `sample` will be given.
        """
        for cache in self._caches:
            cache.begin()
        self._run(tokens, hidden, sound)

    def _run(self, tokens: Tensor | None, hidden: Tensor | None, sound: tuple[Tensor, Tensor] | None) -> Tensor:
        inputs = tokens, hidden, *(sound or (None, None))
        if not self._capture:
            return self._denoise(*inputs)
        key = id(self.exchange), self.cache.filled
        graph = self._graphs.setdefault(key, Graph(self._denoise, self._reference.device))
        return graph(*inputs)

    def _denoise(
        self, tokens: Tensor | None, hidden: Tensor | None, spoken: Tensor | None, whole: Tensor | None
    ) -> Tensor:
        """All passes of a chunk; no host work, so that it can be captured."""
        for cache in self._caches:
            cache.prepare()
        heard = None if spoken is None else self._dit.hear(spoken, whole)
        conditions = self._conditions if tokens is None else self._dit.condition(tokens)
        x = self._noise.to(self._reference.dtype)
        for step, level in enumerate(self._levels):
            clean = self._pass(x, level, conditions, self._caches[step % len(self._caches)], hidden, heard)
            if step + 1 < len(self._levels):
                now, then = self.config.steps[step], self.config.steps[step + 1]
                x = along(x, clean, now, then)
        if self.config.commit == "clean":
            self._pass(clean, self._clean, conditions, self.cache, hidden, heard)
        return clean

    def _pass(
        self,
        x: Tensor,
        level: Modulation,
        conditions: list[Conditions],
        cache: KVCache,
        hidden: Tensor | None,
        heard: dict[str, Heard] | None,
    ) -> Tensor:
        given = {"previous": self._previous, "reference": self._reference, "hidden": hidden, "heard": heard}
        return self._dit.denoise(x, level, conditions, cache, **given)

    def _modulate(self, level: float) -> Modulation:
        return self._dit.modulate(torch.full((len(self._reference),), level, device=self._reference.device))

    def _remember(self, latent: Tensor) -> None:
        mix = self.config.context_noise
        self._previous.copy_(latent if mix == 0 else (1 - mix) * latent + mix * self._draw())

    def _draw(self) -> Tensor:
        return torch.empty_like(self._noise).normal_(generator=self._generator).to(self._reference.dtype)


def along(x: Tensor, clean: Tensor, now: float, then: float) -> Tensor:
    """x at level `now`, moved to level `then` along the straight line through `clean`, whose noise is kept."""
    return (1 - then) * clean + (then / now) * (x - (1 - now) * clean)
