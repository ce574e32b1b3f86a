"""The decoder's pictures against exact ones: half precision against float32, bands of rows against the whole."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from characters.chunk import FRAMES_PER_CHUNK
from characters.model.config import ModelConfig
from characters.model.wan_vae.decoder import RGB
from characters.model.wan_vae.rows import SplitRows
from characters.model.wan_vae.stream import WanStreams
from characters.model.wan_vae.vae import HALF, WanVae
from characters.model.wan_vae.workspace import Workspace

SEED = 5
# Standard deviation of the decoded signals, in [-1, 1], that are compared: that of pictures. Random weights give a
# smaller one, which would make every error look small.
CONTRAST = 0.5


def build(config: ModelConfig, device: torch.device, dtype: torch.dtype = HALF) -> WanVae:
    """The model's autoencoder with random weights, the same on every GPU."""
    assert config.autoencoder.wan is not None
    torch.manual_seed(SEED)
    vae = WanVae(config.autoencoder.wan, config.latent_channels)
    return vae.to(device, dtype).eval().requires_grad_(False)


def smooth_latents(config: ModelConfig, chunks: int, device: torch.device) -> Tensor:
    """float32 [chunks, c, h, w], random but smooth in time and space, as latents of pictures are."""
    generator = torch.Generator(device).manual_seed(SEED)
    height, width = config.latent_size
    size = (max(chunks // 3, 2), max(height // 8, 2), max(width // 8, 2))
    coarse = torch.randn(1, config.latent_channels, *size, generator=generator, device=device)
    return F.interpolate(coarse, size=(chunks, height, width), mode="trilinear")[0].movedim(1, 0)


@torch.inference_mode()
def check_quality(
    config: ModelConfig, device: torch.device, chunks: int = 5, late: int = 24
) -> Iterator[tuple[str, float]]:
    """PSNR in dB of decoding in half precision, with an exact and a compact cache, against float32 without TF32.

    bfloat16, which takes the same bytes, comes last for comparison.

    Args:
        config: of the model.
        device: where to decode.
        chunks: that are compared, the first of a stream.
        late: a later chunk that is compared by itself: errors of a compact cache grow over many chunks.
    """
    latents, after = smooth_latents(config, chunks, device), smooth_latents(config, late, device)
    with _without_tf32():
        wide = _with_contrast(build(config, device, torch.float32), latents)
        exact, exact_after = _decode(wide, latents, compact=False), _last(_decode(wide, after, compact=False))
    state = {name: tensor.clone() for name, tensor in wide.state_dict().items()}
    half = wide.to(HALF)
    yield "float16, exact cache", _psnr(_decode(half, latents, compact=False), exact)
    yield "float16, compact cache", _psnr(_decode(half, latents, compact=True), exact)
    yield f"float16, compact cache, chunk {late}", _psnr(_last(_decode(half, after, compact=True)), exact_after)
    narrow = build(config, device, torch.float32)
    narrow.load_state_dict(state)
    yield "for comparison bfloat16, exact cache", _psnr(_decode(narrow.bfloat16(), latents, compact=False), exact)


def _last(frames: Tensor) -> Tensor:
    return frames[-FRAMES_PER_CHUNK:]


@torch.inference_mode()
def compare_bands(config: ModelConfig, device: torch.device, rows: SplitRows) -> Iterator[str]:
    """Frames of a picture split by rows against those of the whole one, which the first GPU decodes as well."""
    small = dataclasses.replace(config, height=config.height // 2, width=config.width // 2)
    with _without_tf32():
        for name, sized, dtype in (("float32, half the size", small, torch.float32), ("float16", config, HALF)):
            latents = smooth_latents(sized, 4, device)
            vae = _with_contrast(build(sized, device, torch.float32), latents).to(dtype)
            split = _frames(WanStreams(vae, sized.latent_size, rows=rows, compact=False), latents)
            if rows.rank == 0:
                whole = _frames(WanStreams(vae, sized.latent_size, compact=False), latents)
                wrong = (split.int() - whole.int()).abs()
                yield (
                    f"{name}: largest difference {int(wrong.max())} of 255, {float((wrong > 0).float().mean()):.2%} of "
                    f"bytes differ, PSNR {_psnr(split / 127.5, whole / 127.5):.1f} dB"
                )


def _frames(streams: WanStreams, latents: Tensor) -> Tensor:
    """I420 of the chunks after the first, on the CPU."""
    streams.start(0, latents[:1])
    return torch.cat([streams.advance(0, latent[None]).cpu() for latent in latents[1:]])


def _with_contrast(vae: WanVae, latents: Tensor) -> WanVae:
    """The same VAE, its last layer scaled so that the first frame has the deviation `CONTRAST`."""
    scale = CONTRAST / _decode(vae, latents[:1], compact=False).std().to(latents.device)
    vae.decoder.conv_out.weight.mul_(scale)
    vae.decoder.conv_out.bias.mul_(scale)
    return vae


@contextlib.contextmanager
def _without_tf32() -> Iterator[None]:
    before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def _decode(vae: WanVae, latents: Tensor, *, compact: bool) -> Tensor:
    """float32 [frames, H, W, 3] on the CPU, in [-1, 1]."""
    workspace = Workspace(compact=compact)
    workspace.slot = torch.zeros((), dtype=torch.int64, device=latents.device)
    frames = []
    for i, latent in enumerate(latents.to(vae.mean.dtype)):
        frames.append(vae.decode(latent[None], workspace, first=i == 0).value()[..., :RGB])
    return torch.cat([frame.clamp(-1, 1).cpu() for frame in frames])


def _psnr(a: Tensor, b: Tensor) -> float:
    """Of signals in [-1, 1]."""
    error = float((a - b).square().mean())
    return 10 * math.log10(4 / error) if error else math.inf
