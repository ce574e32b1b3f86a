"""Stage 1: the autoencoder."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from characters.model.autoencoder import Autoencoder
from characters.model.checkpoint import load_weights, save_weights
from characters.model.config import load_model_config
from characters.training.clips import ClipPool
from characters.training.loop import Training, Workers, split_optimisers
from characters.training.recipe import Recipe

# Largest noise on latents in training, as a share of their scale: the DiT's latents are not exact either.
LATENT_NOISE = 0.2


def train_autoencoder(recipe: Recipe, pool: ClipPool, workers: Workers, folder: Path) -> Autoencoder:
    """Train the autoencoder on pairs of neighbouring chunks and write autoencoder.safetensors.

    A refinement (`recipe.refine`) starts from the folder's autoencoder.safetensors and keeps its latent statistics,
    which the DiT knows.

    Returns:
        The averaged model in eval mode, float32, with latent statistics set.
    """
    device = workers.device
    torch.manual_seed(recipe.seed)
    model = Autoencoder(load_model_config(recipe.model)).to(device).to(memory_format=torch.channels_last)
    refining = recipe.refine > 0
    if refining:
        load_weights(model, folder / "autoencoder.safetensors")
    torch.manual_seed(recipe.seed + 1000 * (workers.rank + 1))
    stage = recipe.autoencoder
    optimisers = split_optimisers(model, stage, device, lambda name, p: p.ndim == 4)
    training = Training(
        "autoencoder", stage, model, optimisers, workers, folder, average=0.999, log_every=recipe.log_every
    )
    encoder, decoder = model.encoder, model.decoder
    if recipe.compile:
        encoder, decoder = torch.compile(encoder), torch.compile(decoder)
    for progress in training.steps():
        clip = torch.randint(pool.clips, (stage.batch,), device=device)
        chunk = torch.randint(pool.chunks - 1, (stage.batch,), device=device)
        portrait = pool.portraits[clip].float()[:, None].expand(-1, 4, -1, -1, -1) / 255
        first, second = pool.chunk_frames(clip, chunk), pool.chunk_frames(clip, chunk + 1)
        weights = torch.cat((pool.chunk_weights(clip, chunk), pool.chunk_weights(clip, chunk + 1)))
        with torch.autocast(device.type, torch.bfloat16):
            latents = encoder(torch.cat((portrait, first, second)))
            noise = torch.rand(len(latents), 1, 1, 1, device=device) * LATENT_NOISE
            noisy = latents + noise * torch.randn_like(latents)
            still, one, two = noisy.chunk(3)
            decoded = decoder(torch.cat((one, two)), torch.cat((still, one)))
        loss, figures = reconstruction_loss(
            decoded.float(), torch.cat((first, second)), weights, sharp=refining or progress > 0.3
        )
        loss = loss + 1e-3 * latents.float().square().mean()
        training.update(loss, clip=0.5, **figures)
    training.average.copy_to(model)
    model.eval()
    if not refining:
        _set_statistics(model, pool, workers)
    if workers.rank == 0:
        save_weights(model, folder / "autoencoder.safetensors")
    return model


def reconstruction_loss(
    decoded: Tensor, truth: Tensor, weights: Tensor, *, sharp: bool = False
) -> tuple[Tensor, dict[str, Tensor]]:
    """Pixel loss that keeps edges sharp and the four frames of a chunk apart.

    Args:
        decoded, truth: [batch, 4, 3, H, W] in [0, 1]; weights: [batch, 1, 1, H, W].
        sharp: weigh squared error more, which is what PSNR measures.

    Returns:
        The loss and figures for the log.
    """
    error = decoded - truth
    # What differs between the frames of a chunk: mouth movement and blinks, a tiny share of all pixels.
    within = error - error.mean(1, keepdim=True)
    edges = (error[..., 1:] - error[..., :-1]).abs().mean() + (error[..., 1:, :] - error[..., :-1, :]).abs().mean()
    square = (error.square() * weights).mean()
    within_square = (within.square() * weights).mean()
    loss = (
        (error.abs() * weights).mean()
        + (within.abs() * weights).mean()
        + edges
        + (8 if sharp else 4) * square
        + (20 if sharp else 10) * within_square
    )
    psnr = -10 * torch.log10(error.detach().square().mean() + 1e-12)
    return loss, {"psnr": psnr}


@torch.no_grad()
def _set_statistics(model: Autoencoder, pool: ClipPool, workers: Workers) -> None:
    total = torch.zeros(2, model.mean.numel(), device=workers.device)
    generator = torch.Generator(workers.device).manual_seed(0)
    batches = min(32, pool.clips)
    for _ in range(batches):
        clip = torch.randint(pool.clips, (8,), device=workers.device, generator=generator)
        chunk = torch.randint(pool.chunks, (8,), device=workers.device, generator=generator)
        latents = model.encoder(pool.chunk_frames(clip, chunk))
        total += torch.stack((latents.mean((0, 2, 3)), latents.square().mean((0, 2, 3)))) / batches
    workers.average([total])
    mean, square = total
    model.mean.copy_(mean[:, None, None])
    model.std.copy_((square - mean.square()).clamp_min(1e-6).sqrt()[:, None, None])
