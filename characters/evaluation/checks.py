"""Checks of what the other measurements rely on: reader, autoencoder and artefact measure, on rendered truth."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from characters.chunk import FRAMES_PER_CHUNK, MOTION_CHANNELS, MOUTH_CHANNELS
from characters.drawing import Identities, eye_centre, identity_vector, mouth_centre, repeat_frames, select
from characters.evaluation.artefacts import score_maps, window_score
from characters.evaluation.bench import Amount, Bench, numpy
from characters.evaluation.heldout import HeldoutClip
from characters.evaluation.metrics import Agreement, correlation, mean_of_defined, mouth_box_psnr, psnr, rms
from characters.evaluation.planted import STRENGTHS, validate
from characters.evaluation.reader import Reading
from characters.evaluation.registration import BOUNDS, register
from characters.evaluation.report import Figure
from characters.evaluation.rollout import encode_clips
from characters.evaluation.subjects import Speech, draw, heldout_identities, heldout_motion, neutral_portraits

ROWS = 8  # characters whose frames are in memory at once
CHECKED = ("open", "wide", "round", "blink", "gaze_x", "gaze_y", "yaw")


def measure(bench: Bench, amount: Amount, clips: list[HeldoutClip]) -> list[Figure]:
    """Measure reader, autoencoder and artefact measure on characters, motion and speech that training never saw."""
    rows, chunks = amount.identities, amount.check_chunks
    identities = heldout_identities(rows, seed=bench.seed, device=bench.device)
    motion = heldout_motion(rows, chunks, seed=bench.seed, device=bench.device)
    # From the middle of sentences, because a silent mouth would be easy.
    speech = Speech.of([clips[i % len(clips)] for i in range(rows)])
    start = max(0, min(8, speech.chunks - chunks)) * FRAMES_PER_CHUNK
    mouth = speech.mouth[:, start : start + chunks * FRAMES_PER_CHUNK].to(bench.device)

    rendered, decoded, quality, box = [], [], [], []
    for first in range(0, rows, ROWS):
        part = slice(first, first + ROWS)
        who = select(identities, part)
        truth = draw(who, motion[part], mouth[part])
        images = through_autoencoder(bench, truth, neutral_portraits(who))
        centre = mouth_centre(repeat_frames(who, truth.shape[1]), motion[part].flatten(0, 1))
        flat = [x.flatten(0, 1).float() / 255 for x in (images, truth)]
        quality.append(psnr(*flat))
        box.append(mouth_box_psnr(*flat, centre))
        rendered.append(bench.read(truth))
        decoded.append(bench.read(images))
    traits = bench.reader.normalise(identity_vector(identities))
    said, moved = numpy(mouth), numpy(motion)
    through = Agreement.of(list(said[..., 0]), list(numpy(_join(decoded).mouth)[..., 0]))
    figures = _reader_figures(_join(rendered), said, moved, traits, "frames as rendered", at_least=0.99)
    figures += _reader_figures(_join(decoded), said, moved, traits, "frames through the autoencoder")
    figures += [
        Figure("autoencoder", "PSNR", sum(quality) / len(quality), "dB", at_least=32),
        Figure("autoencoder", "PSNR of the mouth box", sum(box) / len(box), "dB", at_least=28),
        Figure("autoencoder", "mouth opening, correlation", through.mean),
        Figure("autoencoder", "mouth opening, correlation within chunks", through.within, at_least=0.95),
    ]
    return figures + _planted_figures(bench, amount, identities, motion, mouth)


def through_autoencoder(bench: Bench, frames: Tensor, portraits: Tensor) -> Tensor:
    """What the autoencoder makes of whole clips: uint8 [rows, 4 * chunks, 3, H, W] -> the same."""
    latents = encode_clips(bench.autoencoder, frames)
    return bench.frames(latents, bench.portraits(portraits), 0, latents.shape[1])


@torch.inference_mode()
def judge(bench: Bench, identities: Identities, motion: Tensor, mouth: Tensor, frames: Tensor) -> Tensor:
    """Artefact scores of windows of generated frames.

    Each place of a frame may agree with one of three pictures: of the controls, of what the reader sees (a character
    that looks elsewhere than told has no artefact), or of either face in the pose that fits the frame best
    (`register`). The later pictures cost more and can only lower a score, so they are drawn only for windows in which
    the earlier ones leave an artefact.

    Args:
        identities: rows. motion: [rows, n, 12] and mouth: [rows, n, 5], the controls.
        frames: uint8 [rows, n, 3, H, W], one window a row.

    Returns:
        float32 [rows], see `window_score`; 1 or more is an artefact. A score below 1 is an upper bound.
    """
    maps = _maps(frames, draw(identities, motion, mouth), moving_parts(identities, motion))
    for pictures in (_as_read, _fitted):
        bad = (window_score(maps) >= 1).nonzero()[:, 0]
        if not len(bad):
            break
        who, moves, says, shown = select(identities, bad), motion[bad], mouth[bad], frames[bad]
        for truth in pictures(bench, who, moves, says, shown):
            maps[bad] = torch.minimum(maps[bad], _maps(shown, truth, moving_parts(who, moves)))
    return window_score(maps)


def _maps(frames: Tensor, truth: Tensor, moving: list[Tensor]) -> Tensor:
    """`score_maps` by window: [rows, n, h, w]."""
    return score_maps(frames.flatten(0, 1), [truth.flatten(0, 1)], moving).unflatten(0, frames.shape[:2])


def _read(bench: Bench, frames: Tensor) -> tuple[Tensor, Tensor]:
    """Motion [rows, n, 12] and mouth [rows, n, 5] that the reader sees, within the range of the renderer."""
    reading = bench.read(frames)
    low = torch.tensor([0.0 if name == "blink" else -1.0 for name in MOTION_CHANNELS], device=frames.device)
    least = torch.tensor([-1.0 if name == "wide" else 0.0 for name in MOUTH_CHANNELS], device=frames.device)
    return reading.motion.clamp(max=1).maximum(low), reading.mouth.clamp(max=1).maximum(least)


def _as_read(bench: Bench, who: Identities, motion: Tensor, mouth: Tensor, frames: Tensor) -> list[Tensor]:
    """The picture of what the reader sees, uint8 like `frames`."""
    return [draw(who, *_read(bench, frames))]


def _fitted(bench: Bench, who: Identities, motion: Tensor, mouth: Tensor, frames: Tensor) -> list[Tensor]:
    """Pictures in the pose that fits best, with the face as read and as told, uint8 like `frames`."""
    seen, said = _read(bench, frames)
    posed = register(frames, who, motion, [(motion, mouth), (seen, said)])
    pose = torch.tensor([name in BOUNDS for name in MOTION_CHANNELS], device=frames.device)
    return [draw(who, torch.where(pose, posed, seen), said), draw(who, posed, mouth)]


def moving_parts(identities: Identities, motion: Tensor) -> list[Tensor]:
    """Centres of mouth and eyes in frames [rows, n], flat: two times [rows * n, 2]; see `score_maps`."""
    each = repeat_frames(identities, motion.shape[1])
    return [centre(each, motion.flatten(0, 1)) for centre in (mouth_centre, eye_centre)]


def _join(parts: list[Reading]) -> Reading:
    return Reading(*(torch.cat(p) for p in zip(*parts, strict=True)))


def _reader_figures(
    reading: Reading,
    mouth: np.ndarray,
    motion: np.ndarray,
    traits: Tensor,
    where: str,
    at_least: float | None = None,
) -> list[Figure]:
    group, figures = f"reader, {where}", []
    for name in CHECKED:
        if name in MOUTH_CHANNELS:
            column = MOUTH_CHANNELS.index(name)
            true, found = mouth[..., column].ravel(), numpy(reading.mouth)[..., column].ravel()
        else:
            column = MOTION_CHANNELS.index(name)
            true, found = motion[..., column].ravel(), numpy(reading.motion)[..., column].ravel()
        if name.startswith("gaze"):
            # A shut eye does not show where it looks.
            open_eyes = motion[..., 0].ravel() < 0.5
            true, found = true[open_eyes], found[open_eyes]
        goal = at_least if name == "open" else None
        figures.append(Figure(group, f"{name}, correlation", correlation(true, found), at_least=goal))
        figures.append(Figure(group, f"{name}, RMS error", mean_of_defined((true - found) ** 2) ** 0.5))
    figures.append(Figure(group, "identity, RMS error", float(rms(reading.identity - traits[:, None])), "sigma"))
    return figures


def _planted_figures(
    bench: Bench, amount: Amount, identities: Identities, motion: Tensor, mouth: Tensor
) -> list[Figure]:
    """Detection of planted artefacts in decoded frames whose controls are a little off, and false alarms."""
    rows, count = min(amount.planted_rows, len(motion)), min(amount.planted_frames, motion.shape[1])
    who = select(identities, slice(0, rows))
    # Spread over the window, like the frames of a long run. Decoded as one stream, because the decoder has a state.
    every = slice(0, count * (motion.shape[1] // count), motion.shape[1] // count)
    asked_motion, asked_mouth = motion[:rows, every], mouth[:rows, every]
    generator = torch.Generator().manual_seed(bench.seed)

    def off(x: Tensor, size: float) -> Tensor:
        return x[:rows] + size * torch.randn(rows, 1, x.shape[2], generator=generator).to(x)

    shown_motion, shown_mouth = off(motion, 0.08), off(mouth, 0.04).clamp(0, 1)
    for name, bound in BOUNDS.items():
        # Heads are a pixel or two away from where they were told to be.
        column = MOTION_CHANNELS.index(name)
        shown_motion[..., column] = off(motion[..., [column]], 0.3 * bound)[..., 0].clamp(-1, 1)
    shown_mouth[..., 1] = mouth[:rows, :, 1]
    images = through_autoencoder(bench, draw(who, shown_motion, shown_mouth), neutral_portraits(who))[:, every]
    false, found = validate(
        images.float() / 255,
        lambda spoilt: judge(bench, who, asked_motion, asked_mouth, spoilt),
        who,
        shown_motion[:, every],
        shown_mouth[:, every],
    )
    group = "artefact measure"
    figures = [Figure(group, "false alarms", false, at_most=0.02)]
    for detection in found:
        # The measure may miss faint artefacts, but none that a viewer would notice.
        goal = None if detection.strength == STRENGTHS[detection.kind][0] else 0.9
        figures.append(Figure(group, f"{detection.kind} {detection.strength:g}, found", detection.rate, at_least=goal))
    return figures
