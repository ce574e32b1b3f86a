"""Idle motion: natural rates, bounded, reproducible, endless."""

import torch

from characters.chunk import FPS, MOTION_CHANNELS
from characters.generate.motion import IdleMotion

COLUMN = {name: i for i, name in enumerate(MOTION_CHANNELS)}


def stream(chunks: int, batch: int = 1, seed: int = 0) -> torch.Tensor:
    motion = IdleMotion(batch, seed=seed)
    return torch.cat([motion.next_chunk() for _ in range(chunks)], 1)


def test_shape_and_bounds() -> None:
    chunk = IdleMotion(3).next_chunk()
    assert chunk.shape == (3, 4, len(MOTION_CHANNELS)) and chunk.dtype == torch.float32
    motion = stream(360, 8)
    assert motion.abs().max() <= 1
    assert motion[..., COLUMN["blink"]].min() >= 0
    for name in MOTION_CHANNELS:
        assert motion[..., COLUMN[name]].std() > 0.1, f"{name} hardly moves"


def test_blinks() -> None:
    minutes = 2
    blink = stream(minutes * 60 * FPS // 4, 32)[..., COLUMN["blink"]]
    shut = blink > 0.9
    starts = (shut[:, 1:] & ~shut[:, :-1]).sum(1) / minutes
    assert 12 <= starts.mean() <= 20
    assert starts.min() >= 5 and starts.max() <= 30
    moving = blink > 0
    runs = moving.float().mean() * 60 * FPS / starts.mean()
    assert 5 <= runs <= 7.5, "frames of a blink"


def test_everything_but_eyes_is_smooth() -> None:
    motion = stream(200, 8)
    step = (motion[:, 1:] - motion[:, :-1]).abs().amax((0, 1))
    for name in ("x", "y", "roll", "scale", "yaw", "pitch", "smile"):
        assert step[COLUMN[name]] < 0.12, name
    fixed = (motion[:, 1:, COLUMN["gaze_x"]] - motion[:, :-1, COLUMN["gaze_x"]]).abs() < 0.02
    assert fixed.float().mean() > 0.6, "eyes rest between saccades"


def test_same_seed_same_stream_and_rows_do_not_depend_on_the_batch() -> None:
    torch.testing.assert_close(stream(20, 2, 5), stream(20, 2, 5), rtol=0, atol=0)
    torch.testing.assert_close(stream(20, 7, 5)[:2], stream(20, 2, 5), rtol=0, atol=0)
    assert (stream(20, 1, 5) - stream(20, 1, 6)).abs().max() > 0.1
    rows = stream(20, 2, 5)
    assert (rows[0] - rows[1]).abs().max() > 0.1


def test_never_repeats() -> None:
    motion = stream(720)[0]
    window = motion[:48]
    distances = torch.stack([(motion[i : i + 48] - window).abs().mean() for i in range(48, len(motion) - 48)])
    assert distances.min() > 0.05


def test_days_later_it_still_moves_smoothly() -> None:
    motion = IdleMotion(2, seed=1)
    motion.frame = 3 * 24 * 3600 * FPS
    late = torch.cat([motion.next_chunk() for _ in range(60)], 1)[..., COLUMN["yaw"]]
    assert late.std() > 0.02 and (late[:, 1:] - late[:, :-1]).abs().max() < 0.12
