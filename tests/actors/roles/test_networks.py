"""The DiT's and the decoder's roles against the single-process stream, with random weights."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from actors.pipeline.session import SessionSpec
from actors.pipeline.topology import Profile, plan_topology
from actors.roles.aligner import AudioAligner
from actors.roles.decoder import VaeDecoder
from actors.roles.generator_shard import DitShard
from actors.roles.networks import load_networks
from characters.errors import UserError
from characters.generate.stream import CharacterModel, Stream
from kernels.i420 import rgb_to_i420


@pytest.fixture(scope="module")
def networks(tiny_model: str) -> CharacterModel:
    torch.set_num_threads(1)
    return load_networks(tiny_model, "cpu")


@pytest.fixture
def session(networks: CharacterModel) -> SessionSpec:
    rng = np.random.default_rng(1)
    shape = (networks.config.height, networks.config.width, 3)
    return SessionSpec(rng.integers(0, 255, shape, np.uint8), seed=3)


def windows(count: int) -> list[torch.Tensor]:
    aligner = AudioAligner()
    aligner.push(0, (np.random.default_rng(0).standard_normal(count * 4000 + 4000) * 0.1).astype(np.float32))
    return [torch.from_numpy(aligner.next().window) for _ in range(count)]


def test_roles_do_what_the_stream_does(networks: CharacterModel, session: SessionSpec) -> None:
    shard, decoder = DitShard(networks, networks.dtype), VaeDecoder(networks)
    shard.reset(session)
    decoder.reset(session)
    stream = Stream(networks, session.portrait, session.seed)
    for window in windows(6):
        frames = decoder.decode(shard.generate(window))
        expected = stream.step(window.numpy(), np.zeros(4000, np.float32)).frames
        assert torch.equal(frames, rgb_to_i420(torch.from_numpy(expected)))


def test_two_processes_have_the_same_random_weights(networks: CharacterModel, tiny_model: str) -> None:
    other = load_networks(tiny_model, "cpu")
    for a, b in zip(networks.dit.parameters(), other.dit.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_failed_step_advances_nothing(
    networks: CharacterModel, session: SessionSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = windows(2)
    shard, decoder = DitShard(networks), VaeDecoder(networks)
    for role in (shard, decoder):
        role.reset(session)
    decoder.decode(shard.generate(first))
    index, frame = shard._sampler.index, shard._idle.frame  # type: ignore[union-attr]
    with monkeypatch.context() as patch:
        patch.setattr(networks.dit.head, "forward", lambda *a: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            shard.generate(second)
    assert (shard._sampler.index, shard._idle.frame) == (index, frame)  # type: ignore[union-attr]
    latent = shard.generate(second)
    expected = copy.deepcopy(decoder._decoder._previous)
    with monkeypatch.context() as patch:
        patch.setattr(networks.autoencoder.decoder, "forward", lambda *a: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            decoder.decode(latent)
    assert torch.equal(decoder._decoder._previous, expected)


def test_a_decoder_that_stopped_halfway_is_brought_back(
    networks: CharacterModel, session: SessionSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, decoder, other = DitShard(networks, networks.dtype), VaeDecoder(networks), VaeDecoder(networks)
    for role in (shard, decoder, other):
        role.reset(session)
    latents = [shard.generate(window) for window in windows(3)]
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


def test_restore_goes_on_with_the_motion(networks: CharacterModel, session: SessionSpec) -> None:
    shard = DitShard(networks)
    shard.reset(session)
    for window in windows(4):
        shard.generate(window)
    state = copy.deepcopy(shard.snapshot())
    expected = shard._idle.next_chunk()
    other = DitShard(networks)
    other.reset(session)
    other.restore(state)
    assert torch.equal(other._idle.next_chunk(), expected)


def test_another_session_finds_nothing_of_the_last_one(networks: CharacterModel, session: SessionSpec) -> None:
    def frames(shard: DitShard, decoder: VaeDecoder) -> list[torch.Tensor]:
        for role in (shard, decoder):
            role.reset(session)
        return [decoder.decode(shard.generate(window)).clone() for window in windows(3)]

    used = DitShard(networks, networks.dtype), VaeDecoder(networks)
    for role in used:
        role.reset(SessionSpec(np.full_like(session.portrait, 200), session.seed + 1))
    for window in windows(5):
        used[1].decode(used[0].generate(window))
    for role in used:
        role.close()
    fresh = frames(DitShard(networks, networks.dtype), VaeDecoder(networks))
    assert all(map(torch.equal, frames(*used), fresh))


def test_the_decoder_restores_exactly(networks: CharacterModel, session: SessionSpec) -> None:
    shard, decoder, other = DitShard(networks, networks.dtype), VaeDecoder(networks), VaeDecoder(networks)
    for role in (shard, decoder, other):
        role.reset(session)
    *before, last = [shard.generate(window) for window in windows(4)]
    for latent in before:
        decoder.decode(latent)
    other.restore(decoder.snapshot())
    assert torch.equal(other.decode(last), decoder.decode(last))


def test_a_part_of_the_dit_has_the_wholes_random_weights(networks: CharacterModel, tiny_model: str) -> None:
    whole = dict(networks.dit.named_parameters())
    for layers in ((0, 1), (1, 2)):
        part = load_networks(tiny_model, "cpu", layers)
        assert {name.split(".")[1] for name, _ in part.dit.named_parameters() if "blocks" in name} == {str(layers[0])}
        for name, parameter in part.dit.named_parameters():
            assert torch.equal(parameter, whole[name])


def test_without_blocks_the_dit_takes_no_memory(tiny_model: str) -> None:
    part = load_networks(tiny_model, "cpu", (0, 0))
    assert all(parameter.is_meta for parameter in part.dit.parameters())
    assert part.device == torch.device("cpu")


def test_the_wan_vae_is_finer_than_a_bfloat16_dit(wan_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("actors.roles.networks.fast_dtype", lambda device: torch.bfloat16)
        networks, decoding_only = load_networks(wan_model, "cpu"), load_networks(wan_model, "cpu", (0, 0))
    assert networks.dtype == decoding_only.dtype == torch.bfloat16
    vae = networks.autoencoder.state_dict()
    assert {tensor.dtype for tensor in vae.values()} == {torch.float32}  # float16 on a GPU
    exact = load_networks(wan_model, "cpu").autoencoder.state_dict()
    assert all(torch.equal(exact[name], tensor) for name, tensor in vae.items())
    portrait = np.random.default_rng(1).integers(0, 255, (64, 48, 3), np.uint8)
    assert networks.encode_portrait(portrait).dtype == torch.bfloat16
    decoder = VaeDecoder(decoding_only)
    decoder.reset(SessionSpec(portrait))
    assert decoder.decode(torch.zeros(16, 8, 6, dtype=torch.bfloat16)).shape == (4, 96, 48)


def test_trained_weights_are_not_split() -> None:
    with pytest.raises(UserError, match="loaded whole"):
        load_networks("small", "cpu", (0, 2))
    with pytest.raises(UserError, match="the context that they were trained with"):
        load_networks("small", "cpu", context=2)


def test_a_profile_may_choose_another_context(tiny_model: str) -> None:
    own = load_networks(tiny_model, "cpu", (0, 0)).config
    shorter = load_networks(tiny_model, "cpu", (0, 0), context=own.sink + 1).config
    assert (shorter.sink, shorter.ring) == (own.sink, 1)
    assert plan_topology(Profile(model=tiny_model, context=own.sink + 1)).model == shorter
    with pytest.raises(UserError, match="needs at least 2"):
        load_networks(tiny_model, "cpu", (0, 0), context=own.sink)


def test_an_exchange_that_is_not_there(networks: CharacterModel) -> None:
    with pytest.raises(UserError, match="known: local"):
        DitShard(networks).switch("peer", 5)


def test_a_portrait_of_another_size_is_refused(networks: CharacterModel) -> None:
    with pytest.raises(UserError, match="portrait"):
        DitShard(networks).reset(SessionSpec(np.zeros((10, 10, 3), np.uint8)))
    with pytest.raises(UserError, match="portrait"):
        VaeDecoder(networks).reset(SessionSpec(np.zeros((10, 10, 3), np.uint8)))
