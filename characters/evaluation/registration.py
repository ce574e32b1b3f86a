"""Registration: the pose in which the renderer's picture of a character fits a generated frame best.

A good frame may show the head two pixels from its commanded place. That is not an artefact, but the frame differs from
the picture of the commanded pose along every edge. So the pose is fitted to the whole frame first (analysis by
synthesis), and the artefact measure judges what no pose explains. Other measurements tell how well it obeys.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from characters.chunk import MOTION_CHANNELS
from characters.drawing import Identities, render, repeat_frames, select
from characters.evaluation.artefacts import coarse

# The controls to fit, and how far from the command: each may move an edge of the head by about 4 pixels. At 1, x and y
# move the head by 6 pixels, roll by 10 (at the crown, 142 pixels above the neck), scale by 4.3, yaw by 7, pitch by 4.5.
# A head that is further off is judged at its commanded place.
BOUNDS = {"x": 0.67, "y": 0.67, "roll": 0.4, "scale": 0.94, "yaw": 0.57, "pitch": 0.89}
STEPS = 6  # of the search; each draws one picture
PROBE = 0.2  # share of a bound by which a control is moved to see what it changes
ROBUST = 0.2  # differences (of 1) beyond this count less, so that an artefact does not drag the pose along
POOL = 2  # the search works at a quarter of the size, so that an edge a few pixels off still pulls the right way
DAMPING = 0.01  # of the mean diagonal: controls that the frame does not show keep their values
BATCH = 32


@torch.inference_mode()
def register(frames: Tensor, identities: Identities, commanded: Tensor, starts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Fit the pose of every frame.

    A Gauss-Newton search on the Huber norm of the difference between smoothed images. The derivative is taken once, at
    the better start, by drawing every control a little moved; later pictures correct it (Broyden 1965). The search
    never ends with a worse fit than it began with.

    Args:
        frames: uint8 [rows, n, 3, H, W].
        identities: rows; commanded: motion [rows, n, 12], the middle of the bounds.
        starts: motion [rows, n, 12] and mouth [rows, n, 5] to start from. Channels of motion outside BOUNDS stay as
            in the start that fits better.

    Returns:
        float32 [rows, n, 12]: `commanded` with the fitted values of the controls in BOUNDS.
    """
    each = repeat_frames(identities, frames.shape[1])
    flat, centre = frames.flatten(0, 1), commanded.flatten(0, 1).float().to(frames.device)
    flat_starts = [tuple(x.flatten(0, 1).float().to(frames.device) for x in start) for start in starts]
    columns = [MOTION_CHANNELS.index(name) for name in BOUNDS]
    fitted = centre.clone()
    for first in range(0, len(flat), BATCH):
        rows = slice(first, first + BATCH)
        some = [(motion[rows], mouth[rows]) for motion, mouth in flat_starts]
        fitted[rows, columns] = _search(flat[rows], select(each, rows), centre[rows][:, columns], some, columns)
    return fitted.view_as(commanded)


def _search(
    frames: Tensor, who: Identities, centre: Tensor, starts: list[tuple[Tensor, Tensor]], columns: list[int]
) -> Tensor:
    """`register` for n frames: [n, controls]."""
    bounds = centre.new_tensor(list(BOUNDS.values()))
    # Within the renderer's range, even where the bounds allow more.
    low, high = (centre - bounds).clamp_min(-1), (centre + bounds).clamp_max(1)
    target = _smooth(frames.float() / 255)

    tried = []
    for motion, mouth in starts:
        pose = motion[:, columns].clamp(low, high)
        image = _draw(who, motion, mouth, pose, columns)
        tried.append((_cost(image - target), pose, image, motion, mouth))
    first = torch.stack([cost for cost, *_ in tried]).argmin(0)
    cost, pose, image, motion, mouth = (_choose(list(x), first) for x in zip(*tried, strict=True))

    slopes = []
    for index, bound in enumerate(bounds):
        # Inwards, so that the probe stays within the bounds.
        moved = torch.where(pose[:, index] > centre[:, index], -PROBE, PROBE) * bound
        probe = pose.clone()
        probe[:, index] += moved
        slopes.append((_draw(who, motion, mouth, probe, columns) - image) / moved[:, None])
    slope = torch.stack(slopes, 1)  # [n, controls, pixels]

    share = torch.ones_like(cost)
    for _ in range(STEPS):
        residual = image - target
        weighted = slope * (residual.abs() < ROBUST)[:, None]
        curvature = weighted @ slope.mT
        mean = curvature.diagonal(dim1=1, dim2=2).mean(1)
        curvature = curvature + (DAMPING * mean + 1e-6)[:, None, None] * torch.eye(len(bounds), device=pose.device)
        downhill = (slope @ residual.clamp(-ROBUST, ROBUST)[..., None])[..., 0]
        step = torch.linalg.solve(curvature, downhill)
        new = (pose - share[:, None] * step).clamp(low, high)
        drawn = _draw(who, motion, mouth, new, columns)
        moved = new - pose
        missed = drawn - image - (moved[:, None] @ slope)[:, 0]
        slope = slope + moved[:, :, None] * missed[:, None] / (moved.square().sum(1)[:, None, None] + 1e-6)
        new_cost = _cost(drawn - target)
        better = new_cost < cost
        share = torch.where(better, 1.0, share / 2)
        cost = torch.where(better, new_cost, cost)
        pose, image = torch.where(better[:, None], new, pose), torch.where(better[:, None], drawn, image)
    return pose


def _draw(who: Identities, motion: Tensor, mouth: Tensor, pose: Tensor, columns: list[int]) -> Tensor:
    """Smoothed pictures of n frames in a pose, flat: [n, pixels]."""
    motion = motion.clone()
    motion[:, columns] = pose
    return _smooth(render(who, motion, mouth))


def _smooth(images: Tensor) -> Tensor:
    """[n, 3, H, W] -> [n, pixels]."""
    return coarse(F.avg_pool2d(images, POOL)).flatten(1)


def _cost(residual: Tensor) -> Tensor:
    """Huber norm of [n, pixels]: [n]."""
    size = residual.abs()
    return torch.where(size < ROBUST, 0.5 * size.square(), ROBUST * (size - 0.5 * ROBUST)).mean(1)


def _choose(options: list[Tensor], index: Tensor) -> Tensor:
    """Row i of the option that `index` [n] names for it."""
    return torch.stack(options)[index, torch.arange(len(index), device=index.device)]
