"""The shipped characters: complete on disk and up to date with the renderer."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from characters.drawing import sample_identities
from characters.drawing.gallery import CHARACTERS, GALLERY, portrait

FOLDERS = sorted(path for path in GALLERY.iterdir() if path.is_dir())


def test_ten_characters() -> None:
    expected = set(sample_identities(1, seed=0))
    assert all(set(identity) == expected for identity in CHARACTERS.values())
    assert [folder.name for folder in FOLDERS] == sorted(CHARACTERS)
    assert len(FOLDERS) == 10


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_folder(folder: Path) -> None:
    character = yaml.safe_load((folder / "character.yaml").read_text())
    assert set(character) == {"name", "description", "persona", "greeting", "voice", "portrait"}
    assert all(character[key].strip() for key in ("name", "description", "persona", "greeting"))
    voice = character["voice"]
    assert voice["engine"] == "hibari" and 0.85 <= voice["speed"] <= 1.15 and -5 <= voice["pitch"] <= 5
    image = Image.open(folder / character["portrait"])
    assert image.size == (176, 272) and image.mode == "RGB"
    drawn = np.asarray(portrait(CHARACTERS[folder.name])).astype(int)
    assert np.abs(drawn - np.asarray(image).astype(int)).mean() < 0.5


def test_voices_differ() -> None:
    voices = [yaml.safe_load((folder / "character.yaml").read_text())["voice"] for folder in FOLDERS]
    assert len({(voice["speed"], voice["pitch"]) for voice in voices}) == len(FOLDERS)
