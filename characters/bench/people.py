"""How fast people are drawn, and a sheet of them: `python -m characters.bench.people --out people.png`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from characters.chunk import MOTION_CHANNELS, MOUTH_CHANNELS
from characters.people.clips import film_people, people, spare_processors
from characters.people.look import Camera
from characters.people.renderer import Renderer

# What the sheet shows: motion and mouth, by the names of their channels.
POSES: dict[str, tuple[dict[str, float], dict[str, float]]] = {
    "rest": ({"smile": 0.2}, {}),
    "ah": ({}, {"open": 0.95, "wide": 0.1, "teeth": 0.3, "tongue": 0.2}),
    "oo": ({}, {"open": 0.24, "wide": -0.7, "round": 1.0}),
    "ee": ({}, {"open": 0.28, "wide": 0.9, "teeth": 0.65, "tongue": 0.2}),
    "smile": ({"smile": 0.9}, {"wide": 0.6, "open": 0.15, "teeth": 0.9}),
    "f": ({}, {"open": 0.08, "wide": 0.1, "teeth": 1.0}),
    "l": ({}, {"open": 0.34, "wide": 0.2, "teeth": 0.4, "tongue": 0.9}),
    "blink": ({"blink": 1.0}, {}),
    "turn": (
        {"yaw": 1.0, "gaze_x": -0.8, "gaze_y": -0.2, "pitch": -0.2, "brow": 0.5},
        {"open": 0.16, "wide": 0.45, "teeth": 1.0},
    ),
}


def rows(names: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Motion [n, 12] and mouth [n, 5] of named poses."""
    motion = [[POSES[name][0].get(channel, 0.0) for channel in MOTION_CHANNELS] for name in names]
    mouth = [[POSES[name][1].get(channel, 0.0) for channel in MOUTH_CHANNELS] for name in names]
    return torch.tensor(motion), torch.tensor(mouth)


def sheet(renderer: Renderer, seeds: list[int], names: list[str], workers: int, close: bool = False) -> np.ndarray:
    """A row for each person, a column for each pose: uint8 [h, w, 3]. `close`: the face alone, straight."""
    out = []
    for figure, (setting,) in people(seeds, 1, (renderer.width, renderer.height), workers):
        renderer.load(figure, setting.look)
        if close:
            setting.look.camera = Camera(height=1.9, eyes_at=0.36)
        renderer.dress(setting.look, setting.room)
        out.append(np.concatenate(list(renderer.draw(*rows(names))), 1))
    return np.concatenate(out)


def frames_per_second(renderer: Renderer, count: int, frames: int, workers: int) -> tuple[float, float]:
    """Frames a second of drawing alone, and of whole clips with the making of people, two looks each."""
    steps = torch.linspace(0, 1, frames)[:, None]
    motion = (torch.sin(6 * steps + torch.arange(len(MOTION_CHANNELS))) * 0.4).expand(2 * count, -1, -1).contiguous()
    motion[..., 0] = 0
    mouth = (0.5 + 0.5 * torch.sin(9 * steps + torch.arange(len(MOUTH_CHANNELS)))).expand(2 * count, -1, -1)
    start = time.monotonic()
    for _ in film_people(renderer, 500_000, motion, mouth, 2, workers):
        pass
    whole = 2 * count * (frames + 1) / (time.monotonic() - start)
    renderer.draw(motion[0], mouth[0])
    start = time.monotonic()
    for _ in range(3):
        renderer.draw(motion[0], mouth[0])
    return 3 * frames / (time.monotonic() - start), whole


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how fast people are drawn, and draw a sheet of them.")
    parser.add_argument("--out", type=Path, default=Path("people.png"))
    parser.add_argument("--size", type=int, nargs=2, default=(352, 544), metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--people", type=int, default=8, help="of the sheet and of the measurement")
    parser.add_argument("--first", type=int, default=0, help="seed of the sheet's first person")
    parser.add_argument("--frames", type=int, default=32, help="of a measured clip; 0: the sheet alone")
    parser.add_argument("--close", action="store_true", help="faces alone")
    parser.add_argument("--poses", nargs="+", default=list(POSES), choices=list(POSES))
    arguments = parser.parse_args()
    workers = spare_processors()
    renderer = Renderer(*arguments.size)
    print(renderer.context.info["GL_RENDERER"], *arguments.size)
    if arguments.frames:
        alone, whole = frames_per_second(renderer, arguments.people, arguments.frames, workers)
        print(f"{alone:.0f} frames/s of drawing, {whole:.0f} frames/s of whole clips, {workers} processes make people")
    seeds = list(range(arguments.first, arguments.first + arguments.people))
    picture = sheet(renderer, seeds, arguments.poses, workers, arguments.close)
    Image.fromarray(picture).save(arguments.out, quality=92)


if __name__ == "__main__":
    main()
