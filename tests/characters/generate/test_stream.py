import numpy as np
import pytest
import torch

from characters.chunk import SAMPLES_PER_CHUNK
from characters.device import choose_device
from characters.errors import UserError
from characters.generate.hearing import Listener, MelHearing, log_mel, windows
from characters.generate.networks import Networks, load_networks
from characters.generate.stream import Stream, frame_size
from characters.model.autoencoder import Autoencoder
from characters.model.dit import DiT
from tests.characters.model.test_context import tiny_config


@pytest.fixture(scope="module")
def model() -> Networks:
    torch.manual_seed(0)
    config = tiny_config(context_noise=0.2)
    return Networks(config, DiT(config).eval(), Autoencoder(config).eval())


PORTRAIT = np.random.default_rng(0).integers(0, 256, (64, 48, 3), np.uint8)


def blocks(count: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).normal(0, 0.1, (count, SAMPLES_PER_CHUNK)).astype(np.float32))


@pytest.mark.parametrize("size", [250, 999, 4000, 30_000])
def test_windows_of_a_growing_signal_equal_those_of_the_whole(size):
    pcm = np.concatenate(blocks(12))
    audio, got = Listener(MelHearing()), []
    for start in range(0, len(pcm), size):
        audio.push(pcm[start : start + size])
        while (window := audio.pop()) is not None:
            got.append(window)
    expected = windows(torch.from_numpy(log_mel(pcm)), 0, len(got)).numpy()
    assert len(got) == 11  # the last chunk still waits for its look-ahead
    np.testing.assert_allclose(np.stack(got), expected, atol=1e-5)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_a_chunk_comes_out_for_every_block_with_its_own_sound(model, count):
    sound = blocks(count)
    chunks = list(Stream(model, PORTRAIT).run(iter(sound)))
    assert [c.index for c in chunks] == list(range(count))
    for chunk, block in zip(chunks, sound, strict=True):
        assert chunk.frames.shape == (4, 64, 48, 3) and chunk.frames.dtype == np.uint8
        assert np.array_equal(chunk.pcm, block)
        assert set(chunk.timings) == {"audio", "dit", "decode"}


def test_a_chunk_waits_for_two_blocks_and_no_more(model):
    taken = []

    def source():
        for i, block in enumerate(blocks(6)):
            taken.append(i)
            yield block

    run = Stream(model, PORTRAIT).run(source())
    for i in range(5):
        next(run)
        assert taken == list(range(min(i + 3, 6)))  # one is the look-ahead, one is the decoder's


def test_frames_do_not_depend_on_sound_after_the_look_ahead(model):
    one, two = blocks(6), blocks(6)
    two[4] = two[4] * -3
    first, second = (list(Stream(model, PORTRAIT, seed=4).run(iter(b))) for b in (one, two))
    same = [np.array_equal(a.frames, b.frames) for a, b in zip(first, second, strict=True)]
    assert same == [True, True, True, False, False, False]  # chunk 3 hears the first 83 ms of block 4


def test_two_streams_on_one_model_do_not_touch_each_other(model):
    other = 255 - PORTRAIT
    alone = [list(Stream(model, p, seed=s).run(iter(blocks(6, s)))) for p, s in ((PORTRAIT, 1), (other, 2))]
    pair = [Stream(model, p, seed=s).run(iter(blocks(6, s))) for p, s in ((PORTRAIT, 1), (other, 2))]
    for expected_a, expected_b in zip(*alone, strict=True):
        assert np.array_equal(next(pair[0]).frames, expected_a.frames)
        assert np.array_equal(next(pair[1]).frames, expected_b.frames)


def test_the_seed_decides(model):
    def run(seed):
        return np.stack([c.frames for c in Stream(model, PORTRAIT, seed=seed).run(iter(blocks(3)))])

    assert np.array_equal(run(7), run(7))
    assert not np.array_equal(run(7), run(8))


def test_bad_portraits_and_devices_are_named(model):
    with pytest.raises(UserError, match="portrait must be"):
        Stream(model, PORTRAIT[:32])
    with pytest.raises(UserError, match="not a device"):
        choose_device("gpu please")
    for name in ("cuda:99", "cuda:256", "cuda:999"):
        with pytest.raises(UserError, match=f"{name}' is not there"):
            choose_device(name)
    with pytest.raises(UserError, match="no trained weights"):
        load_networks("reference-57b")


def test_frame_size_of_the_small_model():
    assert frame_size("small") == (272, 176)
