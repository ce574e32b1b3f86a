"""Drift: the same characters minutes later, compared with what the renderer draws under the same controls."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from characters.chunk import CHUNK_SECONDS, FRAMES_PER_CHUNK
from characters.drawing import Identities, identity_vector, select
from characters.evaluation.artefacts import texture_against, window_score
from characters.evaluation.bench import Amount, Bench, numpy
from characters.evaluation.checks import judge, through_autoencoder
from characters.evaluation.heldout import HeldoutClip
from characters.evaluation.metrics import colour_shift, correlation, mean_of_defined, rms
from characters.evaluation.report import Figure
from characters.evaluation.subjects import Speech, draw, heldout_identities, heldout_motion, neutral_portraits
from characters.generate.motion import LIVE_SWAY

ROWS = 8  # characters whose frames are in memory at once
SHORT = 6  # chunks of a window between the ends, and of one that measures the autoencoder's floor


@dataclass(frozen=True)
class Window:
    """A part of the run, in chunks."""

    first: int
    chunks: int

    @property
    def seconds(self) -> float:
        """Middle of the window."""
        return (self.first + self.chunks / 2) * CHUNK_SECONDS


@dataclass
class Drift:
    """The measurements, with a row for each character and a column for each window.

    Attributes:
        windows: first, those between, last.
        kind: [rows], 0 human, 1 animal, 2 robot.
        artefact: scores, 1 = artefact; below 1 an upper bound (`judge`). texture: the score without a truth. colour:
            shift in 255ths.
        identity: RMS error of the traits; floor: the same for rendered truth through the autoencoder. sync:
            correlation of the mouth opening.
        pictures: uint8 [rows, columns, 3, H, W]: portrait, a frame of every window, and the truth of the last.
    """

    windows: list[Window]
    kind: np.ndarray
    artefact: np.ndarray
    texture: np.ndarray
    colour: np.ndarray
    identity: np.ndarray
    floor: np.ndarray
    sync: np.ndarray
    pictures: Tensor
    figures: list[Figure] = field(default_factory=list)

    def table(self) -> dict[str, list]:
        """Every character's numbers in every window, rounded, for the JSON report."""

        def rounded(x: np.ndarray) -> list[list[float]]:
            return np.round(x, 3).tolist()

        return {
            "seconds": [round(w.seconds, 2) for w in self.windows],
            "kind": [("human", "animal", "robot")[int(k)] for k in self.kind],
            "artefact": rounded(self.artefact),
            "colour": rounded(self.colour),
            "identity_ratio": rounded(self.identity / self.floor),
        }


