"""Folders of sessions whose processes were killed go; those that somebody holds stay."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from actors.pipeline.folder import hold, sweep


def test_what_nobody_holds_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    held, left, young = (tmp_path / f"characters-{name}" for name in ("held", "left", "young"))
    descriptor = hold(held)
    for folder in (left, young):
        os.close(hold(folder))
    (left / "1-0").write_text("a socket")
    for folder in (held, left):
        os.utime(folder, (0, 0))
    (tmp_path / "characters-file").write_text("")
    sweep()
    assert {path.name for path in tmp_path.iterdir()} == {"characters-held", "characters-young", "characters-file"}
    os.close(descriptor)
    sweep()
    assert not held.exists()
