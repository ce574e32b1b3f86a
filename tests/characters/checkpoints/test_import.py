"""`characters models import`, `check` and `list`: files from a folder, good and bad."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from characters.checkpoints.convert import convert
from characters.errors import UserError
from tests.characters.checkpoints.published import FILES

RunFixture = Callable[..., object]
DIT, VAE, EAR, LORA, PROJECTION = (repository.partition("/")[2] + "/" + file for _, repository, file, _ in FILES)


@pytest.fixture
def folder(published: Path, tmp_path: Path) -> Path:
    """The published files, to be spoilt."""
    return Path(shutil.copytree(published, tmp_path / "downloads"))


def nothing_stays(store: Path) -> bool:
    return not [path for path in store.rglob("*") if path.suffix != ".lock"] if store.exists() else True


def test_a_folder_becomes_a_model(run: RunFixture, store: Path, model: str, folder: Path) -> None:
    result = run("models", "import", folder, "--as", model)
    assert result.code == 0 and result.out.strip() == str(store / "tiny") and result.err == ""
    assert run("models", "check", model, "--device", "cpu").code == 0
    # A folder of files that were made here before will do as well.
    again = run("models", "import", store / "tiny", "--as", model)
    assert again.code == 0, again.err
    assert set(load_file(store / "tiny/audio_proj.safetensors")) >= {"audio_proj.proj1.weight"}


def test_renamed_files_are_known_by_their_bytes(run: RunFixture, store: Path, model: str, folder: Path) -> None:
    (folder / DIT).rename(folder / "flashhead.safetensors")
    assert run("models", "import", folder, "--as", model).code == 0
    (folder / EAR).unlink()
    result = run("models", "import", folder, "--as", model)
    assert result.code == 2 and "lacks model.safetensors of meta/wav2vec2" in result.said


def test_a_fine_tuned_file_is_taken_and_named(run: RunFixture, store: Path, model: str, folder: Path) -> None:
    tensors = load_file(folder / DIT)
    tensors["head.head.bias"] += 0.01
    save_file(tensors, folder / DIT)
    result = run("models", "import", folder, "--as", model)
    assert result.code == 0 and "is not the published file" in result.err


def spoilt_dit(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / DIT)
    change(tensors)
    save_file(tensors, folder / DIT)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def half(folder: Path) -> None:
    truncate(folder / DIT)
    (folder / DIT).rename((folder / DIT).with_suffix(".incomplete"))


def wider(tensors: dict[str, torch.Tensor]) -> None:
    tensors["blocks.0.ffn.0.weight"] = torch.zeros(80, 48)


def quantised(tensors: dict[str, torch.Tensor]) -> None:
    tensors["blocks.0.ffn.0.weight"] = tensors["blocks.0.ffn.0.weight"].to(torch.float8_e4m3fn)


def renamed(tensors: dict[str, torch.Tensor]) -> None:
    tensors["transformer.blocks.0.ffn.0.weight"] = tensors.pop("blocks.0.ffn.0.weight")


SPOILERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda f: truncate(f / DIT), "it was cut off; download it again"),
    "half-downloaded": (half, "lacks Model_Pro/"),
    "empty": (lambda f: (f / EAR).write_bytes(b""), "is not a readable safetensors file"),
    "a page": (lambda f: (f / EAR).write_text("<html>Sign in</html>"), "it is a text, perhaps a page"),
    "a pointer": (
        lambda f: (f / EAR).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
        "it is a Git LFS pointer",
    ),
    "a pickle in disguise": (lambda f: shutil.copy(f / VAE, f / DIT), "it is a pickle under another name"),
    "truncated pickle": (lambda f: truncate(f / VAE), "is damaged or cut off"),
    "no pickle": (lambda f: (f / VAE).write_bytes(b"not at all"), "damaged or cut off"),
    "wrong architecture": (lambda f: spoilt_dit(f, wider), "blocks.0.ffn.0.weight is [80, 48], not [64, 48]"),
    "wrong dtype": (lambda f: spoilt_dit(f, quantised), "blocks.0.ffn.0.weight is F8_E4M3, not floating-point"),
    "renamed tensors": (lambda f: spoilt_dit(f, renamed), "lacks 1 of the model's tensors (first: blocks.0.ffn"),
    "another adapter": (
        lambda f: save_file({"base_model.model.x.lora_A.weight": torch.zeros(2, 2)}, f / LORA),
        "lora.safetensors lacks 1",
    ),
    "numbers, not tensors": (lambda f: torch.save({"epoch": 3}, f / PROJECTION), "does not hold a model's tensors"),
}


@pytest.mark.parametrize("kind", SPOILERS)
def test_a_spoilt_folder_is_a_line_and_leaves_nothing(
    run: RunFixture, store: Path, model: str, folder: Path, kind: str
) -> None:
    spoil, message = SPOILERS[kind]
    spoil(folder)
    result = run("models", "import", folder, "--as", model)
    assert result.code == 2 and message in result.said and result.said.startswith("error: "), result.err
    assert nothing_stays(store)


def test_a_model_that_is_there_stays_when_another_cannot_take_its_place(
    run: RunFixture, store: Path, model: str, folder: Path
) -> None:
    assert run("models", "import", folder, "--as", model).code == 0
    before = (store / "tiny/dit.safetensors").stat().st_mtime_ns
    truncate(folder / VAE)
    assert run("models", "import", folder, "--as", model).code == 2
    assert (store / "tiny/dit.safetensors").stat().st_mtime_ns == before
    assert run("models", "import", folder / "gone", "--as", model).code == 2


def test_check_names_every_tensor_that_does_not_fit(run: RunFixture, store: Path, model: str, folder: Path) -> None:
    assert run("models", "check", model).said.endswith("characters models get tiny")
    assert run("models", "import", folder, "--as", model).code == 0
    path = store / "tiny/dit.safetensors"
    tensors = load_file(path)
    renamed(tensors)
    tensors["head.modulation"] = torch.zeros(1)
    path.unlink()  # it is a link to the file that was brought
    save_file(tensors, path)
    result = run("models", "check", model, "--json")
    told = json.loads(result.out)
    (dit,) = [file for file in told["files"] if file["name"] == "dit.safetensors"]
    assert result.code == 2 and told["pass"] is None and "lacks 1 of the model's tensors" in told["fault"]
    assert dit["missing"] == ["blocks.0.ffn.0.weight"] and "transformer.blocks.0.ffn.0.weight" in dit["ignored"]
    assert any("head.modulation is [1]" in line for line in dit["wrong"])
    assert any("as when it was brought" in line for line in dit["wrong"])
    assert "missing: blocks.0.ffn.0.weight" in run("models", "check", model).out


def test_list_says_what_there_is(run: RunFixture, store: Path) -> None:
    told = json.loads(run("models", "list", "--json").out)
    entries = {entry["model"]: entry for entry in told["models"]}
    assert told["folder"] == str(store) and entries["small"]["folder"] and entries["small"]["portraits"] == ["drawn"]
    leap = entries["leaptalk"]
    assert leap["bytes"] == 7_278_537_450 and leap["licences"] == ["Apache-2.0"] and leap["folder"] == ""
    assert entries["leaptalk-tae"]["licences"] == ["Apache-2.0", "MIT"] and "reference-57b" not in entries
    assert "7.3 GB" in run("models", "list").out


def test_a_pickle_becomes_safetensors_once(tmp_path: Path) -> None:
    shared = torch.arange(6.0)
    torch.save({"state_dict": {"a": shared[:3], "b": shared[:3]}}, tmp_path / "x.pth")
    convert(tmp_path / "x.pth", tmp_path / "x.safetensors", "p.")
    assert set(load_file(tmp_path / "x.safetensors")) == {"p.a", "p.b"}
    with pytest.raises(UserError, match="cannot write"):
        convert(tmp_path / "x.pth", tmp_path / "gone" / "x.safetensors")
