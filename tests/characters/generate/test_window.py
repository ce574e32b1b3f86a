"""The window generator against a double made of other people's parts, in float32, with random weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLWan
from safetensors.torch import save_file

from characters.errors import UserError
from characters.generate.hearing import SAMPLE_RATE, Listener, WaveHearing
from characters.generate.networks import Networks, load_networks
from characters.generate.stream import Stream
from characters.generate.window import WindowGenerator
from characters.model.audio_projection import AudioProjection
from characters.model.config import AutoencoderConfig, SamplerConfig, check, load_model_config
from characters.model.dit import DiT
from characters.model.materialise import RandomWeights, build_dit
from characters.model.wan_vae.checkpoint import translate as translate_vae
from characters.model.wan_vae.vae import WanVae
from characters.model.wav2vec2 import Wav2Vec2, translate
from tests.characters.generate.window_double import EAR, LEAP, PRO, Double, config, ear

PORTRAIT = np.random.default_rng(0).integers(40, 220, (48, 32, 3), np.uint8)
SECONDS = 2.0
TOLERANCE = 1e-4  # of the largest value


def make(sampler: SamplerConfig) -> tuple[WindowGenerator, Double]:
    """Both, with the same weights."""
    torch.manual_seed(0)
    model = config(sampler)
    check(model, "tiny")
    assert model.window is not None and model.autoencoder.wan is not None
    dit = build_dit(model, RandomWeights("cpu", torch.float32))
    for parameter in dit.parameters():  # no bias stays zero, no norm the identity
        parameter.data += 0.05 * torch.randn_like(parameter)
    their_vae = AutoencoderKLWan(base_dim=8, decoder_base_dim=8, num_res_blocks=1).eval()
    vae = WanVae(model.autoencoder.wan, 16).eval()
    vae.load_state_dict(translate_vae(their_vae.state_dict(), model.autoencoder.wan))
    their_ear, our_ear = ear(), Wav2Vec2(EAR).eval()
    our_ear.load_state_dict(translate(their_ear.state_dict()))
    projection = AudioProjection(model.window.projection).eval()
    networks = Networks(model, dit, vae, our_ear, projection)
    generator = WindowGenerator(networks, i420=False)
    double = Double(sampler, dit.state_dict(), their_vae, their_ear, dict(projection.state_dict()), PORTRAIT)
    return generator, double


def sounds(count: int) -> list[torch.Tensor]:
    rng = np.random.default_rng(3)
    return [
        torch.from_numpy(rng.standard_normal(round(SECONDS * 16_000)).astype(np.float32)) * 0.1 for _ in range(count)
    ]


def off(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max())


@pytest.mark.parametrize("sampler", [LEAP, PRO], ids=["leaptalk", "flashhead-pro"])
@torch.inference_mode()
def test_three_chunks_in_a_row_cut_and_not_cut_are_the_doubles(sampler: SamplerConfig) -> None:
    generator, double = make(sampler)
    generator.start(PORTRAIT, seed=7)
    drawn, before, worst = torch.Generator().manual_seed(7), None, 0.0
    went_on_from = torch.zeros(0)
    for sound, cut in zip(sounds(4), (28, 9, 0, 28), strict=True):
        made = generator.generate(sound)
        noise = torch.zeros_like(generator._noise).normal_(generator=drawn)
        expected = double.chunk(sound, noise, before)
        assert generator._shown is not None
        if before is not None:  # they are those that were shown
            assert torch.equal(generator._shown[:5], went_on_from)
            expected = torch.cat((before, expected[5:]))
        worst = max(worst, off(generator._shown, expected))
        assert made.shape == (28, 48, 32, 3) and made.dtype == torch.uint8
        levels = (expected[5:] * 255).permute(0, 2, 3, 1)
        assert (made.float() - levels).abs().max() < 1
        went_on_from = generator._shown[cut : cut + 5]
        generator.cut(cut)
        before = expected[cut : cut + 5]
    print(f"\nlargest relative error over four chunks: {worst:.1e}")
    assert worst < TOLERANCE


@torch.inference_mode()
def test_the_first_window_of_a_session_hears_moves_and_depends_on_the_seed_only_where_noise_is_drawn() -> None:
    one, two = sounds(2)
    for sampler, same in ((LEAP, True), (PRO, False)):
        generator, _ = make(sampler)
        made = []
        for seed, sound in ((1, one), (2, one), (1, two)):
            generator.start(PORTRAIT, seed)
            made.append(generator.generate(sound).clone())
        assert torch.equal(made[0], made[1]) is same
        assert not torch.equal(made[0], made[2]), "it hears"


@torch.inference_mode()
def test_a_failed_chunk_advances_nothing_and_a_snapshot_goes_on() -> None:
    generator, _ = make(PRO)
    other, _ = make(PRO)
    generator.start(PORTRAIT, 5)
    first, second = sounds(2)
    generator.generate(first)
    with pytest.raises((RuntimeError, ValueError)):
        generator.generate(second[:10])
    other.start(PORTRAIT, 5)
    other.generate(first)
    other.restore(generator.snapshot())
    assert torch.equal(generator.generate(second), other.generate(second))
    with pytest.raises(ValueError, match="cannot be cut at 29"):
        generator.cut(29)


@torch.inference_mode()
def test_a_cut_before_the_newest_chunk_is_one_in_the_chunk_before_it() -> None:
    generator, _ = make(LEAP)
    one, two, three = sounds(3)
    made = []
    for wasted in (False, True):
        generator.start(PORTRAIT)
        generator.generate(one)
        if wasted:
            generator.generate(two)
            generator.cut(-18)
        else:
            generator.cut(10)
        made.append(generator.generate(three).clone())
    assert torch.equal(*made)
    generator.cut(-40)  # further back than is known: from the oldest frames that are
    assert generator._next == 0


def test_sound_is_resampled_without_a_shift_and_nothing_of_what_follows_is_heard() -> None:
    samples, seconds = 26_880, 2.0
    hearing = WaveHearing(seconds, samples)
    assert hearing.shape == (32_000,) and hearing.ahead == 0
    count = hearing.past + samples
    time = np.arange(count) / SAMPLE_RATE
    for frequency, expected in ((100, 1.0), (1_000, 1.0), (5_000, 1.0), (9_500, 0.0)):
        heard = hearing.hear(np.sin(2 * np.pi * frequency * time).astype(np.float32))
        end = time[-1] + 1 / SAMPLE_RATE
        at = end - seconds + np.arange(32_000) / 16_000
        inside = slice(100, -100)
        error = heard[inside] - expected * np.sin(2 * np.pi * frequency * at)[inside]
        assert np.abs(error).max() < 0.02, frequency
    listener = Listener(hearing, samples)
    listener.push(np.zeros(samples, np.float32))
    assert listener.pop() is not None and listener.pop() is None, "a chunk needs its own sound and no more"


def write_published(folder: Path, sampler: SamplerConfig, *, lora: bool) -> tuple[WindowGenerator, Networks]:
    """A model's folder under the published names and layouts; and the generator whose weights they are."""
    generator, double = make(sampler)
    networks = generator._networks
    assert networks.projection is not None
    state = {f"audio_proj.{name}": tensor for name, tensor in networks.projection.state_dict().items()}
    for name, tensor in networks.dit.state_dict().items():
        if name == "patch_embedding.weight":
            tensor = tensor.view(tensor.shape[0], 32, 1, 2, 2)
        if name.startswith("head.head."):
            tensor = tensor.unflatten(0, (16, 4)).transpose(0, 1).flatten(0, 1)
        state[name] = tensor.contiguous()
    state["text_embedding.0.weight"] = torch.zeros(3)  # is in the published files and used by nothing
    if lora:
        a, b = torch.randn(2, 48), torch.randn(48, 2)
        state["blocks.0.self_attn.q.weight"] = state["blocks.0.self_attn.q.weight"] - 0.25 * (b @ a)
        name = "base_model.model.blocks.0.self_attn.q"
        save_file({f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}, folder / "lora.safetensors")
        save_file({n: t for n, t in state.items() if n.startswith("audio_proj.")}, folder / "audio_proj.safetensors")
        state |= {n: torch.zeros_like(t) for n, t in state.items() if n.startswith("audio_proj.")}
    save_file(state, folder / "dit.safetensors")
    save_file(dict(double.vae.state_dict()), folder / "autoencoder.safetensors")
    ear = {f"wav2vec2.{name}": tensor.contiguous() for name, tensor in double.ear.state_dict().items()}
    save_file(ear | {"lm_head.weight": torch.zeros(2)}, folder / "ear.safetensors")
    return generator, networks


