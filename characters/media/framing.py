"""Pictures framed as a model wants them: the eyes' middle and the face's height where its training had them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageFilter

LEVEL_BEYOND = 10.0  # degrees of roll; a head that leans less is let lean
_DETAIL = 2.0  # a face of so many times the height that is wanted is made smaller before anything else


@dataclass
class Framing:
    """Where a model wants a face, in shares of its frame's height; the eyes' middle is the frame's middle.

    Attributes:
        eyes: from the top to the middle between the eyes.
        face: from where the hair begins to the chin.
    """

    eyes: float = 0.434
    face: float = 0.338

    def __post_init__(self) -> None:
        if not (0 < self.eyes < 1 and 0 < self.face < 1):
            raise ValueError("framing.eyes and framing.face must lie between 0 and 1")


@dataclass(frozen=True)
class Place:
    """Where a face is in a picture.

    Attributes:
        eyes: the middle between the eyes, (x, y) in pixels.
        height: from where the hair begins to the chin, in pixels.
        roll: of the line of the eyes, in degrees, clockwise.
    """

    eyes: tuple[float, float]
    height: float
    roll: float = 0.0

    @property
    def levelled(self) -> float:
        """By how many degrees a picture is turned, counter-clockwise, so that the head is upright."""
        return self.roll if abs(self.roll) > LEVEL_BEYOND else 0.0


def frame_face(
    image: Image.Image, place: Place, height: int, width: int, framing: Framing
) -> tuple[Image.Image, float]:
    """Crop, turn and scale a picture so that its face is where `framing` says.

    What lies beyond the picture is filled with the colours of its edge, blurred.

    Args:
        image: RGB.
        place: of the face.
        height, width: of the result in pixels.

    Returns:
        The picture of `width` x `height`, and the share of it that is filled.
    """
    reduce = max(1, int(place.height / (_DETAIL * framing.face * height)))
    if reduce > 1:
        image = image.reduce(reduce)
    x, y = (value / reduce for value in place.eyes)
    step = place.height / reduce / (framing.face * height)  # pixels of the picture for one of the frame
    left, top = x - width / 2 * step, y - framing.eyes * height * step
    right, bottom = left + width * step, top + height * step
    turn = place.levelled
    # What is turned comes from anywhere within reach of the farthest corner.
    reach = max(math.dist((x, y), (cx, cy)) for cx in (left, right) for cy in (top, bottom))
    box = (x - reach, y - reach, x + reach, y + reach) if turn else (left, top, right, bottom)
    x0, y0, x1, y1 = (math.floor(box[0]) - 2, math.floor(box[1]) - 2, math.ceil(box[2]) + 2, math.ceil(box[3]) + 2)
    inside = (max(0, x0), max(0, y0), min(image.width, x1), min(image.height, y1))
    missing = ((inside[1] - y0, y1 - inside[3]), (inside[0] - x0, x1 - inside[2]))
    part = Image.fromarray(np.pad(np.asarray(image.crop(inside)), (*missing, (0, 0)), mode="edge"))
    there = Image.fromarray(np.pad(np.full((inside[3] - inside[1], inside[2] - inside[0]), 255, np.uint8), missing))
    if turn:
        centre = (x - x0, y - y0)
        part = part.rotate(turn, Image.Resampling.BICUBIC, center=centre)
        there = there.rotate(turn, Image.Resampling.BILINEAR, center=centre)
    crop = (left - x0, top - y0, right - x0, bottom - y0)
    framed = part.resize((width, height), Image.Resampling.LANCZOS, box=crop)
    mask = there.resize((width, height), Image.Resampling.BILINEAR, box=crop)
    filled = 1 - float(np.asarray(mask, np.float32).mean()) / 255
    if filled > 0:
        soft = framed.filter(ImageFilter.GaussianBlur(height / 30))
        framed = Image.composite(framed, soft, mask.filter(ImageFilter.GaussianBlur(height / 180)))
    return framed, filled
