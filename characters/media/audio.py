"""Recordings in: any file that FFmpeg reads, as float32 mono at 24 kHz, in constant memory."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import InputContainer

from characters.chunk import SAMPLE_RATE, rechunk
from characters.errors import UserError
from characters.media.survey import SECONDS, Survey, survey

log = logging.getLogger(__name__)

MAX_BROKEN = 0.01  # a recording with a larger share of NaN or infinite samples is refused

_NOT_AUDIO = "it is not a recording, or it is damaged; any common audio or video file will do"
_EXPORT = "export it again, mono or stereo, at 48 kHz"


def open_audio(path: str | Path) -> AudioFile:
    """Open a recording and check what can be checked without decoding all of it.

    Of several tracks the one is taken that players play. The first minutes are looked at; all of a file of
    floating-point samples, which can hold anything, and is quickly read because it is not compressed. What is odd is
    mended where it can be (see `survey`), and the log says so. Up to 1 % of NaN and infinity become silence.

    Raises:
        UserError: the file is missing, a folder, unreadable or not audio; it has no audio track, no sound in it, or too
            many broken samples.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise UserError(f"{path} is a folder, not a recording")
        if not path.is_file():  # a pipe or a device cannot be read twice, and has no length
            raise UserError(f"{path} is not a regular file" if path.exists() else f"{path} does not exist")
        with path.open("rb") as f:
            empty = not f.read(1)
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror}") from e
    if empty:
        raise UserError(f"{path} is empty")
    file = AudioFile(path)
    _check_samples(file)
    file.survey = survey(_first(file))
    for remark in file.survey.remarks:
        log.warning("%s: %s", path, remark)
    return file


