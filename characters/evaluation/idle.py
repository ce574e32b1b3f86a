"""Silence: the mouth rests while blinks, gaze and sway go on."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from characters.chunk import CHUNK_SECONDS, FRAMES_PER_CHUNK, MOTION_CHANNELS, SAMPLES_PER_CHUNK
from characters.evaluation.bench import Amount, Bench, numpy
from characters.evaluation.heldout import HeldoutClip
from characters.evaluation.metrics import Movement, events_per_minute, shifts_per_minute
from characters.evaluation.report import Figure
from characters.evaluation.subjects import Speech, heldout_identities, heldout_motion, neutral_portraits, silence
from characters.generate.hearing import log_mel
from characters.generate.motion import LIVE_SWAY

NOISE_DB = -55.0  # of full scale: a quiet room through a microphone
ROWS = 4  # rows whose frames are in memory at once
SETTLE = 3  # chunks at the start that do not count


def measure(bench: Bench, amount: Amount, clips: list[HeldoutClip]) -> list[Figure]:
    """Compare the same characters under the same motion in digital silence, in low noise and in speech."""
    rows, chunks = amount.idle_rows, SETTLE + round(amount.idle_seconds / CHUNK_SECONDS)
    identities = heldout_identities(rows, seed=bench.seed + 2, device=bench.device)
    motion = heldout_motion(rows, chunks, seed=bench.seed + 2, device=bench.device, sway=LIVE_SWAY)
    spoken = Speech.tracks(clips, rows, chunks, bench.seed)
    mel = torch.cat((silence(rows, chunks)[0], noise(rows, chunks, NOISE_DB, bench.seed), spoken.mel))
    portraits = bench.portraits(neutral_portraits(identities)).repeat(3, 1, 1, 1)
    latents = bench.roll(portraits, mel, motion.repeat(3, 1, 1), "silence")
    mouths, moves = [], []
    for first in range(0, 3 * rows, ROWS):
        part = slice(first, first + ROWS)
        reading = bench.read(bench.frames(latents[part], portraits[part], 0, chunks)[:, SETTLE * FRAMES_PER_CHUNK :])
        mouths.append(numpy(reading.mouth))
        moves.append(numpy(reading.motion))
    quiet, noisy, talking = np.concatenate(mouths).reshape(3, rows, -1, mouths[0].shape[-1])[..., 0]
    seen = np.concatenate(moves)[:rows]
    asked = numpy(motion[:, SETTLE * FRAMES_PER_CHUNK :])
    speech = Movement.of(talking)
    group, figures = "silence", [Figure("silence", "mouth in speech, standard deviation", speech.std)]
    for name, curves in (("digital silence", quiet), (f"noise at {NOISE_DB:g} dB", noisy)):
        moved = Movement.of(curves)
        figures.append(Figure(group, f"mouth in {name}, share of speech", moved.share_of(speech), at_most=0.1))
        figures.append(Figure(group, f"mouth in {name}, mean opening", float(curves.mean())))
    blink, gaze = MOTION_CHANNELS.index("blink"), MOTION_CHANNELS.index("gaze_x")
    return figures + [
        Figure(group, "blinks", events_per_minute(seen[..., blink], 0.5), "/min"),
        Figure(group, "blinks asked for", events_per_minute(asked[..., blink], 0.5), "/min"),
        Figure(group, "gaze shifts", shifts_per_minute(seen[..., gaze]), "/min"),
        Figure(group, "gaze shifts asked for", shifts_per_minute(asked[..., gaze]), "/min"),
    ]


def noise(rows: int, chunks: int, decibels: float, seed: int) -> Tensor:
    """White noise of a level in dB of full scale, heard as log-mel: float32 [rows, 16 * chunks, 80]."""
    random = np.random.default_rng(seed)
    pcm = random.standard_normal((rows, chunks * SAMPLES_PER_CHUNK), dtype=np.float32) * 10 ** (decibels / 20)
    return torch.stack([torch.from_numpy(log_mel(row.astype(np.float32))) for row in pcm])
