"""Measures: functions of curves (NumPy) and of frames (torch)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from characters.chunk import FPS, FRAMES_PER_CHUNK
from characters.evaluation.reader import crop

MAX_LAG = 4  # frames
MOUTH_BOX = (40, 56)  # pixels (height, width) around the middle of the mouth
REGIONS = (4, 3)  # rows and columns of the frame that colours are compared in


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Pearson correlation of two curves [n]; NaN if one of them is constant or shorter than 3."""
    if len(a) < 3:
        return float("nan")
    a, b = (np.asarray(x, np.float64) - np.mean(x) for x in (a, b))
    scale = np.sqrt((a**2).sum() * (b**2).sum())
    return float((a * b).sum() / scale) if scale > 1e-9 * len(a) else float("nan")


def lagged_correlation(truth: np.ndarray, measured: np.ndarray, lag: int) -> float:
    """`correlation` with `measured` taken `lag` frames later; curves are [n]."""
    n = len(truth)
    return correlation(truth[max(0, -lag) : n - max(0, lag)], measured[max(0, lag) : n + min(0, lag)])


def best(by_lag: dict[int, float]) -> int:
    """The lag with the highest correlation; the smallest one if several have it, 0 if none is defined."""
    defined = {lag: value for lag, value in by_lag.items() if np.isfinite(value)}
    return max(defined, key=lambda lag: (defined[lag], -abs(lag)), default=0)


def best_lag(truth: np.ndarray, measured: np.ndarray, reach: int = MAX_LAG) -> tuple[int, float]:
    """The shift at which two curves [n] agree best.

    Returns:
        (lag in frames, correlation there); positive: `measured` comes late. (0, NaN) if no correlation is defined.
    """
    by_lag = {lag: lagged_correlation(truth, measured, lag) for lag in range(-reach, reach + 1)}
    lag = best(by_lag)
    return lag, by_lag[lag]


def chunk_means(curve: np.ndarray) -> np.ndarray:
    """[4 * chunks] -> [chunks]."""
    return np.asarray(curve, np.float64).reshape(-1, FRAMES_PER_CHUNK).mean(1)


def within_chunks(curve: np.ndarray) -> np.ndarray:
    """[4 * chunks] -> [4 * chunks]: deviation from the mean of the frame's chunk."""
    return np.asarray(curve, np.float64) - chunk_means(curve).repeat(FRAMES_PER_CHUNK)


@dataclass(frozen=True)
class Agreement:
    """How well measured curves follow the true ones, over many clips.

    Attributes:
        clips: clips with a defined correlation.
        mean: correlation at lag 0, averaged over clips.
        lag_frames, at_lag: the lag of up to 4 frames at which that average is highest, and the average there. Positive:
            the video is late.
        pooled: correlation at lag 0 of all clips' deviations from their own means, joined.
        within: pooled correlation of the deviations from chunk means: motion at 24 Hz.
        chunk_mean: pooled correlation of the chunk means: motion at 6 Hz.
        rms: root mean square difference.
    """

    clips: int
    mean: float
    pooled: float
    lag_frames: int
    at_lag: float
    within: float
    chunk_mean: float
    rms: float

    @property
    def lag_ms(self) -> float:
        """The lag in milliseconds, positive when the video is late."""
        return self.lag_frames * 1000 / FPS

    @staticmethod
    def of(truth: Sequence[np.ndarray], measured: Sequence[np.ndarray]) -> Agreement:
        """From curves [4 * chunks], one pair a clip; lengths may differ between clips."""
        pairs = list(zip(truth, measured, strict=True))
        each = [correlation(a, b) for a, b in pairs]
        lags = range(-MAX_LAG, MAX_LAG + 1)
        by_lag = {lag: mean_of_defined([lagged_correlation(a, b, lag) for a, b in pairs]) for lag in lags}
        lag = best(by_lag)

        def join(curves: Sequence[np.ndarray]) -> np.ndarray:
            return np.concatenate([np.asarray(c, np.float64) - np.mean(c) for c in curves])

        return Agreement(
            clips=int(np.isfinite(each).sum()),
            mean=mean_of_defined(each),
            pooled=correlation(join(truth), join(measured)),
            lag_frames=lag,
            at_lag=by_lag[lag],
            within=correlation(*(np.concatenate([within_chunks(c) for c in x]) for x in (truth, measured))),
            chunk_mean=correlation(*(join([chunk_means(c) for c in x]) for x in (truth, measured))),
            rms=float(np.sqrt(np.mean(np.square(np.concatenate(list(truth)) - np.concatenate(list(measured)))))),
        )


