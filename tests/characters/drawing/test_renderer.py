"""What the renderer promises about its pictures."""

import pytest
import torch
from torch import Tensor

from characters.chunk import MOTION_CHANNELS, MOUTH_CHANNELS
from characters.drawing import (
    HEIGHT,
    WIDTH,
    Identities,
    eye_centre,
    mouth_centre,
    render,
    repeat_frames,
    sample_identities,
    select,
)

MOTION = {name: i for i, name in enumerate(MOTION_CHANNELS)}
MOUTH = {name: i for i, name in enumerate(MOUTH_CHANNELS)}
COUNT = 12


@pytest.fixture(scope="module")
def cast() -> Identities:
    return sample_identities(COUNT, seed=7)


def motion_of(count: int = COUNT, **channels: float) -> Tensor:
    motion = torch.zeros(count, len(MOTION_CHANNELS))
    for name, value in channels.items():
        motion[:, MOTION[name]] = value
    return motion


def mouth_of(count: int = COUNT, **channels: float) -> Tensor:
    mouth = torch.zeros(count, len(MOUTH_CHANNELS))
    for name, value in channels.items():
        mouth[:, MOUTH[name]] = value
    return mouth


def crop(frames: Tensor, centres: Tensor, half_width: int, above: int, below: int) -> Tensor:
    """Boxes [N, 3, above + below, 2 * half_width] around the centres (x, y)."""
    boxes = []
    for frame, (x, y) in zip(frames, centres.round().int().tolist(), strict=True):
        boxes.append(frame[:, y - above : y + below, x - half_width : x + half_width])
    return torch.stack(boxes)


def paint_green(cast: Identities, *names: str) -> Identities:
    """The same characters with these colours, and nothing else, in pure green."""
    pure = torch.tensor([[0.0, 1.0, 0.0]]).expand(len(cast["kind"]), 3).clone()
    plain = {name: torch.zeros_like(cast["kind"]) for name in ("has_glasses", "has_ear_inner")}
    lines = {name: torch.zeros_like(pure) for name in ("lash_colour", "brow_colour", "lip", "lip_light", "tongue")}
    return cast | plain | lines | {name: pure for name in names}


def green(frames: Tensor) -> Tensor:
    """Where the frames are green, as 0 or 1: [N, H, W]."""
    return ((frames[:, 1] > 0.5) & (frames[:, 0] < 0.4) & (frames[:, 2] < 0.4)).float()


def interior(cast: Identities, motion: Tensor, mouth: Tensor) -> Tensor:
    """Where the inside of the mouth shows, as 0 or 1: [N, 40, 72] around the mouth."""
    frames = render(paint_green(cast, "mouth_inner"), motion, mouth)
    return green(crop(frames, mouth_centre(cast, motion), 36, 12, 28))


def test_shape_and_range(cast: Identities) -> None:
    frames = render(cast, motion_of(), mouth_of())
    assert frames.shape == (COUNT, 3, HEIGHT, WIDTH) and frames.dtype == torch.float32
    assert frames.isfinite().all() and frames.min() >= 0 and frames.max() <= 1


def test_deterministic_and_independent_of_the_batch(cast: Identities) -> None:
    generator = torch.Generator().manual_seed(0)
    motion = torch.rand(COUNT, 12, generator=generator) * 2 - 1
    mouth = torch.rand(COUNT, 5, generator=generator)
    frames = render(cast, motion, mouth)
    torch.testing.assert_close(render(cast, motion, mouth), frames, rtol=0, atol=0)
    torch.testing.assert_close(render(select(cast, 3), motion[3:4], mouth[3:4]), frames[3:4], rtol=0, atol=1e-5)


def test_extremes_stay_finite(cast: Identities) -> None:
    one = select(cast, slice(0, 4))
    for value in (-1.2, 1.2):
        frames = render(one, torch.full((4, 12), value), torch.full((4, 5), value).clamp(0, 1))
        assert frames.isfinite().all()


