"""Wan2.2-S2V on the cached engine equals a double of diffusers' parts, from weights under the published names."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from characters.model.config import DiTConfig, ModelConfig, S2vConfig, SamplerConfig, check
from characters.model.dit import DiT
from characters.model.materialise import SafetensorsWeights, build, build_dit
from characters.model.s2v_names import original_s2v_name
from characters.model.sampler import Sampler
from characters.model.speech_tokens import SpeechTokens, SpeechTokensConfig
from characters.model.wav2vec2 import Wav2Vec2Config
from tests.characters.model.s2v_double import Double

DIM, TEXT = 48, 20
STEPS = [1.0, 0.857658, 0.602151, 0.0089285]
SPEECH = SpeechTokensConfig(layers=3, dim=10)
CONFIG = ModelConfig(
    height=128, width=128, latent_channels=16, latent_stride=8, ring=2, chunk=3,
    dit=DiTConfig(dim=DIM, ffn_dim=64, num_heads=2, num_layers=3, text_dim=TEXT),
    sampler=SamplerConfig(steps=STEPS, commit="level"),
    s2v=S2vConfig(injected=[0, 2], speech=SPEECH, ear=Wav2Vec2Config(dim=10, layers=2)),
)  # fmt: skip


def published(name: str, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
    """One of our tensors as a checkpoint holds it."""
    if name == "patch_embedding.weight":
        tensor = tensor.view(DIM, 16, 1, 2, 2)
    if name.startswith("packs.") and name.endswith("weight"):
        depth, side = {"proj": (1, 2), "proj_2x": (2, 4), "proj_4x": (4, 8)}[name.split(".")[1]]
        tensor = tensor.view(DIM, 16, depth, side, side)
    if name.startswith("head.head."):
        tensor = tensor.unflatten(0, (16, 4)).transpose(0, 1).flatten(0, 1)
    name = name.replace("conditioning.text.", "text_embedding.")
    return original_s2v_name(name, CONFIG.s2v.injected), tensor.contiguous().clone()


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A checkpoint of random weights under the published names."""
    check(CONFIG, "test")
    torch.manual_seed(0)
    dit, speech = DiT(CONFIG), SpeechTokens(SPEECH, DIM)
    for parameter in (*dit.parameters(), *speech.parameters()):
        torch.nn.init.normal_(parameter, std=0.15)
    named = dict(dit.named_parameters()) | {f"speech.{name}": x for name, x in speech.named_parameters()}
    path = tmp_path_factory.mktemp("s2v") / "dit.safetensors"
    save_file(dict(published(name, x.detach()) for name, x in named.items()), path)
    return path


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference, of the largest magnitude."""
    return float((found - expected).abs().max() / expected.abs().max())


@torch.inference_mode()
def test_five_chunks_round_the_ring_equal_the_double(weights):
    source = SafetensorsWeights(weights, CONFIG, "cpu", torch.float32)
    dit = build_dit(CONFIG, source)
    speech = build(lambda: SpeechTokens(SPEECH, DIM), source, "speech.")
    draw = torch.Generator().manual_seed(1)
    text = torch.randn(1, 7, TEXT, generator=draw)
    reference, clip = (torch.randn(n, 16, 16, 16, generator=draw) for n in (1, 19))

    sampler = Sampler(dit, reference, seed=7)
    told = dit.conditioning(text=text)[0]
    sampler.tell(told)
    sampler.prefill(told, clip=clip)

    double = Double(load_file(weights), [0, 2], 2, STEPS, text, reference.movedim(1, 0), clip.movedim(1, 0))
    noises = torch.Generator().manual_seed(7)
    for chunk in range(5):
        states = torch.randn(3, 10, 12, generator=draw)
        noise = torch.empty(3, 16, 16, 16).normal_(generator=noises)
        made = sampler.sample(sound=speech(states))
        expected = double.chunk(noise.movedim(1, 0), states).movedim(1, 0)
        assert error(made, expected) <= 1e-4, f"chunk {chunk}"
