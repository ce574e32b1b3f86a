"""Whole-frame artefact measure: what in a generated frame does not belong there.

Every generated frame has a truth: the renderer's picture of the same character under the same controls. A generated
character may be a few pixels off and a little soft. So tiles are compared by block matching on smoothed images
("misplaced"), and fine texture by its energy against the truth's neighbourhood ("texture"). Scores are in units of
their thresholds: 1 or more is an artefact. `characters.evaluation.registration` fits the truth's pose to frames that
show an artefact, `characters.evaluation.checks.judge` uses both, and `characters.evaluation.planted` measures what they
find.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

# Thresholds in 255ths: mean difference of a tile, and excess of the root mean square of fine detail.
MISPLACED = 12.0
TEXTURE = 6.0
# Share of a window's frames that must show an artefact in one place: a passing misfit of the mouth is not one.
PERSISTENCE = 0.3
REACH = 1  # half-size pixels that a tile may have moved: 2 pixels of the frame; the head's pose is fitted before
TILE = 7  # half-size pixels, the side of a tile
STRIDE = 2  # half-size pixels from tile to tile
TEXTURE_REACH = 1  # tiles around a tile whose detail in the truth counts: 4 pixels
FRAME_BATCH = 64


@torch.inference_mode()
def score_maps(frames: Tensor, truths: Sequence[Tensor], moving: Sequence[Tensor] = ()) -> Tensor:
    """Score every tile of every frame.

    Args:
        frames: [n, 3, H, W] in [0, 1], or uint8.
        truths: one or more images of the same shape for each frame; a tile is judged by the one that fits it best.
        moving: centres [n, 2] of mouth and eyes in pixels (x, y). A misfit there is twice as tolerable, because they
            move faster than tiles can be matched; how well they move is measured elsewhere.

    Returns:
        float32 [n, h, w], tiles 4 pixels apart; 1 is the threshold.
    """
    maps = []
    for first in range(0, len(frames), FRAME_BATCH):
        part = _float(frames[first : first + FRAME_BATCH])
        rows = slice(first, first + FRAME_BATCH)
        each = [_compare(part, _float(truth[rows]), [centres[rows] for centres in moving]) for truth in truths]
        maps.append(torch.stack(each).amin(0))
    return torch.cat(maps)


def window_score(maps: Tensor) -> Tensor:
    """Score of a window of frames: that of the worst place that stays bad for `PERSISTENCE` of them.

    Args:
        maps: [..., n, h, w], from `score_maps`.

    Returns:
        [...].
    """
    # An artefact may sway with the head; look a little around each place.
    near = F.max_pool2d(maps.flatten(0, -3)[:, None], 5, 1, 2)[:, 0].view_as(maps)
    return near.quantile(1 - PERSISTENCE, -3).amax((-1, -2))


@torch.inference_mode()
def texture_against(frames: Tensor, portrait: Tensor) -> Tensor:
    """The texture score without a truth: detail that the portrait has nowhere near, such as checkerboards and ringing.

    Args:
        frames: [n, 3, H, W] in [0, 1], or uint8; portrait: [1 or n, 3, H, W], as the decoder draws it.

    Returns:
        float32 [n, h, w], like `score_maps`. Parts that only speech shows, such as teeth, count as detail too: compare
        these scores with those of the first seconds.
    """
    return _texture(_float(frames), _float(portrait), 4) / TEXTURE


def coarse(images: Tensor) -> Tensor:
    """Half the size and smoothed: [n, 3, H, W] -> [n, 3, H / 2, W / 2]."""
    return F.avg_pool2d(F.pad(F.avg_pool2d(images, 2), (1,) * 4, mode="replicate"), 3, 1)


def _bump(centres: Tensor, height: int, width: int) -> Tensor:
    """1 at each centre [n, 2] in pixels, falling over about 25 pixels: [n, height, width] tiles."""
    pitch = 2 * STRIDE
    x = (torch.arange(width, device=centres.device) + 0.5) * pitch - centres[:, :1]
    y = (torch.arange(height, device=centres.device) + 0.5) * pitch - centres[:, 1:]
    return torch.exp(-0.5 * ((x / 25)[:, None].square() + (y / 18)[..., None].square()))


def _float(images: Tensor) -> Tensor:
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def _compare(frames: Tensor, truth: Tensor, moving: Sequence[Tensor]) -> Tensor:
    misplaced = _misplaced(frames, truth) / MISPLACED
    for centres in moving:
        misplaced = misplaced / (1 + _bump(centres, *misplaced.shape[1:]))
    return torch.maximum(misplaced, _texture(frames, truth, TEXTURE_REACH) / TEXTURE)


def _misplaced(frames: Tensor, truth: Tensor) -> Tensor:
    """Smallest mean difference of each tile over small shifts of the truth, in 255ths: [n, h, w]."""
    small, other = coarse(frames), coarse(truth)
    height, width = small.shape[-2:]
    padded = F.pad(other, (REACH,) * 4, mode="replicate")
    best = None
    for dy in range(2 * REACH + 1):
        for dx in range(2 * REACH + 1):
            difference = (small - padded[..., dy : dy + height, dx : dx + width]).abs().mean(1, keepdim=True)
            tiles = _tiles(difference)
            best = tiles if best is None else torch.minimum(best, tiles)
    return 255 * best[:, 0]


def tile_differences(images: Tensor, truth: Tensor) -> Tensor:
    """Mean difference of each tile where it is, images smoothed as for `score_maps`; differentiable.

    Args:
        images, truth: [n, 3, H, W] in [0, 1].

    Returns:
        [n, h, w], tiles 4 pixels apart.
    """
    return _tiles((coarse(images) - coarse(truth)).abs().mean(1, keepdim=True))[:, 0]


def _tiles(x: Tensor) -> Tensor:
    return F.avg_pool2d(F.pad(x, (TILE // 2,) * 4, mode="replicate"), TILE, STRIDE)


def _texture(frames: Tensor, truth: Tensor, reach: int) -> Tensor:
    """Excess of fine detail over the most of it within `reach` tiles in the truth, in 255ths: [n, h, w]."""
    found, expected = _detail(frames), _detail(truth)
    expected = F.max_pool2d(expected, 2 * reach + 1, 1, reach)
    return 255 * (found - expected)[:, 0].clamp_min(0)


def _detail(x: Tensor) -> Tensor:
    """Root mean square of what a 5x5 blur takes away, by tile: [n, 1, h, w]."""
    blurred = F.avg_pool2d(F.pad(x, (2,) * 4, mode="replicate"), 5, 1)
    energy = (x - blurred).square().mean(1, keepdim=True)
    return _tiles(F.avg_pool2d(energy, 2)).clamp_min(0).sqrt()
