"""The whole recipe, from a speech corpus to weights."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from characters.model.autoencoder import Autoencoder
from characters.model.checkpoint import load_weights
from characters.model.config import load_model_config
from characters.output import write_error
from characters.training.autoencoder import train_autoencoder
from characters.training.clips import ClipPool, Corpus
from characters.training.dit import train_dit
from characters.training.loop import Workers
from characters.training.reader import train_reader
from characters.training.recipe import STAGES, Recipe


def train(recipe: Recipe, corpus: Path, folder: Path, stages: tuple[str, ...] = STAGES, device: str = "cuda") -> None:
    """Run stages of the recipe. An interrupted stage continues from its saved state.

    Args:
        recipe: all numbers.
        corpus: speech.npz.
        folder: for weights, states and logs. The weights of stages that are not run are read from it.
        stages: any of STAGES.
        device: "cuda" or "cpu". Under torchrun every process takes the GPU of its local rank.

    Raises:
        UserError: the device, the corpus or the weights of an earlier stage are missing, or the folder cannot be made.
    """
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    workers = Workers.join(device)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(folder, error) from error
    start = time.monotonic()

    def tell(message: str) -> None:
        if workers.rank == 0:
            print(f"{time.monotonic() - start:7.1f} s  {message}", flush=True)

    pool = ClipPool.render(recipe, Corpus.load(corpus, workers.device), workers)
    tell(f"rendered {pool.clips} clips of {pool.chunks} chunks on each of {workers.count} GPU(s)")
    if "autoencoder" in stages:
        autoencoder = train_autoencoder(recipe, pool, workers, folder)
        tell("autoencoder trained")
    else:
        autoencoder = Autoencoder(load_model_config(recipe.model)).to(workers.device)
        load_weights(autoencoder, folder / "autoencoder.safetensors")
        autoencoder.to(memory_format=torch.channels_last)
    autoencoder.eval()
    if "reader" in stages:
        train_reader(recipe, pool, autoencoder, workers, folder)
        tell("reader trained")
    if "dit" in stages:
        train_dit(recipe, pool, autoencoder, workers, folder)
        tell("dit trained")
    workers.leave()
