"""Faces that are found, and what is said of them."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter

from characters.media.appraisal import Appraisal, appraise
from characters.media.face import EDGES, NOSE, Face, find_faces
from tests.characters.media.photographs import CASES, GALLERY, admiral, astronaut, beside, portrait


def seen(image: Image.Image) -> Appraisal:
    found = appraise(image)
    assert found.face is not None
    return found


def test_a_good_photograph_is_taken_without_a_word() -> None:
    for image, eyes, height in ((astronaut(), (223, 104), 108), (admiral(), (264, 191), 206)):
        found = seen(image)
        assert found.notes == [] and not found.drawn
        assert found.place.eyes == pytest.approx(eyes, abs=6) and found.place.height == pytest.approx(height, rel=0.06)
        assert abs(found.place.roll) < 5


@pytest.mark.parametrize("slug", sorted(path.name for path in GALLERY.iterdir() if (path / "portrait.png").exists()))
def test_drawings_are_known_as_drawings(slug: str) -> None:
    found = appraise(portrait(slug))
    assert found.drawn
    assert (found.face is None) == (slug in ("cobalt", "pixel")), "robots have no face that a detector knows"


@pytest.mark.parametrize("turn", [90, 180, 270])
def test_a_picture_that_stands_on_its_side_is_turned(turn: int) -> None:
    found, upright = seen(astronaut().rotate(turn, expand=True)), seen(astronaut())
    assert "was turned" in found.notes[0] and found.image.size == (512, 512)
    assert found.place.eyes == pytest.approx(upright.place.eyes, abs=8) and abs(found.place.roll) < 10


@pytest.mark.parametrize("roll", [-35, -15, 20])
def test_a_leaning_head_is_measured(roll: int) -> None:
    found = seen(admiral().rotate(-roll, Image.Resampling.BICUBIC, expand=True, fillcolor=(90, 90, 120)))
    assert found.place.roll == pytest.approx(roll, abs=6) and found.place.levelled == found.place.roll


def notes_of(image: Image.Image) -> str:
    return "; ".join(seen(image).notes)


def test_what_is_doubtful_is_said() -> None:
    image, face = astronaut(), seen(astronaut()).place
    x, y = face.eyes
    two = beside(admiral(), image.crop((120, 0, 340, 220)))
    assert "2 faces were found and the right one was taken" in notes_of(two)
    assert "is blurred" in notes_of(image.filter(ImageFilter.GaussianBlur(4)))
    assert "is dark" in notes_of(ImageEnhance.Brightness(image).enhance(0.25))
    pale = Image.fromarray(np.uint8(175 + np.asarray(image) * 0.31))
    assert "is overexposed" in notes_of(pale)
    assert "cut off at the picture's top" in notes_of(image.crop((0, round(y - 0.4 * face.height), 512, 512)))
    assert "cut off at the picture's bottom" in notes_of(image.crop((0, 0, 512, round(y + 0.45 * face.height))))
    assert "at the picture's left" in notes_of(image.crop((round(x - 0.25 * face.height), 0, 512, 512)))
    # A dark face in a good light is not a dark picture.
    assert "dark" not in notes_of(portrait("amara").resize((704, 1088)))


def test_a_turned_face_is_told_from_one_in_profile() -> None:
    face = seen(astronaut()).face
    assert face is not None and abs(face.turn) < 0.2
    for share, turn in ((0.5, 0.0), (0.9, 0.8), (1.1, 1.2), (-0.1, -1.2)):
        points = face.points.copy()
        left, right = (points[i] for i in EDGES)
        points[NOSE] = left + share * (right - left)
        assert Face(points, 1.0).turn == pytest.approx(turn, abs=0.01)


def test_no_face_where_there_is_none() -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (600, 500, 3), np.uint8))
    for image in (noise, Image.open(CASES / "p13b_document.png").convert("RGB"), Image.new("RGB", (300, 400), "grey")):
        found = appraise(image)
        assert found.face is None and found.drawn and found.notes == ["no face was found"]


def test_faces_in_long_and_in_large_pictures_are_found() -> None:
    wide = Image.new("RGB", (3000, 1000), (120, 140, 160))
    wide.paste(admiral().resize((512, 600)), (2300, 350))
    faces, turned = find_faces(wide)
    assert len(faces) == 1 and turned == 0 and faces[0].eyes == pytest.approx((2564, 541), abs=12)
    tall = Image.new("RGB", (700, 2000), (120, 140, 160))
    tall.paste(astronaut().resize((300, 300)), (200, 1650))
    assert find_faces(tall)[0][0].eyes == pytest.approx((331, 1711), abs=8)
    large = astronaut().resize((6000, 6000))
    assert find_faces(large)[0][0].height == pytest.approx(108 * 6000 / 512, rel=0.06)


def test_without_its_runtime_the_detector_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("characters.media.appraisal.available", lambda: False)
    found = appraise(astronaut())
    assert found.face is None and "pip install ai-edge-litert" in found.notes[0]
