"""The cached generator and the decoder behind it, whole and in parts."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from characters.character import load_character
from characters.errors import UserError
from characters.generate.cached import CachedGenerator
from characters.generate.decoder import LatentDecoder
from characters.generate.hearing import Listener, MelHearing
from characters.generate.networks import Networks, load_networks
from characters.generate.stream import Stream
from characters.media.portrait import load_portrait
from characters.model.config import load_model_config, with_context
from characters.speech import open_voice
from kernels.i420 import rgb_to_i420


@pytest.fixture(scope="module")
def networks(tiny_model: str) -> Networks:
    torch.set_num_threads(1)
    return load_networks(tiny_model, "cpu", random_weights=True)


SEED = 3


@pytest.fixture
def portrait(networks: Networks) -> np.ndarray:
    shape = (networks.config.height, networks.config.width, 3)
    return np.random.default_rng(1).integers(0, 255, shape, np.uint8)


def windows(count: int) -> list[torch.Tensor]:
    listener = Listener(MelHearing())
    listener.push((np.random.default_rng(0).standard_normal(count * 4000 + 4000) * 0.1).astype(np.float32))
    heard = [listener.pop() for _ in range(count)]
    return [torch.from_numpy(window) for window in heard if window is not None]


def test_generator_and_decoder_do_what_the_stream_does(networks: Networks, portrait: np.ndarray) -> None:
    generator, decoder = CachedGenerator(networks), LatentDecoder(networks)
    generator.start(portrait, SEED)
    decoder.start(portrait)
    stream = Stream(networks, portrait, SEED)
    for window in windows(6):
        frames = decoder.decode(generator.generate(window))
        expected = stream.step(window.numpy(), np.zeros(4000, np.float32)).frames
        assert torch.equal(frames, rgb_to_i420(torch.from_numpy(expected)))


def test_two_processes_have_the_same_random_weights(networks: Networks, tiny_model: str) -> None:
    other = load_networks(tiny_model, "cpu", random_weights=True)
    for a, b in zip(networks.dit.parameters(), other.dit.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_failed_step_advances_nothing(
    networks: Networks, portrait: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = windows(2)
    generator, decoder = CachedGenerator(networks), LatentDecoder(networks)
    for role in (generator, decoder):
        role.start(portrait)
    decoder.decode(generator.generate(first))
    index, frame = generator._sampler.index, generator._idle.frame  # type: ignore[union-attr]
    with monkeypatch.context() as patch:
        patch.setattr(networks.dit.head, "forward", lambda *a: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            generator.generate(second)
    assert (generator._sampler.index, generator._idle.frame) == (index, frame)  # type: ignore[union-attr]
    latent = generator.generate(second)
    expected = copy.deepcopy(decoder._decoder._previous)
    with monkeypatch.context() as patch:
        patch.setattr(networks.autoencoder.decoder, "forward", lambda *a: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            decoder.decode(latent)
    assert torch.equal(decoder._decoder._previous, expected)


def test_a_decoder_that_stopped_halfway_is_brought_back(
    networks: Networks, portrait: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator, decoder, other = CachedGenerator(networks), LatentDecoder(networks), LatentDecoder(networks)
    for role in (generator, decoder, other):
        role.start(portrait)
    latents = [generator.generate(window) for window in windows(3)]
    for latent in latents[:2]:
        decoder.decode(latent)
        other.decode(latent)

    inner = decoder._decoder
    decode, calls = inner.decode, 0

    def halfway(latent: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 1:
            decode(torch.zeros_like(latent))
            raise ZeroDivisionError
        return decode(latent)

    with monkeypatch.context() as patch:
        patch.setattr(inner, "decode", halfway)
        with pytest.raises(ZeroDivisionError):
            decoder.decode(latents[2])
    expected = other.decode(latents[2])
    assert torch.equal(decoder.decode(latents[2]), expected)


def test_restore_goes_on_with_the_motion(networks: Networks, portrait: np.ndarray) -> None:
    generator = CachedGenerator(networks)
    generator.start(portrait, SEED)
    for window in windows(4):
        generator.generate(window)
    state = copy.deepcopy(generator.snapshot())
    expected = generator._idle.next_chunk()
    other = CachedGenerator(networks)
    other.start(portrait)
    other.restore(state)
    assert torch.equal(other._idle.next_chunk(), expected)


def test_another_session_finds_nothing_of_the_last_one(networks: Networks, portrait: np.ndarray) -> None:
    def frames(generator: CachedGenerator, decoder: LatentDecoder) -> list[torch.Tensor]:
        for role in (generator, decoder):
            role.start(portrait)
        return [decoder.decode(generator.generate(window)).clone() for window in windows(3)]

    used = CachedGenerator(networks), LatentDecoder(networks)
    for role in used:
        role.start(np.full_like(portrait, 200))
    for window in windows(5):
        used[1].decode(used[0].generate(window))
    for role in used:
        role.close()
    fresh = frames(CachedGenerator(networks), LatentDecoder(networks))
    assert all(map(torch.equal, frames(*used), fresh))


def test_the_decoder_restores_exactly(networks: Networks, portrait: np.ndarray) -> None:
    generator, decoder, other = CachedGenerator(networks), LatentDecoder(networks), LatentDecoder(networks)
    for role in (generator, decoder, other):
        role.start(portrait)
    *before, last = [generator.generate(window) for window in windows(4)]
    for latent in before:
        decoder.decode(latent)
    other.restore(decoder.snapshot())
    assert torch.equal(other.decode(last), decoder.decode(last))


def test_a_part_of_the_dit_has_the_wholes_random_weights(networks: Networks, tiny_model: str) -> None:
    whole = dict(networks.dit.named_parameters())
    for layers in ((0, 1), (1, 2)):
        part = load_networks(tiny_model, "cpu", layers=layers, random_weights=True)
        assert {name.split(".")[1] for name, _ in part.dit.named_parameters() if "blocks" in name} == {str(layers[0])}
        for name, parameter in part.dit.named_parameters():
            assert torch.equal(parameter, whole[name])


def test_without_blocks_the_dit_takes_no_memory(tiny_model: str) -> None:
    part = load_networks(tiny_model, "cpu", layers=(0, 0), random_weights=True)
    assert all(parameter.is_meta for parameter in part.dit.parameters())
    assert part.device == torch.device("cpu")


def test_the_wan_vae_is_finer_than_a_bfloat16_dit(wan_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("characters.generate.networks.fast_dtype", lambda device: torch.bfloat16)
        networks = load_networks(wan_model, "cpu", random_weights=True)
        decoding_only = load_networks(wan_model, "cpu", layers=(0, 0), random_weights=True)
    assert networks.dtype == decoding_only.dtype == torch.bfloat16
    vae = networks.autoencoder.state_dict()
    assert {tensor.dtype for tensor in vae.values()} == {torch.float32}  # float16 on a GPU
    exact = load_networks(wan_model, "cpu", random_weights=True).autoencoder.state_dict()
    assert all(torch.equal(exact[name], tensor) for name, tensor in vae.items())
    portrait = np.random.default_rng(1).integers(0, 255, (64, 48, 3), np.uint8)
    assert networks.encode_portrait(portrait).dtype == torch.bfloat16
    decoder = LatentDecoder(decoding_only)
    decoder.start(portrait)
    assert decoder.decode(torch.zeros(16, 8, 6, dtype=torch.bfloat16)).shape == (4, 96, 48)


def test_trained_weights_load_in_parts_too() -> None:
    whole = load_networks("small", "cpu", dtype=torch.float32)
    parameters = dict(whole.dit.named_parameters())
    for layers in ((0, 2), (2, 6)):
        part = load_networks("small", "cpu", layers=layers, dtype=torch.float32)
        assert len(part.dit.blocks) == layers[1] - layers[0]
        assert all(torch.equal(p, parameters[name]) for name, p in part.dit.named_parameters())
    assert all(parameter.is_meta for parameter in load_networks("small", "cpu", layers=(0, 0)).dit.parameters())


def small_portrait() -> np.ndarray:
    return load_portrait(load_character("ruby").portrait, 272, 176)


def latents(networks: Networks) -> torch.Tensor:
    generator = CachedGenerator(networks, dtype=torch.float32)
    generator.start(small_portrait(), SEED)
    pcm = np.concatenate([piece.pcm for piece in open_voice("hibari").speak("A wild sound, my old friend.")])
    listener = Listener(MelHearing())
    listener.push(pcm)
    return torch.stack([generator.generate(torch.from_numpy(listener.pop())).clone() for _ in range(6)])


def test_trained_weights_run_in_fp8_and_with_another_context() -> None:
    exact = latents(load_networks("small", "cpu", dtype=torch.float32))
    coarse = latents(load_networks("small", "cpu", precision="fp8", dtype=torch.float32))
    error = ((coarse - exact).norm() / exact.norm()).item()
    print(f"\nFP8 against float32, latents of six chunks: {error:.3f}")
    assert 0 < error < 0.1
    config = with_context(load_model_config("small"), 3, "small")
    shorter = latents(load_networks(config, "cpu", dtype=torch.float32))
    assert shorter.isfinite().all() and 0 < ((shorter - exact).norm() / exact.norm()).item() < 0.3


def test_what_has_no_weights_is_only_made_if_one_asks_for_it(tiny_model: str) -> None:
    with pytest.raises(UserError, match="no trained weights"):
        load_networks(tiny_model, "cpu")


def test_an_exchange_that_is_not_there(networks: Networks) -> None:
    with pytest.raises(UserError, match="known: local"):
        CachedGenerator(networks).switch("peer")


def test_a_portrait_of_another_size_is_refused(networks: Networks) -> None:
    with pytest.raises(UserError, match="portrait"):
        CachedGenerator(networks).start(np.zeros((10, 10, 3), np.uint8))
    with pytest.raises(UserError, match="portrait"):
        LatentDecoder(networks).start(np.zeros((10, 10, 3), np.uint8))
