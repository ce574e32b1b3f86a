"""From a picture to what a character's folder holds of it: look first, then crop, and say what was done."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from characters.errors import UserError
from characters.media.appraisal import Appraisal, appraise
from characters.media.framing import Framing, Place, frame_face
from characters.media.portrait import check_content, crop_box, crop_portrait, open_portrait

POSTER = (1088, 704)  # height, width of a portrait on disk: the largest tall frame, and the page's aspect
DRAWN = Framing(eyes=0.455, face=0.387)  # where the faces of the drawn world are
PHOTOGRAPH = Framing()
_KEPT_FACE = 400  # a photograph's face is kept with so many pixels of height; no model shows more
_KEPT_AROUND = 3.5  # and so many heights of the face around it
_MUCH = 0.12  # a larger share of the frame that had to be filled is worth a word
_FEW = 0.8  # so is a face of less than this share of the pixels that the model shows
_STEPS = 8


@dataclass(frozen=True)
class Made:
    """What becomes of a picture.

    Attributes:
        portrait: RGB, of the size `POSTER`.
        photograph: RGB, upright, with room around the head, from which a model's own crop is made; None if drawn.
        place: of the face on the photograph.
        notes: what was done and what is doubtful, a sentence each.
    """

    portrait: Image.Image
    photograph: Image.Image | None = None
    place: Place | None = None
    notes: list[str] = field(default_factory=list)

    def seen(self, height: int, width: int, framing: Framing) -> Image.Image:
        """What a model with frames of this size sees."""
        if self.photograph is None:
            return Image.fromarray(crop_portrait(self.portrait, height, width))
        assert self.place is not None
        return frame_face(self.photograph, self.place, height, width, framing)[0]


def make_portrait(path: str | Path, height: int, width: int, framing: Framing) -> Made:
    """Look at a picture and crop it.

    Args:
        path: of the picture.
        height, width: of the model's frames that it is meant for, in pixels.
        framing: where that model wants a photograph's face.

    Raises:
        UserError: an error of `open_portrait`, or the picture is of one colour.
    """
    image = open_portrait(path)
    small = image.copy()
    small.thumbnail((256, 256))
    check_content(np.asarray(small), path)
    found = appraise(image)
    if found.face is None:
        portrait, taken = _without_face(image, path)
        notes = f"{', '.join(found.notes)}: {taken}; look at the preview, and crop the picture yourself if it is wrong"
        return Made(portrait, notes=[notes])
    if found.drawn:
        return _drawn(found)
    return _photograph(found, height, width, framing)


def _without_face(image: Image.Image, path: str | Path) -> tuple[Image.Image, str]:
    """The crop that `load_portrait` makes, or, where it shows nothing, the one with the most in it; and which it is."""
    height, width = POSTER
    left, top, right, bottom = crop_box(*image.size, height, width)
    portrait = Image.fromarray(crop_portrait(image, height, width))
    try:
        check_content(np.asarray(portrait), path)
    except UserError:
        spare = (image.width - (right - left), image.height - (bottom - top))
        corners = [tuple(s * step / _STEPS for s in spare) for step in range(_STEPS + 1)]
        boxes = [(x, y, x + right - left, y + bottom - top) for x, y in corners]
        crops = [image.resize((width, height), Image.Resampling.LANCZOS, box=box) for box in boxes]
        return max(
            crops, key=lambda crop: float(np.asarray(crop).std((0, 1)).max())
        ), "the fullest part of it was taken"
    whole = "the whole of it" if (round(right - left), round(bottom - top)) == image.size else ""
    return portrait, f"{whole or ('its middle' if left > 0.5 else 'its top')} was taken as it is"


def _drawn(found: Appraisal) -> Made:
    """As `load_portrait` crops, unless that cuts the face off or loses it."""
    height, width = POSTER
    face = found.face
    assert face is not None
    left, top, right, bottom = crop_box(*found.image.size, height, width)
    box = face.box
    inside = left <= box[0] and top <= box[1] and box[2] <= right and box[3] <= bottom
    share, at = face.height / (bottom - top), (face.eyes[1] - top) / (bottom - top)
    if inside and 0.25 <= share <= 0.6 and 0.25 <= at <= 0.65:
        return Made(Image.fromarray(crop_portrait(found.image, height, width)), notes=found.notes)
    portrait, filled = frame_face(found.image, found.place, height, width, DRAWN)
    notes = [*found.notes, "the picture was cropped to the face"]
    return Made(portrait, notes=notes + _filling(filled))


def _photograph(found: Appraisal, height: int, width: int, framing: Framing) -> Made:
    notes, face = list(found.notes), found.face
    assert face is not None
    wanted = framing.face * height
    if face.height < _FEW * wanted:
        notes.append(
            f"the face is {face.height:.0f} pixels high and will look soft: this model shows it with {wanted:.0f}"
        )
    if found.place.levelled:
        notes.append(f"the head leaned by {abs(face.roll):.0f} degrees and was levelled")
    image, place = _kept(found.image, found.place)
    _, filled = frame_face(image, place, height, width, framing)
    notes += _filling(filled)
    portrait, _ = frame_face(image, place, *POSTER, PHOTOGRAPH)
    return Made(portrait, image, place, notes)


def _kept(image: Image.Image, place: Place) -> tuple[Image.Image, Place]:
    """What is kept of a photograph: the face with room around it, no larger than it need be."""
    (x, y), reach = place.eyes, _KEPT_AROUND * place.height
    left, top = max(0, int(x - reach)), max(0, int(y - reach))
    part = image.crop((left, top, min(image.width, int(x + reach)), min(image.height, int(y + reach))))
    scale = min(1.0, _KEPT_FACE / place.height)
    size = (round(part.width * scale), round(part.height * scale))
    kept = part.resize(size, Image.Resampling.LANCZOS) if scale < 1 else part
    eyes = (round((x - left) * scale, 1), round((y - top) * scale, 1))
    return kept, Place(eyes, round(place.height * scale, 1), round(place.roll, 1))


def _filling(filled: float) -> list[str]:
    if filled < _MUCH:
        return []
    return [
        f"the picture ends close to the head: {filled:.0%} of the frame was filled with its edge's colours; "
        "one with more room around the head looks better"
    ]
