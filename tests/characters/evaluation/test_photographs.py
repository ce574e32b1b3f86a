"""Photographs are cropped about the face, and their figures are summed up; MediaPipe itself is not needed for that."""

import sys

import numpy as np
import pytest

from characters.errors import UserError
from characters.evaluation import landmarks as lm
from characters.evaluation.photographs import Spoken, agreement, crop_face, load_photographs, summarise


def points(eyes: tuple[float, float], apart: float, roll: float = 0.0) -> np.ndarray:
    """A face's landmarks: eyes, forehead, chin and lips."""
    out = np.zeros((478, 2))
    angle = np.radians(roll)
    along, down = np.array([np.cos(angle), np.sin(angle)]), np.array([-np.sin(angle), np.cos(angle)])
    out[468], out[473] = eyes - along * apart / 2, eyes + along * apart / 2
    out[10], out[152] = eyes - down * apart, eyes + down * apart * 2
    return out


@pytest.mark.parametrize("roll", [0.0, 25.0])
def test_a_crop_puts_the_eyes_where_the_model_expects_them(roll):
    image = np.full((400, 500, 3), 90, np.uint8)
    face = points((260.0, 170.0), 60, roll)
    for index in (468, 473):
        x, y = face[index].round().astype(int)
        image[y - 3 : y + 4, x - 3 : x + 4] = 255
    cropped = crop_face(image, face, 176, 272)
    y, x = np.nonzero(cropped.min(2) > 200)
    assert cropped.shape == (272, 176, 3)
    assert abs((x.min() + x.max()) / 2 - 88) < 1.5 and abs((y.min() + y.max()) / 2 - 118) < 1.5
    assert np.ptp(y) < 10  # upright
    assert abs(np.ptp(x) - 92 / 3) < 8  # forehead to chin is three times the distance of the eyes


def test_measures_of_a_mouth():
    face = points((100.0, 100.0), 40)
    for upper, lower in lm.INNER_LIPS:
        face[upper], face[lower] = (100, 150), (100, 162)
    assert lm.opening(face) == pytest.approx(12 / 120)
    moved = face * 1.3 + 17
    assert lm.opening(moved) == pytest.approx(lm.opening(face))
    assert np.abs(lm.shape(moved) - lm.shape(face)).max() < 1e-9


def test_curves_with_lost_frames_are_compared():
    said = np.sin(np.arange(64) / 3.0)
    read = 0.1 + 0.05 * said
    read[[5, 20, 21]] = np.nan
    r, within = agreement(said, read)
    assert r > 0.97 and within > 0.8
    assert np.isnan(agreement(said, np.full(64, np.nan))).all()


def test_figures_leave_out_what_could_not_be_read():
    rows = [Spoken("a", 0.8, 0.7, 0.1, 0.01, 1.0), Spoken("b", float("nan"), float("nan"), 0.2, 0.02, 0.0)]
    found = {f.name: f.value for f in summarise("x", rows)}
    assert found["open, correlation"] == pytest.approx(0.8) and found["frames with a face"] == 0.5
    assert found["photographs with r of 0.6 or more"] == 1


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    class Blind:
        def find(self, image, enlarge=3):
            return None

    with pytest.raises(UserError, match="no folder"):
        load_photographs(tmp_path / "none", Blind(), 176, 272)
    with pytest.raises(UserError, match="no picture in"):
        load_photographs(tmp_path, Blind(), 176, 272)
    monkeypatch.setitem(sys.modules, "mediapipe", None)
    with pytest.raises(UserError, match="pip install"):
        lm.Landmarks()
