"""Speech for measuring lip-sync: sentences and voices that training never heard, with the mouth that says them.

Clips lie in `heldout/` as FLAC. It is lossless, so no codec delay shifts the samples against the curves.
`characters.training.heldout_set` makes the folder.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np

from characters.chunk import FPS, SAMPLE_RATE
from characters.errors import UserError

FOLDER = Path(__file__).parent / "heldout"


@dataclass(frozen=True, slots=True)
class HeldoutClip:
    """One sentence by one voice, with 0.3 s of silence before and at least 0.3 s after it.

    Attributes:
        name: such as "hibari-03".
        family: "hibari" (a training voice), "espeak" (a new voice of a training family), "flite-slt" or
            "flite-rms" (a new family).
        text: what is said.
        pcm: float32 [frames * 1000], mono at 24 kHz; frames is a multiple of 4.
        mouth: float32 [frames, 5], MOUTH_CHANNELS; row f belongs to the centre of video frame f.
    """

    name: str
    family: str
    text: str
    pcm: np.ndarray
    mouth: np.ndarray


def by_family(clips: Sequence[HeldoutClip]) -> dict[str, list[HeldoutClip]]:
    """Clips of each family, in their order."""
    families: dict[str, list[HeldoutClip]] = {}
    for clip in clips:
        families.setdefault(clip.family, []).append(clip)
    return families


def load_heldout() -> list[HeldoutClip]:
    """All clips: 16 sentences by 4 voices, in order of name within a family.

    Raises:
        UserError: the files are missing or damaged.
    """
    try:
        texts = json.loads((FOLDER / "heldout.json").read_text("utf8"))
        with np.load(FOLDER / "heldout.npz") as curves:
            clips = [
                HeldoutClip(
                    name,
                    name.rsplit("-", 1)[0],
                    text,
                    _decode(FOLDER / f"{name}.flac"),
                    curves[name].astype(np.float32),
                )
                for name, text in texts.items()
            ]
    except (OSError, KeyError, ValueError, av.FFmpegError) as error:
        raise UserError(
            f"The held-out speech in {FOLDER} is incomplete ({error}); install the package again."
        ) from error
    for clip in clips:
        if len(clip.pcm) * FPS != len(clip.mouth) * SAMPLE_RATE:
            raise UserError(f"{clip.name} in {FOLDER} has {len(clip.pcm)} samples but {len(clip.mouth)} mouth frames.")
    return clips


def _decode(path: Path) -> np.ndarray:
    """FLAC file -> float32 [n]."""
    with av.open(str(path)) as container:
        blocks = [frame.to_ndarray().reshape(-1) for frame in container.decode(audio=0)]
    return np.concatenate(blocks).astype(np.float32) / 32768
