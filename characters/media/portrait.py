"""Portraits: any common image, as RGB of exactly the size that the model draws."""

from __future__ import annotations

import io
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageCms, ImageOps, PngImagePlugin, UnidentifiedImageError

from characters.errors import UserError
from characters.media.framing import Framing, Place, frame_face

if TYPE_CHECKING:
    from characters.character import LoadedCharacter

log = logging.getLogger(__name__)

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")  # formats whose decoders run no other program
MIN_SIDE = 64
MAX_PIXELS = 64_000_000  # 192 MB as RGB; twice a good camera
MAX_ASPECT = 3.0
MIN_CONTRAST = 4.0  # standard deviation in 255ths, of the channel that varies most
BACKGROUND = (226, 224, 219)  # shows through where a portrait is transparent
_MODES = {"RGB": "RGB", "CMYK": "CMYK", "GRAY": "L", "Lab": "LAB"}  # of pixels that a colour profile is for

# Of a PNG's profile, unpacked. Pillow refuses more than 1 MB, and profiles of printers have 2 and more.
PngImagePlugin.MAX_TEXT_CHUNK = 16 << 20


def load_portrait(path: str | Path, height: int, width: int) -> np.ndarray:
    """Read a portrait as uint8 [height, width, 3], RGB.

    The EXIF orientation and the colour profile are applied. A soft neutral background shows through transparent parts.
    An animation gives its first frame. The picture is cropped to the aspect of height x width: equally from both sides
    if it is too wide, from below if it is too tall, because the head is at the top. It is resampled by Lanczos' method.

    Raises:
        UserError: the file is missing, unreadable, truncated or not an image; it has more than 64 million pixels
            (checked in the header, before anything is decoded), a side under 64 pixels, or an aspect beyond 3:1.
    """
    return crop_portrait(open_portrait(path), height, width)


def open_portrait(path: str | Path) -> Image.Image:
    """The whole picture in RGB, upright, in sRGB's colours; see `load_portrait`, also for what is raised."""
    return _open(Path(path))


def crop_portrait(image: Image.Image, height: int, width: int) -> np.ndarray:
    """Crop and scale a picture in RGB as `load_portrait` does: uint8 [height, width, 3]."""
    box = crop_box(*image.size, height, width)
    return np.array(image.resize((width, height), Image.Resampling.LANCZOS, box=box), dtype=np.uint8)


def character_portrait(who: LoadedCharacter, height: int, width: int, framing: Framing) -> np.ndarray:
    """A character's portrait for a model: uint8 [height, width, 3], RGB.

    Args:
        who: the character.
        height, width: of the model's frames in pixels.
        framing: where the model wants the face of a photograph. Drawn portraits are cropped as `load_portrait` does.

    Raises:
        UserError: as `load_portrait`.
    """
    photograph = who.character.photograph
    if photograph is None:
        return load_portrait(who.portrait, height, width)
    x, y = photograph.eyes
    place = Place((x, y), photograph.height, photograph.roll)
    framed, _ = frame_face(open_portrait(who.folder / photograph.file), place, height, width, framing)
    return np.array(framed, dtype=np.uint8)


def check_content(portrait: np.ndarray, path: str | Path) -> None:
    """Raise UserError if a portrait that `load_portrait` read from `path` shows nothing."""
    if portrait.std((0, 1)).max() < MIN_CONTRAST:
        raise UserError(f"{path} is of one colour: there is no face on it")


def crop_box(image_width: int, image_height: int, height: int, width: int) -> tuple[float, float, float, float]:
    """The largest crop (left, top, right, bottom) with the aspect of height x width: centred, from the top."""
    scale = min(image_width / width, image_height / height)
    left = (image_width - scale * width) / 2
    return left, 0.0, left + scale * width, scale * height


def _open(path: Path) -> Image.Image:
    try:
        if path.is_dir():
            raise UserError(f"{path} is a folder, not an image")
        if not path.is_file():
            raise UserError(f"{path} is not a regular file" if path.exists() else f"{path} does not exist")
        with path.open("rb"):
            pass
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror}") from e
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's warnings about size and metadata; we check the size below
            with Image.open(path, formats=FORMATS) as image:
                _check_size(path, *image.size)
                if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":
                    log.warning("%s is animated: its first frame is used", path)
                image.load()
                return _to_rgb(_to_srgb(_upright(image), path))
    except Image.DecompressionBombError as e:
        raise UserError(f"{path} is too large: at most {MAX_PIXELS // 10**6} million pixels") from e
    except UnidentifiedImageError as e:
        raise UserError(f"{path} is not an image (PNG, JPEG, WebP, GIF, BMP, TIFF, AVIF), or it is damaged") from e
    except UserError:
        raise
    except Exception as e:  # on a damaged file decoders raise anything: OSError, SyntaxError, struct.error
        raise UserError(f"{path} is damaged: {e}") from e


def _check_size(path: Path, width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        limit = MAX_PIXELS // 10**6
        raise UserError(f"{path} is too large: {width} x {height} pixels, at most {limit} million in all")
    if min(width, height) < MIN_SIDE:
        raise UserError(f"{path} is too small: {width} x {height} pixels, at least {MIN_SIDE} a side")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise UserError(f"{path} is too long and narrow: {width} x {height} pixels; crop it to about 2:3 (w:h)")


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # a good picture may have damaged metadata
        return image


def _to_srgb(image: Image.Image, path: Path) -> Image.Image:
    """A picture with a colour profile, in the colours that it means, as RGB or with its transparency as RGBA."""
    profile = image.info.get("icc_profile")
    if not profile or image.mode.startswith(("I", "F")):
        return image
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        mode = _MODES[source.profile.xcolor_space.strip()]
        alpha = image.convert("RGBA").getchannel("A") if image.has_transparency_data else None
        pixels = image if image.mode == mode else image.convert("RGB").convert(mode)
        converted = ImageCms.profileToProfile(
            pixels,
            source,
            ImageCms.createProfile("sRGB"),
            renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
            outputMode="RGB",
            flags=ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )
    except (ImageCms.PyCMSError, KeyError, OSError, ValueError, TypeError):
        log.warning("%s has a colour profile that cannot be read: its colours are taken as sRGB", path)
        return image
    assert converted is not None
    if alpha is not None:
        converted.putalpha(alpha)
    return converted


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith(("I", "F")):  # 16 or 32 bits a pixel, which Pillow would clip instead of scaling
        return _shallow(image).convert("RGB")
    if image.has_transparency_data:
        backdrop, image = Image.new("RGB", image.size, BACKGROUND), image.convert("RGBA")
        backdrop.paste(image, mask=image)
        return backdrop
    return image.convert("RGB")


def _shallow(image: Image.Image) -> Image.Image:
    """A picture of 16 or 32 bits a pixel with 8; a strip at a time, since a large one in float64 fills a machine."""
    width, height = image.size
    rows = max(1, 2**20 // width)

    def strip(top: int) -> np.ndarray:
        part = image.crop((0, top, width, min(top + rows, height)))
        return np.nan_to_num(np.asarray(part, dtype=np.float64), posinf=0, neginf=0)

    tops = range(0, height, rows)
    highest = max(strip(top).max() for top in tops)
    full = 1.0 if highest <= 1.0 else 255.0 if highest <= 255.0 else 65535.0
    shallow = Image.new("L", image.size)
    for top in tops:
        shallow.paste(Image.fromarray(np.uint8(np.clip(strip(top) / full, 0, 1) * 255 + 0.5)), (0, top))
    return shallow
