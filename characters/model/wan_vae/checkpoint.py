"""Published checkpoints of the Wan VAE: tells their two layouts of names apart and translates both to ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from characters.model.checkpoint import load_weights
from characters.model.config import WanVaeConfig
from characters.model.wan_vae.vae import WanVae

# Names inside a residual block of the original code, where layers are numbered, and here.
_RESIDUAL = {
    "residual.0": "norm1",
    "residual.2": "conv1",
    "residual.3": "norm2",
    "residual.6": "conv2",
    "shortcut": "conv_shortcut",
}
# Original names of whole parts and the names here; the rest depends on the number of blocks.
_PARTS = {
    "conv1": "quant_conv",
    "conv2": "post_quant_conv",
    "encoder.conv1": "encoder.conv_in",
    "decoder.conv1": "decoder.conv_in",
    "encoder.head.0": "encoder.norm_out",
    "encoder.head.2": "encoder.conv_out",
    "decoder.head.0": "decoder.norm_out",
    "decoder.head.2": "decoder.conv_out",
}
_LEVEL = re.compile(r"(encoder|decoder)\.(?:down|up)samples\.(\d+)(?:\.(?:down|up)samples\.(\d+))?\.(.+)")
_MIDDLE = {"0": "resnets.0", "1": "attentions.0", "2": "resnets.1"}


def load_vae(vae: WanVae, config: WanVaeConfig) -> WanVae:
    """Load the weights that `config` names, if any, in place.

    Raises:
        UserError: the file is missing or damaged, or doesn't fit the sizes.
    """
    if config.weights:
        load_weights(vae, Path(config.weights), lambda tensors: translate(tensors, config))
    return vae


def translate(tensors: Mapping[str, Tensor], config: WanVaeConfig) -> dict[str, Tensor]:
    """Rename a checkpoint's tensors to those of `WanVae`.

    Args:
        tensors: by name, in the layout of the original Wan code or of diffusers; other names stay as they are.
        config: of the autoencoder that they are for.
    """
    original = any(name.startswith("decoder.middle.") for name in tensors)
    rename = _from_original if original else _from_diffusers
    return {rename(name, config): tensor for name, tensor in tensors.items()}


def _from_original(name: str, config: WanVaeConfig) -> str:
    part, _, parameter = name.rpartition(".")
    if part in _PARTS:
        return f"{_PARTS[part]}.{parameter}"
    if match := re.fullmatch(r"(encoder|decoder)\.middle\.(\d)\.(.+)", part):
        return f"{match[1]}.mid_block.{_MIDDLE[match[2]]}.{_inner(match[3])}.{parameter}"
    # Wan 2.1 numbers all layers of all blocks through; Wan 2.2 numbers blocks, and the layers in each.
    if match := _LEVEL.fullmatch(part):
        side, number, layer, rest = match.groups()
        place = _numbered(side, int(number), None if layer is None else int(layer), config)
        return f"{place}.{_inner(rest)}.{parameter}"
    return name


def _from_diffusers(name: str, config: WanVaeConfig) -> str:
    name = name.replace(".upsamplers.0.", ".upsampler.").replace(".resample.1.", ".conv.")
    # diffusers numbers the encoder's layers through for Wan 2.1, but has blocks for Wan 2.2.
    if match := re.fullmatch(r"encoder\.down_blocks\.(\d+)\.((?!resnets|downsampler).+)", name):
        return f"{_numbered('encoder', int(match[1]), None, config)}.{match[2]}"
    return name


def _numbered(side: str, number: int, layer: int | None, config: WanVaeConfig) -> str:
    """The layer `layer` of block `number`, or, without `layer`, the layer `number` of all."""
    blocks = config.residual_blocks + (side == "decoder")
    if layer is None:
        number, layer = divmod(number, blocks + 1)
    sampler, folder = ("downsampler", "down_blocks") if side == "encoder" else ("upsampler", "up_blocks")
    return f"{side}.{folder}.{number}.{f'resnets.{layer}' if layer < blocks else sampler}"


def _inner(name: str) -> str:
    return {**_RESIDUAL, "resample.1": "conv"}.get(name, name)
