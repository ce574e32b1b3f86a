"""What stands behind a person: a wall, or a room out of focus, lit as the person is."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from characters.people.look import Look, linear

HALF = 2  # rooms are made at a half of the frame's size; nothing in them is sharp


def sample_room(look: Look, random: np.random.Generator, width: int, height: int) -> np.ndarray:
    """A background: float32 [height, width, 3], linear light."""
    w, h = width // HALF, height // HALF
    y, x = np.mgrid[0:h, 0:w] / float(h)
    base = linear(*random.uniform(60, 230, 3))
    base = base * 0.25 + base.mean() * 0.75
    slope = random.uniform(-0.6, 0.6, 2)
    image = base * (1 + slope[0] * (x - 0.32) + slope[1] * (y - 0.5))[..., None]
    if random.random() > 0.25:
        _furnish(image, x, y, random)
        image = _defocus(image, float(np.exp(random.uniform(np.log(0.008), np.log(0.05)))) * h)
    image = image * (1 + 0.12 * _clouds(random, h, w)[..., None])
    grey = image.mean(2, keepdims=True)
    image = grey + (image - grey) * random.uniform(0.3, 0.8)  # rooms are duller than paint
    light = float(look.values["ambient"][0].mean() + 0.35 * look.values["light_colour"][0].mean())
    image = image * (light / max(float(image.mean()), 0.02) * random.uniform(0.10, 0.6))
    tensor = torch.from_numpy(image.astype(np.float32)).permute(2, 0, 1)[None]
    return F.interpolate(tensor, (height, width), mode="bilinear", align_corners=False)[0].permute(1, 2, 0).numpy()


def _furnish(image: np.ndarray, x: np.ndarray, y: np.ndarray, random: np.random.Generator) -> None:
    """Boxes, some bright as windows, bars, foliage, and small lamps."""
    for _ in range(random.integers(4, 30)):
        colour = linear(*random.uniform(15, 225, 3))
        share = random.uniform(0.15, 0.6)
        colour = (colour * share + colour.mean() * (1 - share)) * np.array([1.06, 1, 0.9]) * random.uniform(0.4, 1.1)
        left, top = random.uniform(-0.2, 0.65), random.uniform(-0.1, 0.95)
        wide, tall = random.uniform(0.02, 0.35), random.uniform(0.03, 0.6)
        lean = random.normal() * 0.06
        u = x - left - lean * (y - top)
        inside = (u > 0) & (u < wide) & (y > top) & (y < top + tall)
        shine = random.uniform(1.5, 4) if random.random() < 0.12 else 1
        bars = 1 - 0.5 * (np.sin(u / wide * np.pi * random.integers(2, 14)) > 0.6) * (random.random() < 0.4)
        image[inside] = (colour * shine * (bars * (0.7 + 0.6 * (y - top) / tall))[..., None])[inside]
    if random.random() < 0.3:
        leaves = _clouds(random, x.shape[0], x.shape[1], 5) > random.uniform(-0.2, 0.6)
        green = linear(random.uniform(50, 110), random.uniform(75, 120), random.uniform(35, 80))
        image[leaves] = green * random.uniform(0.5, 1.5)
    for _ in range(random.integers(0, 10)):
        centre, size = (random.uniform(0, 0.65), random.uniform(0, 0.8)), random.uniform(0.008, 0.03)
        lamp = (x - centre[0]) ** 2 + (y - centre[1]) ** 2 < size * size
        image[lamp] += linear(*(random.uniform(170, 255) * np.array([1, 0.9, 0.74]))) * random.uniform(0.5, 4)


def _defocus(image: np.ndarray, radius: float) -> np.ndarray:
    """A lens's blur: the mean over a disc of `radius` pixels."""
    r = max(1, round(radius))
    at = torch.arange(-r, r + 1)
    disc = (at[:, None] ** 2 + at**2 <= r * r + 0.5).float()
    tensor = torch.from_numpy(image.astype(np.float32)).permute(2, 0, 1)[:, None]
    padded = F.pad(tensor, (r, r, r, r), mode="replicate" if r >= min(image.shape[:2]) else "reflect")
    size = [n + 2 * r for n in image.shape[:2]]
    product = torch.fft.rfft2(padded) * torch.fft.rfft2(disc / disc.sum(), s=size)
    blurred = torch.fft.irfft2(product, s=size)[..., 2 * r :, 2 * r :]
    return blurred[:, 0].permute(1, 2, 0).clamp(min=0).numpy()


def _clouds(random: np.random.Generator, h: int, w: int, octaves: int = 2) -> np.ndarray:
    """Smooth noise about 0, of size about 1: [h, w]."""
    out = torch.zeros(1, 1, h, w)
    for octave in range(octaves):
        cells = (3 * 2**octave, 2 * 2**octave)
        noise = torch.from_numpy(random.normal(size=(1, 1, *cells)).astype(np.float32))
        out += F.interpolate(noise, (h, w), mode="bilinear") * 0.6**octave
    return out[0, 0].numpy()