class AudioFile:
    """A recording on disk, made by `open_audio`. Every iteration decodes it from the start.

    Attributes:
        path: the file.
        duration: seconds, for a progress bar; None if the header does not say.
        codec: FFmpeg's name of the audio codec, for example "pcm_f32le".
        survey: how its samples are to be read.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.survey = path, Survey()
        with closing(self._open()) as container:
            stream = _track(container)
            if (tracks := len(container.streams.audio)) > 1:
                log.warning("%s has %d audio tracks; %s is heard, as players do", path, tracks, _name(stream))
            if stream.codec_context is None:  # despite its type
                raise UserError(f"{path}: its sound is in a codec that FFmpeg does not know; {_EXPORT}")
            self.codec = stream.codec_context.name
            if stream.duration is not None and stream.time_base is not None:
                self.duration: float | None = float(stream.duration * stream.time_base)
            else:
                self.duration = container.duration / av.time_base if container.duration else None

    def chunks(self) -> Iterator[np.ndarray]:
        """float32 [4000] each, mono at 24 kHz, in [-1, 1]; the last one is padded with zeros."""
        return rechunk(self.blocks())

    def blocks(self) -> Iterator[np.ndarray]:
        """float32 [n], mono at 24 kHz, in [-1, 1]; the codec decides n.

        Raises:
            UserError: nothing decodes, the file is damaged, or FFmpeg cannot mix its channels or convert its rate.
        """
        some = False
        try:
            frames = (_repair(frame) for frame in self.frames())
            for block in _resample(frames if self.survey.plain else map(self.survey.apply, frames)):
                some = some or block.size > 0
                yield np.clip(block, -1.0, 1.0)
        except av.FFmpegError as e:
            raise UserError(f"{self.path}: its sound cannot be made mono at 24 kHz; {_EXPORT}") from e
        if not some:
            raise UserError(f"{self.path} has no sound in it")

    def frames(self) -> Iterator[AudioFrame]:
        """The decoded frames in the file's own rate, layout and format. Skips damaged packets, and the log says so.

        Raises:
            UserError: the damage is so bad that the packets cannot be found.
        """
        damaged = 0
        with closing(self._open()) as container:
            packets = container.demux(_track(container))
            while True:
                try:
                    packet = next(packets, None)
                except av.FFmpegError as e:
                    raise UserError(f"{self.path} is damaged; {_EXPORT}") from e
                if packet is None:
                    break
                try:
                    yield from packet.decode()
                except av.FFmpegError:
                    damaged += 1
        if damaged:
            log.warning("%s: %d damaged packets skipped", self.path, damaged)

    def _open(self) -> InputContainer:
        try:
            # The prefix keeps a name such as "a:b.wav" from being read as a protocol; the whitelist keeps a playlist
            # from reaching for the network.
            options = {"protocol_whitelist": "file"}
            container = av.open(f"file:{self.path}", mode="r", options=options, metadata_errors="replace")
        except OSError as e:
            raise UserError(f"cannot read {self.path}: {e.strerror}") from e
        except (av.FFmpegError, ValueError) as e:
            raise UserError(f"cannot read {self.path}: {_NOT_AUDIO}") from e
        if not container.streams.audio:
            container.close()
            raise UserError(f"{self.path} has no audio track")
        return container


def _track(container: InputContainer) -> AudioStream:
    """The track that players play."""
    best = container.streams.best("audio")
    return best if isinstance(best, AudioStream) else container.streams.audio[0]


def _name(stream: AudioStream) -> str:
    told = ", ".join(filter(None, (stream.metadata.get("title"), stream.language)))
    return f"track {stream.index}" + (f" ({told})" if told else "")


def _first(file: AudioFile) -> Iterator[AudioFrame]:
    """The frames that are looked at."""
    seconds = 0.0
    for frame in file.frames():
        yield frame
        seconds += frame.samples / frame.sample_rate
        if seconds > SECONDS and not file.codec.startswith("pcm_f"):
            return


def _resample(frames: Iterable[AudioFrame]) -> Iterator[np.ndarray]:
    resampler, form = None, None
    for frame in frames:
        frame.pts = None  # ignore gaps and jumps of the file's own clock
        if form != (form := (frame.format.name, frame.layout.name, frame.sample_rate)):  # may change inside a file
            if resampler is not None:
                yield from _arrays(resampler, None)
            # Channels are mixed with weights that add up to at most 1, so that nothing clips.
            resampler = AudioResampler("flt", "mono", SAMPLE_RATE, options={"rematrix_maxval": "1.0"})
        yield from _arrays(resampler, frame)
    if resampler is not None:
        yield from _arrays(resampler, None)


def _arrays(resampler: AudioResampler, frame: AudioFrame | None) -> Iterator[np.ndarray]:
    for out in resampler.resample(frame):
        if out is not None:
            yield out.to_ndarray().reshape(-1)


def _repair(frame: AudioFrame) -> AudioFrame:
    """Put silence in place of NaN and infinity, before a resampler spreads them over their neighbours."""
    if not frame.format.name.startswith(("flt", "dbl")):
        return frame
    samples = frame.to_ndarray()
    if np.isfinite(samples).all():
        return frame
    samples = np.nan_to_num(samples, copy=True, nan=0.0, posinf=0.0, neginf=0.0)
    repaired = AudioFrame.from_ndarray(samples, format=frame.format.name, layout=frame.layout.name)
    repaired.sample_rate = frame.sample_rate
    return repaired


def _check_samples(file: AudioFile) -> None:
    next(file.blocks())  # raises if there is no sound, or if FFmpeg cannot convert it
    if not file.codec.startswith("pcm_f"):
        return
    broken = total = 0
    for frame in file.frames():
        samples = frame.to_ndarray()
        total += samples.size
        broken += samples.size - int(np.isfinite(samples).sum())
    if broken > MAX_BROKEN * total:
        raise UserError(f"{file.path}: {broken / total:.0%} of its samples are NaN or infinite; export it again")
    if broken:
        log.warning("%s: %d NaN or infinite samples replaced by silence", file.path, broken)
