"""Stage 2: the reader that `characters evaluate` measures generated frames with."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from characters.chunk import FRAMES_PER_CHUNK, MOTION_CHANNELS
from characters.drawing import identity_vector
from characters.evaluation.reader import FrameReader, Reading
from characters.model.autoencoder import Autoencoder
from characters.model.checkpoint import save_weights
from characters.training.clips import ClipPool
from characters.training.loop import Training, Workers, split_optimisers
from characters.training.recipe import Recipe

# Largest share of noise in latents before decoding: generated latents are not exact.
LATENT_NOISE = 0.1
# Share of a batch that is decoded from latents; the rest are rendered frames.
DECODED_SHARE = 0.5
# Pixels by which the windows at mouth and eyes miss on purpose.
MISS = 1.5


def train_reader(
    recipe: Recipe, pool: ClipPool, autoencoder: Autoencoder, workers: Workers, folder: Path
) -> FrameReader:
    """Train the reader on frames of the pool, rendered and decoded, and write reader.safetensors.

    Args:
        autoencoder: trained, in eval mode, on the workers' device.

    Returns:
        The averaged model in eval mode, float32, with the statistics of the traits set.
    """
    device, stage = workers.device, recipe.reader
    torch.manual_seed(recipe.seed)
    model = FrameReader().to(device)
    vectors = identity_vector(pool.identities)
    model.fit_traits(vectors)
    workers.average([model.mean, model.std])
    traits = model.normalise(vectors)
    torch.manual_seed(recipe.seed + 1000 * (workers.rank + 1))
    optimisers = split_optimisers(model, stage, device, lambda name, p: p.ndim == 4 and not name.startswith("maps"))
    training = Training("reader", stage, model, optimisers, workers, folder, average=0.998, log_every=recipe.log_every)
    forward = torch.compile(model) if recipe.compile else model
    for _ in training.steps():
        clip, frame, images = _sample(pool, autoencoder, stage.batch)
        shift = torch.randn(2, len(images), 2, device=device) * MISS
        with torch.autocast(device.type, torch.bfloat16):
            reading = forward(augment(images), shift)
        truth = Reading(
            pool.mouth[clip, frame],
            pool.motion[clip, frame],
            traits[clip],
            pool.mouth_xy[clip, frame],
            pool.eye_xy[clip, frame],
        )
        loss, figures = reading_loss(reading, truth)
        training.update(loss, **figures)
    training.average.copy_to(model)
    if workers.rank == 0:
        save_weights(model, folder / "reader.safetensors")
    return model.eval()


def reading_loss(reading: Reading, truth: Reading) -> tuple[Tensor, dict[str, Tensor]]:
    """Squared errors, weighted so that the mouth opening comes first; returns the loss and figures for the log."""
    mouth = (reading.mouth - truth.mouth).square()
    motion = (reading.motion - truth.motion).square()
    # A shut eye doesn't show where it looks.
    seen = 1 - truth.motion[:, :1]
    gaze = slice(MOTION_CHANNELS.index("gaze_x"), MOTION_CHANNELS.index("gaze_y") + 1)
    motion = torch.cat((motion[:, : gaze.start], motion[:, gaze] * seen, motion[:, gaze.stop :]), 1)
    # Some traits are hidden (the hair of a bald head); a Huber loss doesn't chase them.
    identity = F.smooth_l1_loss(reading.identity, truth.identity)
    places = torch.cat((reading.mouth_xy - truth.mouth_xy, reading.eye_xy - truth.eye_xy), 1).abs().mean()
    loss = 10 * mouth[:, 0].mean() + 4 * mouth[:, 1:].mean() + 4 * motion.mean() + identity + 0.05 * places
    figures = {
        "open": mouth[:, 0].mean(),
        "blink": motion[:, 0].mean(),
        "gaze": motion[:, gaze].mean(),
        "identity": identity,
        "pixels": places,
    }
    return loss, figures


@torch.no_grad()
def _sample(pool: ClipPool, autoencoder: Autoencoder, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """clip [batch], frame [batch], images float32 [batch, 3, H, W]; decoded frames first."""
    device = pool.frames.device
    chunks = max(1, round(batch * DECODED_SHARE / FRAMES_PER_CHUNK))
    # Identity, which the reader learns too, is known of drawn characters only.
    clip = torch.randint(pool.drawn, (chunks,), device=device)
    chunk = torch.randint(1, pool.chunks, (chunks,), device=device)
    pair = torch.cat((pool.chunk_frames(clip, chunk), pool.chunk_frames(clip, chunk - 1)))
    with torch.autocast(device.type, torch.bfloat16):
        latents = autoencoder.encode(pair).float()
        mix = torch.rand(len(latents), 1, 1, 1, device=device) * LATENT_NOISE
        latents = (1 - mix) * latents + mix * torch.randn_like(latents)
        decoded = autoencoder.decode(*latents.chunk(2)).float().clamp(0, 1)
    frame = chunk[:, None] * FRAMES_PER_CHUNK + torch.arange(FRAMES_PER_CHUNK, device=device)
    clip = clip[:, None].expand_as(frame)

    rendered = max(0, batch - decoded.shape[0] * FRAMES_PER_CHUNK)
    other_clip = torch.randint(pool.drawn, (rendered,), device=device)
    other_frame = torch.randint(pool.chunks * FRAMES_PER_CHUNK, (rendered,), device=device)
    images = torch.cat((decoded.flatten(0, 1), pool.frames[other_clip, other_frame].float() / 255))
    return torch.cat((clip.flatten(), other_clip)), torch.cat((frame.flatten(), other_frame)), images


@torch.no_grad()
def augment(images: Tensor) -> Tensor:
    """Slight changes of colour, sharpness and noise: [batch, 3, H, W] in [0, 1] -> the same shape.

    Colours move by about two 255ths, less than what would make another character.
    """
    batch, device = len(images), images.device

    def normal(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, device=device)

    gain, offset = 1 + 0.01 * normal(3, 1, 1), 0.006 * normal(3, 1, 1)
    blurred = F.avg_pool2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    # Half of the images stay as sharp as they are; some are sharpened, as one-step samplers tend to do.
    blur = (torch.rand(batch, 1, 1, 1, device=device) * 1.4 - 0.4) * (torch.rand(batch, 1, 1, 1, device=device) < 0.5)
    noise = torch.rand(batch, 1, 1, 1, device=device) * 0.02
    return (torch.lerp(images, blurred, blur) * gain + offset + noise * torch.randn_like(images)).clamp(0, 1)
