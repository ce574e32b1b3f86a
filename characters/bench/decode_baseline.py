"""diffusers' decoder of the same sizes, chunk by chunk and eager, as its users call it."""

from __future__ import annotations

import contextlib
import statistics
import time
from typing import Any

import torch

from characters.bench.decode_quality import smooth_latents
from characters.errors import UserError
from characters.model.config import ModelConfig
from characters.model.wan_vae.stream import fastest_convolutions

DTYPE = torch.bfloat16

# Untimed chunks, and timed ones. Each of the first three has caches of another length, and so convolutions of other
# sizes.
WARM, TIMED = 3, 5


def published_decoder(config: ModelConfig, device: torch.device) -> Any:
    """diffusers' autoencoder with random weights.

    Raises:
        UserError: diffusers is not installed, or the model has the Wan 2.2 VAE, which diffusers decodes another way.
    """
    wan = config.autoencoder.wan
    try:
        from diffusers import AutoencoderKLWan
    except ModuleNotFoundError:
        raise UserError("diffusers is not installed; `pip install diffusers` for the comparison") from None
    if wan is None or wan.shortcuts:
        raise UserError("the baseline decodes the Wan 2.1 VAE only, and this model has another")
    theirs = AutoencoderKLWan(
        base_dim=wan.encoder_dim,
        decoder_base_dim=wan.decoder_dim,
        z_dim=config.latent_channels,
        dim_mult=list(wan.multipliers),
        num_res_blocks=wan.residual_blocks,
        temperal_downsample=list(wan.temporal),
    )
    return theirs.to(device, DTYPE).eval().requires_grad_(False)


@torch.inference_mode()
def eager_chunk(theirs: Any, config: ModelConfig, device: torch.device, *, tuned: bool) -> float:
    """Milliseconds of a chunk, median, in bfloat16.

    Args:
        theirs: from `published_decoder`.
        tuned: let cuDNN time its algorithms first. That takes minutes at 704x1088, and pays.
    """
    z = smooth_latents(config, 1, device).movedim(0, 1)[None].to(DTYPE)
    times = []
    theirs.clear_cache()
    with fastest_convolutions(DTYPE) if tuned else contextlib.nullcontext():
        for i in range(WARM + TIMED):
            begin = time.perf_counter()
            theirs._conv_idx = [0]
            x = theirs.post_quant_conv(z)
            theirs.decoder(x, feat_cache=theirs._feat_map, feat_idx=theirs._conv_idx, first_chunk=i == 0)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times[WARM:])
