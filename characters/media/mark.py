"""The words "AI-generated" in a corner of the picture."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFont

TEXT = "AI-generated"
_SHARE = 24  # the frame is so many times as high as the letters
_LIGHT, _DARK = 235, 16  # of limited range
_BOX = 0.45  # how dark the box behind the letters is


class Mark:
    """Draws the words at the bottom left.

    Args:
        height, width: of the frames in pixels, both even.
    """

    def __init__(self, height: int, width: int) -> None:
        self._height, self._width = height, width
        font = ImageFont.load_default(max(9, height // _SHARE))
        left, top, right, bottom = (round(value) for value in font.getbbox(TEXT))
        edge = max(2, height // 136)
        tall, wide = bottom - top + 2 * edge, right - left + 2 * edge
        tall, wide = tall + tall % 2, min(wide + wide % 2, width)
        letters = Image.new("L", (wide, tall), 0)
        ImageDraw.Draw(letters).text((edge - left, edge - top), TEXT, fill=255, font=font)
        ink = np.asarray(letters, np.float32) / 255
        self._cover = np.maximum(ink, _BOX)  # how much of the picture is hidden
        self._ink = ink
        self._top, self._left = (height - tall - 2 * edge) // 2 * 2, min(2 * edge, width - wide) // 2 * 2

    def on_rgb(self, frames: np.ndarray) -> np.ndarray:
        """A copy of uint8 [n, H, W, 3] with the words."""
        marked = frames.copy()
        rows, columns = self._cover.shape
        part = marked[:, self._top : self._top + rows, self._left : self._left + columns]
        part[:] = self._blend(part, self._cover[..., None], 255 * self._ink[..., None])
        return marked

    def on_i420(self, frame: np.ndarray) -> np.ndarray:
        """A copy of uint8 [H * 3 / 2, W], I420, with the words."""
        marked = frame.copy()
        rows, columns = self._cover.shape
        luma = marked[self._top : self._top + rows, self._left : self._left + columns]
        luma[:] = self._blend(luma, self._cover, _DARK + (_LIGHT - _DARK) * self._ink)
        cover = self._cover.reshape(rows // 2, 2, columns // 2, 2).mean((1, 3))
        pixels, count = self._height * self._width, self._height * self._width // 4
        for begin in (pixels, pixels + count):
            plane = marked.reshape(-1)[begin : begin + count].reshape(self._height // 2, self._width // 2)
            part = plane[self._top // 2 : (self._top + rows) // 2, self._left // 2 : (self._left + columns) // 2]
            part[:] = self._blend(part, cover, np.full_like(cover, 128))
        return marked

    @staticmethod
    def _blend(under: np.ndarray, cover: np.ndarray, colour: np.ndarray) -> np.ndarray:
        return (under * (1 - cover) + cover * colour + 0.5).astype(np.uint8)
