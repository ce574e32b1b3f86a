"""The baseline of `characters bench chunk` computes what the product computes, and the bench says what it may."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from characters.bench.chunk_baseline import EagerWindow
from characters.generate.networks import load_networks
from characters.generate.window import WindowGenerator
from characters.model.config import AutoencoderConfig
from tests.characters.generate.window_double import LEAP, PRO, config

PORTRAIT = np.random.default_rng(0).integers(40, 220, (48, 32, 3), np.uint8)


@pytest.mark.parametrize("sampler", [LEAP, PRO], ids=["leaptalk", "flashhead-pro"])
@pytest.mark.parametrize("tiny", [False, True])
@torch.inference_mode()
def test_the_baseline_makes_the_products_pictures(sampler, tiny) -> None:
    model = config(sampler)
    if tiny:
        model = dataclasses.replace(model, autoencoder=AutoencoderConfig(tiny=True))
    networks = load_networks(model, "cpu", dtype=torch.float32, random_weights=True)
    generator, baseline = WindowGenerator(networks, i420=False), EagerWindow(networks, torch.float32)
    generator.start(PORTRAIT, 3)
    assert generator._portrait is not None
    history = None
    for seed in range(2):
        sound = torch.randn(32_000, generator=torch.Generator().manual_seed(seed)) * 0.1
        made = generator.generate(sound)
        frames, shown = baseline.window(sound[None], generator._noise, history, *generator._portrait)
        ours = generator._frames
        # With random weights the light autoencoder draws faint pictures, whose rounding colour matching magnifies.
        assert (ours - frames).abs().max() < (1e-3 if tiny else 1e-4)
        assert (made.int() - shown.int()).abs().max() <= 1
        history = frames[-5:]
