"""A model of Wan2.2-S2V as a generator: sound and a portrait in, three latents a chunk out."""

import numpy as np
import pytest
import torch

from characters.generate.cached import CachedGenerator
from characters.generate.networks import load_networks
from characters.generate.stream import Stream
from characters.model.config import (
    AutoencoderConfig,
    DiTConfig,
    ModelConfig,
    S2vConfig,
    SamplerConfig,
    WanVaeConfig,
    check,
    load_model_config,
)
from characters.model.speech_tokens import SpeechTokensConfig
from characters.model.wav2vec2 import Wav2Vec2Config, normalise

EAR = Wav2Vec2Config(conv_dim=16, dim=24, ffn_dim=40, heads=3, layers=2, positions=8, groups=4, stable=True)
CONFIG = ModelConfig(
    height=128, width=128, latent_channels=16, latent_stride=8, ring=2, chunk=3,
    dit=DiTConfig(dim=48, ffn_dim=64, num_heads=2, num_layers=2, text_dim=20),
    autoencoder=AutoencoderConfig(wan=WanVaeConfig(encoder_dim=8, decoder_dim=8, residual_blocks=1)),
    sampler=SamplerConfig(steps=[1.0, 0.5], commit="level"),
    s2v=S2vConfig(injected=[0], ear=EAR, speech=SpeechTokensConfig(layers=3, dim=24), heard=2.0),
)  # fmt: skip


@pytest.fixture(scope="module")
def networks():
    check(CONFIG, "test")
    return load_networks(CONFIG, "cpu", dtype=torch.float32, random_weights=True)


@pytest.fixture(scope="module")
def portrait() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype=np.uint8)


def test_the_published_sizes_fit_together() -> None:
    config = load_model_config("liveavatar-14b")
    assert (config.grid, config.frames) == ((45, 25), 3)


def test_a_chunk_is_twelve_frames_of_its_own_sound(networks, portrait) -> None:
    stream = Stream(networks, portrait)
    assert (stream.generator.clock.fps, stream.generator.clock.frames) == (25, 12)
    sound = 0.1 * np.random.default_rng(1).standard_normal(24_000 * 2).astype(np.float32)
    chunks = list(stream.run(iter([sound])))
    assert [len(chunk.frames) for chunk in chunks] == [12] * 5  # 2 s of 0.48 s each, the last filled up
    assert all(chunk.frames.shape[1:] == (128, 128, 3) for chunk in chunks)
    # The same session once more is the same video; another sound from the second chunk on changes only that.
    again = list(Stream(networks, portrait).run(iter([np.concatenate((sound[:11_520], -sound[11_520:]))])))
    assert np.array_equal(chunks[0].frames, again[0].frames)
    assert not np.array_equal(chunks[1].frames, again[1].frames)


def test_a_chunk_that_fails_is_made_again_as_it_would_have_been(networks, portrait, monkeypatch) -> None:
    heard = torch.randn(4, *CachedGenerator(networks).hearing.shape)

    def roll(fail: bool) -> torch.Tensor:
        generator, made = CachedGenerator(networks), []
        generator.start(portrait, seed=3)
        for chunk, sound in enumerate(heard):
            if fail and chunk == 2:
                state = generator._sampler._generator.get_state()
                with monkeypatch.context() as patch, pytest.raises(RuntimeError):
                    patch.setattr(networks.dit.head, "forward", lambda *_: (_ for _ in ()).throw(RuntimeError("x")))
                    generator.generate(sound)
                generator._sampler._generator.set_state(state)
            made.append(generator.generate(sound).clone())
        return torch.stack(made)

    assert roll(False).shape == (4, 3, 16, 16, 16)
    assert torch.equal(roll(False), roll(True))


@torch.inference_mode()
def test_the_last_frames_of_the_window_are_those_of_the_chunk(networks) -> None:
    """As the published code takes them from a whole recording that ends with the chunk, but for its detour by 30 Hz."""
    generator = CachedGenerator(networks)
    heard = torch.randn(generator.hearing.shape)
    spoken, whole = generator._sound.listen(heard)
    states = networks.ear.hear(normalise(heard[None]))[0]
    assert states.shape == (3, 24, (len(heard) - 80) // 320)
    frames = [2 * frame for frame in range(len(heard) // 640)][-12:]
    expected = networks.speech(states[..., frames])
    assert spoken.shape == (3, 5, 48) and torch.equal(spoken, expected[0]) and torch.equal(whole, expected[1])


def test_in_fp8_the_latents_are_near_those_of_float32(networks, portrait) -> None:
    rounded = load_networks(CONFIG, "cpu", dtype=torch.float32, precision="fp8", random_weights=True)
    made = []
    for loaded in (networks, rounded):
        generator = CachedGenerator(loaded)
        generator.start(portrait, seed=3)
        sounds = torch.randn(4, *generator.hearing.shape, generator=torch.Generator().manual_seed(5))
        made.append(torch.stack([generator.generate(sound).clone() for sound in sounds]))
    exact, near = made
    errors = [float((a - b).norm() / a.norm()) for a, b in zip(exact, near, strict=True)]
    assert max(errors) < 0.1, errors
