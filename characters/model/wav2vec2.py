"""wav2vec 2.0 as an ear: sound in, the hidden states of every layer out, at the frame rate of a video.

Source: Baevski et al., wav2vec 2.0 (2020), base size, and XLSR-53 (Conneau et al. 2020), whose norms lie elsewhere.
Checkpoints of transformers load by `translate`. Some talking heads resample the features of the convolutions to their
own frames before the transformer (SoulX-FlashHead does), others the states after it (Wan2.2-S2V does).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

RATE = 16_000
KERNELS, STRIDES = (10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2)


@dataclass
class Wav2Vec2Config:
    """Sizes; the defaults are those of wav2vec2-base-960h.

    Attributes:
        conv_dim: channels of the convolutions.
        dim, ffn_dim, heads, layers: of the transformer.
        positions, groups: kernel and groups of the convolution that tells positions apart.
        stable: norms before the branches and in every convolution, as in XLSR-53, in place of after them.
    """

    conv_dim: int = 512
    dim: int = 768
    ffn_dim: int = 3072
    heads: int = 12
    layers: int = 12
    positions: int = 128
    groups: int = 16
    stable: bool = False


class _ConvLayer(nn.Module):
    def __init__(self, channels: int, out: int, kernel: int, stride: int, first: bool, stable: bool) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, out, kernel, stride, bias=stable)
        self.layer_norm: nn.Module = nn.GroupNorm(out, out) if first else nn.Identity()
        if stable:
            self.layer_norm = nn.LayerNorm(out)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        if isinstance(self.layer_norm, nn.LayerNorm):
            return F.gelu(self.layer_norm(x.transpose(1, 2)).transpose(1, 2))
        return F.gelu(self.layer_norm(x))


class _Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class _FeedForward(nn.Module):
    def __init__(self, dim: int, ffn_dim: int) -> None:
        super().__init__()
        self.intermediate_dense, self.output_dense = nn.Linear(dim, ffn_dim), nn.Linear(ffn_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.output_dense(F.gelu(self.intermediate_dense(x)))


class _Layer(nn.Module):
    """A transformer layer with its norms after the branches, or before them."""

    def __init__(self, config: Wav2Vec2Config) -> None:
        super().__init__()
        self.stable = config.stable
        self.attention = _Attention(config.dim, config.heads)
        self.layer_norm, self.final_layer_norm = nn.LayerNorm(config.dim), nn.LayerNorm(config.dim)
        self.feed_forward = _FeedForward(config.dim, config.ffn_dim)

    def forward(self, x: Tensor) -> Tensor:
        if self.stable:
            x = x + self.attention(self.layer_norm(x))
            return x + self.feed_forward(self.final_layer_norm(x))
        x = self.layer_norm(x + self.attention(x))
        return self.final_layer_norm(x + self.feed_forward(x))


class Wav2Vec2(nn.Module):
    """The encoder.

    Args:
        config: sizes.
    """

    def __init__(self, config: Wav2Vec2Config | None = None) -> None:
        super().__init__()
        config = config or Wav2Vec2Config()
        widths = [1] + [config.conv_dim] * len(KERNELS)
        self.conv_layers = nn.ModuleList(
            _ConvLayer(widths[i], widths[i + 1], KERNELS[i], STRIDES[i], i == 0, config.stable)
            for i in range(len(KERNELS))
        )
        self.stable = config.stable
        self.feature_norm, self.projection = nn.LayerNorm(config.conv_dim), nn.Linear(config.conv_dim, config.dim)
        self.position = nn.Conv1d(
            config.dim, config.dim, config.positions, padding=config.positions // 2, groups=config.groups
        )
        self.layer_norm = nn.LayerNorm(config.dim)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.layers))

    def forward(self, sound: Tensor, frames: int) -> Tensor:
        """The hidden states after each layer.

        Args:
            sound: [batch, n], mono at 16 kHz, zero mean and unit variance (`normalise`).
            frames: of video that the sound lasts for.

        Returns:
            [batch, frames, layers, dim].
        """
        features = F.interpolate(self._features(sound), size=frames, mode="linear", align_corners=True)
        return torch.stack(self._states(features)[1:], 2)

    def hear(self, sound: Tensor) -> Tensor:
        """All hidden states at the ear's own rate, one from every 320 samples, the transformer's input first.

        Args:
            sound: [batch, n], mono at 16 kHz, zero mean and unit variance (`normalise`).

        Returns:
            [batch, 1 + layers, dim, (n - 80) // 320]. State i begins at sample 320 i and has heard 400.
        """
        return torch.stack(self._states(self._features(sound)), 1).transpose(2, 3)

    def _features(self, sound: Tensor) -> Tensor:
        x = sound[:, None]
        for layer in self.conv_layers:
            x = layer(x)
        return x

    def _states(self, features: Tensor) -> list[Tensor]:
        """[batch, channels, n] -> [batch, n, dim] each, the transformer's input first."""
        x = self.projection(self.feature_norm(features.transpose(1, 2)))
        x = x + F.gelu(self._positions(x))
        states = [x if self.stable else self.layer_norm(x)]
        for layer in self.layers:
            states.append(layer(states[-1]))
        if self.stable:
            states[-1] = self.layer_norm(states[-1])
        return states

    def _positions(self, x: Tensor) -> Tensor:
        """[batch, n, dim] -> the same: a convolution in groups, as products of unfolded positions, which are faster."""
        layer, reach = self.position, self.position.padding[0]
        frames, groups = x.shape[1], layer.groups
        # An even kernel would make one position too many.
        windows = F.pad(x, (0, 0, reach, reach)).unfold(1, layer.kernel_size[0], 1)[:, :frames]
        windows = windows.unflatten(2, (groups, -1)).transpose(1, 2).flatten(3)  # [batch, groups, n, inputs * kernel]
        weight = layer.weight.flatten(1).unflatten(0, (groups, -1)).transpose(1, 2)
        return (windows @ weight).transpose(1, 2).flatten(2) + layer.bias


def normalise(sound: Tensor) -> Tensor:
    """[batch, n] -> zero mean and unit variance of each row, as the published models were trained."""
    centred = sound - sound.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-7).sqrt()


def translate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename a checkpoint of transformers to `Wav2Vec2`; its weight norm, under either of its names, is multiplied out.

    What only training and speech recognition use is left out.
    """
    found: dict[str, Tensor] = {}
    norm: dict[str, Tensor] = {}
    for full, tensor in tensors.items():
        name = full.removeprefix("wav2vec2.")
        if name == "masked_spec_embed" or name.startswith("lm_head."):
            continue
        if name.startswith("encoder.pos_conv_embed.conv."):
            leaf = name.rpartition("conv.")[2]
            if leaf == "bias":
                found["position.bias"] = tensor
            else:
                norm["g" if leaf in ("weight_g", "parametrizations.weight.original0") else "v"] = tensor
            continue
        name = name.removeprefix("feature_extractor.").removeprefix("encoder.")
        name = name.replace("feature_projection.layer_norm", "feature_norm").replace("feature_projection.", "")
        found[name] = tensor
    if norm:
        g, v = norm["g"].float(), norm["v"].float()
        found["position.weight"] = v * (g / v.norm(dim=(0, 1), keepdim=True))
    return found
