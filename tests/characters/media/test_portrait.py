from __future__ import annotations

import io
import resource
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from characters.errors import UserError
from characters.media.portrait import BACKGROUND, check_content, crop_box, load_portrait

RED, GREEN, BLUE = (200, 30, 30), (30, 160, 30), (30, 30, 200)


def two_halves(width: int, height: int, top: tuple[int, ...] = RED, bottom: tuple[int, ...] = BLUE) -> Image.Image:
    image = Image.new("RGB", (width, height), top)
    image.paste(bottom, (0, height // 2, width, height))
    return image


def near(pixel: np.ndarray, colour: tuple[int, ...], tolerance: int = 4) -> bool:
    return bool(np.abs(pixel.astype(int) - colour).max() <= tolerance)


@pytest.mark.parametrize("form", ["png", "jpg", "webp", "gif", "bmp", "tiff", "ppm"])
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "CMYK", "1"])
def test_common_formats_and_modes(tmp_path: Path, form: str, mode: str) -> None:
    image = two_halves(200, 300, (250, 250, 250), (5, 5, 5)).convert(mode)
    path = tmp_path / f"portrait.{form}"
    try:
        image.save(path)
    except (OSError, ValueError):
        return  # a mode that this format does not have
    portrait = load_portrait(path, 272, 176)
    assert portrait.shape == (272, 176, 3) and portrait.dtype == np.uint8
    assert near(portrait[20, 88], (250, 250, 250), 6) and near(portrait[250, 88], (5, 5, 5), 6)


def test_exif_orientation(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: the picture's top is at the stored left
    stored = two_halves(272, 176).rotate(90, expand=True).rotate(-90, expand=True)
    two_halves(176, 272).rotate(90, expand=True).save(tmp_path / "p.jpg", exif=exif, quality=95)
    assert stored.size == (272, 176)
    portrait = load_portrait(tmp_path / "p.jpg", 272, 176)
    assert near(portrait[20, 88], RED, 8) and near(portrait[250, 88], BLUE, 8)


def test_transparency_is_laid_on_a_neutral_background(tmp_path: Path) -> None:
    image = two_halves(176, 272).convert("RGBA")
    image.putalpha(Image.new("L", (176, 272), 0))
    image.save(tmp_path / "p.png")
    assert near(load_portrait(tmp_path / "p.png", 272, 176)[100, 100], BACKGROUND, 0)
    Image.new("LA", (176, 272), (255, 0)).save(tmp_path / "la.png")
    assert near(load_portrait(tmp_path / "la.png", 272, 176)[100, 100], BACKGROUND, 0)


def test_sixteen_bits(tmp_path: Path) -> None:
    Image.fromarray(np.full((272, 176), 32768, np.uint16)).save(tmp_path / "p.png")
    assert near(load_portrait(tmp_path / "p.png", 272, 176)[100, 100], (128, 128, 128), 1)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_broken_pixel_does_not_dim_the_others(tmp_path: Path, broken: float) -> None:
    pixels = np.full((272, 176), 0.5, np.float32)
    pixels[0, 0] = broken
    Image.fromarray(pixels).save(tmp_path / "p.tiff")
    assert near(load_portrait(tmp_path / "p.tiff", 272, 176)[100, 100], (128, 128, 128), 1)


@pytest.mark.parametrize("form", ["gif", "webp", "png"])
def test_animation_gives_its_first_frame_and_a_note(
    tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    monkeypatch.setattr("characters.media.portrait.log.warning", lambda text, *args: notes.append(text % args))
    frames = [Image.new("RGB", (176, 272), colour) for colour in (RED, GREEN, BLUE)]
    frames[0].save(tmp_path / f"p.{form}", save_all=True, append_images=frames[1:], duration=100)
    assert near(load_portrait(tmp_path / f"p.{form}", 272, 176)[100, 100], RED, 8)
    assert len(notes) == 1 and "first frame" in notes[0]


def test_crop_is_centred_and_keeps_the_top(tmp_path: Path) -> None:
    assert crop_box(1760, 1000, 272, 176) == pytest.approx((880 - 1000 * 176 / 544, 0, 880 + 1000 * 176 / 544, 1000))
    assert crop_box(176, 500, 272, 176) == (0, 0, 176, 272)
    wide = Image.new("RGB", (600, 272), GREEN)
    wide.paste(RED, (212, 0, 388, 272))
    wide.save(tmp_path / "p.png")
    assert near(load_portrait(tmp_path / "p.png", 272, 176).reshape(-1, 3).mean(0), RED, 3)


def header_only_png(width: int, height: int) -> bytes:
    def block(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + block(b"IHDR", header) + block(b"IDAT", zlib.compress(bytes(1000)))


@pytest.mark.parametrize("size", [(30_000, 30_000), (30_000, 10_000), (9_000, 9_000)])
def test_giant_images_are_refused_from_their_header(tmp_path: Path, size: tuple[int, int]) -> None:
    (tmp_path / "p.png").write_bytes(header_only_png(*size))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match="too large"):
        load_portrait(tmp_path / "p.png", 272, 176)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kB


@pytest.mark.parametrize("mode", ["I;16", "F", "RGBA"])
def test_a_large_picture_in_a_small_file_takes_little_memory(tmp_path: Path, mode: str) -> None:
    Image.new(mode, (6000, 9000)).save(tmp_path / "p.tiff", compression="tiff_adobe_deflate")
    assert (tmp_path / "p.tiff").stat().st_size < 2_000_000
    code = (
        "import resource, sys; from characters.media.portrait import load_portrait\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "load_portrait(sys.argv[1], 272, 176)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "p.tiff")], capture_output=True, check=True)
    assert int(done.stdout) < 700_000  # kB


