"""What a camera and a file add to a portrait: rescaling, noise, JPEG. Only portraits get it: the model draws clean."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image


def add_dirt(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """uint8 [height, width, 3] -> the same, as it might have been stored."""
    height, width = image.shape[:2]
    if random.random() < 0.4:
        share = random.uniform(0.55, 0.95)
        small = Image.fromarray(image).resize((int(width * share), int(height * share)), int(random.choice([1, 2, 3])))
        image = np.asarray(small.resize((width, height), int(random.choice([2, 3]))))
    if random.random() < 0.5:
        noise = 0.5 * random.normal(size=image.shape) + 0.7 * random.normal(size=(height, width, 1))
        if random.random() < 0.5:  # noise that a camera has smoothed
            noise = (noise + np.roll(noise, 1, 0) + np.roll(noise, 1, 1) + np.roll(noise, (1, 1), (0, 1))) / 2
        image = np.clip(image + random.uniform(1, 9) * noise, 0, 255).astype(np.uint8)
    if random.random() < 0.5:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=int(random.integers(30, 96)))
        image = np.asarray(Image.open(file))
    return np.ascontiguousarray(image)
