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


def interior(frames: Tensor, cast: Identities, motion: Tensor) -> Tensor:
    """Pixels [N] around the mouth that have the colour of its inside."""
    box = crop(frames, mouth_centre(cast, motion), 30, 12, 28)
    return ((box - cast["mouth_inner"][:, :, None, None]).abs().amax(1) < 0.04).sum((1, 2))


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
        area = interior(render(person, motion, mouth), person, motion)
        assert (area[1:] > area[:-1]).all(), f"identity {i}: {area.tolist()}"


def test_closed_mouth_shows_no_interior(cast: Identities) -> None:
    motion = motion_of()
    closed = interior(render(cast, motion, mouth_of()), cast, motion)
    opened = interior(render(cast, motion, mouth_of(open=1.0)), cast, motion)
    assert (opened > 150).all()
    assert (closed < 0.1 * opened).all()


def test_rounding_narrows_and_wide_widens(cast: Identities) -> None:
    rest = render(cast, motion_of(), mouth_of())
    centres = mouth_centre(cast, motion_of())

    def width(**channels: float) -> Tensor:
        frames = render(cast, motion_of(), mouth_of(open=0.6, **channels))
        box = crop(frames, centres, 36, 10, 26)
        inside = (box - cast["mouth_inner"][:, :, None, None]).abs().amax(1) < 0.04
        return inside.any(1).sum(1)

    assert rest.shape[0] == COUNT
    assert (width(round=1.0) < 0.8 * width()).all()
    assert (width(wide=1.0) > width()).all()


def test_blink_shuts_the_eyes(cast: Identities) -> None:
    motion = motion_of()
    centres = eye_centre(cast, motion)

    def iris(frames: Tensor) -> Tensor:
        box = crop(frames, centres, 45, 12, 12)
        return ((box - cast["iris"][:, :, None, None]).abs().amax(1) < 0.05).sum((1, 2))

    white = torch.tensor([0.98, 0.98, 0.98])[None, :, None, None]

    def highlights(frames: Tensor) -> Tensor:
        return ((crop(frames, centres, 45, 12, 12) - white).abs().amax(1) < 0.03).sum((1, 2))

    seen, shut = render(cast, motion, mouth_of()), render(cast, motion_of(blink=1.0), mouth_of())
    human = cast["kind"] == 0
    assert (iris(seen)[human] > 20).all()
    change = (crop(seen, centres, 45, 12, 12) - crop(shut, centres, 45, 12, 12)).abs().amax(1) > 0.15
    assert (change.sum((1, 2)) > 200).all()
    assert (highlights(shut)[human] < highlights(seen)[human]).all()


def test_gaze_moves_the_iris(cast: Identities) -> None:
    """The dark of the pupils travels at least 5 pixels to the side and 3 down."""
    plain = select(cast, ((cast["kind"] == 0) & (cast["has_glasses"] == 0)).nonzero()[:, 0])
    count = len(plain["kind"])
    plain["pupil"] = torch.tensor([[0.0, 1.0, 0.0]]).expand(count, 3).clone()  # a colour to look for

    def place(**channels: float) -> Tensor:
        frames = render(plain, motion_of(count, **channels), mouth_of(count))
        green = ((frames[:, 1] > 0.55) & (frames[:, 0] < 0.4) & (frames[:, 2] < 0.4)).float()
        total = green.sum((1, 2))
        x = (green.sum(1) * torch.arange(WIDTH)).sum(1) / total
        y = (green.sum(2) * torch.arange(HEIGHT)).sum(1) / total
        return torch.stack([x, y], 1)

    middle = place()
    assert (place(gaze_x=1.0) - middle)[:, 0].min() > 3.5
    assert (place(gaze_x=-1.0) - middle)[:, 0].max() < -3.5
    assert (place(gaze_y=1.0) - middle)[:, 1].min() > 1.5


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
