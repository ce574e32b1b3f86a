"""A rollout is a stream of its own chunks, batched."""

import pytest
import torch

from characters.evaluation.rollout import decode_window, rollout
from characters.generate.hearing import windows
from characters.model.autoencoder import Autoencoder, StreamingDecoder
from characters.model.config import SamplerConfig, load_model_config
from characters.model.dit import DiT
from characters.model.sampler import Sampler

CHUNKS = 37  # more than are conditioned together


@pytest.fixture(scope="module")
def networks(tiny_model):
    config = load_model_config(tiny_model[0])
    torch.manual_seed(1)
    return DiT(config).eval().double(), Autoencoder(config).eval().double()


@pytest.mark.parametrize("config", [None, SamplerConfig([1.0, 0.5], "clean", 0.2)])
@torch.inference_mode()
def test_a_rollout_is_the_sampler_chunk_by_chunk(networks, config):
    dit, _ = networks
    torch.manual_seed(2)
    portraits = torch.randn(2, 4, 17, 11, dtype=torch.float64)
    mel, motion = torch.randn(2, 16 * CHUNKS, 80).double(), torch.randn(2, 4 * CHUNKS, 12).double()
    made = rollout(dit, portraits, mel, motion, config=config, seed=3)

    sampler = Sampler(dit, portraits, seed=3, config=config)
    sampler.prefill(dit.conditioning.reference(2))
    for i in range(CHUNKS):
        heard = torch.cat([windows(row, i, 1) for row in mel])
        tokens, _ = dit.conditioning(mel=heard, motion=motion[:, 4 * i : 4 * i + 4])
        torch.testing.assert_close(made[:, i], sampler.sample(tokens), atol=1e-9, rtol=1e-9)


@torch.inference_mode()
def test_a_decoded_window_is_what_the_stream_shows(networks):
    _, autoencoder = networks
    torch.manual_seed(4)
    portraits, latents = torch.randn(2, 4, 17, 11).double(), torch.randn(2, 5, 4, 17, 11).double()
    decoder = StreamingDecoder(autoencoder, portraits)
    shown = torch.cat([decoder.decode(latents[:, i]) for i in range(5)], 1).permute(0, 1, 4, 2, 3)
    for first, chunks in ((0, 5), (2, 3)):
        window = decode_window(autoencoder, latents, portraits, first, chunks)
        expected = shown[:, 4 * first : 4 * (first + chunks)]
        assert (window.int() - expected.int()).abs().max() <= 1  # rounding
