import pytest
import torch

from characters.config import conf_names
from characters.errors import UserError
from characters.model.config import DiTConfig, ModelConfig, check, load_model_config
from characters.model.dit import DiT


@pytest.mark.parametrize("name", conf_names("model"))
def test_every_shipped_config_is_sound(name):
    config = load_model_config(name)
    with torch.device("meta"):
        dit = DiT(config)
    assert dit.head_dim in (64, 128)
    tokens = {"small": 187, "leaptalk": 9216, "leaptalk-tae": 9216, "flashhead-pro": 9216, "liveavatar-14b": 3375}
    assert config.tokens == tokens.get(name, 2992)


@pytest.mark.parametrize(("name", "billions"), [("reference-57b", 56.6), ("wan-14b", 14.0), ("wan-1.3b", 1.4)])
def test_parameters_in_the_blocks(name, billions):
    with torch.device("meta"):
        blocks = DiT(load_model_config(name)).blocks
    assert sum(p.numel() for p in blocks.parameters()) / 1e9 == pytest.approx(billions, rel=0.02)


def test_wan_parameter_names():
    with torch.device("meta"):
        names = {name for name, _ in DiT(load_model_config("wan-1.3b")).named_parameters()}
    for name in (
        "patch_embedding.weight",
        "time_embedding.0.weight",
        "time_projection.1.bias",
        "blocks.29.self_attn.norm_q.weight",
        "blocks.0.cross_attn.o.bias",
        "blocks.0.norm3.weight",
        "blocks.0.ffn.2.weight",
        "blocks.0.modulation",
        "head.head.weight",
        "head.modulation",
    ):
        assert name in names


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"height": 270}, "multiples of 16"),
        ({"ring": 0}, "ring must be positive"),
        ({"dit": {"num_heads": 5}}, "multiple of dit.num_heads"),
        ({"dit": {"prediction": "noise"}}, "x0 or velocity"),
        ({"dit": {"rope_theta": [1.0]}}, "three numbers"),
        ({"sampler": {"steps": [0.5, 1.0]}}, "must start at 1.0"),
        ({"sampler": {"commit": "never"}}, "reuse, clean or level"),
        ({"sampler": {"context_noise": 1.0}}, "context_noise"),
    ],
)
def test_sizes_that_do_not_fit_are_named(change, message):
    config = ModelConfig(
        height=64,
        width=48,
        latent_channels=4,
        latent_stride=16,
        dit=DiTConfig(dim=32, ffn_dim=64, num_heads=2, num_layers=1, patch=1, prediction="x0"),
    )
    check(config, "model.yaml")
    for key, value in change.items():
        target, changes = (getattr(config, key), value) if isinstance(value, dict) else (config, {key: value})
        for k, v in changes.items():
            setattr(target, k, v)
    with pytest.raises(UserError, match=message):
        check(config, "model.yaml")


def test_a_part_without_weights_makes_noise_of_all_pictures():
    small, large = load_model_config("small"), load_model_config("reference-57b")
    assert not small.random_weights and large.random_weights
    large.weights = "large"
    assert large.random_weights, "its autoencoder has none"
    large.autoencoder.wan.weights = "wan.safetensors"
    assert not large.random_weights


def test_unknown_model_names_the_known_ones():
    with pytest.raises(UserError, match="small"):
        load_model_config("smal")
