"""Pictures with faces: free photographs from packages, and pictures that people brought."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import matplotlib.cbook
import skimage.data
from PIL import Image, ImageOps

CASES = Path(__file__).parent / "cases"
GALLERY = Path(__file__).parents[3] / "characters/gallery"


@cache
def astronaut() -> Image.Image:
    """512 x 512, a face of 108 pixels from the front (NASA, public domain)."""
    return Image.fromarray(skimage.data.astronaut())


@cache
def admiral() -> Image.Image:
    """512 x 600, a face of 206 pixels under a cap, with glasses (US Navy, public domain)."""
    with matplotlib.cbook.get_sample_data("grace_hopper.jpg") as file:
        return Image.open(file).convert("RGB")


def portrait(slug: str) -> Image.Image:
    """A drawn character of the gallery, 176 x 272."""
    return Image.open(GALLERY / slug / "portrait.png").convert("RGB")


def beside(*images: Image.Image) -> Image.Image:
    """Pictures of one height, from the left to the right."""
    height = min(image.height for image in images)
    images = tuple(ImageOps.contain(image, (10_000, height)) for image in images)
    whole = Image.new("RGB", (sum(image.width for image in images), height))
    left = 0
    for image in images:
        whole.paste(image, (left, 0))
        left += image.width
    return whole
