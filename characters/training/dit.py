"""Stage 3: the video diffusion transformer, trained on its own predictions so that long streams stay stable."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from characters.chunk import MEL_FRAMES_PER_CHUNK
from characters.evaluation.artefacts import tile_differences
from characters.generate.hearing import WINDOW_FRAMES
from characters.model.autoencoder import Autoencoder
from characters.model.checkpoint import load_weights, save_weights
from characters.model.config import load_model_config
from characters.model.dit import DiT
from characters.model.rope import Rope3D
from characters.model.window import ClipWindow
from characters.training.augment import augment_mel
from characters.training.autoencoder import reconstruction_loss
from characters.training.clips import ClipPool
from characters.training.loop import Training, Workers, in_batches, split_optimisers
from characters.training.recipe import Recipe

# Share of clips whose previous latents are the true ones; the others continue from the model's own predictions.
TRUE_HISTORY = 0.08
# Largest share of noise in the previous latent.
CONTEXT_NOISE = 0.4
# Share of clips that let the model choose its motion.
FREE_MOTION = 0.1
# Rows of speech in a step that only the audio encoder hears, as a share of the clips.
EXTRA_SPEECH = 0.5
# In a refinement: share of clips chosen by how badly they were drawn last, and share of tiles that count as worst.
PRACTISED = 0.5
WORST_TILES = 0.02


class LatentPool:
    """The clips as latents, and what the model last made of them.

    `made` is a replay buffer of rollouts. A clip's previous latents come from it and its new predictions go back to it,
    so every visit makes the rollout a chunk longer without generating one. In this way errors that appear only
    after minutes of streaming reach training, each with its true target beside it.
    """

    def __init__(self, pool: ClipPool, autoencoder: Autoencoder) -> None:
        config, device = autoencoder, pool.frames.device
        channels = config.mean.shape[0]
        h, w = (s // 16 for s in pool.frames.shape[-2:])
        self.latents = torch.empty(pool.clips, pool.chunks, channels, h, w, dtype=torch.float16, device=device)
        self.portraits = torch.empty(pool.clips, channels, h, w, dtype=torch.float16, device=device)

        @torch.inference_mode()
        def encode(rows: slice) -> None:
            frames = pool.frames[rows].unflatten(1, (-1, 4)).flatten(0, 1).float() / 255
            self.latents[rows] = autoencoder.encode(frames).unflatten(0, (-1, pool.chunks)).half()
            self.portraits[rows] = autoencoder.encode_image(pool.portraits[rows].float() / 255).half()

        in_batches(pool.clips, 4, encode)
        self.made = self.latents.clone()
        self.weights = pool.latent_weights(16)
        self.weights = (self.weights / self.weights.mean((-1, -2), keepdim=True)).half()


def train_dit(recipe: Recipe, pool: ClipPool, autoencoder: Autoencoder, workers: Workers, folder: Path) -> DiT:
    """Train the DiT on clips of the pool and write dit.safetensors.

    A refinement (`recipe.refine`) starts from the folder's dit.safetensors.

    Returns:
        The averaged model in eval mode, float32.
    """
    device, stage, refining = workers.device, recipe.dit, recipe.refine > 0
    config = load_model_config(recipe.model)
    torch.manual_seed(recipe.seed)
    model = DiT(config).to(device)
    if refining:
        load_weights(model, folder / "dit.safetensors")
        model.conditioning.audio.requires_grad_(False)
    else:
        _start_as_still(model)
    torch.manual_seed(recipe.seed + 1000 * (workers.rank + 1))
    optimisers = split_optimisers(
        model,
        stage,
        device,
        lambda name, p: p.ndim == 2 and (name.startswith("blocks.") or ".audio.layers." in name),
    )
    training = Training("dit", stage, model, optimisers, workers, folder, average=0.999, log_every=recipe.log_every)
    if recipe.compile:
        for block in model.blocks.values():
            block.compile(dynamic=False)
    data = LatentPool(pool, autoencoder)
    autoencoder = autoencoder.eval().requires_grad_(False)
    chunks, batch = pool.chunks, stage.batch
    # The score that the evaluation's artefact measure would give each clip, when last seen.
    badness = torch.ones(pool.clips, device=device)
    window = ClipWindow(
        chunks=chunks,
        ring=config.ring,
        rope=Rope3D(model.head_dim, config.grid, config.dit.rope_theta),
        dtype=torch.bfloat16 if device.type == "cuda" else torch.float32,
        device=device,
    )
    for progress in training.steps():
        clip = torch.randint(pool.clips, (batch,), device=device)
        if refining:
            practised = _with_probability(PRACTISED, batch, device)
            odds = _even_odds(badness, pool.drawn).square()
            clip = torch.where(practised, torch.multinomial(odds, batch, replacement=True), clip)
        truth = data.latents[clip].float()
        still = _with_probability(0.2, batch, device)
        reference = torch.where(still[:, None, None, None], truth[:, 0], data.portraits[clip].float())
        previous = _history(data, clip, truth, reference, progress)
        level = _noise_levels(batch, chunks, device)
        mix = level[..., None, None, None]
        noisy = (1 - mix) * truth + mix * torch.randn_like(truth)
        mel = _windows(augment_mel(pool.corpus.heard(pool.first_chunk[clip], chunks)))
        motion = pool.motion[clip].unflatten(1, (chunks, 4))
        steered = (~_with_probability(FREE_MOTION, batch, device)).float()
        with torch.autocast(device.type, torch.bfloat16):
            tokens, mouth = model.conditioning(
                mel=mel, motion=motion.flatten(0, 1), steered=steered.repeat_interleave(chunks)
            )
            tokens = tokens.unflatten(0, (batch, chunks))
            lead = lambda first, rows: torch.cat((first[:, None], rows), 1).flatten(0, 1)  # noqa: E731
            out = model(
                lead(reference, noisy),
                lead(torch.zeros(batch, device=device), level),
                lead(model.conditioning.reference(batch), tokens),
                window,
                previous=lead(reference, previous),
                reference=reference.repeat_interleave(1 + chunks, 0),
            )
        made = out.float().unflatten(0, (batch, 1 + chunks))[:, 1:]
        data.made[clip] = made.detach().half()
        error = ((made - truth).square() * data.weights[clip]).mean((2, 3, 4))
        latent_loss = (error / (level + 0.2)).mean()
        mouth_loss = _mouth_error(mouth, pool.mouth[clip])
        if not refining:
            # Clips show a part of the speech; the audio encoder hears all of it.
            elsewhere = torch.randint(
                2, pool.corpus.chunks - chunks - 1, (max(1, round(EXTRA_SPEECH * batch)),), device=device
            )
            with torch.autocast(device.type, torch.bfloat16):
                _, mouth = model.conditioning.audio(_windows(augment_mel(pool.corpus.heard(elsewhere, chunks))))
            mouth_loss = (mouth_loss + _mouth_error(mouth, pool.corpus.mouths(elsewhere, chunks))) / 2
        loss = latent_loss + 2 * mouth_loss
        figures = {"mouth": mouth_loss, "noise": _mean_where(error, level == 1)}
        if refining or progress > 0.1:
            pixel_loss, worst, more = _pixel_loss(made, clip, pool, autoencoder)
            loss = loss + pixel_loss
            figures |= {"pixel": pixel_loss, "worst": worst.mean(), **more}
            if refining:
                loss = loss + recipe.refine * worst.mean()
                badness[clip] = worst.detach() + 1e-3
        training.update(loss, **figures)
    training.average.copy_to(model)
    if workers.rank == 0:
        save_weights(model, folder / "dit.safetensors")
    return model.eval()


def _start_as_still(model: DiT) -> None:
    """With a zero head the first prediction is the reference, and every block begins as the identity."""
    layers = [model.head.head]
    for block in model.blocks.values():
        layers += [block.self_attn.o, block.cross_attn.o, block.ffn[2]]
    for layer in layers:
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)


def _windows(heard: Tensor) -> Tensor:
    """[batch, 32 + 16 * chunks, 80] -> [batch * chunks, 48, 80]."""
    return heard.unfold(1, WINDOW_FRAMES, MEL_FRAMES_PER_CHUNK).transpose(2, 3).flatten(0, 1)


def _mouth_error(mouth: Tensor, truth: Tensor) -> Tensor:
    """mouth [batch * chunks, 4, 5], truth [batch, 4 * chunks, 5] -> mean squared error."""
    return (mouth.float() - truth.unflatten(1, (-1, 4)).flatten(0, 1)).square().mean()


def _with_probability(p: float, count: int, device: torch.device) -> Tensor:
    return torch.rand(count, device=device) < p


def _even_odds(badness: Tensor, drawn: int) -> Tensor:
    """Badness relative to the mean of a clip's own world: people are harder, and would crowd out the drawn ones."""
    worlds = [world / world.mean() for world in (badness[:drawn], badness[drawn:]) if len(world)]
    return torch.cat(worlds)


