"""Pictures of the gallery for people: a contact sheet over ten minutes, and a short clip.

python -m characters.evaluation.showcase --out FOLDER
"""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
import torch
from PIL import Image
from torch import Tensor

from characters.character import list_characters
from characters.chunk import CHUNK_SECONDS, MEL_FRAMES_PER_CHUNK
from characters.evaluation.heldout import load_heldout
from characters.evaluation.pictures import contact_sheet
from characters.evaluation.rollout import decode_window, encode_portraits, rollout
from characters.evaluation.subjects import silence
from characters.generate.hearing import log_mel
from characters.generate.motion import LIVE_SWAY, IdleMotion
from characters.generate.networks import load_networks
from characters.media.portrait import load_portrait

CLIP_CHARACTERS = 5  # of the animated clip
CLIP_CHUNKS = 26
SPEAKING = (14, 19, 24, 29, 34, 39)  # frames after the start of a sentence


@click.command()
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True)
@click.option("--minutes", default=10.0, show_default=True, help="How long the characters run.")
@click.option("--device", default="auto", show_default=True)
def main(out: Path, minutes: float, device: str) -> None:
    """Let every character of the gallery talk, rest and talk on; write gallery.png and gallery.webp."""
    model = load_networks("small", device)
    people = list_characters()
    stills = np.stack([load_portrait(p.portrait, model.config.height, model.config.width) for p in people])
    images = torch.from_numpy(stills).permute(0, 3, 1, 2)
    portraits = encode_portraits(model.autoencoder, images)
    chunks = max(2 * CLIP_CHUNKS, round(minutes * 60 / CHUNK_SECONDS))
    mel = _talk(len(people), chunks)
    idle = IdleMotion(len(people), seed=5, sway=LIVE_SWAY)
    motion = torch.cat([idle.next_chunk() for _ in range(chunks)], 1)
    with click.progressbar(length=chunks, label="talking") as bar:
        latents = rollout(model.dit, portraits, mel, motion, progress=lambda done: bar.update(1))
    out.mkdir(parents=True, exist_ok=True)

    def frames(first: int, count: int) -> Tensor:
        return decode_window(model.autoencoder, latents, portraits, first, count)

    start, end = frames(0, CLIP_CHUNKS), frames(chunks - CLIP_CHUNKS, CLIP_CHUNKS)
    rest = frames(CLIP_CHUNKS + 6, 4)[:, ::8]
    columns = [images[:, None], start[:, SPEAKING], rest, end[:, SPEAKING]]
    names = ["portrait", *(f"speaking, {i / 24:.1f} s" for i in SPEAKING), "idle", "idle"]
    names += [f"after {minutes:g} min" for _ in SPEAKING]
    contact_sheet(
        torch.cat([c.cpu() for c in columns], 1), names, [p.character.name for p in people], out / "gallery.png"
    )
    _clip(start[:CLIP_CHARACTERS], out / "gallery.webp")


def _talk(rows: int, chunks: int) -> Tensor:
    """For each row a sentence, silence, and the same sentence at the end: float32 [rows, mel frames, 80]."""
    clips = [c for c in load_heldout() if c.family == "hibari"]
    mel, _ = silence(rows, chunks)
    last = (chunks - CLIP_CHUNKS) * MEL_FRAMES_PER_CHUNK
    for row in range(rows):
        heard = torch.from_numpy(log_mel(clips[row % len(clips)].pcm))[: CLIP_CHUNKS * MEL_FRAMES_PER_CHUNK]
        for first in (0, last):
            mel[row, first : first + len(heard)] = heard
    return mel


def _clip(frames: Tensor, path: Path) -> None:
    """uint8 [rows, n, 3, H, W] -> an animated WebP with the rows side by side at 24 fps."""
    strips = frames.permute(1, 3, 0, 4, 2).flatten(2, 3).cpu().numpy()
    first, *others = [Image.fromarray(np.ascontiguousarray(strip)) for strip in strips]
    duration = [round((i + 1) * 1000 / 24) - round(i * 1000 / 24) for i in range(len(strips))]
    first.save(path, save_all=True, append_images=others, duration=duration, loop=0, quality=60, method=4)


if __name__ == "__main__":
    main()
