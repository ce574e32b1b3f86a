"""Videos: H.264 and AAC in an MP4 that appears complete or not at all."""

from __future__ import annotations

import errno
import os
from fractions import Fraction
from pathlib import Path
from types import TracebackType

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange, Colorspace, VideoReformatter

from characters import output
from characters.chunk import FPS, SAMPLE_RATE
from characters.errors import UserError
from characters.media.provenance import COMMENT, load_signer
from characters.output import put, temporary, write_error

# The first of these that the installed FFmpeg has. B-frames are off, so that frames need no reordering delay.
VIDEO_ENCODERS = {"libx264": {"preset": "veryfast", "crf": "17", "bf": "0"}, "libopenh264": {"rc_mode": "quality"}}
AUDIO_RATE = 48_000  # every player's native rate; it also halves the AAC encoder's priming
AUDIO_BITS = 128_000
BT709 = 1  # in H.264's tables of primaries, transfer and matrix alike


def check_output(path: str | Path) -> Path:
    """Check, before any work, that a video can be written at `path`; returns it as a Path.

    Raises:
        UserError: the name does not end in .mp4, or an error of `output.check_output`.
    """
    path = Path(path)
    if path.suffix.lower() != ".mp4":
        raise UserError(f"cannot write {path}: the output must be named .mp4")
    return output.check_output(path)


class VideoWriter:
    """Writes frames and their sound, in step, to an MP4.

    Frame k is shown at exactly k/24 s and sample n is heard at n/24000 s: the file's edit list, which players honour,
    cuts off the AAC encoder's priming. Colours are BT.709, limited range, 4:2:0. Of the memory only the file's index
    grows with the video, by about 0.4 MB a minute.

    The file is written under a temporary name beside `path`. It moves to `path` when the `with` block ends without an
    exception; after an exception it is removed, and an older file at `path` stays. Its comment says that it was
    generated, and it is signed if `load_signer` knows a certificate.

    Raises:
        UserError: an error of `check_output` or `load_signer`; FFmpeg has no H.264 encoder; the disk fills up or the
            folder goes away.
    """

    def __init__(self, path: str | Path, width: int, height: int, fps: int = FPS) -> None:
        """`width` and `height` in pixels, both even; `fps`: frames a second."""
        if width % 2 or height % 2:
            raise ValueError(f"4:2:0 video needs even sides, not {width} x {height}")
        self.path, self._fps, self._signer = check_output(path), fps, load_signer()
        self.width, self.height = width, height
        self.frame_count = 0
        encoder = next((name for name in VIDEO_ENCODERS if name in av.codecs_available), None)
        if encoder is None:
            raise UserError(f"this FFmpeg has no H.264 encoder ({' or '.join(VIDEO_ENCODERS)}): pip install av")
        try:
            self._temporary = temporary(self.path)
        except OSError as e:
            raise write_error(self.path, e) from e
        try:
            self._open(encoder)
        except BaseException:
            self._discard()
            raise

    def _open(self, encoder: str) -> None:
        try:
            # faststart moves the index to the front, so that a browser can play while it loads.
            self._container = av.open(self._temporary, "w", format="mp4", options={"movflags": "+faststart"})
        except OSError as e:
            raise write_error(self.path, e) from e
        self._container.metadata["comment"] = COMMENT
        self._video = self._container.add_stream(encoder, rate=self._fps, options=VIDEO_ENCODERS[encoder])
        self._video.width, self._video.height, self._video.pix_fmt = self.width, self.height, "yuv420p"
        context = self._video.codec_context
        context.time_base = Fraction(1, self._fps)
        context.color_range = ColorRange.MPEG
        context.colorspace = context.color_primaries = context.color_trc = BT709
        self._reformatter = VideoReformatter()
        self._audio = self._container.add_stream("aac", rate=AUDIO_RATE, layout="mono")
        self._audio.bit_rate = AUDIO_BITS
        self._resampler = AudioResampler(format="fltp", layout="mono", rate=AUDIO_RATE)
        self._sample_count = 0

    def write(self, frames: np.ndarray, pcm: np.ndarray) -> None:
        """Append frames, uint8 [n, height, width, 3] RGB, and their sound, float32 [n * 24000 / fps] mono at 24 kHz."""
        expected = (len(frames), self.height, self.width, 3)
        if (
            frames.shape != expected
            or frames.dtype != np.uint8
            or pcm.shape != (len(frames) * SAMPLE_RATE // self._fps,)
        ):
            raise ValueError(f"frames {frames.dtype} {frames.shape} and pcm {pcm.shape} do not fit {expected}")
        try:
            for pixels in frames:
                frame = self._reformatter.reformat(
                    VideoFrame.from_ndarray(pixels, format="rgb24"),
                    format="yuv420p",
                    dst_colorspace=Colorspace.ITU709,
                    dst_color_range=ColorRange.MPEG,
                )
                frame.pts, frame.time_base = self.frame_count, Fraction(1, self._fps)
                self._container.mux(self._video.encode(frame))
                self.frame_count += 1
            sound = AudioFrame.from_ndarray(pcm.astype(np.float32).reshape(1, -1), format="fltp", layout="mono")
            sound.sample_rate, sound.time_base, sound.pts = SAMPLE_RATE, Fraction(1, SAMPLE_RATE), self._sample_count
            self._sample_count += len(pcm)
            self._encode_sound(sound)
        except OSError as e:
            raise write_error(self.path, e) from e

    def _encode_sound(self, sound: AudioFrame | None) -> None:
        for frame in self._resampler.resample(sound):
            if frame is not None:
                self._container.mux(self._audio.encode(frame))

    def _finish(self) -> None:
        if self.frame_count == 0:
            raise UserError(f"nothing to write to {self.path}: not a single frame was made")
        try:
            self._container.mux(self._video.encode(None))
            self._encode_sound(None)
            self._container.mux(self._audio.encode(None))
            self._container.close()
            with open(self._temporary, "rb+") as f:
                os.fsync(f.fileno())  # a disk may report that it is full only now
            self._verify()
            if self._signer is not None:
                self._signer.sign(Path(self._temporary), self.path)
            put(self._temporary, self.path)
        except (OSError, av.FFmpegError) as e:
            raise write_error(self.path, e) from e

    def _verify(self) -> None:
        """Read the file's index back before the file moves to `path`: FFmpeg does not report every failed write."""
        with av.open(self._temporary) as container:
            written = container.streams.video[0].frames
        if written != self.frame_count:
            raise OSError(errno.EIO, f"{written} of {self.frame_count} frames were written")

    def _discard(self) -> None:
        container = getattr(self, "_container", None)
        try:
            if container is not None:
                container.close()
        except Exception:  # the file is removed anyway
            pass
        finally:
            Path(self._temporary).unlink(missing_ok=True)

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._discard()