@pytest.mark.parametrize("lora", [False, True])
@torch.inference_mode()
def test_published_files_load_into_the_same_model(tmp_path: Path, lora: bool) -> None:
    generator, _ = write_published(tmp_path, LEAP, lora=lora)
    model = dataclasses.replace(config(LEAP), lora_alpha=0.5)
    loaded = WindowGenerator(load_networks(model, "cpu", dtype=torch.float32, weights=tmp_path), i420=False)
    for one in (generator, loaded):
        one.start(PORTRAIT)
    (sound,) = sounds(1)
    generator.generate(sound)
    loaded.generate(sound)
    assert generator._shown is not None and loaded._shown is not None
    assert off(loaded._shown, generator._shown) < 1e-4
    (tmp_path / "ear.safetensors").unlink()
    with pytest.raises(UserError, match=r"ear\.safetensors"):
        load_networks(model, "cpu", dtype=torch.float32, weights=tmp_path)


@torch.inference_mode()
def test_a_window_model_streams_like_any_other_with_either_autoencoder() -> None:
    for autoencoder in (config(LEAP).autoencoder, AutoencoderConfig(tiny=True)):
        model = dataclasses.replace(config(LEAP), autoencoder=autoencoder)
        stream = Stream(load_networks(model, "cpu", random_weights=True), PORTRAIT, seed=1)
        clock = stream.generator.clock
        assert (clock.fps, clock.frames, clock.samples, clock.seconds) == (25, 28, 26_880, 1.12)
        blocks = [np.random.default_rng(i).standard_normal(clock.samples).astype(np.float32) * 0.1 for i in range(3)]
        assert stream.fps == 25
        chunks = list(stream.run(iter(blocks)))
        assert [c.index for c in chunks] == [0, 1, 2]
        assert all(
            c.frames.shape == (28, 48, 32, 3) and np.array_equal(c.pcm, b) for c, b in zip(chunks, blocks, strict=True)
        )


@pytest.mark.parametrize("name", ["leaptalk", "flashhead-pro"])
def test_shipped_configs_have_the_published_sizes(name: str) -> None:
    model = load_model_config(name)
    with torch.device("meta"):
        dit = DiT(model)
        assert model.window is not None
        projection = AudioProjection(model.window.projection)
    assert model.random_weights and model.tokens == 9_216
    assert tuple(dit.patch_embedding.weight.shape) == (1536, 128)  # type: ignore[union-attr]
    assert tuple(projection.proj1.weight.shape) == (512, 46_080) and projection.proj1_vf.weight.shape[1] == 73_728
    assert tuple(projection.proj3.weight.shape) == (32 * 1536, 512)
