from __future__ import annotations

import struct
import wave
from pathlib import Path

import numpy as np
import pytest

from characters.errors import UserError
from characters.media.audio import open_audio, rechunk
from characters.media.video import VideoWriter
from tests.characters.media.make import tone, write_audio


def read(path: Path) -> np.ndarray:
    return np.concatenate(list(open_audio(path).blocks()))


@pytest.mark.parametrize(
    ("suffix", "codec", "rate", "layout", "channels"),
    [
        ("wav", "pcm_u8", 8_000, "mono", 1),
        ("wav", "pcm_s16le", 44_100, "stereo", 2),
        ("wav", "pcm_s24le", 48_000, "mono", 1),
        ("wav", "pcm_s32le", 96_000, "stereo", 2),
        ("wav", "pcm_f32le", 22_050, "mono", 1),
        ("wav", "pcm_f64le", 24_000, "5.1", 6),
        ("wav", "pcm_s16le", 96_000, "5.1", 6),
        ("wav", "pcm_mulaw", 8_000, "mono", 1),
        ("aiff", "pcm_s16be", 11_025, "mono", 1),
        ("flac", "flac", 48_000, "stereo", 2),
        ("mp3", "libmp3lame", 44_100, "stereo", 2),
        ("m4a", "aac", 44_100, "mono", 1),
        ("ogg", "libopus", 48_000, "mono", 1),
        ("mka", "pcm_s16le", 16_000, "mono", 1),
    ],
)
def test_any_format_arrives_as_24_khz_mono(
    tmp_path: Path, suffix: str, codec: str, rate: int, layout: str, channels: int
) -> None:
    path = write_audio(tmp_path / f"a.{suffix}", tone(1.5, rate, channels), rate, codec, layout)
    file = open_audio(path)
    assert file.duration == pytest.approx(1.5, abs=0.1)
    pcm = np.concatenate(list(file.blocks()))
    assert pcm.dtype == np.float32
    assert len(pcm) == pytest.approx(36_000, abs=1_700)  # codecs pad to their own frame
    middle = pcm[6_000:30_000]
    expected = tone(1.5, 24_000)[0][6_000:30_000]
    assert np.abs(middle - expected).max() < 0.06  # in time and in level


def test_a_video_gives_its_sound(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "v.mp4", 64, 64) as writer:
        for chunk in rechunk([tone(1.0, 24_000)[0].astype(np.float32)]):
            writer.write(np.zeros((4, 64, 64, 3), np.uint8), chunk)
    assert np.abs(read(tmp_path / "v.mp4")[4_000:20_000] - tone(1.0, 24_000)[0][4_000:20_000]).max() < 0.03


def test_chunks_are_whole_and_the_last_is_padded(tmp_path: Path) -> None:
    path = write_audio(tmp_path / "a.wav", np.full((1, 9_000), 0.25), 24_000, "pcm_f32le")
    file = open_audio(path)
    for _ in range(2):  # a file can be read again
        chunks = list(file.chunks())
        assert [c.shape for c in chunks] == [(4_000,)] * 3
        joined = np.concatenate(chunks)
        assert (joined[:9_000] == 0.25).all() and (joined[9_000:] == 0).all()
    assert list(rechunk([])) == []
    assert len(list(rechunk([np.zeros(4_000, np.float32)]))) == 1


def test_few_broken_samples_become_silence_and_many_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    monkeypatch.setattr("characters.media.audio.log.warning", lambda text, *args: notes.append(text % args))
    samples = tone(1.0, 48_000)
    samples[0, 10_000:10_100] = np.nan
    samples[0, 20_000], samples[0, 20_001] = np.inf, -np.inf
    pcm = read(write_audio(tmp_path / "a.wav", samples, 48_000, "pcm_f32le"))
    assert np.isfinite(pcm).all() and np.abs(pcm).max() < 0.8
    assert notes == [f"{tmp_path / 'a.wav'}: 102 NaN or infinite samples replaced by silence"]
    samples[0, :1_000] = np.nan
    with pytest.raises(UserError, match="2% of its samples are NaN"):
        open_audio(write_audio(tmp_path / "b.wav", samples, 48_000, "pcm_f64le"))