def plan(amount: Amount) -> list[Window]:
    """The windows to measure: the first and last `edge_seconds`, and short ones between."""
    total = max(2, round(amount.minutes * 60 / CHUNK_SECONDS))
    edge = min(max(1, round(amount.edge_seconds / CHUNK_SECONDS)), total // 2)
    between = [Window(int(share * total), min(SHORT, total - int(share * total))) for share in amount.points]
    return [
        Window(0, edge),
        *(w for w in between if edge <= w.first and w.first + w.chunks <= total - edge),
        Window(total - edge, edge),
    ]


def measure(bench: Bench, amount: Amount, clips: list[HeldoutClip]) -> Drift:
    """One uninterrupted rollout of all characters at once, measured in a few windows."""
    rows, windows = amount.identities, plan(amount)
    chunks = windows[-1].first + windows[-1].chunks
    identities = heldout_identities(rows, seed=bench.seed + 3, device=bench.device)
    motion = heldout_motion(rows, chunks, seed=bench.seed + 3, device=bench.device, sway=LIVE_SWAY)
    speech = Speech.tracks(clips, rows, chunks, bench.seed + 3)
    portraits = neutral_portraits(identities)
    latents = bench.roll(bench.portraits(portraits), speech.mel, motion, "drift")
    parts = []
    for first in range(0, rows, ROWS):
        part = slice(first, first + ROWS)
        who, still = select(identities, part), portraits[part]
        mouth = speech.mouth[part].to(bench.device)
        looks = [
            _look(bench, who, still, latents[part], motion[part], mouth, window, amount.compared) for window in windows
        ]
        pictures = torch.stack([still, *(look.picture for look in looks), looks[-1].truth], 1)
        parts.append((looks, pictures.cpu()))

    def table(name: str) -> np.ndarray:
        return np.concatenate([np.stack([getattr(look, name) for look in looks], 1) for looks, _ in parts])

    drift = Drift(
        windows=windows,
        kind=numpy(identities["kind"]),
        pictures=torch.cat([pictures for _, pictures in parts]),
        **{name: table(name) for name in ("artefact", "texture", "colour", "identity", "floor", "sync")},
    )
    drift.figures = _figures(drift, amount)
    return drift


@dataclass(frozen=True)
class _Look:
    """One window of a few characters; arrays are [rows]."""

    artefact: np.ndarray
    texture: np.ndarray
    colour: np.ndarray
    identity: np.ndarray
    floor: np.ndarray
    sync: np.ndarray
    picture: Tensor
    truth: Tensor


def _look(
    bench: Bench,
    who: Identities,
    still: Tensor,
    latents: Tensor,
    motion: Tensor,
    mouth: Tensor,
    window: Window,
    compared: int,
) -> _Look:
    start, count = window.first * FRAMES_PER_CHUNK, window.chunks * FRAMES_PER_CHUNK
    motion, mouth = motion[:, start : start + count], mouth[:, start : start + count]
    portraits = bench.portraits(still)
    frames = bench.frames(latents, portraits, window.first, window.chunks)
    reading = bench.read(frames)
    opening, truth_opening = numpy(reading.mouth)[..., 0], numpy(mouth)[..., 0]

    some = torch.linspace(0, count - 1, min(count, compared), device=frames.device).round().long()
    shown = frames[:, some]
    artefact = judge(bench, who, motion[:, some], mouth[:, some], shown)
    truth = draw(who, motion[:, some], mouth[:, some])
    resting = bench.frames(portraits[:, None], portraits, 0, 1)[:, 0]
    texture = texture_against(shown.flatten(0, 1), resting.repeat_interleave(len(some), 0))

    # The floor: the error that the autoencoder alone makes in these traits.
    few = min(window.chunks, SHORT) * FRAMES_PER_CHUNK
    floor = bench.read(through_autoencoder(bench, draw(who, motion[:, :few], mouth[:, :few]), still))
    traits = bench.reader.normalise(identity_vector(who))[:, None]
    middle = len(some) // 2
    return _Look(
        artefact=numpy(artefact),
        texture=numpy(window_score(texture.unflatten(0, shown.shape[:2]))),
        colour=numpy(colour_shift(shown.float() / 255, truth.float() / 255)),
        identity=numpy(rms(reading.identity - traits, (1, 2))),
        floor=numpy(rms(floor.identity - traits, (1, 2))),
        sync=np.array([correlation(a, b) for a, b in zip(truth_opening, opening, strict=True)]),
        picture=shown[:, middle],
        truth=truth[:, middle],
    )


def _figures(drift: Drift, amount: Amount) -> list[Figure]:
    group = f"drift, {len(drift.kind)} characters x {amount.minutes:g} min"
    # All characters together: root mean square over them.
    identity, floor = (np.sqrt((x**2).mean(0)) for x in (drift.identity, drift.floor))
    ratio, every = identity / floor, drift.identity / drift.floor
    figures = [
        Figure(group, "characters with an artefact, at any time", float((drift.artefact >= 1).any(1).sum()), at_most=0),
        Figure(group, "characters with an artefact, at the end", float((drift.artefact[:, -1] >= 1).sum())),
        Figure(group, "artefact score, worst at the start", float(drift.artefact[:, 0].max())),
        Figure(group, "artefact score, worst at the end", float(drift.artefact[:, -1].max())),
        Figure(group, "foreign detail, worst at the start", float(drift.texture[:, 0].max())),
        Figure(group, "foreign detail, worst at the end", float(drift.texture[:, -1].max())),
        Figure(group, "colour shift at the end, mean", float(drift.colour[:, -1].mean()), "/255", at_most=3),
        Figure(group, "colour shift at the end, worst", float(drift.colour[:, -1].max()), "/255", at_most=3),
        Figure(group, "identity error / autoencoder's, start", float(ratio[0]), "x", at_most=1.25),
        Figure(group, "identity error / autoencoder's, end", float(ratio[-1]), "x", at_most=1.25),
        Figure(group, "identity error / autoencoder's, worst", float(every[:, -1].max()), "x"),
        Figure(group, "characters above 1.25 x at the end", float((every[:, -1] > 1.25).sum())),
        Figure(group, "open, correlation at the start", mean_of_defined(drift.sync[:, 0])),
        Figure(group, "open, correlation at the end", mean_of_defined(drift.sync[:, -1])),
    ]
    for kind, name in enumerate(("people", "animals", "robots")):
        mine = drift.kind == kind
        if mine.any():
            bad = float((drift.artefact[mine] >= 1).any(1).sum())
            figures.append(Figure(group, f"{name} with an artefact, of {int(mine.sum())}", bad))
    return figures
