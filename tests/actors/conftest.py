"""One Ray for all tests, with GPUs that are not there; a model small enough to be no matter."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

TINY = """
height: 64
width: 48
latent_channels: 8
latent_stride: 16
sink: 1
ring: 2
dit:
  dim: 32
  ffn_dim: 64
  num_heads: 2
  num_layers: 2
  patch: 1
  concat_previous: true
  concat_reference: true
  prediction: x0
  residual_reference: true
  audio_dim: 16
autoencoder:
  encoder_channels: [8, 8, 8, 8]
  decoder_channels: [8, 8, 8]
sampler:
  context_noise: 0.2
"""

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


@pytest.fixture(scope="package")
def ray_started() -> Iterator[None]:
    """A local Ray with 4 CPUs and 4 pretended GPUs, gone before the next package's tests count processes and ports."""
    settings = {
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # by default 15: they keep time, whatever else runs
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        # A temporary folder of its own: tests that run beside look for what is left there too.
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        for name, value in settings.items():
            patch.setenv(name, value)
        ray.init(
            "local", num_cpus=4, num_gpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20
        )
        yield
        ray.shutdown()
