"""Do photographs speak? Clips of pictures from a folder, with mouths read by `characters.evaluation.landmarks`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor

from characters.errors import UserError
from characters.evaluation.bench import Bench
from characters.evaluation.heldout import HeldoutClip, by_family, load_heldout
from characters.evaluation.landmarks import Landmarks, shape
from characters.evaluation.metrics import Agreement
from characters.evaluation.report import Figure, write_json
from characters.evaluation.subjects import Speech, heldout_motion, silence

KINDS = (".png", ".jpg", ".jpeg", ".webp")
SWAY = 0.4  # share of idle motion
PHOTOGRAPH_CHUNKS, SILENT_CHUNKS = 16, 12
FOLLOWS = 0.6  # correlation from which a mouth is seen to follow
# Where `characters new` puts a face.
EYES_AT, FACE_HEIGHT = (88.0, 118.0), 92.0
UPRIGHT = 10.0  # degrees of roll that stay


@dataclass(frozen=True)
class Photograph:
    """A picture whose face stands where the model expects it: uint8 [272, 176, 3]."""

    name: str
    image: np.ndarray


def load_photographs(folder: Path, landmarks: Landmarks, width: int, height: int) -> tuple[list[Photograph], list[str]]:
    """All pictures of a folder, cropped about the face; and the names of those without a face.

    Raises:
        UserError: the folder is missing, or no picture of it shows a face.
    """
    if not folder.is_dir():
        raise UserError(f"no folder {folder}; --photographs wants one with pictures of faces")
    found, without = [], []
    for path in sorted(p for p in folder.iterdir() if p.suffix.lower() in KINDS):
        with Image.open(path) as picture:
            image = np.asarray(picture.convert("RGB"))
        points = landmarks.find(image, 1)
        if points is None:
            without.append(path.name)
        else:
            found.append(Photograph(path.name, crop_face(image, points, width, height)))
    if not found:
        raise UserError(f"no picture in {folder} shows a face (looked for {', '.join(KINDS)})")
    return found, without


def crop_face(image: np.ndarray, points: np.ndarray, width: int, height: int) -> np.ndarray:
    """The part of a picture [h, w, 3] in which eyes and face are where the model expects them, upright."""
    eyes = points[[468, 473]]
    across = eyes[1] - eyes[0]
    roll = np.degrees(np.arctan2(across[1], across[0]))
    angle = np.radians(roll if abs(roll) > UPRIGHT else 0.0)
    face = float(np.linalg.norm(points[10] - points[152]))
    scale = FACE_HEIGHT / face * width / 176
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) / scale
    margin = int(3 * face)
    padded = np.pad(image, ((margin, margin), (margin, margin), (0, 0)), mode="edge")
    origin = eyes.mean(0) + margin - turn @ (np.array(EYES_AT) * width / 176)
    source = Image.fromarray(padded)
    if scale < 1:  # an affine transform alone would skip pixels
        source = source.filter(ImageFilter.GaussianBlur(0.35 / scale))
    affine = (turn[0, 0], turn[0, 1], origin[0], turn[1, 0], turn[1, 1], origin[1])
    return np.asarray(source.transform((width, height), Image.Transform.AFFINE, affine, Image.Resampling.BICUBIC))


@dataclass(frozen=True)
class Spoken:
    """What one photograph did.

    Attributes:
        opening, within: correlation of the mouth's opening with the speech, and inside chunks.
        quiet: motion of the mouth in silence, as a share of its motion in speech.
        identity: change of the face's shape from the first to the last second, by the distance of the eyes.
        found: share of frames in which a face was found.
    """

    name: str
    opening: float
    within: float
    quiet: float
    identity: float
    found: float


def agreement(said: np.ndarray, read: np.ndarray) -> tuple[float, float]:
    """Correlation and correlation inside chunks of two curves [n], of the frames where both are known."""
    known = np.isfinite(read)
    if known.sum() < 8 or read[known].std() < 1e-9:
        return float("nan"), float("nan")
    filled = np.interp(np.arange(len(read)), np.flatnonzero(known), read[known])
    found = Agreement.of([said], [filled])
    return found.mean, found.within


def speak(
    bench: Bench, landmarks: Landmarks, photographs: list[Photograph], clips: list[HeldoutClip], chunks: int
) -> list[Spoken]:
    """Let every photograph say a clip, and listen to silence."""
    said = [clips[i % len(clips)] for i in range(len(photographs))]
    images = torch.from_numpy(np.stack([p.image for p in photographs])).permute(0, 3, 1, 2)
    portraits = bench.portraits(images.to(bench.device))
    speech = Speech.of(said, chunks)
    talking = _frames(bench, portraits, speech.mel, speech.chunks, "photographs speak")
    mel, _ = silence(len(photographs), SILENT_CHUNKS)
    silent = _frames(bench, portraits, mel, SILENT_CHUNKS, "photographs listen")
    results = []
    for i, photograph in enumerate(photographs):
        count = speech.frames[i]
        read = landmarks.read(talking[i, :count])
        rest = landmarks.read(silent[i])
        r, within = agreement(speech.mouth[i, :count, 0].numpy(), read[:, 0])
        shapes = [landmarks.find(frame) for frame in (talking[i, 0], talking[i, count - 1])]
        first, last = (None if s is None else shape(s) for s in shapes)
        changed = float("nan") if first is None or last is None else float(np.abs(first - last).mean())
        quiet = float(np.nanstd(rest[:, 0]) / max(float(np.nanstd(read[:, 0])), 1e-9)) if len(rest) else float("nan")
        results.append(Spoken(photograph.name, r, within, quiet, changed, float(np.isfinite(read[:, 0]).mean())))
    return results


def _frames(bench: Bench, portraits: Tensor, mel: Tensor, chunks: int, label: str) -> np.ndarray:
    """uint8 [rows, 4 * chunks, H, W, 3]."""
    motion = heldout_motion(len(portraits), chunks, seed=bench.seed + 7, device=bench.device, sway=SWAY)
    latents = bench.roll(portraits, mel, motion, label)
    return bench.frames(latents, portraits, 0, chunks).permute(0, 1, 3, 4, 2).cpu().numpy()


def evaluate(
    bench: Bench, folder: Path, out: Path, settings: dict[str, object], chunks: int = PHOTOGRAPH_CHUNKS
) -> list[Figure]:
    """Measure the photographs of a folder and write out/evaluation.json, with a table of every photograph.

    Args:
        chunks: length of what each says.

    Raises:
        UserError: MediaPipe or photographs are missing.
        OSError: the folder cannot be written to.
    """
    landmarks = Landmarks()
    photographs, without = load_photographs(folder, landmarks, bench.config.width, bench.config.height)
    out.mkdir(parents=True, exist_ok=True)
    families = by_family(load_heldout())
    known = [clip for pair in zip(families["hibari"], families["espeak"], strict=True) for clip in pair]
    unheard = [clip for pair in zip(families["flite-slt"], families["flite-rms"], strict=True) for clip in pair]
    figures, table = [], {}
    for name, voices in (("trained families", known), ("flite", unheard)):
        spoken = speak(bench, landmarks, photographs, voices, chunks)
        figures += summarise(f"photographs, {name}", spoken)
        # JSON has no NaN.
        table[name] = [{k: None if v != v else v for k, v in asdict(row).items()} for row in spoken]
    figures.append(Figure("photographs", "without a face that was found", float(len(without))))
    settings = settings | {"photographs": len(photographs), "without a face": without, "chunks": chunks}
    write_json(out / "evaluation.json", figures, settings, {"photographs": table})
    return figures


def summarise(group: str, spoken: list[Spoken]) -> list[Figure]:
    """Figures over all photographs; what could not be measured of one is left out of a mean."""

    def mean(name: str) -> float:
        values = np.array([getattr(row, name) for row in spoken])
        return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")

    following = sum(row.opening >= FOLLOWS for row in spoken)
    return [
        Figure(group, "open, correlation", mean("opening"), at_least=0.8),
        Figure(group, "open, within chunks", mean("within")),
        Figure(group, f"photographs with r of {FOLLOWS} or more", float(following), f"of {len(spoken)}"),
        Figure(group, "motion in silence, share of speech", mean("quiet"), at_most=0.15),
        Figure(group, "change of the face's shape", mean("identity"), "eye distances"),
        Figure(group, "frames with a face", mean("found")),
    ]