def test_loud_samples_are_clipped(tmp_path: Path) -> None:
    pcm = read(write_audio(tmp_path / "a.wav", 1e30 * tone(0.5, 24_000), 24_000, "pcm_f32le"))
    assert np.abs(pcm).max() == 1.0


def test_a_damaged_stretch_is_skipped_with_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_audio(tmp_path / "a.flac", tone(3.0, 24_000), 24_000, "flac")
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 2_000] = bytes(2_000)
    path.write_bytes(data)
    pcm = read(path)
    assert np.isfinite(pcm).all() and len(pcm) > 24_000


def test_bad_recordings(tmp_path: Path) -> None:
    def refused(name: str, message: str) -> None:
        with pytest.raises(UserError, match=message) as error:
            open_audio(tmp_path / name)
        assert name in str(error.value) and "\n" not in str(error.value)

    refused("gone.wav", "does not exist")
    (tmp_path / "folder.wav").mkdir()
    refused("folder.wav", "is a folder")
    (tmp_path / "empty.wav").write_bytes(b"")
    refused("empty.wav", "is empty")
    for suffix in ("wav", "mp3", "m4a", "ogg", "flac", "txt", "mp4"):
        (tmp_path / f"text.{suffix}").write_text("Once upon a time there was no sound at all.\n" * 200)
        refused(f"text.{suffix}", "not a recording|no sound|no audio track")
    with wave.open(str(tmp_path / "zero.wav"), "wb") as f:
        f.setnchannels(1)
        f.setsampwidth(2)
        f.setframerate(24_000)
    refused("zero.wav", "no sound")
    whole = write_audio(tmp_path / "whole.m4a", tone(2.0, 24_000), 24_000, "aac").read_bytes()
    (tmp_path / "cut.m4a").write_bytes(whole[: len(whole) // 2])  # its index is at the end
    refused("cut.m4a", "not a recording")
    (tmp_path / "playlist.m3u8").write_text("#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/a.ts\n#EXT-X-ENDLIST\n")
    refused("playlist.m3u8", "not a recording|no audio track|no sound")


def wav(channels: int = 1, form: int = 1) -> bytes:
    """A second of 16-bit silence at 8 kHz, its channels without a layout; `form` is the header's format tag."""
    data = bytes(2 * 8_000 * channels)
    header = struct.pack("<4sIHHIIHH", b"fmt ", 16, form, channels, 8_000, 2 * 8_000 * channels, 2 * channels, 16)
    return (
        struct.pack("<4sI4s", b"RIFF", 4 + len(header) + 8 + len(data), b"WAVE")
        + header
        + (struct.pack("<4sI", b"data", len(data)) + data)
    )


@pytest.mark.parametrize("channels", [9, 11, 64, 255])
def test_channels_that_cannot_be_mixed_are_refused_at_once(tmp_path: Path, channels: int) -> None:
    (tmp_path / "a.wav").write_bytes(wav(channels))
    with pytest.raises(UserError, match=r"a\.wav: its sound cannot be made mono"):
        open_audio(tmp_path / "a.wav")


def test_a_codec_that_nobody_knows(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav(form=0x1234))
    with pytest.raises(UserError, match="a codec that FFmpeg does not know"):
        open_audio(tmp_path / "a.wav")


def test_a_damaged_container(tmp_path: Path) -> None:
    path = write_audio(tmp_path / "a.caf", tone(1.0, 24_000), 24_000, "pcm_s16be")
    data = bytearray(path.read_bytes())
    data[data.index(b"desc") + 29] = 0x61  # bytes of a packet: six million instead of two
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"a\.caf is damaged"):
        list(open_audio(path).blocks())


def test_a_file_without_sound_track(tmp_path: Path) -> None:
    import av

    with av.open(str(tmp_path / "v.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=24)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")))
        container.mux(stream.encode(None))
    with pytest.raises(UserError, match="no audio track"):
        open_audio(tmp_path / "v.mp4")


def test_names_that_look_like_protocols(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_audio(tmp_path / "plain.wav", tone(0.5, 24_000), 24_000, "pcm_s16le").rename("http:x #1%.wav")
    assert len(read(Path("http:x #1%.wav"))) == 12_000
