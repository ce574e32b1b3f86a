"""Models small enough to be no matter, with random weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.bench.running import TINY

# As the large models: nothing of a chunk's latent goes into the next chunk, and the last layer's output is a velocity.
SPLIT = """
height: 64
width: 96
latent_channels: 8
latent_stride: 16
sink: 1
ring: 2
dit:
  dim: 48
  ffn_dim: 64
  num_heads: 4
  num_layers: 3
  patch: 1
  {conditions}
autoencoder:
  encoder_channels: [8, 8, 8, 8]
  decoder_channels: [8, 8, 8]
"""


# With the large models' autoencoder, whose pictures can be split.
WAN = """
height: 64
width: 48
latent_channels: 16
latent_stride: 8
sink: 1
ring: 2
dit:
  dim: 48
  ffn_dim: 64
  num_heads: 4
  num_layers: 2
  patch: 2
  text_dim: 12
autoencoder:
  wan:
    encoder_dim: 8
    decoder_dim: 8
    residual_blocks: 1
"""


# As the models that make a window at a time, 25 frames a second, and go on from frames that were shown.
WINDOW = """
height: 32
width: 32
latent_channels: 16
latent_stride: 8
dit: {dim: 48, ffn_dim: 64, num_heads: 2, num_layers: 1, patch: 2, concat_reference: true}
autoencoder: {wan: {encoder_dim: 8, decoder_dim: 8, residual_blocks: 1}}
sampler: {steps: [1.0], source: reference}
window:
  heard: 2.0
  ear: {conv_dim: 8, dim: 12, ffn_dim: 16, heads: 2, layers: 1, positions: 8, groups: 4}
  projection: {layers: 1, dim: 12, hidden: 16, tokens: 2, out: 48}
"""


@pytest.fixture(scope="session")
def window_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a window model's config with random weights."""
    path: Path = tmp_path_factory.mktemp("model") / "window.yaml"
    path.write_text(WINDOW)
    return str(path)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a model config with random weights."""
    path: Path = tmp_path_factory.mktemp("model") / "tiny.yaml"
    path.write_text(TINY)
    return str(path)


@pytest.fixture(scope="session")
def split_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Paths of configs whose DiT can be split any way, conditioned on "audio" or on "text"; random weights."""
    paths: dict[str, str] = {}
    for name, conditions in (("audio", "audio_dim: 16"), ("text", "text_dim: 12")):
        path: Path = tmp_path_factory.mktemp("model") / f"split-{name}.yaml"
        path.write_text(SPLIT.format(conditions=conditions))
        paths[name] = str(path)
    return paths


@pytest.fixture(scope="session")
def wan_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a model config with the Wan VAE and random weights."""
    path: Path = tmp_path_factory.mktemp("model") / "wan.yaml"
    path.write_text(WAN)
    return str(path)
