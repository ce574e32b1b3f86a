"""The ear against transformers' model, with random weights under the published names."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from transformers import Wav2Vec2Config as TheirConfig
from transformers import Wav2Vec2FeatureExtractor, Wav2Vec2Model

from characters.model.wav2vec2 import Wav2Vec2, Wav2Vec2Config, normalise, translate

SIZES = Wav2Vec2Config(conv_dim=16, dim=24, ffn_dim=40, heads=3, layers=3, positions=8, groups=4)


@pytest.fixture(scope="module")
def theirs() -> Wav2Vec2Model:
    torch.manual_seed(0)
    config = TheirConfig(
        hidden_size=24, intermediate_size=40, num_attention_heads=3, num_hidden_layers=3, conv_dim=[16] * 7,
        num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, do_stable_layer_norm=False,
        feat_extract_norm="group",
    )  # fmt: skip
    model = Wav2Vec2Model(config).eval()
    for parameter in model.parameters():  # norms that are not the identity
        parameter.data += 0.05 * torch.randn_like(parameter)
    return model


def by_hand(model: Wav2Vec2Model, sound: torch.Tensor, frames: int) -> torch.Tensor:
    """Their parts, with the features resampled between them."""
    features = model.feature_extractor(sound)
    features = F.interpolate(features, size=frames, mode="linear", align_corners=True).transpose(1, 2)
    hidden, _ = model.feature_projection(features)
    hidden = model.encoder.layer_norm(hidden + model.encoder.pos_conv_embed(hidden))
    states = []
    for layer in model.encoder.layers:
        found = layer(hidden)
        hidden = found[0] if isinstance(found, tuple) else found
        states.append(hidden)
    return torch.stack(states, 2)


@pytest.mark.parametrize("frames", [7, 33, 60])
@torch.inference_mode()
def test_hidden_states_are_theirs(theirs: Wav2Vec2Model, frames: int) -> None:
    ours = Wav2Vec2(SIZES).eval()
    ours.load_state_dict(translate({f"wav2vec2.{name}": tensor for name, tensor in theirs.state_dict().items()}))
    sound = torch.randn(2, 16_000)
    got, expected = ours(sound, frames), by_hand(theirs, sound, frames)
    assert got.shape == (2, frames, 3, 24)
    assert ((got - expected).norm() / expected.norm()).item() < 1e-5


def test_both_names_of_the_weight_norm_are_known(theirs: Wav2Vec2Model) -> None:
    new = dict(theirs.state_dict())
    old = {
        name.replace("parametrizations.weight.original0", "weight_g").replace(
            "parametrizations.weight.original1", "weight_v"
        ): tensor
        for name, tensor in new.items()
    }
    assert old.keys() != new.keys()
    assert torch.equal(translate(new)["position.weight"], translate(old)["position.weight"])
    assert torch.allclose(translate(new)["position.weight"], theirs.encoder.pos_conv_embed.conv.weight, atol=1e-6)


def test_sound_is_normalised_as_theirs() -> None:
    sound = 0.1 * torch.randn(1, 4_000) + 0.3
    expected = Wav2Vec2FeatureExtractor(do_normalize=True)(sound[0].numpy(), sampling_rate=16_000).input_values[0]
    assert torch.allclose(normalise(sound)[0], torch.as_tensor(expected), atol=1e-5)


def test_the_published_size_has_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        ours = Wav2Vec2()
        theirs = Wav2Vec2Model(TheirConfig())
    # Theirs has one more vector, which only training uses, and the position's weight in two parts.
    extra = 768 + 128
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters()) - extra


@torch.inference_mode()
def test_all_states_of_a_stable_one_are_theirs() -> None:
    torch.manual_seed(0)
    config = TheirConfig(
        hidden_size=24, intermediate_size=40, num_attention_heads=3, num_hidden_layers=3, conv_dim=[16] * 7,
        num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, do_stable_layer_norm=True,
        feat_extract_norm="layer", conv_bias=True,
    )  # fmt: skip
    theirs = Wav2Vec2Model(config).eval()
    for parameter in theirs.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    ours = Wav2Vec2(replace(SIZES, stable=True)).eval()
    ours.load_state_dict(translate(theirs.state_dict()))
    sound = torch.randn(2, 16_000)
    found = theirs(sound, output_hidden_states=True)
    # The norm after the last layer is part of the last state, as in transformers before version 5.
    got, expected = ours.hear(sound), torch.stack((*found.hidden_states[:3], found.last_hidden_state), 1)
    assert got.shape == (2, 4, 24, 49)
    assert ((got.transpose(2, 3) - expected).norm() / expected.norm()).item() < 1e-5


def test_the_large_size_has_the_published_number_of_parameters() -> None:
    large = {"dim": 1024, "ffn_dim": 4096, "heads": 16, "layers": 24}
    their = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24}
    with torch.device("meta"):
        ours = Wav2Vec2(Wav2Vec2Config(**large, stable=True))
        theirs = Wav2Vec2Model(
            TheirConfig(**their, do_stable_layer_norm=True, feat_extract_norm="layer", conv_bias=True)
        )
    extra = 1024 + 128
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters()) - extra
