from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def own_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of characters, empty."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    folder = tmp_path / "data" / "characters"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def pip(own_characters: Path) -> Path:
    """The folder of a character of the user's own, named pip."""
    folder = own_characters / "pip"
    folder.mkdir()
    (folder / "character.yaml").write_text("name: Pip\nportrait: portrait.png\nvoice: {speed: 1.1}\n")
    Image.fromarray(np.full((272, 176, 3), 90, np.uint8)).save(folder / "portrait.png")
    return folder
