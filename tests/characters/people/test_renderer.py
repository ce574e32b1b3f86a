"""Pictures of people show what their rows of numbers say. Mesa draws them where there is no graphics card."""

import numpy as np
import pytest
import torch

from characters.bench.people import rows
from characters.people.clips import Setting, film, people
from characters.people.look import Camera
from characters.people.renderer import Renderer

pytestmark = pytest.mark.system
SIZE = (88, 136)


@pytest.fixture(scope="module")
def shot():
    """A renderer with a person, straight before a plain wall, and pictures of four poses."""
    renderer = Renderer(*SIZE, samples=1)
    figure, (setting,) = next(people([40], 1, SIZE, 0))
    renderer.load(figure, setting.look)
    setting.look.camera = Camera(height=3.6)
    renderer.dress(setting.look, setting.room)
    names = ["rest", "ah", "blink", "turn"]
    pictures = dict(zip(names, renderer.draw(*rows(names)).astype(int), strict=True))
    yield renderer, setting, pictures, renderer.centres()
    renderer.release()


def changed(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float]:
    """Middle (x, y) of what differs, and how much of the picture does."""
    differs = np.abs(a - b).max(2) > 24
    y, x = np.nonzero(differs)
    return float(np.median(x)), float(np.median(y)), float(differs.mean())


def test_the_open_mouth_is_where_the_label_says(shot):
    _, _, pictures, (mouth, _) = shot
    x, y, share = changed(pictures["rest"], pictures["ah"])
    assert 0.003 < share < 0.15
    assert abs(x - mouth[1][0]) < 4 and -3 < y - mouth[1][1] < 14  # a jaw opens downwards


def test_a_blink_is_where_the_label_says(shot):
    _, _, pictures, (_, eyes) = shot
    y, x = np.nonzero(np.abs(pictures["rest"] - pictures["blink"]).max(2)[: int(eyes[2][1]) + 12] > 24)
    assert len(y) > 20
    assert abs(np.mean([x.min(), x.max()]) - eyes[2][0]) < 6 and abs(np.median(y) - eyes[2][1]) < 6


def test_a_turn_moves_the_face(shot):
    _, _, pictures, (mouth, eyes) = shot
    assert mouth[3][0] - mouth[0][0] > 2 and eyes[3][0] - eyes[0][0] > 2
    assert changed(pictures["rest"], pictures["turn"])[2] > 0.05


def test_a_picture_is_a_person_and_the_same_again(shot):
    renderer, _, pictures, _ = shot
    again = renderer.draw(*rows(["rest"]))[0].astype(int)
    assert np.abs(again - pictures["rest"]).mean() < 0.5
    face = pictures["rest"][50:80, 34:54].reshape(-1, 3).mean(0)
    assert face[0] > face[2] and 40 < face.mean() < 235  # skin is warmer than blue, and exposed


def test_a_clip_has_a_portrait_and_its_smile(shot):
    renderer, setting, _, _ = shot
    motion, mouth = torch.zeros(2, 12), torch.zeros(2, 5)
    clip = film(renderer, Setting(setting.look, setting.room), 7, motion, mouth)
    assert clip.frames.shape == (2, *SIZE[::-1], 3) and clip.portrait.shape == clip.frames.shape[1:]
    assert clip.frames.dtype == np.uint8 and clip.mouth_xy.shape == (2, 2)
    assert torch.equal(clip.motion[:, :4], motion[:, :4]) and clip.motion[0, 4] > 0.3
