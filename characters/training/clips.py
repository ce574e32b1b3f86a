"""Training data on the device: the speech corpus, and a pool of clips rendered once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from characters.chunk import FRAMES_PER_CHUNK, MEL_BINS, MEL_FRAMES_PER_CHUNK, MOTION_CHANNELS, MOUTH_CHANNELS
from characters.drawing import (
    HEIGHT,
    WIDTH,
    Identities,
    eye_centre,
    mouth_centre,
    render,
    repeat_frames,
    sample_identities,
    select,
)
from characters.errors import UserError
from characters.evaluation.rollout import to_bytes
from characters.generate.hearing import AHEAD_FRAMES, PAST_FRAMES, dequantise
from characters.generate.motion import IdleMotion
from characters.training.loop import Workers, in_batches
from characters.training.recipe import Recipe

# Frames drawn at once: they fill a GPU, and leave its memory to the pool.
RENDER_BATCH = 256
PEOPLE_SEEDS = 100_000  # seeds of people that a seed of a pool owns


@dataclass
class Corpus:
    """Speech, as features and as mouth movement.

    Attributes:
        mel: uint8 [4 * frames, 80], see `audio_features.quantise`.
        mouth: float32 [frames, 5], MOUTH_CHANNELS.
    """

    mel: Tensor
    mouth: Tensor

    @staticmethod
    def load(path: Path, device: torch.device) -> Corpus:
        """Read what `python -m characters.training.speech_corpus` wrote.

        Raises:
            UserError: the file is missing, damaged or not a corpus.
        """
        made = f"`characters corpus --out {path.parent}`"
        if not path.is_file():
            raise UserError(f"no speech corpus at {path}; make one with {made}")
        try:
            with np.load(path, allow_pickle=False) as data:
                mel, mouth = data["mel"], data["mouth"].astype(np.float32)
        except Exception as e:  # on a damaged file NumPy and zipfile raise anything
            raise UserError(f"{path} is not a speech corpus, or it is damaged; make it again with {made}") from e
        if mel.shape != (4 * len(mouth), MEL_BINS) or mouth.shape[1:] != (len(MOUTH_CHANNELS),):
            raise UserError(f"{path} is not a speech corpus; make one with {made}")
        return Corpus(torch.from_numpy(mel).to(device), torch.from_numpy(mouth).to(device))

    @property
    def chunks(self) -> int:
        """Whole chunks in the corpus."""
        return len(self.mouth) // FRAMES_PER_CHUNK

    def heard(self, first_chunk: Tensor, chunks: int) -> Tensor:
        """What consecutive chunks hear: first_chunk [batch] -> float32 [batch, 32 + 16 * chunks, 80]."""
        count = PAST_FRAMES + chunks * MEL_FRAMES_PER_CHUNK + AHEAD_FRAMES
        offsets = torch.arange(count, device=self.mel.device) - PAST_FRAMES
        rows = first_chunk[:, None] * MEL_FRAMES_PER_CHUNK + offsets
        return dequantise(self.mel[rows.clamp(0, len(self.mel) - 1)])

    def mouths(self, first_chunk: Tensor, chunks: int) -> Tensor:
        """first_chunk [batch] -> float32 [batch, 4 * chunks, 5]."""
        offsets = torch.arange(chunks * FRAMES_PER_CHUNK, device=self.mouth.device)
        return self.mouth[first_chunk[:, None] * FRAMES_PER_CHUNK + offsets]


@dataclass
class ClipPool:
    """Rendered clips of drawn characters, then of people; no two are alike.

    Attributes:
        corpus: where the clips' speech comes from.
        first_chunk: int64 [clips], start of each clip in the corpus.
        identities: of the drawn clips.
        frames: uint8 [clips, 4 * chunks, 3, H, W].
        portraits: uint8 [clips, 3, H, W], each clip's character at rest.
        motion: float32 [clips, 4 * chunks, 12]; mouth: float32 [clips, 4 * chunks, 5].
        mouth_xy, eye_xy: float32 [clips, 4 * chunks, 2], centres in pixels.
    """

    corpus: Corpus
    first_chunk: Tensor
    identities: Identities
    frames: Tensor
    portraits: Tensor
    motion: Tensor
    mouth: Tensor
    mouth_xy: Tensor
    eye_xy: Tensor

    @property
    def clips(self) -> int:
        return len(self.frames)

    @property
    def drawn(self) -> int:
        """How many of the clips are drawn; they come first."""
        return len(self.identities["kind"])

    @property
    def chunks(self) -> int:
        return self.frames.shape[1] // FRAMES_PER_CHUNK

    @staticmethod
    def render(recipe: Recipe, corpus: Corpus, workers: Workers) -> ClipPool:
        """Draw `recipe.clips` clips, a share of them of people; the same seed and rank give the same clips.

        Raises:
            UserError: the corpus is shorter than a clip, or people are wanted and cannot be drawn here.
        """
        device, clips, chunks = workers.device, recipe.clips, recipe.chunks
        seed = recipe.seed * 1_000_003 + workers.rank
        generator = torch.Generator().manual_seed(seed)
        latest = corpus.chunks - chunks - -(-AHEAD_FRAMES // MEL_FRAMES_PER_CHUNK)
        if latest <= 2:
            raise UserError(f"the speech corpus has {corpus.chunks} chunks; clips of {chunks} need a longer one")
        first_chunk = torch.randint(2, latest, (clips,), generator=generator).to(device)
        people = round(recipe.people * clips)
        drawn = clips - people
        identities = sample_identities(drawn, seed=seed, device=device)
        if recipe.scatter:
            motion = scattered_motion(clips, chunks, generator).to(device)
        else:
            sway = 1 - (1 - recipe.calm) * torch.rand(clips, 1, generator=generator)
            motion = idle_motion(clips, chunks, seed, sway).to(device)
        mouth = corpus.mouths(first_chunk, chunks)
        count = chunks * FRAMES_PER_CHUNK
        pool = ClipPool(
            corpus,
            first_chunk,
            identities,
            torch.empty(clips, count, 3, HEIGHT, WIDTH, dtype=torch.uint8, device=device),
            torch.empty(clips, 3, HEIGHT, WIDTH, dtype=torch.uint8, device=device),
            motion,
            mouth,
            torch.empty(clips, count, 2, device=device),
            torch.empty(clips, count, 2, device=device),
        )
        if people:
            pool.render_people(slice(drawn, clips), seed, recipe.looks, show=workers.rank == 0)
        bar = tqdm(total=drawn, desc="rendering", disable=workers.rank > 0, mininterval=5)

        def draw(rows: slice) -> None:
            some = select(identities, torch.arange(rows.start, rows.stop, device=device))
            each = repeat_frames(some, count)
            flat = motion[rows].flatten(0, 1)
            pool.frames[rows] = to_bytes(render(each, flat, mouth[rows].flatten(0, 1))).unflatten(0, (-1, count))
            pool.mouth_xy[rows] = mouth_centre(each, flat).unflatten(0, (-1, count))
            pool.eye_xy[rows] = eye_centre(each, flat).unflatten(0, (-1, count))
            bar.update(rows.stop - rows.start)

        in_batches(drawn, max(1, RENDER_BATCH // count), draw)
        bar.close()

        # Portraits are nearly neutral; a few speak, so that the model takes pictures with an open mouth too.
        rest = torch.randn(clips, len(MOTION_CHANNELS), generator=generator).mul(0.15).to(device)
        rest[:, 0] = 0
        speaking = (torch.rand(clips, 1, generator=generator) < 0.15).to(device)
        still = torch.where(speaking, mouth[:, 0], torch.zeros_like(mouth[:, 0]))

        def draw_portrait(rows: slice) -> None:
            some = select(identities, torch.arange(rows.start, rows.stop, device=device))
            pool.portraits[rows] = to_bytes(render(some, rest[rows], still[rows]))

        in_batches(drawn, RENDER_BATCH, draw_portrait)
        return pool

    def render_people(self, rows: slice, seed: int, looks: int, *, show: bool) -> None:
        """Fill rows with clips of people, whose motion and speech are there. OpenGL is done before training begins,
        because both at once starve each other."""
        from characters.people.clips import film_people, spare_processors
        from characters.people.renderer import Renderer

        renderer = Renderer(WIDTH, HEIGHT)
        motion, mouth = self.motion[rows].cpu(), self.mouth[rows].cpu()
        filmed = film_people(renderer, seed * PEOPLE_SEEDS, motion, mouth, looks, spare_processors())
        bar = tqdm(filmed, total=len(motion), desc="people", disable=not show, mininterval=5)
        for row, clip in enumerate(bar, rows.start):
            self.frames[row] = torch.from_numpy(clip.frames.copy()).to(self.frames.device).permute(0, 3, 1, 2)
            self.portraits[row] = torch.from_numpy(clip.portrait.copy()).to(self.frames.device).permute(2, 0, 1)
            self.motion[row] = clip.motion.to(self.frames.device)
            self.mouth_xy[row] = torch.from_numpy(clip.mouth_xy).to(self.frames.device)
            self.eye_xy[row] = torch.from_numpy(clip.eye_xy).to(self.frames.device)
        renderer.release()

    def chunk_frames(self, clip: Tensor, chunk: Tensor) -> Tensor:
        """clip, chunk int64 [batch] -> float32 [batch, 4, 3, H, W] in [0, 1]."""
        rows = chunk[:, None] * FRAMES_PER_CHUNK + torch.arange(FRAMES_PER_CHUNK, device=chunk.device)
        return self.frames[clip[:, None], rows].float() / 255

    def chunk_weights(self, clip: Tensor, chunk: Tensor) -> Tensor:
        """Pixel weights of `chunk_frames`, float32 [batch, 1, 1, H, W]: more at the mouth and the eyes."""
        middle = chunk * FRAMES_PER_CHUNK + FRAMES_PER_CHUNK // 2
        return focus(self.mouth_xy[clip, middle], self.eye_xy[clip, middle], 1)[:, None, None]

    def latent_weights(self, stride: int) -> Tensor:
        """The same for latents of every chunk: float32 [clips, chunks, 1, H / stride, W / stride]."""
        middle = slice(FRAMES_PER_CHUNK // 2, None, FRAMES_PER_CHUNK)
        return focus(self.mouth_xy[:, middle], self.eye_xy[:, middle], stride)[:, :, None]


def idle_motion(clips: int, chunks: int, seed: int, sway: Tensor) -> Tensor:
    """float32 [clips, 4 * chunks, 12], as a stream moves; sway: [clips, 1]."""
    idle = IdleMotion(clips, seed=seed, sway=sway)
    return torch.cat([idle.next_chunk() for _ in range(chunks)], 1)


def scattered_motion(clips: int, chunks: int, generator: torch.Generator) -> Tensor:
    """float32 [clips, 4 * chunks, 12]: any value, changing slowly; in half of the clips each frame may blink."""
    frames = chunks * FRAMES_PER_CHUNK

    def uniform(*shape: int) -> Tensor:
        return 2 * torch.rand(*shape, generator=generator) - 1

    channels = len(MOTION_CHANNELS)
    drift = uniform(clips, 1, channels) * torch.linspace(-0.3, 0.3, frames)[:, None]
    motion = (uniform(clips, 1, channels) + drift).clamp(-1, 1)
    blinking = torch.rand(clips, 1, generator=generator) < 0.5
    lids = (1.6 * torch.rand(clips, frames, generator=generator) - 0.3).clamp(0, 1)
    motion[..., MOTION_CHANNELS.index("blink")] = torch.where(blinking, lids, 0.0)
    return motion


def focus(mouth: Tensor, eyes: Tensor, stride: int) -> Tensor:
    """Weights of 1 plus 5 around the mouth plus 3 around the eyes.

    Args:
        mouth, eyes: [..., 2], centres (x, y) in pixels.
        stride: pixels per weight.

    Returns:
        [..., H / stride, W / stride].
    """
    y = (torch.arange(HEIGHT // stride, device=mouth.device) + 0.5) * stride
    x = (torch.arange(WIDTH // stride, device=mouth.device) + 0.5) * stride

    def bump(centre: Tensor, width: float, height: float) -> Tensor:
        across = ((x - centre[..., :1]) / width) ** 2
        down = ((y - centre[..., 1:]) / height) ** 2
        return torch.exp(-0.5 * (across[..., None, :] + down[..., :, None]))

    return 1 + 5 * bump(mouth, 24.0, 18.0) + 3 * bump(eyes, 34.0, 14.0)
