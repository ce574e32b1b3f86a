"""Training of the reader, far too short to learn anything."""

import torch

from characters.evaluation.reader import FrameReader
from characters.model.autoencoder import Autoencoder
from characters.model.config import AutoencoderConfig, ModelConfig
from characters.training.clips import ClipPool, Corpus
from characters.training.loop import Workers
from characters.training.reader import augment, train_reader
from characters.training.recipe import Recipe, Stage


def test_it_trains_and_writes_weights_that_load(tmp_path):
    recipe = Recipe(clips=2, chunks=2, compile=False, log_every=1, reader=Stage(steps=2, batch=6))
    workers = Workers.join("cpu")
    corpus = Corpus(torch.zeros(4 * 48, 80, dtype=torch.uint8), torch.rand(48, 5))
    pool = ClipPool.render(recipe, corpus, workers)
    config = ModelConfig(
        height=272, width=176, latent_channels=4, latent_stride=16, autoencoder=AutoencoderConfig([8] * 4, [8] * 3)
    )
    trained = train_reader(recipe, pool, Autoencoder(config).eval(), workers, tmp_path)
    loaded = FrameReader.load(tmp_path / "reader.safetensors")
    frames = torch.rand(2, 3, 272, 176)
    torch.testing.assert_close(loaded(frames).mouth, trained(frames).mouth, atol=0.02, rtol=0.02)
    assert loaded.std.min() > 0
    assert not trained.training


def test_augmentation_is_slight_and_stays_in_range():
    torch.manual_seed(0)
    images = torch.rand(8, 3, 1, 1).expand(-1, -1, 64, 48) * 0.8 + 0.1
    changed = augment(images)
    assert changed.min() >= 0 and changed.max() <= 1
    assert (changed.mean((2, 3)) - images.mean((2, 3))).abs().max() < 0.06
    assert not torch.equal(changed[0], changed[1])
