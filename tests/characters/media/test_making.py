"""From the pictures that people bring to what a model sees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from characters.errors import UserError
from characters.media.face import Face, find_faces
from characters.media.framing import Framing, Place, frame_face
from characters.media.making import DRAWN, POSTER, Made, make_portrait
from characters.media.portrait import crop_portrait, load_portrait
from tests.characters.media.photographs import CASES, GALLERY, admiral, astronaut, portrait

SMALL = (272, 176, Framing())
SQUARE = (512, 512, Framing(eyes=0.45, face=0.5))


def only_face(image: Image.Image) -> Face:
    faces, turned = find_faces(image)
    assert len(faces) == 1 and turned == 0
    return faces[0]


def made(path: Path, image: Image.Image | None = None) -> Made:
    if image is not None:
        image.save(path)
    return make_portrait(path, *SMALL)


def near(image: Image.Image, framing: Framing, slack: float = 0.03) -> None:
    """The face of the picture is where it is wanted."""
    face = only_face(image)
    wanted = (image.width / 2, framing.eyes * image.height)
    assert face.eyes == pytest.approx(wanted, abs=slack * image.height)
    assert face.height == pytest.approx(framing.face * image.height, rel=0.1)


@pytest.mark.parametrize("source", [astronaut, admiral])
def test_a_photograph_is_framed_as_each_model_wants_it(tmp_path: Path, source: object) -> None:
    found = made(tmp_path / "p.png", source())  # type: ignore[operator]
    assert found.photograph is not None
    for height, width, framing in (SMALL, SQUARE):
        seen = found.seen(height, width, framing)
        assert seen.size == (width, height)
        near(seen, framing)
    eyes = only_face(found.seen(*SMALL)).eyes
    assert eyes == pytest.approx((88, 118), abs=4), "where lips follow best"
    assert found.portrait.size == POSTER[::-1]


def test_a_leaning_head_is_levelled_beyond_ten_degrees(tmp_path: Path) -> None:
    for roll, levelled in ((25, True), (5, False)):
        leaning = admiral().rotate(-roll, Image.Resampling.BICUBIC, expand=True, fillcolor=(90, 90, 120))
        found = made(tmp_path / "p.png", leaning)
        assert any("was levelled" in note for note in found.notes) is levelled
        assert abs(only_face(found.seen(*SMALL)).roll) < (4 if levelled else 9)


def test_what_a_photograph_lacks_is_said(tmp_path: Path) -> None:
    face = only_face(admiral())
    left, top, right, bottom = (round(value) for value in face.box)
    close = made(tmp_path / "close.png", admiral().crop((left - 20, top - 50, right + 20, bottom + 10)))
    assert any("% of the frame was filled" in note for note in close.notes)
    few = made(tmp_path / "few.png", astronaut().resize((200, 200)))
    assert any("the face is 4" in note and "shows it with 92" in note for note in few.notes)
    assert made(tmp_path / "good.png", astronaut()).notes == []


def test_a_large_photograph_is_kept_smaller(tmp_path: Path) -> None:
    found = made(tmp_path / "p.jpg", astronaut().resize((5000, 5000)))
    assert found.photograph is not None and found.place is not None
    assert found.place.height <= 401 and max(found.photograph.size) < 2900
    near(found.seen(*SMALL), Framing())


@pytest.mark.parametrize("slug", sorted(path.name for path in GALLERY.iterdir() if (path / "portrait.png").exists()))
def test_drawn_portraits_keep_their_own_crop(slug: str) -> None:
    found = made(GALLERY / slug / "portrait.png")
    assert found.photograph is None
    assert np.array_equal(found.portrait, crop_portrait(portrait(slug), *POSTER))
    assert all("no face was found" in note for note in found.notes)


@pytest.mark.parametrize("case", ["p11_wide_left.jpg", "p24_face_below.jpg", "p12_two.jpg"])
def test_a_face_that_the_plain_crop_would_lose_is_cropped_to(case: str) -> None:
    found = made(CASES / case)
    assert "the picture was cropped to the face" in found.notes
    near(found.portrait, DRAWN)
    assert any("2 faces were found" in note for note in found.notes) == (case == "p12_two.jpg")


def test_a_picture_without_a_face_is_taken_with_a_word(tmp_path: Path) -> None:
    document = made(CASES / "p13b_document.png")
    assert "no face was found: its middle was taken as it is" in document.notes[0]
    wall = Image.new("RGB", (900, 300), (120, 130, 160))
    wall.paste((125, 136, 165), (450, 0, 900, 300))
    wall.paste(portrait("cobalt").resize((100, 155)), (780, 140))
    found = made(tmp_path / "wall.png", wall)  # a robot, where the plain crop shows a wall
    assert "look at the preview" in found.notes[0] and found.photograph is None
    blank = Image.new("RGB", (352, 1000), (180, 200, 230))
    blank.paste(portrait("pixel").resize((176, 272)), (88, 700))
    found = made(tmp_path / "low.png", blank)
    assert "the fullest part of it was taken" in found.notes[0] and np.asarray(found.portrait).std() > 20
    Image.new("RGB", (300, 300), (10, 90, 10)).save(tmp_path / "green.png")
    with pytest.raises(UserError, match="of one colour"):
        made(tmp_path / "green.png")


@pytest.mark.parametrize(("case", "slack"), [("p02_displayp3.jpg", 2.0), ("p03_cmyk_profile.jpg", 8.0)])
def test_colours_are_those_that_the_profile_means(case: str, slack: float) -> None:
    ruby = np.float32(load_portrait(GALLERY / "ruby/portrait.png", 272, 176))
    with Image.open(CASES / case) as image:
        unheeded = np.float32(crop_portrait(image.convert("RGB"), 272, 176))
    heeded = np.float32(load_portrait(CASES / case, 272, 176))
    assert np.abs(heeded - ruby).mean() < slack < np.abs(unheeded - ruby).mean() * 0.8


def test_profiles_of_any_size_kind_and_state(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load_portrait(CASES / "p25_big_icc.png", 272, 176).std() > 30
    with Image.open(CASES / "p02_displayp3.jpg") as image:
        p3, wide = image.info["icc_profile"], image.convert("RGB")
    heeded = np.float32(load_portrait(CASES / "p02_displayp3.jpg", 272, 176))
    # With transparency, as a palette, and with sRGB's own profile.
    clear = wide.convert("RGBA")
    clear.putalpha(Image.linear_gradient("L").resize(wide.size).point(lambda v: 0 if v < 128 else 255))
    clear.save(tmp_path / "clear.png", icc_profile=p3)
    found = np.float32(load_portrait(tmp_path / "clear.png", 272, 176))
    assert np.abs(found[200:] - heeded[200:]).mean() < 1 and tuple(found[10, 80]) == (226, 224, 219)
    wide.quantize(256).save(tmp_path / "palette.png", icc_profile=p3)
    assert np.abs(np.float32(load_portrait(tmp_path / "palette.png", 272, 176)) - heeded).mean() < 6
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    portrait("ruby").save(tmp_path / "srgb.png", icc_profile=srgb)
    plain = np.float32(load_portrait(GALLERY / "ruby/portrait.png", 272, 176))
    assert np.abs(np.float32(load_portrait(tmp_path / "srgb.png", 272, 176)) - plain).max() <= 2
    grey = portrait("ruby").convert("L")
    grey.save(tmp_path / "grey.png", icc_profile=p3)  # a profile for other pixels than it has
    assert load_portrait(tmp_path / "grey.png", 272, 176).std() > 30
    portrait("ruby").save(tmp_path / "broken.png", icc_profile=p3[:200])
    assert np.array_equal(load_portrait(tmp_path / "broken.png", 272, 176), plain)


def test_what_lies_beyond_the_picture_is_filled_and_counted() -> None:
    image = Image.new("RGB", (100, 100), (200, 40, 40))
    framed, filled = frame_face(image, Place((50.0, 50.0), 50.0), 272, 176, Framing())
    assert framed.size == (176, 272) and filled == pytest.approx(1 - (100 * 92 / 50) * 176 / (272 * 176), abs=0.05)
    assert np.abs(np.float32(framed) - (200, 40, 40)).max() < 3
    inside, filled = frame_face(astronaut(), Place((256.0, 256.0), 60.0), 272, 176, Framing())
    assert filled == 0 and inside.size == (176, 272)
