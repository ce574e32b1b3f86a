"""The video diffusion transformer: one class for every size, with Wan's blocks and parameter names.

Source of the architecture: Wan 2.1 technical report (2025), DiT (Peebles and Xie 2023). The model does not know where
its context lives. It hands self-attention to a `Context`: the KV cache when a stream runs, a whole clip when the model
trains.

Everything between two matrix products is one operation of `kernels`, which takes its kernel if there is one for the
tensors, and its reference otherwise. So the same code trains, runs on a CPU, and runs the large model in FP8: each
layer says in which precision it takes its input (`takes`).
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from characters.model.block import EPS, Block, Conditions, LayerContext, Residual, takes
from characters.model.conditioning import Conditioning
from characters.model.config import ModelConfig
from characters.model.framepack import FramePack
from characters.model.injector import Heard, Injector
from kernels.fp8 import store
from kernels.residual_norm import residual_norm


class Context(Protocol):
    """The context of all layers: `KVCache` or `ClipWindow`."""

    def layer(self, index: int) -> LayerContext:
        """The context of one layer."""

    def own_rows(self, x: Tensor) -> Tensor:
        """The rows of a chunk that this GPU computes."""

    def own_frames(self) -> list[slice]:
        """Where the rows of each latent frame of a chunk lie among this GPU's; empty slices for frames of others."""

    def gather(self, x: Tensor) -> Tensor:
        """All rows of a chunk, from the rows of each GPU."""


class Modulation(NamedTuple):
    """The adaLN vectors at one noise level. A vector is [dim] for a batch of one, else [batch, 1, dim].

    Attributes:
        level: [batch].
        blocks: [layers, 6, ...vector]: shift, scale, gate of self-attention, then of the feed-forward.
        head: [2, ...vector]: shift, scale; None in a part without the head.
    """

    level: Tensor
    blocks: Tensor
    head: Tensor | None


class Head(nn.Module):
    def __init__(self, dim: int, out: int) -> None:
        super().__init__()
        self.head = nn.Linear(dim, out)
        self.modulation = nn.Parameter(torch.randn(1, 2, dim) / dim**0.5)

    def forward(self, residual: Residual, modulation: Tensor) -> Tensor:
        shift, scale = modulation
        _, h = residual_norm(*residual, scale=scale, shift=shift, eps=EPS)
        return self.head(h)


