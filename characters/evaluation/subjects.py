"""The subjects of measurement: characters, motion and speech that training never saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from characters.chunk import FRAMES_PER_CHUNK, MEL_BINS, MEL_FRAMES_PER_CHUNK, MOTION_CHANNELS, MOUTH_CHANNELS
from characters.drawing import Identities, render, repeat_frames, sample_identities, select
from characters.evaluation.heldout import HeldoutClip
from characters.evaluation.rollout import to_bytes
from characters.generate.hearing import SILENCE, log_mel
from characters.generate.motion import IdleMotion

# Training draws identities and motion with seeds far below this one.
HELDOUT_SEED = 900_000_000
RENDER_BATCH = 256
LEAD_IN = 12  # chunks of idle motion to drop, because nobody blinks in the first second
PAUSES = (2, 12)  # fewest and most chunks of silence between the sentences of a long track


def heldout_identities(count: int, *, seed: int, device: torch.device | str) -> Identities:
    """Characters that training never drew: two thirds are people, the rest are animals and robots in turn."""
    kinds = [2 if i % 6 == 5 else 1 if i % 3 == 2 else 0 for i in range(count)]
    pool = sample_identities(16 * count + 64, seed=HELDOUT_SEED + seed)
    rows = {kind: (pool["kind"] == kind).nonzero()[:, 0].tolist() for kind in (0, 1, 2)}
    chosen = select(pool, [rows[kind].pop(0) for kind in kinds])
    return {name: value.to(device) for name, value in chosen.items()}


def heldout_motion(rows: int, chunks: int, *, seed: int, device: torch.device | str, sway: float = 1.0) -> Tensor:
    """Idle motion that training never saw: float32 [rows, 4 * chunks, 12]."""
    idle = IdleMotion(rows, seed=HELDOUT_SEED + seed, sway=sway)
    for _ in range(LEAD_IN):
        idle.next_chunk()
    return torch.cat([idle.next_chunk() for _ in range(chunks)], 1).to(device)


def neutral_portraits(identities: Identities) -> Tensor:
    """Each character at rest with its mouth shut: uint8 [n, 3, H, W]."""
    like = identities["kind"]
    motion = like.new_zeros(len(like), 1, len(MOTION_CHANNELS))
    return draw(identities, motion, like.new_zeros(len(like), 1, len(MOUTH_CHANNELS)))[:, 0]


@torch.inference_mode()
def draw(identities: Identities, motion: Tensor, mouth: Tensor) -> Tensor:
    """The truth: rows of rendered frames.

    Args:
        identities: n rows; motion: [n, frames, 12]; mouth: [n, frames, 5].

    Returns:
        uint8 [n, frames, 3, H, W], on the identities' device.
    """
    device = identities["kind"].device
    each = repeat_frames(identities, motion.shape[1])
    flat, said = motion.flatten(0, 1).to(device), mouth.flatten(0, 1).to(device)
    parts = []
    for first in range(0, len(flat), RENDER_BATCH):
        rows = slice(first, first + RENDER_BATCH)
        parts.append(to_bytes(render(select(each, rows), flat[rows], said[rows])))
    return torch.cat(parts).unflatten(0, motion.shape[:2])


@dataclass(frozen=True)
class Speech:
    """Speech of several rows, padded to one length with silence.

    Attributes:
        mel: float32 [rows, 16 * chunks, 80]; mouth: float32 [rows, 4 * chunks, 5]; on the CPU.
        frames: video frames of each row before the padding.
    """

    mel: Tensor
    mouth: Tensor
    frames: list[int]

    @property
    def chunks(self) -> int:
        return self.mouth.shape[1] // FRAMES_PER_CHUNK

    @staticmethod
    def of(clips: Sequence[HeldoutClip], limit: int | None = None) -> Speech:
        """One row a clip; `limit` cuts clips to so many chunks."""
        longest = max(len(clip.mouth) for clip in clips) // FRAMES_PER_CHUNK
        chunks = min(longest, limit or longest)
        mel, mouth = silence(len(clips), chunks)
        frames = []
        for row, clip in enumerate(clips):
            count = min(len(clip.mouth), chunks * FRAMES_PER_CHUNK)
            heard = log_mel(clip.pcm)[: chunks * MEL_FRAMES_PER_CHUNK]
            mel[row, : len(heard)] = torch.from_numpy(heard)
            mouth[row, :count] = torch.from_numpy(clip.mouth[:count])
            frames.append(count)
        return Speech(mel, mouth, frames)

    @staticmethod
    def tracks(clips: Sequence[HeldoutClip], rows: int, chunks: int, seed: int) -> Speech:
        """Long tracks: clips in random order, repeated, with pauses between them."""
        random = np.random.default_rng(seed)
        heard = [torch.from_numpy(log_mel(clip.pcm)) for clip in clips]
        mel, mouth = silence(rows, chunks)
        for row in range(rows):
            at, order = 0, list[int]()
            while at < chunks:
                order = order or list(random.permutation(len(clips)))
                index = order.pop()
                count = min(len(clips[index].mouth) // FRAMES_PER_CHUNK, chunks - at)
                span = slice(at * MEL_FRAMES_PER_CHUNK, (at + count) * MEL_FRAMES_PER_CHUNK)
                mel[row, span] = heard[index][: count * MEL_FRAMES_PER_CHUNK]
                said = clips[index].mouth[: count * FRAMES_PER_CHUNK]
                mouth[row, at * FRAMES_PER_CHUNK : (at + count) * FRAMES_PER_CHUNK] = torch.from_numpy(said)
                at += count + int(random.integers(*PAUSES, endpoint=True))
        return Speech(mel, mouth, [chunks * FRAMES_PER_CHUNK] * rows)


def silence(rows: int, chunks: int) -> tuple[Tensor, Tensor]:
    """Digital silence and a shut mouth: mel [rows, 16 * chunks, 80], mouth [rows, 4 * chunks, 5]."""
    mel = torch.full((rows, chunks * MEL_FRAMES_PER_CHUNK, MEL_BINS), SILENCE)
    return mel, torch.zeros(rows, chunks * FRAMES_PER_CHUNK, len(MOUTH_CHANNELS))
