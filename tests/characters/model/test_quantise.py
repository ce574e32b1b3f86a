"""FP8 layers, calibration, and the cache in FP8."""

import pytest
import torch

from characters.bench.check import sink_mismatches
from characters.model.calibrate import calibrate
from characters.model.config import DiTConfig, ModelConfig
from characters.model.dit import DiT
from characters.model.materialise import RandomWeights, build_dit
from characters.model.quantise import (
    HEADROOM,
    Fp8Linear,
    fp8_layers,
    head_scales,
    needs_calibration,
    quantise_dit,
    takes_static,
)
from characters.model.sampler import Sampler
from kernels.fp8 import FP8, FP8_MAX, store

CONFIG = ModelConfig(
    height=64, width=64, latent_channels=4, latent_stride=8, sink=1, ring=3,
    dit=DiTConfig(dim=64, ffn_dim=128, num_heads=4, num_layers=3, patch=2, text_dim=32),
)  # fmt: skip


def build(fp8: str | None, dtype: torch.dtype = torch.float32) -> DiT:
    return build_dit(CONFIG, RandomWeights("cpu", dtype), fp8=fp8)


def inputs(dit: DiT, rows: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Reference [rows, ...] and tokens [rows, 5, dim]."""
    generator = torch.Generator().manual_seed(0)
    text = torch.randn(rows, 5, 32, generator=generator)
    return torch.randn(rows, 4, *CONFIG.latent_size, generator=generator), dit.conditioning.text(text)


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).square().mean().sqrt() / b.square().mean().sqrt())


@torch.inference_mode()
def test_a_layer_is_near_the_linear_that_it_was():
    linear, x = torch.nn.Linear(64, 48), torch.randn(2, 20, 64)
    for static in (False, True):
        layer = Fp8Linear(linear.weight, linear.bias, static=static)
        assert layer.takes == "rows"
        assert relative(layer(store(x, layer.takes)), linear(x)) < 0.05
        layer.observe()
        layer(store(x, layer.takes))
        torch.testing.assert_close(layer.peak, x.abs().max(), rtol=1e-6, atol=0)
    layer.set_peak(layer.peak)
    torch.testing.assert_close(layer.takes * FP8_MAX, HEADROOM * x.abs().max(), rtol=1e-6, atol=0)
    assert relative(layer(store(x, layer.takes)), linear(x)) < 0.05


@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_a_stream_in_fp8_stays_near_one_in_full_precision(mode, rows):
    exact, dit = build(None), build(mode)
    reference, tokens = inputs(exact, rows)
    assert needs_calibration(dit) == (mode == "static")
    calibrate(dit, reference, tokens, tokens, seed=5)
    assert not needs_calibration(dit) and takes_static(dit) == (mode == "static")
    made = []
    for model in (exact, dit):
        sampler = Sampler(model, reference, seed=1)
        sampler.tell(tokens)
        sampler.prefill(tokens)
        made.append(torch.stack([sampler.sample().clone() for _ in range(7)]))
        assert sampler.cache.keys.dtype == (FP8 if model is dit else torch.float32)
        assert sink_mismatches(sampler.cache) == 0
    assert relative(made[1], made[0]) < 0.06


@torch.inference_mode()
def test_the_fp8_ring_is_written_once_and_its_sink_turned_exactly():
    dit = build("static")
    reference, tokens = inputs(dit)
    calibrate(dit, reference, tokens, tokens)
    sampler = Sampler(dit, reference)
    sampler.tell(tokens)
    sampler.prefill(tokens)
    cache = sampler.cache
    assert cache.values_transposed  # 16 tokens, and no FlashAttention-3 here
    for start in (0, 6 * 86400 * 30):  # a month later
        cache.index = start
        for _ in range(2 * CONFIG.ring + 1):
            slot, before = cache.slot(cache.index), cache.keys.view(torch.uint8).clone()
            sampler.sample()
            changed = (cache.keys.view(torch.uint8) != before).flatten(2).any(-1).any(0).nonzero().flatten().tolist()
            assert all(row < cache.slot_rows or slot.start <= row < slot.stop for row in changed)
            assert sink_mismatches(cache) == 0


@torch.inference_mode()
def test_parts_of_a_pipeline_find_the_scales_of_the_whole():
    whole, reference_tokens = build("static"), inputs(build(None))
    reference, tokens = reference_tokens
    calibrate(whole, reference, tokens, tokens)
    hidden, found = None, {}
    for span in ((0, 2), (2, 3)):
        part = build_dit(CONFIG, RandomWeights("cpu", torch.float32), layers=span, fp8="static")
        hidden = calibrate(part, reference, tokens, tokens, hidden=hidden)
        found |= {name: layer.input_scale for name, layer in fp8_layers(part).items() if layer.static}
        torch.testing.assert_close(head_scales(part), head_scales(whole)[slice(*span)], rtol=0, atol=0)
    assert found == {name: layer.input_scale for name, layer in fp8_layers(whole).items() if layer.static}


def test_quantising_leaves_what_stands_outside_of_products():
    dit = DiT(CONFIG).eval().requires_grad_(False)
    kept = {name: p.clone() for name, p in dit.named_parameters() if "norm" in name or "blocks" not in name}
    quantise_dit(dit)
    after = dict(dit.named_parameters())
    assert all(torch.equal(after[name], p) for name, p in kept.items())
    assert {"qkv", "o"} <= {name.rpartition(".")[2] for name in fp8_layers(dit)}
    assert len(fp8_layers(dit)) == 8 * CONFIG.dit.num_layers
