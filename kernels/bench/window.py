"""`python -m kernels.bench.window`: the memory-bound kernels of a window model at 512x512, against a plain copy.

See `kernels.bench.elementwise`. A window has 9 latent frames of 32 x 32 tokens, and 33 frames of pixels.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernels.bench.elementwise import Case, numbers, report, sets_of
from kernels.cross_attend import cross_attend
from kernels.frames import join_frames, split_frames
from kernels.lab_match import lab_match
from kernels.narrow_conv import narrow_conv

LATENTS, TOKENS, CONDITIONS, HEADS, HEAD_DIM = 9, 32 * 32, 32, 12, 128
FRAMES, SIDE, TINY, WAN = 33, 512, 64, 96  # channels of the light autoencoder and of Wan's at the finest level
HALF = torch.float16


def cross_attentions() -> Case:
    """The rows of each latent frame to its own tokens; counted as in `kernels.bench.elementwise`."""
    rows, dim = LATENTS * TOKENS, HEADS * HEAD_DIM
    moved = rows * dim * (2 + 1)
    q, norm = numbers(sets_of(moved), rows, dim), torch.ones(dim, device="cuda", dtype=torch.bfloat16)
    k, v = numbers(2, LATENTS, CONDITIONS, HEADS, HEAD_DIM)
    scale = torch.tensor(0.02, device="cuda")
    return Case(
        "cross_attend, a frame's rows to its 32 keys", moved, len(q), lambda i: cross_attend(q[i], norm, k, v, to=scale)
    )


def matches() -> Case:
    """The signal is read twice and counted once."""
    moved = FRAMES * SIDE * SIDE * 3 * (2 + 4)
    signal = numbers(sets_of(moved), FRAMES, SIDE, SIDE, 3, dtype=HALF)
    colours = torch.tensor([[50.0, 5.0, 5.0], [10.0, 5.0, 5.0]], device="cuda")
    return Case("lab_match", moved, len(signal), lambda i: lab_match(signal[i], None, colours), torch.bfloat16)


def last_convolution(name: str, frames: int, channels: int, times: int, border: int) -> Case:
    """Input read and output written once; the planes between product and sum are not counted."""
    moved = frames * SIDE * SIDE * 2 * (channels + 3)
    x = numbers(sets_of(moved), frames + times - 1, SIDE + 2 * border, SIDE + 2 * border, channels, dtype=HALF)
    weight = numbers(1, 3, channels, times, 3, 3, dtype=HALF)[0]
    return Case(
        f"narrow_conv, {name}", moved, len(x), lambda i: narrow_conv(x[i], weight, bordered=border > 0), torch.bfloat16
    )


def joined() -> Case:
    frames, side = 18, SIDE // 2
    moved = frames * side * side * TINY * 2 * (1 + 2)
    x = numbers(sets_of(moved), frames, side, side, TINY, dtype=HALF)
    return Case("join_frames", moved, len(x), lambda i: join_frames(x[i], 2, step=1, delta=-1), torch.bfloat16)


def split() -> Case:
    frames, side = 18, SIDE // 2
    moved = frames * side * side * TINY * 2 * 2 * (1 + 4)
    x = numbers(sets_of(moved), frames, side, side, 2 * TINY, dtype=HALF)
    return Case("split_frames", moved, len(x), lambda i: split_frames(x[i], 2, skip=3), torch.bfloat16)


def cases() -> Iterator[Case]:
    """One after another, so that each frees its buffers for the next."""
    yield cross_attentions()
    yield matches()
    yield last_convolution("light autoencoder", FRAMES, TINY, 1, 0)
    yield last_convolution("Wan, a latent", 4, WAN, 3, 1)
    yield joined()
    yield split()


if __name__ == "__main__":
    report(cases())
