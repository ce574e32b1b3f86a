"""The model under measurement in FP8."""

from __future__ import annotations

import torch

from characters.evaluation.bench import Bench
from characters.evaluation.heldout import HeldoutClip
from characters.evaluation.rollout import condition
from characters.evaluation.subjects import Speech, heldout_identities, heldout_motion, neutral_portraits
from characters.model.calibrate import calibrate
from characters.model.quantise import Mode, quantise_dit

# Enough speech and motion for the magnitudes of a stream. The measured characters are others.
ROWS, CHUNKS, SEED = 8, 12, 1000


@torch.inference_mode()
def to_fp8(bench: Bench, mode: Mode, clips: list[HeldoutClip]) -> None:
    """Quantise the DiT of a bench in place: its products, and the KV cache of every stream."""
    seed = bench.seed + SEED
    quantise_dit(bench.dit, mode)
    portraits = bench.portraits(neutral_portraits(heldout_identities(ROWS, seed=seed, device=bench.device)))
    mel = Speech.tracks(clips, ROWS, CHUNKS, seed).mel.to(bench.device, bench.dtype)
    motion = heldout_motion(ROWS, CHUNKS, seed=seed, device=bench.device)
    still = bench.dit.conditioning.reference(ROWS).to(bench.dtype)
    tokens = torch.stack(list(condition(bench.dit, mel, motion)))
    calibrate(bench.dit, portraits, still, tokens, seed=seed, chunks=CHUNKS)