def _mean_where(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum() / mask.sum().clamp_min(1)


def _noise_levels(batch: int, chunks: int, device: torch.device) -> Tensor:
    """[batch, chunks]: pure noise for half of the clips (one-step streams), else a random level for each chunk."""
    level = torch.rand(batch, chunks, device=device)
    kind = torch.rand(batch, chunks, device=device)
    level = torch.where(kind < 0.35, torch.ones_like(level), level)
    level = torch.where(kind > 0.9, torch.zeros_like(level), level)  # the clean commit pass
    one_step = _with_probability(0.5, batch, device)[:, None]
    return torch.where(one_step, torch.ones_like(level), level)


def _history(data: LatentPool, clip: Tensor, truth: Tensor, reference: Tensor, progress: float) -> Tensor:
    """Previous latent of every chunk, noisy: [batch, chunks, channels, h, w]."""
    batch, device = len(clip), clip.device
    true_share = 1.0 if progress < 0.05 else TRUE_HISTORY
    own = ~_with_probability(true_share, batch, device)[:, None, None, None, None]
    source = torch.where(own, data.made[clip].float(), truth)
    # Before the first chunk: the portrait, or the end of the clip's last rollout, so that rollouts never end.
    endless = _with_probability(0.5, batch, device)[:, None, None, None]
    first = torch.where(endless & own[:, 0], source[:, -1], reference)
    previous = torch.cat((first[:, None], source[:, :-1]), 1)
    mix = torch.rand(batch, 1, 1, 1, 1, device=device) * CONTEXT_NOISE
    return (1 - mix) * previous + mix * torch.randn_like(previous)


def _pixel_loss(
    made: Tensor, clip: Tensor, pool: ClipPool, autoencoder: Autoencoder
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Decode one predicted chunk of every clip and compare it with the rendered frames.

    Returns:
        The loss; each clip's mean difference in its worst tiles, [batch]; figures for the log.
    """
    batch, chunks = made.shape[:2]
    row = torch.arange(batch, device=made.device)
    chunk = torch.randint(1, chunks, (batch,), device=made.device)
    with torch.autocast(made.device.type, torch.bfloat16):
        decoded = autoencoder.decode(made[row, chunk], made[row, chunk - 1].detach()).float()
    truth = pool.chunk_frames(clip[row], chunk)
    loss, figures = reconstruction_loss(decoded, truth, pool.chunk_weights(clip[row], chunk))
    tiles = tile_differences(decoded.flatten(0, 1), truth.flatten(0, 1)).unflatten(0, (batch, -1)).flatten(1)
    worst = tiles.topk(max(1, round(WORST_TILES * tiles.shape[1])), 1).values.mean(1)
    return loss, worst, figures
