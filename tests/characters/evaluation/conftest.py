"""A model too small to be good, with random weights on disk, and the reader beside it."""

from pathlib import Path

import pytest
import torch

from characters.evaluation.reader import FrameReader
from characters.model.autoencoder import Autoencoder
from characters.model.checkpoint import save_weights
from characters.model.config import load_model_config
from characters.model.dit import DiT

TINY = """
height: 272
width: 176
latent_channels: 4
latent_stride: 16
sink: 1
ring: 2
dit:
  dim: 16
  ffn_dim: 16
  num_heads: 2
  num_layers: 1
  patch: 1
  rope_theta: [20.0, 100.0, 100.0]
  concat_previous: true
  concat_reference: true
  prediction: x0
  residual_reference: true
  audio_dim: 16
  audio_layers: 1
autoencoder:
  encoder_channels: [8, 8, 8, 8]
  decoder_channels: [8, 8, 8]
"""


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> tuple[str, Path]:
    """Path of a model config, and a folder with its random weights."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "tiny.yaml").write_text(TINY)
    config = load_model_config(str(folder / "tiny.yaml"))
    torch.manual_seed(0)
    for name, module in (("dit", DiT(config)), ("autoencoder", Autoencoder(config)), ("reader", FrameReader())):
        save_weights(module, folder / f"{name}.safetensors")
    return str(folder / "tiny.yaml"), folder
