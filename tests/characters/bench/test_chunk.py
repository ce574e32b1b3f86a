"""The baseline of `characters bench chunk` computes what the product computes, and the bench says what it may."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from characters.bench import chunk
from characters.bench.chunk_baseline import EagerWindow
from characters.generate.networks import load_networks
from characters.generate.window import WindowGenerator
from characters.generate.window_maker import WindowMaker
from characters.model.config import AutoencoderConfig, load_model_config
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
        ours = generator._shown.permute(0, 2, 3, 1)
        error = (ours - frames)[5:].abs()  # the five before are what was shown, not what this window made of it
        # With random weights the light autoencoder draws faint pictures, whose rounding colour matching magnifies.
        assert (error.square().mean().sqrt() if tiny else error.max()) < 1e-4
        assert (made.int() - shown.int()).abs().max() <= 1
        history = frames[-5:]


def test_passes_are_the_published_ones() -> None:
    leaptalk, pro = load_model_config("leaptalk"), load_model_config("flashhead-pro")
    assert chunk.with_passes(leaptalk, 4).sampler.steps == pytest.approx(pro.sampler.steps)
    # 9 latents of 32 x 32 tokens: 0.77 TFLOP of products and 0.52 of attention a layer.
    assert chunk.pass_flops(leaptalk) == pytest.approx(38.7e12, rel=0.01)


def test_the_check_compares_precisions_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk, "CHECKED", 4)
    monkeypatch.setattr(chunk, "COMPARED", 2)
    monkeypatch.setattr(chunk, "SIDE", 32)
    lines: list[str] = []
    chunk.check(chunk.Job(config(LEAP)), lines.append, torch.device("cpu"))
    assert len(lines) == 10 and "fp8 against float32" in lines[5]
    half, eight = ([float(x) for x in line.split(": ")[1].split()] for line in lines[4:6])
    assert len(half) == 2 and all(0 < a < b < 60 for a, b in zip(half, eight, strict=True))


def test_sessions_share_a_maker_and_keep_time() -> None:
    networks = load_networks(config(LEAP), "cpu", dtype=torch.float32, random_weights=True)
    maker = WindowMaker(networks)
    line = chunk.keep_time(maker, 2, 3.0)
    assert line.startswith("2 sessions, 4 chunks, ") and "fps" in line
    # Two sessions in turn make what each makes alone.
    shared = WindowMaker(networks, i420=False)
    one, two = (WindowGenerator(networks, maker=shared) for _ in range(2))
    alone = [WindowGenerator(networks, i420=False) for _ in range(2)]
    sounds = [torch.randn(32_000, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    pictures = PORTRAIT, 255 - PORTRAIT
    for generator, picture in zip((one, two, *alone), (*pictures, *pictures), strict=True):
        generator.start(picture)
    for _ in range(2):
        made = [g.generate(s).clone() for g, s in zip((one, two), sounds, strict=True)]
        expected = [g.generate(s) for g, s in zip(alone, sounds, strict=True)]
        assert all(torch.equal(a, b) for a, b in zip(made, expected, strict=True))
    assert not torch.equal(*made)
