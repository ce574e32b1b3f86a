from pathlib import Path

import av
import numpy as np

from characters.media.audio import open_audio
from tests.examples.example import load


def test_render_makes_a_video_of_a_character_that_speaks(tmp_path: Path) -> None:
    out = tmp_path / "v.mp4"
    load("render").main("Hello.", str(out), "pixel")
    with av.open(str(out)) as container:
        frames = np.array([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    sound = np.concatenate(list(open_audio(out).blocks()))
    assert frames.shape[1:] == (272, 176, 3) and len(frames) % 4 == 0
    assert abs(len(frames) / 24 - len(sound) / 24_000) < 0.1
    assert np.abs(sound).max() > 0.1
    assert np.abs(frames[1:].astype(int) - frames[:-1]).max() > 50  # something moves: the mouth
