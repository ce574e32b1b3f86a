"""Every line of the recipe runs on a CPU, stops and goes on; the optimiser does what its paper says."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from characters.errors import UserError
from characters.model.autoencoder import Autoencoder
from characters.model.checkpoint import load_weights, save_weights
from characters.model.config import load_model_config
from characters.model.dit import DiT
from characters.training.clips import Corpus
from characters.training.dit import _even_odds
from characters.training.loop import Training, Workers
from characters.training.muon import Muon, orthogonalise
from characters.training.recipe import Stage, load_recipe
from characters.training.run import train

MODEL = """
height: 272
width: 176
latent_channels: 8
latent_stride: 16
dit: {dim: 32, ffn_dim: 64, num_heads: 1, num_layers: 1, patch: 1, rope_theta: [20, 100, 100], concat_previous: true,
  concat_reference: true, prediction: x0, residual_reference: true, audio_dim: 16, audio_layers: 1}
autoencoder: {encoder_channels: [8, 8, 8, 16], decoder_channels: [8, 8, 16]}
"""
RECIPE = """
model: {model}
clips: 2
chunks: 3
compile: false
log_every: 1
autoencoder: {{steps: 2, batch: 1}}
reader: {{steps: 2, batch: 8, muon_rate: 0.01}}
dit: {{steps: {steps}, batch: 2}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("training")
    (folder / "model.yaml").write_text(MODEL)
    random, frames = np.random.default_rng(0), 4 * 40
    mel = random.integers(0, 255, (4 * frames, 80), np.uint8)
    np.savez(folder / "speech.npz", mel=mel, mouth=random.random((frames, 5)).astype(np.float16))
    return folder


def recipe(folder: Path, steps: int):
    (folder / "recipe.yaml").write_text(RECIPE.format(model=folder / "model.yaml", steps=steps))
    return load_recipe(str(folder / "recipe.yaml"))


def test_all_stages_run_write_weights_and_resume(folder):
    out = folder / "out"
    train(recipe(folder, 12), folder / "speech.npz", out, device="cpu")
    config = load_model_config(str(folder / "model.yaml"))
    for module, name in ((Autoencoder(config), "autoencoder"), (DiT(config), "dit")):
        load_weights(module, out / f"{name}.safetensors")
        assert all(p.isfinite().all() for p in module.parameters())
    assert (out / "reader.safetensors").is_file()
    first = json.loads((out / "dit.log.json").read_text())
    assert [line["step"] for line in first] == list(range(1, 13))
    assert all(np.isfinite(line["loss"]) for line in first)
    assert "pixel" in first[-1]

    before = (out / "autoencoder.safetensors").stat().st_mtime_ns
    train(recipe(folder, 14), folder / "speech.npz", out, stages=("dit",), device="cpu")
    more = json.loads((out / "dit.log.json").read_text())
    assert more[:12] == first and [line["step"] for line in more[12:]] == [13, 14]
    assert (out / "autoencoder.safetensors").stat().st_mtime_ns == before


def test_refining_goes_on_from_the_weights_and_leaves_the_audio_encoder(folder, tmp_path):
    train(recipe(folder, 4), folder / "speech.npz", tmp_path, device="cpu")
    config = load_model_config(str(folder / "model.yaml"))
    before, after = DiT(config), DiT(config)
    load_weights(before, tmp_path / "dit.safetensors")
    (tmp_path / "dit.state.pt").unlink()
    refine = replace(recipe(folder, 3), refine=1.0, calm=0.2)
    train(refine, folder / "speech.npz", tmp_path, stages=("dit",), device="cpu")
    load_weights(after, tmp_path / "dit.safetensors")
    new = dict(after.named_parameters())
    moved = {name for name, old in before.named_parameters() if not torch.equal(old, new[name])}
    assert "head.head.weight" in moved
    assert not any(name.startswith("conditioning.audio.") for name in moved)
    assert all((new[name] - old).abs().max() < 0.1 for name, old in before.named_parameters())
    assert "worst" in json.loads((tmp_path / "dit.log.json").read_text())[0]


@pytest.mark.system
def test_people_are_learnt_beside_drawn_characters(folder, tmp_path):
    train(recipe(folder, 1), folder / "speech.npz", tmp_path, device="cpu")
    config = load_model_config(str(folder / "model.yaml"))
    before, after = Autoencoder(config), Autoencoder(config)
    load_weights(before, tmp_path / "autoencoder.safetensors")
    for state in tmp_path.glob("*.state.pt"):
        state.unlink()
    both = replace(recipe(folder, 2), refine=1.0, people=0.5, looks=1, chunks=2)
    train(both, folder / "speech.npz", tmp_path, stages=("autoencoder", "dit"), device="cpu")
    load_weights(after, tmp_path / "autoencoder.safetensors")
    assert torch.equal(before.mean, after.mean)  # the DiT knows the latents by these
    assert any(not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))
    assert json.loads((tmp_path / "dit.log.json").read_text())[-1]["step"] == 2