def test_mouth_opens_monotonically(cast: Identities) -> None:
    opening = torch.tensor([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    mouth = mouth_of(len(opening))
    mouth[:, MOUTH["open"]] = opening
    motion = motion_of(len(opening))
    for i in range(COUNT):
        person = repeat_frames(select(cast, i), len(opening))
        area = interior(person, motion, mouth).sum((1, 2))
        assert (area[1:] > area[:-1]).all(), f"identity {i}: {area.tolist()}"


def test_closed_mouth_shows_no_interior(cast: Identities) -> None:
    assert (interior(cast, motion_of(), mouth_of()) == 0).all()
    assert (interior(cast, motion_of(), mouth_of(open=1.0)).sum((1, 2)) > 200).all()


def test_rounding_narrows_and_wide_widens(cast: Identities) -> None:
    def width(**channels: float) -> Tensor:
        return interior(cast, motion_of(), mouth_of(open=0.6, **channels)).amax(1).sum(1)

    assert (width(round=1.0) < 0.8 * width()).all()
    assert (width(wide=1.0) > width()).all()


def test_blink_shuts_the_eyes(cast: Identities) -> None:
    person = paint_green(cast, "iris", "iris_light", "iris_dark", "pupil")
    areas = []
    for blink in (0.0, 0.5, 1.0):
        motion = motion_of(blink=blink)
        frames = render(person, motion, mouth_of())
        areas.append(green(crop(frames, eye_centre(person, motion), 45, 16, 16)).sum((1, 2)))
    assert (areas[0] > 150).all()
    assert (areas[1] < areas[0]).all()
    assert (areas[2] == 0).all()


def test_gaze_moves_the_pupil(cast: Identities) -> None:
    person = paint_green(cast, "pupil")

    def place(**channels: float) -> Tensor:
        seen = green(render(person, motion_of(**channels), mouth_of()))
        x = (seen.sum(1) * torch.arange(WIDTH)).sum(1) / seen.sum((1, 2))
        y = (seen.sum(2) * torch.arange(HEIGHT)).sum(1) / seen.sum((1, 2))
        return torch.stack([x, y], 1)

    # the lids may hide a part of the pupil, so what remains in sight can move less than the pupil itself
    middle = place()
    assert (place(gaze_x=1.0) - middle)[:, 0].min() > 3
    assert (place(gaze_x=-1.0) - middle)[:, 0].max() < -3
    assert (place(gaze_y=1.0) - middle)[:, 1].min() > 1


def test_mouth_centre_lies_in_the_drawn_mouth(cast: Identities) -> None:
    generator = torch.Generator().manual_seed(1)
    motion = torch.rand(COUNT, 12, generator=generator) * 2 - 1
    motion[:, MOTION["smile"]] = 0
    shut, opened = render(cast, motion, mouth_of()), render(cast, motion, mouth_of(open=0.8))
    x, y = mouth_centre(cast, motion).round().long().unbind(1)
    inner = cast["mouth_inner"]
    rows = torch.arange(COUNT)
    below = opened[rows, :, y + 8, x]
    assert ((below - inner).abs().amax(1) < (shut[rows, :, y + 8, x] - inner).abs().amax(1)).all()
    x, y = eye_centre(cast, motion).unbind(1)
    assert (y < mouth_centre(cast, motion)[:, 1] - 20).all() and ((x > 40) & (x < WIDTH - 40)).all()


def test_motion_moves_the_head(cast: Identities) -> None:
    rest = mouth_centre(cast, motion_of())
    assert ((mouth_centre(cast, motion_of(x=1.0)) - rest)[:, 0] - 6).abs().max() < 1
    assert ((mouth_centre(cast, motion_of(y=1.0)) - rest)[:, 1] - 6).abs().max() < 1
    assert ((mouth_centre(cast, motion_of(yaw=1.0)) - rest)[:, 0] > 4).all()