def mean_of_defined(values: Sequence[float] | np.ndarray) -> float:
    """Mean of the values that are not NaN; NaN if there are none."""
    finite = [v for v in values if np.isfinite(v)]
    return float(np.mean(finite)) if finite else float("nan")


@dataclass(frozen=True)
class Movement:
    """How much curves move: mean over clips of the standard deviation, and of the step from frame to frame."""

    std: float
    step: float

    @staticmethod
    def of(curves: np.ndarray) -> Movement:
        """From curves [clips, frames]."""
        return Movement(float(curves.std(1).mean()), float(np.abs(np.diff(curves, axis=1)).mean()))

    def share_of(self, other: Movement) -> float:
        """The larger of the two measures as a share of the other's."""
        return max(self.std / max(other.std, 1e-9), self.step / max(other.step, 1e-9))


def events_per_minute(curves: np.ndarray, threshold: float) -> float:
    """How often curves [clips, frames] rise through a threshold: blinks, for the closure of the lids."""
    rises = (curves[:, 1:] >= threshold) & (curves[:, :-1] < threshold)
    return float(rises.sum() / (curves.size / FPS / 60))


def shifts_per_minute(curves: np.ndarray, size: float = 0.3) -> float:
    """How often curves [clips, frames] change by more than `size` within three frames: shifts of the gaze."""
    jumps = np.abs(curves[:, 3:] - curves[:, :-3]) > size
    starts = jumps[:, 1:] & ~jumps[:, :-1]
    return float((starts.sum() + jumps[:, 0].sum()) / (curves.size / FPS / 60))


def psnr(frames: Tensor, truth: Tensor) -> float:
    """Peak signal-to-noise ratio in dB of images in [0, 1], over all of their pixels; at most 120."""
    return float(-10 * torch.log10((frames.float() - truth.float()).square().mean() + 1e-12))


def mouth_box_psnr(frames: Tensor, truth: Tensor, mouth_xy: Tensor) -> float:
    """`psnr` of the 56x40 pixels around the mouth.

    Args:
        frames, truth: [n, 3, H, W] in [0, 1]; mouth_xy: [n, 2], pixels (x, y).
    """
    # Whole pixels, because interpolation would smooth the error away.
    centre = mouth_xy.round()
    return psnr(crop(frames.float(), centre, MOUTH_BOX), crop(truth.float(), centre, MOUTH_BOX))


def colour_shift(frames: Tensor, truth: Tensor) -> Tensor:
    """How far colours have moved, in 255ths.

    Images are blurred slightly. Each of 4x3 regions gives the median over its pixels of the difference, which a moved
    edge or mouth does not change. Then come the mean over the frames, its absolute value, and the mean over regions and
    channels.

    Args:
        frames, truth: [rows, n, 3, H, W] in [0, 1], n frames of the same window.

    Returns:
        float32 [rows].
    """
    difference = F.avg_pool2d((frames.float() - truth.float()).flatten(0, 1), 4)
    height, width = (size // parts for size, parts in zip(difference.shape[-2:], REGIONS, strict=True))
    tiles = difference[..., : height * REGIONS[0], : width * REGIONS[1]]
    tiles = tiles.unfold(2, height, height).unfold(3, width, width).flatten(-2).median(-1).values
    shift = tiles.unflatten(0, frames.shape[:2]).mean(1)
    return 255 * shift.abs().mean((1, 2, 3))


def rms(values: Tensor, dim: int | tuple[int, ...] | None = None) -> Tensor:
    """Root mean square over `dim`, all dimensions by default."""
    return values.float().square().mean(dim).sqrt()