def test_badness_is_weighed_within_each_world():
    odds = _even_odds(torch.tensor([0.1, 0.3, 2.0, 6.0]), 2)
    assert torch.allclose(odds, torch.tensor([0.5, 1.5, 0.5, 1.5]))
    assert torch.allclose(_even_odds(torch.tensor([1.0, 3.0]), 2), torch.tensor([0.5, 1.5]))


def test_what_is_missing_is_named(folder, tmp_path):
    with pytest.raises(UserError, match="no speech corpus"):
        train(recipe(folder, 1), tmp_path / "none.npz", tmp_path, device="cpu")
    with pytest.raises(UserError, match="no weights"):
        train(recipe(folder, 1), folder / "speech.npz", tmp_path, stages=("dit",), device="cpu")
    with pytest.raises(UserError, match="no recipe 'smal'"):
        load_recipe("smal")


@pytest.mark.parametrize("device", ["nope", "cuda:99"])
def test_a_device_that_is_not_there_is_named(folder, tmp_path, device):
    with pytest.raises(UserError, match=f"device|{device}"):
        train(recipe(folder, 1), folder / "speech.npz", tmp_path, device=device)


def test_an_output_that_is_a_file_is_named(folder, tmp_path):
    (tmp_path / "out").write_bytes(b"")
    with pytest.raises(UserError, match=r"cannot write .*out: File exists"):
        train(recipe(folder, 1), folder / "speech.npz", tmp_path / "out", device="cpu")


def test_what_is_no_corpus_is_refused(folder, tmp_path):
    path, whole = tmp_path / "speech.npz", (folder / "speech.npz").read_bytes()
    for data in (b"", b"a text", whole[:1_000], whole[: len(whole) // 2], whole[:300] + bytes(100) + whole[400:]):
        path.write_bytes(data)
        with pytest.raises(UserError, match=r"speech\.npz is not a speech corpus"):
            Corpus.load(path, torch.device("cpu"))
    mel, mouth = np.zeros((160, 80), np.uint8), np.zeros((40, 5))
    for arrays in ({"mel": mel}, {"mel": mel[:80], "mouth": mouth}, {"mel": mel, "mouth": mouth[:, :3]}):
        np.savez(path, **arrays)
        with pytest.raises(UserError, match="is not a speech corpus"):
            Corpus.load(path, torch.device("cpu"))
    with path.open("wb") as file:
        np.save(file, mel)
    with pytest.raises(UserError, match="is not a speech corpus"):
        Corpus.load(path, torch.device("cpu"))
    np.savez(path, mel=mel[:16], mouth=mouth[:4])
    with pytest.raises(UserError, match="has 1 chunks; clips of 3 need a longer one"):
        train(recipe(folder, 1), path, tmp_path, device="cpu")


@pytest.mark.parametrize("name", ["small", "refine", "refine-more", "reader", "smoke", "people"])
def test_shipped_recipes_load(name):
    assert load_recipe(name).model == "small"


def test_damaged_and_foreign_weights_are_refused(tmp_path):
    layer = torch.nn.Linear(4, 4)
    path = tmp_path / "w.safetensors"
    save_weights(layer, path)
    with pytest.raises(UserError, match="another model"):
        load_weights(torch.nn.Linear(4, 5), path)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(UserError, match="not a readable safetensors"):
        load_weights(layer, path)


def test_orthogonalised_matrices_have_singular_values_near_one():
    torch.manual_seed(0)
    for shape in ((3, 16, 16), (2, 8, 40), (2, 40, 8)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)).float())
        assert values.min() > 0.5 and values.max() < 1.4


def test_muon_learns_a_convolution():
    torch.manual_seed(0)
    target, learner = torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(3, 8, 3)
    optimiser = Muon([learner.weight], lr=0.02)
    losses = []
    for step in range(200):
        optimiser.param_groups[0]["lr"] = 0.02 * (1 - step / 200)
        x = torch.randn(16, 3, 8, 8)
        bias = (target.bias - learner.bias).detach()[:, None, None]
        loss = (target(x) - learner(x) - bias).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.01 * losses[0]


def test_a_loss_that_is_not_finite_stops_training(tmp_path):
    layer = torch.nn.Linear(2, 2)
    optimiser = torch.optim.SGD(layer.parameters(), 0.1)
    workers = Workers(0, 1, torch.device("cpu"))
    training = Training("x", Stage(steps=5), layer, [optimiser], workers, tmp_path, average=0.9, log_every=1)
    with pytest.raises(RuntimeError, match="not finite"):
        for _ in training.steps():
            training.update(layer(torch.full((1, 2), float("nan"))).sum())
