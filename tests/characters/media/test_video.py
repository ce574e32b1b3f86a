from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av
import numpy as np
import pytest

from characters.errors import UserError
from characters.media import video
from characters.media.audio import open_audio
from characters.media.provenance import COMMENT
from characters.media.video import VideoWriter, check_output
from tests.characters.media.make import tone, write_audio

SILENCE = np.zeros(4_000, np.float32)


def noise(seed: int, height: int = 272, width: int = 176) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (4, height, width, 3), np.uint8)


def write(path: Path, chunks: int = 6) -> None:
    with VideoWriter(path, 176, 272) as writer:
        for i in range(chunks):
            writer.write(noise(i), SILENCE)


@pytest.mark.parametrize("size", [(272, 176), (1088, 704)])
def test_a_flash_and_its_click_stay_together(tmp_path: Path, size: tuple[int, int]) -> None:
    seconds = 6 if size[0] < 1000 else 2
    frames = np.full((24 * seconds, *size, 3), (200, 60, 30), np.uint8)
    pcm = np.random.default_rng(0).normal(scale=1e-3, size=24_000 * seconds).astype(np.float32)
    marks = list(range(0, 24 * seconds, 17))  # frames, all over the chunk
    for k in marks:
        frames[k] = 255
        pcm[k * 1_000] = 0.9
    with VideoWriter(tmp_path / "v.mp4", size[1], size[0]) as writer:
        for i in range(0, len(frames), 4):
            writer.write(frames[i : i + 4], pcm[i * 1_000 : (i + 4) * 1_000])

    with av.open(str(tmp_path / "v.mp4")) as container:
        assert container.start_time == 0
        stream = container.streams.video[0]
        assert stream.average_rate == 24 and float(stream.duration * stream.time_base) == seconds
        context = stream.codec_context
        assert (context.colorspace, context.color_primaries, context.color_trc, context.color_range) == (1, 1, 1, 1)
        seen, colour = [], None
        for k, frame in enumerate(container.decode(stream)):
            assert frame.time == pytest.approx(k / 24, abs=1e-6)
            pixels = frame.reformat(format="rgb24", src_colorspace="ITU709").to_ndarray()
            if pixels.mean() > 200:
                seen.append(k)
            else:
                colour = pixels[size[0] // 2, size[1] // 2]
        assert seen == marks
        assert np.abs(colour.astype(int) - (200, 60, 30)).max() <= 3
    with av.open(str(tmp_path / "v.mp4")) as container:
        first = next(container.decode(audio=0))
        assert first.time == 0.0
    heard = np.concatenate(list(open_audio(tmp_path / "v.mp4").blocks()))
    for k in marks:
        start = max(0, k * 1_000 - 300)
        click = start + np.abs(heard[start : k * 1_000 + 300]).argmax()
        assert abs(click - k * 1_000) <= 2  # samples of 24 kHz
    lag = np.correlate(heard[: len(pcm)], pcm[300:-300], "valid").argmax() - 300
    assert abs(lag) <= 1


def test_the_index_comes_first(tmp_path: Path) -> None:
    write(tmp_path / "v.mp4")
    data = (tmp_path / "v.mp4").read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")


def test_an_exception_leaves_the_earlier_file(tmp_path: Path) -> None:
    target = tmp_path / "v.mp4"
    target.write_bytes(b"earlier")
    for error in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(error), VideoWriter(target, 176, 272) as writer:
            writer.write(noise(0), SILENCE)
            assert target.read_bytes() == b"earlier"
            raise error
        assert target.read_bytes() == b"earlier"
        assert os.listdir(tmp_path) == ["v.mp4"]
    with pytest.raises(UserError, match="not a single frame"), VideoWriter(target, 176, 272):
        pass
    assert target.read_bytes() == b"earlier" and os.listdir(tmp_path) == ["v.mp4"]
    write(target)
    assert target.read_bytes() != b"earlier" and os.listdir(tmp_path) == ["v.mp4"]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """What a full disk does, for whoever may not mount one: writing past `size` bytes fails."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_disk_that_fills_up_at_any_point(tmp_path: Path) -> None:
    target = tmp_path / "v.mp4"
    write(target)
    size = target.stat().st_size
    target.write_bytes(b"earlier")
    # At the start, in the middle, in the index, and while the index is moved to the front.
    for limit in (1_000, size // 2, size - 3_000, size - 1_500, size - 1):
        with pytest.raises(UserError, match="the disk is full"), largest_file(limit):
            write(target)
        assert target.read_bytes() == b"earlier" and os.listdir(tmp_path) == ["v.mp4"]
    with largest_file(size):
        write(target)
    assert target.stat().st_size == size


def test_no_space_left_on_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_a_full_device(path: Path) -> str:
        os.symlink("/dev/full", path.with_suffix(".part"))
        return str(path.with_suffix(".part"))

    monkeypatch.setattr(video, "check_output", lambda path: path)
    monkeypatch.setattr(video, "temporary", on_a_full_device)
    with pytest.raises(UserError, match="the disk is full"):
        write(tmp_path / "v.mp4")
    assert os.listdir(tmp_path) == []


def test_outputs_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, message: str) -> None:
        with pytest.raises(UserError, match=message):
            check_output(path)
        with pytest.raises(UserError, match=message):
            VideoWriter(path, 176, 272)

    refused(tmp_path / "v.avi", r"must be named \.mp4")
    refused(tmp_path / "v", r"must be named \.mp4")
    refused(tmp_path / "nowhere" / "v.mp4", "does not exist")
    (tmp_path / "folder.mp4").mkdir()
    refused(tmp_path / "folder.mp4", "it is a folder")
    refused(Path("/proc/v.mp4"), "cannot write /proc/v.mp4")
    assert check_output(tmp_path / "v.MP4") == tmp_path / "v.MP4"
    assert os.listdir(tmp_path) == ["folder.mp4"]

    def denied(*_: object, **__: object) -> tuple[int, str]:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", denied)  # permissions do not bind root
    refused(tmp_path / "v.mp4", "not writable")


def test_wrong_shapes_are_the_callers_fault(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="even sides"):
        VideoWriter(tmp_path / "v.mp4", 175, 272)
    with pytest.raises(ValueError, match="do not fit"), VideoWriter(tmp_path / "v.mp4", 176, 272) as writer:
        writer.write(noise(0), SILENCE[:-1])
    assert os.listdir(tmp_path) == []


def resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_half_an_hour_in_constant_memory(tmp_path: Path) -> None:
    minute = np.zeros((1, 60 * 16_000))  # tiny and silent, so that half an hour takes seconds
    minute[0, :16_000] = tone(1.0, 16_000)
    write_audio(tmp_path / "a.wav", np.tile(minute, 30), 16_000, "pcm_s16le")
    frames = np.full((4, 32, 32, 3), 90, np.uint8)
    with VideoWriter(tmp_path / "v.mp4", 32, 32) as writer:
        for i, chunk in enumerate(open_audio(tmp_path / "a.wav").chunks()):
            writer.write(frames, chunk)
            if i == 600:
                before = resident()
        grown = resident() - before
    assert writer.frame_count == 30 * 60 * 24
    assert grown < 24e6


def test_a_video_says_that_it_was_generated(tmp_path: Path) -> None:
    write(tmp_path / "v.mp4")
    with av.open(tmp_path / "v.mp4") as container:
        assert container.metadata["comment"] == COMMENT and "trainedAlgorithmicMedia" in COMMENT
