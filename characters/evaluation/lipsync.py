"""Lip-sync and motion control: curves read off generated frames, against the curves that they were made from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from characters.chunk import MOTION_CHANNELS, MOUTH_CHANNELS
from characters.drawing import Identities, select
from characters.evaluation.bench import Amount, Bench, numpy
from characters.evaluation.heldout import HeldoutClip, by_family
from characters.evaluation.metrics import Agreement
from characters.evaluation.report import Figure
from characters.evaluation.subjects import Speech, heldout_identities, heldout_motion, neutral_portraits

ROWS = 16  # rows whose frames are in memory at once
GROUP_ROWS = 128  # rows that are generated in one batch
MOTION_GOALS = {"blink": 0.8, "gaze_x": 0.6, "gaze_y": 0.6}


@dataclass(frozen=True)
class Curves:
    """True and measured curves of every rollout, without the padding.

    Attributes:
        names: of the clips; mouth, read_mouth: [frames, 5] each; motion, read_motion: [frames, 12] each.
    """

    names: list[str]
    mouth: list[np.ndarray]
    read_mouth: list[np.ndarray]
    motion: list[np.ndarray]
    read_motion: list[np.ndarray]

    def agreement(self, channel: str, families: tuple[str, ...] = ()) -> Agreement:
        """How well a channel of mouth or motion follows, in clips of some families (prefixes of names; none = all)."""
        rows = [i for i, name in enumerate(self.names) if not families or name.startswith(families)]
        mouth = channel in MOUTH_CHANNELS
        column = (MOUTH_CHANNELS if mouth else MOTION_CHANNELS).index(channel)
        true, read = (self.mouth, self.read_mouth) if mouth else (self.motion, self.read_motion)
        return Agreement.of([true[i][:, column] for i in rows], [read[i][:, column] for i in rows])


def generate(bench: Bench, clips: list[HeldoutClip], per_clip: int, limit: int | None = None) -> Curves:
    """Let `per_clip` characters say each clip, always others, and read their frames."""
    jobs = [clip for clip in clips for _ in range(per_clip)]
    identities = heldout_identities(len(jobs), seed=bench.seed + 1, device=bench.device)
    curves = Curves([], [], [], [], [])
    # Clips of similar length go together, so that less padding is generated.
    order = sorted(range(len(jobs)), key=lambda i: len(jobs[i].mouth))
    for first in range(0, len(order), GROUP_ROWS):
        rows = order[first : first + GROUP_ROWS]
        who = select(identities, torch.tensor(rows, device=bench.device))
        _generate(bench, [jobs[i] for i in rows], who, limit, bench.seed + 1 + first, curves)
    return curves


def _generate(
    bench: Bench, clips: list[HeldoutClip], who: Identities, limit: int | None, seed: int, curves: Curves
) -> None:
    speech = Speech.of(clips, limit)
    motion = heldout_motion(len(clips), speech.chunks, seed=seed, device=bench.device)
    portraits = bench.portraits(neutral_portraits(who))
    latents = bench.roll(portraits, speech.mel, motion, "lip-sync")
    moved = numpy(motion)
    for first in range(0, len(clips), ROWS):
        part = slice(first, first + ROWS)
        reading = bench.read(bench.frames(latents[part], portraits[part], 0, speech.chunks))
        said, seen = numpy(reading.mouth), numpy(reading.motion)
        for row in range(len(said)):
            i, n = first + row, speech.frames[first + row]
            curves.names.append(clips[i].name)
            curves.mouth.append(numpy(speech.mouth[i, :n]))
            curves.read_mouth.append(said[row, :n])
            curves.motion.append(moved[i, :n])
            curves.read_motion.append(seen[row, :n])


def measure(bench: Bench, amount: Amount, clips: list[HeldoutClip]) -> tuple[list[Figure], Curves]:
    """Lip-sync by voice family, and how well motion is followed."""
    families = by_family(clips)
    chosen = [clip for family in families.values() for clip in family[: amount.clips]]
    curves = generate(bench, chosen, amount.per_clip, amount.clip_chunks)
    known = tuple(name for name in families if not name.startswith("flite"))
    figures = _open_figures(curves.agreement("open", known), "lip-sync, trained families", 0.9, 0.75)
    for family in families:
        goal = 0.8 if family.startswith("flite") else None
        figures += _open_figures(curves.agreement("open", (family,)), f"lip-sync, {family}", goal)
    for channel in ("wide", "round"):
        found = curves.agreement(channel, known)
        figures.append(Figure("mouth shape", f"{channel}, correlation", found.mean, at_least=0.8))
        figures.append(Figure("mouth shape", f"{channel}, pooled", found.pooled))
    for channel in ("teeth", "tongue"):
        figures.append(Figure("mouth shape", f"{channel}, pooled", curves.agreement(channel, known).pooled))
    for channel in MOTION_CHANNELS:
        found = curves.agreement(channel)
        figures.append(
            Figure("motion control", f"{channel}, correlation", found.pooled, at_least=MOTION_GOALS.get(channel))
        )
    return figures, curves


def _open_figures(found: Agreement, group: str, goal: float | None, within: float | None = None) -> list[Figure]:
    return [
        Figure(group, "open, correlation", found.mean, at_least=goal),
        Figure(group, "open, pooled", found.pooled),
        Figure(group, "open, |best lag|", abs(found.lag_frames), "frames", at_most=None if goal is None else 1),
        Figure(group, "open, best lag (positive: video late)", found.lag_ms, "ms"),
        Figure(group, "open, correlation at that lag", found.at_lag),
        Figure(group, "open, within chunks", found.within, at_least=within),
        Figure(group, "open, chunk means", found.chunk_mean),
        Figure(group, "open, RMS error", found.rms),
    ]