class DiT(nn.Module):
    """One chunk in, one chunk out.

    Args:
        config: a checked `ModelConfig`.
        layers: half-open range of blocks that this part of a pipeline holds; default: all. The first part embeds the
            chunk and the last one has the head. Every part but the last hands on the residual stream.
    """

    def __init__(self, config: ModelConfig, layers: tuple[int, int] | None = None) -> None:
        super().__init__()
        dit = config.dit
        self.config = config
        first, end = self.layers = layers or (0, dit.num_layers)
        channels = config.latent_channels
        inputs = channels * (1 + dit.concat_previous + dit.concat_reference)
        self.patch_embedding: nn.Linear | None = None
        if first == 0:
            # Wan's patch embedding is a strided convolution; over unfolded patches it is this matrix product.
            self.patch_embedding = nn.Linear(inputs * dit.patch**2, dit.dim)
        self.time_embedding = nn.Sequential(nn.Linear(dit.freq_dim, dit.dim), nn.SiLU(), nn.Linear(dit.dim, dit.dim))
        self.time_projection = nn.Sequential(nn.SiLU(), nn.Linear(dit.dim, 6 * dit.dim))
        self.conditioning = Conditioning(dit)
        # Keyed by their number, so that every part of a pipeline has the whole model's parameter names.
        self.blocks = nn.ModuleDict({str(i): Block(dit.dim, dit.ffn_dim, dit.num_heads) for i in range(first, end)})
        injected = config.s2v.injected if config.s2v is not None else []
        self.injectors = nn.ModuleDict({str(i): Injector(dit.dim, dit.num_heads) for i in injected if first <= i < end})
        self.packs: FramePack | None = None
        if config.s2v is not None and first == 0:
            self.packs = FramePack(channels, dit.dim)
            # Which kind a token is of: noisy, reference, packed. A noisy one also says that no pose is given.
            self.kinds, self.no_pose = nn.Parameter(torch.randn(3, dit.dim)), nn.Parameter(torch.zeros(dit.dim))
        self.head = Head(dit.dim, channels * dit.patch**2) if end == dit.num_layers else None

    @property
    def head_dim(self) -> int:
        """Channels of one attention head."""
        return self.config.dit.dim // self.config.dit.num_heads

    def patchify(self, latent: Tensor) -> Tensor:
        """[batch, channels, h, w] -> [batch, tokens, channels * patch^2]."""
        return F.pixel_unshuffle(latent, self.config.dit.patch).flatten(2).transpose(1, 2)

    def unpatchify(self, tokens: Tensor) -> Tensor:
        """Inverse of `patchify`."""
        return F.pixel_shuffle(tokens.transpose(1, 2).unflatten(2, self.config.grid), self.config.dit.patch)

    def forward(
        self,
        noisy: Tensor,
        level: Tensor,
        tokens: Tensor,
        context: Context,
        *,
        previous: Tensor | None = None,
        reference: Tensor | None = None,
    ) -> Tensor:
        """One denoising pass of the whole model.

        Args:
            noisy: [batch, channels, h, w], (1 - level) * latent + level * noise.
            level: [batch], noise level in [0, 1].
            tokens: [batch, conditions, dim], from `conditioning`.
            context: the KV cache, or a clip in training.
            previous, reference: [batch, channels, h, w], for models that take them (see `DiTConfig`).

        Returns:
            [batch, channels, h, w], the predicted clean latent.
        """
        conditions = self.condition(tokens)
        return self.denoise(noisy, self.modulate(level), conditions, context, previous=previous, reference=reference)

    def modulate(self, level: Tensor) -> Modulation:
        """Modulation by a noise level, [batch] in [0, 1]. A stream has few levels and computes each once."""
        embedding = timestep_embedding(level * 1000, self.config.dit.freq_dim)
        embedding = self.time_embedding(embedding.to(self.time_embedding[0].weight.dtype))
        six = self.time_projection(embedding).unflatten(-1, (6, -1))
        blocks = torch.stack([block.modulation + six for block in self.blocks.values()])
        head = None if self.head is None else self.head.modulation + embedding[:, None]
        # [..., batch, vectors, dim] -> [..., vectors, (batch, 1,) dim]
        if len(level) == 1:
            return Modulation(level, blocks[:, 0], None if head is None else head[0])
        blocks = blocks.transpose(1, 2).unsqueeze(3)
        return Modulation(level, blocks, None if head is None else head.transpose(0, 1).unsqueeze(2))

    def condition(self, tokens: Tensor) -> list[Conditions]:
        """Keys and values of tokens [batch, conditions, dim], layer by layer."""
        tokens = tokens[0] if len(tokens) == 1 else tokens
        layers = [block.cross_attn for block in self.blocks.values()]
        # No layer has a scale of its own for them: rounded once, they are right for all.
        given = store(tokens, takes(layers[0].k))
        return [layer.condition(given) for layer in layers]

    def hear(self, tokens: Tensor, whole: Tensor) -> dict[str, Heard]:
        """What the injectors make of a chunk's sound: tokens [frames, tokens, dim], whole [frames, dim]."""
        return {layer: injector.hear(tokens, whole) for layer, injector in self.injectors.items()}

    def run(
        self,
        hidden: Tensor,
        modulation: Modulation,
        conditions: list[Conditions],
        context: Context,
        heard: dict[str, Heard] | None = None,
    ) -> Residual:
        """The blocks of this part, from the residual stream on; see `denoise`."""
        residual = Residual(hidden)
        for layer, (number, block) in enumerate(self.blocks.items()):
            residual = block(residual, modulation.blocks[layer], conditions[layer], context.layer(layer))
            if heard is not None and number in heard:
                residual = self.injectors[number](residual, heard[number], context.own_frames())
        return residual

    def embed(
        self, noisy: Tensor, context: Context, *, previous: Tensor | None = None, reference: Tensor | None = None
    ) -> Tensor:
        """The residual stream that the first part begins with; see `denoise`."""
        dit = self.config.dit
        inputs = [noisy]
        inputs += [previous] if dit.concat_previous else []
        inputs += [reference] if dit.concat_reference else []
        patches = self.patchify(torch.cat(inputs, 1))
        # Kernels take a batch of one without its axis, the rows of its frames one after another.
        alone = len(patches) == self.config.frames
        stream = self.patch_embedding(context.own_rows(patches.flatten(0, 1)) if alone else patches)
        return stream if self.packs is None else stream + (self.kinds[0] + self.no_pose)

    def embed_portrait(self, reference: Tensor, clip: Tensor, context: Context) -> Tensor:
        """The residual stream of the sink, for models that pack the portrait.

        Args:
            reference: [1, channels, h, w], latent of the portrait.
            clip: [19, channels, h, w], latents of the portrait held still.
            context: the KV cache.

        Returns:
            [rows, dim], in the order of `portrait_sink`.
        """
        assert self.packs is not None and self.patch_embedding is not None
        shown = self.patch_embedding(self.patchify(reference)[0]) + self.kinds[1]
        return context.own_rows(torch.cat((shown, self.packs(clip) + self.kinds[2])))

    def denoise(
        self,
        noisy: Tensor,
        modulation: Modulation,
        conditions: list[Conditions],
        context: Context,
        *,
        previous: Tensor | None = None,
        reference: Tensor | None = None,
        hidden: Tensor | None = None,
        heard: dict[str, Heard] | None = None,
    ) -> Tensor:
        """One denoising pass, or this part of it.

        Args:
            noisy, context, previous, reference: see `forward`; of a window, its latent frames in place of the batch.
            modulation, conditions: from `modulate` and `condition`.
            hidden: what the part before returned; for all parts but the first. May be overwritten.
            heard: from `hear`, for models into which sound is injected.

        Returns:
            The last part: [batch, channels, h, w], the predicted clean latent. The others: the residual stream,
            [rows, dim] of a batch of one, else [batch, tokens, dim].
        """
        dit = self.config.dit
        if self.patch_embedding is not None:
            hidden = self.embed(noisy, context, previous=previous, reference=reference)
        residual = self.run(hidden, modulation, conditions, context, heard)
        if self.head is None:
            return residual.sum()
        out = self.head(residual, modulation.head)
        if out.dim() == 2:
            out = context.gather(out).unflatten(0, (self.config.frames, -1))
        out = self.unpatchify(out)
        if dit.prediction == "velocity":
            return (noisy - modulation.level[:, None, None, None] * out).to(noisy.dtype)
        return out + reference if dit.residual_reference else out


def timestep_embedding(timestep: Tensor, dim: int) -> Tensor:
    """Sinusoidal embedding, [batch] -> float32 [batch, dim], cosines first (as in Wan)."""
    half = dim // 2
    freqs = torch.exp(-math.log(10000.0) / half * torch.arange(half, dtype=torch.float32, device=timestep.device))
    angles = timestep.float()[:, None] * freqs
    return torch.cat((angles.cos(), angles.sin()), -1)
