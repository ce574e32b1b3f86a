"""The I420 that GPUs make against that of swscale, FFmpeg's converter."""

from __future__ import annotations

import av
import numpy as np
import torch

from kernels.i420 import rgb_to_i420


def test_i420_is_what_ffmpeg_makes() -> None:
    height, width = 272, 176
    y, x = np.mgrid[:height, :width]
    channels = [127 + 120 * np.sin(x / 40 + k) * np.cos(y / (50 - 10 * k)) for k in range(3)]
    rgb = np.stack(channels, -1).astype(np.uint8)
    converted = av.VideoFrame.from_ndarray(rgb, format="rgb24").reformat(
        format="yuv420p",
        src_colorspace="ITU709",
        dst_colorspace="ITU709",
        src_color_range="JPEG",
        dst_color_range="MPEG",
    )
    expected = converted.to_ndarray().astype(int)
    got = rgb_to_i420(torch.from_numpy(rgb)[None])[0].numpy().astype(int)
    assert got.shape == expected.shape
    assert np.abs(got[:height] - expected[:height]).max() <= 1
    assert np.abs(got - expected).max() <= 3  # swscale sites chroma a little elsewhere
    assert np.abs(got - expected).mean() < 0.6