@pytest.mark.parametrize("form", ["png", "jpg", "webp"])
@pytest.mark.parametrize("keep", [0.02, 0.5, 0.95])
def test_truncated_files(tmp_path: Path, form: str, keep: float) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (272, 176, 3), np.uint8))
    buffer = io.BytesIO()
    noise.save(buffer, {"jpg": "jpeg"}.get(form, form))
    (tmp_path / f"p.{form}").write_bytes(buffer.getvalue()[: int(keep * buffer.tell())])
    with pytest.raises(UserError, match="damaged"):
        load_portrait(tmp_path / f"p.{form}", 272, 176)


def test_other_bad_portraits(tmp_path: Path) -> None:
    def refused(name: str, message: str) -> None:
        with pytest.raises(UserError, match=message) as error:
            load_portrait(tmp_path / name, 272, 176)
        assert name in str(error.value) and "\n" not in str(error.value)

    refused("gone.png", "does not exist")
    (tmp_path / "folder.png").mkdir()
    refused("folder.png", "is a folder")
    (tmp_path / "text.png").write_text("I am a picture, trust me.\n")
    refused("text.png", "not an image")
    (tmp_path / "empty.png").write_bytes(b"")
    refused("empty.png", "not an image")
    (tmp_path / "page.eps").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 200 300\n%%EndComments\n")
    refused("page.eps", "not an image")  # would run an interpreter
    Image.new("RGB", (63, 90)).save(tmp_path / "small.png")
    refused("small.png", "too small: 63 x 90")
    Image.new("RGB", (100, 301)).save(tmp_path / "tall.png")
    refused("tall.png", "long and narrow")
    Image.new("RGB", (400, 100)).save(tmp_path / "wide.png")
    refused("wide.png", "long and narrow")


def test_a_picture_of_nothing_is_refused(tmp_path):
    with pytest.raises(UserError, match="of one colour"):
        check_content(np.full((272, 176, 3), 128, np.uint8), tmp_path / "grey.png")
    check_content(np.repeat(np.arange(176, dtype=np.uint8)[None, :, None], 3, 2), tmp_path / "face.png")
