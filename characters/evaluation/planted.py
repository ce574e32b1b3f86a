"""Planted artefacts: frames spoilt on purpose show what the artefact measure finds and what it misses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from characters.drawing import Identities, render, repeat_frames
from characters.evaluation.rollout import to_bytes

KINDS = ("checkerboard", "ringing", "colour blob", "missing ear", "ghost edge")
# About: faint, noticeable to a viewer, obvious.
STRENGTHS = {
    "checkerboard": (0.06, 0.15, 0.3),
    "ringing": (0.5, 1.2, 2.0),
    "colour blob": (0.08, 0.2, 0.4),
    "missing ear": (0.5, 0.8, 1.0),
    "ghost edge": (0.2, 0.4, 0.6),
}
PATCH = 36  # pixels, the side of a spoilt patch


def plant(
    kind: str, strength: float, frames: Tensor, identities: Identities, motion: Tensor, mouth: Tensor, seed: int = 0
) -> Tensor:
    """Spoil the frames of one window each, in the same place over the whole window.

    Args:
        kind: one of KINDS.
        strength: amplitude (share of the full range) of a checkerboard or blob; gain of ringing; opacity of a ghost;
            how much of the ear is gone.
        frames: [rows, n, 3, H, W] in [0, 1]; identities: rows; motion [rows, n, 12], mouth [rows, n, 5]: what the
            frames show.
        seed: of the places.

    Returns:
        Like `frames`.
    """
    rows, count, _, height, width = frames.shape
    device = frames.device
    if kind == "missing ear":
        bare = {**identities, "has_ears": torch.zeros_like(identities["has_ears"])}
        earless, eared = (
            render(repeat_frames(who, count), motion.flatten(0, 1), mouth.flatten(0, 1)).view_as(frames)
            for who in (bare, identities)
        )
        right = torch.arange(width, device=device) >= width // 2
        return frames + strength * (earless - eared) * right
    generator = torch.Generator().manual_seed(seed)
    # Patches lie on the character's head and shoulders.
    x = torch.randint(30, width - 30 - PATCH, (rows, 1, 1), generator=generator).to(device)
    y = torch.randint(30, height - 30 - PATCH, (rows, 1, 1), generator=generator).to(device)
    column, row = torch.arange(width, device=device), torch.arange(height, device=device)[:, None]
    inside = (column >= x) & (column < x + PATCH) & (row >= y) & (row < y + PATCH)
    patch = inside[:, None, None].float()
    if kind == "checkerboard":
        pattern = (((column // 2 + row // 2) % 2) * 2 - 1).float()
        return (frames + strength / 2 * pattern * patch).clamp(0, 1)
    if kind == "ringing":
        flat = frames.flatten(0, 1)
        coarse = F.avg_pool2d(F.pad(flat, (4,) * 4, mode="replicate"), 9, 1)
        fine = F.avg_pool2d(F.pad(flat, (1,) * 4, mode="replicate"), 3, 1)
        # Overshoot and an echo on both sides of every edge, all over the frame.
        detail = fine - coarse
        echo = detail - 0.5 * (detail.roll(7, -1) + detail.roll(-7, -1))
        return (flat + strength * echo).clamp(0, 1).view_as(frames)
    if kind == "colour blob":
        distance = ((column - x - PATCH / 2).square() + (row - y - PATCH / 2).square()).float()
        blob = torch.exp(-distance / (2 * (PATCH / 4) ** 2))[:, None, None]
        sign = torch.tensor([1.0, -0.5, -1.0], device=device)[:, None, None]
        return (frames + strength * sign * blob).clamp(0, 1)
    if kind == "ghost edge":
        return torch.lerp(frames, frames.roll((5, 9), (-2, -1)), strength)
    raise ValueError(f"unknown kind of artefact {kind!r}; they are {', '.join(KINDS)}")


@dataclass(frozen=True)
class Detection:
    """How often planted artefacts of one kind and strength are found."""

    kind: str
    strength: float
    rate: float
    median_score: float


def validate(
    frames: Tensor,
    judge: Callable[[Tensor], Tensor],
    identities: Identities,
    motion: Tensor,
    mouth: Tensor,
) -> tuple[float, list[Detection]]:
    """Measure detection and false alarms on windows of frames.

    Args:
        frames: [rows, n, 3, H, W] in [0, 1]: frames without artefacts, such as rendered ones through the autoencoder.
        judge: scores [rows] of uint8 frames like `frames`. It sees only spoilt frames, because an artefact may
            mislead reader and registration too.
        identities, motion, mouth: what the frames show, as for `plant`.

    Returns:
        The rate of false alarms and the detections by kind and strength. Ears that hair covers do not count as missing.
    """
    detections = []
    for seed, kind in enumerate(KINDS):
        for strength in STRENGTHS[kind]:
            spoilt = plant(kind, strength, frames, identities, motion, mouth, seed)
            # Nobody sees a smaller difference over fewer pixels.
            visible = ((spoilt - frames).abs().amax(2) > 0.02).float().mean((1, 2, 3)) * frames[0, 0, 0].numel() > 80
            scores = judge(to_bytes(spoilt))[visible]
            rate = float((scores >= 1).double().mean()) if len(scores) else float("nan")
            median = float(scores.median()) if len(scores) else float("nan")
            detections.append(Detection(kind, strength, rate, median))
    return float((judge(to_bytes(frames)) >= 1).double().mean()), detections
