"""The input of a causal convolution, made in one pass: sum, RMS norm, SiLU, zero border, frames of the chunk before.

A convolution of a streaming decoder reads its frames with two older ones in front and a border of zeros around. Written
as separate operations (add, norm, SiLU, cat, pad) that costs more than the convolution itself. Here the kernel that
ends the previous layer writes straight into the convolution's input buffer, the halo. It also puts the two remembered
frames in front and remembers the last two in their place. The halo's border stays zero for ever.

A kernel of 3 over an even number of frames takes minimal filtering along time: F(2, 3) of S. Winograd, Arithmetic
Complexity of Computations (1980). Two frames, made from four, take four products instead of six:

    in      d0 = a - c    d1 = b + c          d2 = c - b          d3 = b - d
    weight  g0            (g0 + g1 + g2) / 2  (g0 - g1 + g2) / 2  g2
    out     m0 + m1 + m2 and m1 - m2 - m3, with mi the product of di and its weight

The products are convolutions in space alone. Both transforms cost a few additions in a pass that is needed anyway.

Tensors are channels-last: [frames, height, width, channels].
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dispatch import jit, takes_kernel, tl, triton

# The largest number of float16.
_HALF_MAX = 65504.0
# The largest code of a remembered value.
_CODES = 255

# Frames that a causal convolution with a kernel of 3 remembers.
PAST = 2

# How the pixels of a convolution's output lie:
# plain   [t, h, w, c].
# frames  [t / 2, h, w, 2 c]: frames 2 i and 2 i + 1 side by side in the channels.
# pixels  [t, h / 2 + 1, w / 2 + 1, 4 c]: pixel (2 i + a, 2 j + b) at (i + a, j + b), channels (2 a + b) c and on.
# minimal [4, t / 2, h, w, c]: the four products of minimal filtering for frames 2 i and 2 i + 1.
Layout = Literal["plain", "frames", "pixels", "minimal"]
_LAYOUTS = {"plain": 0, "frames": 1, "pixels": 2, "minimal": 3}

# Products of minimal filtering for two frames.
PRODUCTS = 4

# Elements of one program's tile, and its warps.
_TILE = 1024
_WARPS = 4


class Sum(NamedTuple):
    """branch + bias + residual, not added yet: the reader adds them as it loads them.

    Attributes:
        branch: a convolution's output, in one of the layouts.
        bias: the convolution's own, as long as the branch's channels ([c] for "pixels").
        residual: [t, h, w, c], or None.
        layout: of the branch.
    """

    branch: Tensor
    bias: Tensor | None = None
    residual: Tensor | None = None
    layout: Layout = "plain"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(t, h, w, c) of the sum."""
        t, h, w, c = self.branch.shape[-4:]
        match self.layout:
            case "plain":
                return t, h, w, c
            case "frames":
                return 2 * t, h, w, c // 2
            case "pixels":
                return t, 2 * (h - 1), 2 * (w - 1), c // 4
            case "minimal":
                return 2 * t, h, w, c

    def value(self) -> Tensor:
        """float32 (float64 for float64) [t, h, w, c], added; within float16's range if the branch is float16."""
        x = self.branch.double() if self.branch.dtype == torch.float64 else self.branch.float()
        if self.layout == "frames":
            x = x if self.bias is None else x + self.bias
            x = x.unflatten(3, (2, -1)).permute(0, 3, 1, 2, 4).flatten(0, 1)
        else:
            if self.layout == "pixels":
                _, h, w, _ = self.branch.shape
                phases = x.unflatten(3, (2, 2, -1))
                rows = [
                    torch.stack([phases[:, a : a + h - 1, b : b + w - 1, a, b] for b in range(2)], 3) for a in range(2)
                ]
                x = torch.stack(rows, 2).flatten(3, 4).flatten(1, 2)
            elif self.layout == "minimal":
                m0, m1, m2, m3 = x.clamp(-_HALF_MAX, _HALF_MAX) if self.branch.dtype == torch.float16 else x
                x = torch.stack((m0 + m1 + m2, m1 - m2 - m3), 1).flatten(0, 1)
            x = x if self.bias is None else x + self.bias
        x = x if self.residual is None else x + self.residual
        return x.clamp_(-_HALF_MAX, _HALF_MAX) if self.branch.dtype == torch.float16 else x


class Cache(NamedTuple):
    """The last two input frames of one convolution, for several streams.

    Attributes:
        data: [slots, 2, h, w, c], in the activations' dtype, or uint8: value = low + code^2 * step of its pixel. Steps
            are finest near low, where SiLU puts half of all values.
        span: float32 [slots, 2, h, w, 2], low and step of each pixel; None unless `data` is uint8.
    """

    data: Tensor
    span: Tensor | None = None

    def read(self, slot: int) -> Tensor:
        """The frames of one stream, [2, h, w, c]."""
        if self.span is None:
            return self.data[slot]
        low, step = self.span[slot].split(1, -1)
        return low + self.data[slot].float().square() * step

    def write(self, slot: int, frames: Tensor) -> None:
        """Remember the last two of `frames`, [t, h, w, c]; of a single one, it and the newer remembered frame."""
        new = min(len(frames), PAST)
        if new < PAST:
            self.data[slot, 0] = self.data[slot, 1]
            if self.span is not None:
                self.span[slot, 0] = self.span[slot, 1]
        frames = frames[-new:]
        if self.span is None:
            self.data[slot, PAST - new :] = frames
            return
        low, high = frames.amin(-1, keepdim=True), frames.amax(-1, keepdim=True)
        step = (high - low) / _CODES**2
        code = torch.where(step > 0, ((frames - low) / step).sqrt() + 0.5, 0)
        self.data[slot, PAST - new :] = code.clamp(0, _CODES).to(torch.uint8)
        self.span[slot, PAST - new :] = torch.cat((low, step), -1)


def minimal_inputs(frames: Tensor) -> Tensor:
    """[2 + t, ...], t even -> [4, t / 2, ...], what the four products of minimal filtering read."""
    a, b, c, d = (frames[i : len(frames) - 2 + i : 2] for i in range(4))
    return torch.stack((a - c, b + c, c - b, b - d))


def minimal_weights(weight: Tensor) -> Tensor:
    """[out, c, 3, kh, kw] -> [4, out, c, kh, kw], the weights of the four products of minimal filtering."""
    g0, g1, g2 = weight.float().unbind(2) if weight.dtype.itemsize < 4 else weight.unbind(2)
    return torch.stack((g0, (g0 + g1 + g2) / 2, (g0 - g1 + g2) / 2, g2)).to(weight.dtype)


def fill_halo(
    x: Sum,
    halo: Tensor,
    *,
    gamma: Tensor | None = None,
    silu: bool = True,
    cache: Cache | None = None,
    slot: Tensor | None = None,
    total: Tensor | None = None,
) -> None:
    """Form a sum, normalise it and write it into the middle of a convolution's input.

    h = silu(x / rms(x) * gamma); the RMS norm over channels of the Wan VAE: x / max(|x|, 1e-12) * sqrt(c) * gamma. The
    arithmetic is float32. A float16 sum saturates: the norm would make a NaN of an infinity, and the cache keep it.

    Args:
        x: the sum, [t, h, w, c].
        halo: [past + t, h + 2 b, w + 2 b, c], any border b; `past` is 2 with a cache and 0 without. Or, with a cache
            and t even, [4, t / 2, h + 2 b, w + 2 b, c] for minimal filtering. The border is not touched.
        gamma: [c]; None = x itself is written, without norm and SiLU.
        silu: whether SiLU follows the norm.
        cache: its frames go in front of x's; afterwards it holds the last two of what was written.
        slot: int64 [], the stream whose frames of the cache are meant.
        total: [t, h, w, c], where x itself is stored; may be x.residual.
    """
    if takes_kernel(x.branch, x.residual, halo, total):
        fill_halo_triton(x, halo, gamma=gamma, silu=silu, cache=cache, slot=slot, total=total)
    else:
        fill_halo_reference(x, halo, gamma=gamma, silu=silu, cache=cache, slot=slot, total=total)


def fill_halo_reference(
    x: Sum,
    halo: Tensor,
    *,
    gamma: Tensor | None = None,
    silu: bool = True,
    cache: Cache | None = None,
    slot: Tensor | None = None,
    total: Tensor | None = None,
) -> None:
    """`fill_halo` in plain PyTorch."""
    _, h, w, c = x.shape
    value = x.value()
    if total is not None:
        total.copy_(value)
    if gamma is not None:
        value = F.normalize(value, dim=-1) * c**0.5 * gamma
        if silu:
            value = F.silu(value)
    border = (halo.shape[-3] - h) // 2
    middle = halo[..., border : border + h, border : border + w, :]
    frames = value
    if cache is not None:
        assert slot is not None
        frames = torch.cat((cache.read(int(slot)).to(value.dtype), value))
        cache.write(int(slot), value)
    middle.copy_(minimal_inputs(frames) if halo.ndim == 5 else frames)


def fill_halo_triton(
    x: Sum,
    halo: Tensor,
    *,
    gamma: Tensor | None,
    silu: bool,
    cache: Cache | None,
    slot: Tensor | None,
    total: Tensor | None,
) -> None:
    """`fill_halo` by the kernel. All tensors are contiguous."""
    t, h, w, c = x.shape
    block_c = triton.next_power_of_2(c)
    block_p = max(_TILE // block_c, 1)
    _fill_halo[(triton.cdiv(h * w, block_p),)](
        x.branch,
        x.bias,
        x.residual,
        total,
        gamma,
        halo,
        None if cache is None else cache.data,
        None if cache is None else cache.span,
        slot,
        h,
        w,
        frames=t,
        channels=c,
        border=(halo.shape[-3] - h) // 2,
        layout=_LAYOUTS[x.layout],
        minimal=halo.ndim == 5,
        silu=silu,
        limit=_HALF_MAX if x.branch.dtype == torch.float16 else None,
        block_p=block_p,
        block_c=block_c,
        num_warps=_WARPS,
    )


@jit
def _write_codes(value, inside, codes, span, block_c: tl.constexpr):
    """Store a tile [pixels, channels] as bytes with low and step a pixel; see `Cache`."""
    low = tl.min(tl.where(inside, value, float("inf")), 1)
    high = tl.max(tl.where(inside, value, float("-inf")), 1)
    step = (high - low) / (255.0 * 255.0)
    above = tl.maximum(tl.where(step > 0, 1 / step, 0)[:, None] * (value - low[:, None]), 0)
    tl.store(codes, tl.minimum(tl.sqrt(above) + 0.5, 255).to(tl.uint8), inside)
    pixels = tl.max(inside.to(tl.int32), 1) > 0
    tl.store(span, low, pixels)
    tl.store(span + 1, step, pixels)


@jit
def _two_of_four(products, step, inside, limit: tl.constexpr):
    """Two frames from the four products of minimal filtering, `step` elements apart."""
    m0 = tl.load(products, inside, 0.0).to(tl.float32)
    m1 = tl.load(products + step, inside, 0.0).to(tl.float32)
    m2 = tl.load(products + 2 * step, inside, 0.0).to(tl.float32)
    m3 = tl.load(products + 3 * step, inside, 0.0).to(tl.float32)
    if limit is not None:
        m0, m1 = tl.clamp(m0, -limit, limit), tl.clamp(m1, -limit, limit)
        m2, m3 = tl.clamp(m2, -limit, limit), tl.clamp(m3, -limit, limit)
    return m0 + m1 + m2, m1 - m2 - m3


@jit
def _fill_halo(
    branch,
    bias,
    residual,
    total,
    gamma,
    halo,
    data,
    span,
    slot,
    height,
    width,
    frames: tl.constexpr,
    channels: tl.constexpr,
    border: tl.constexpr,
    layout: tl.constexpr,
    minimal: tl.constexpr,
    silu: tl.constexpr,
    limit: tl.constexpr,
    block_p: tl.constexpr,
    block_c: tl.constexpr,
):
    """One program: `block_p` pixels with all their channels, through all frames."""
    area = height * width
    p = tl.program_id(0) * block_p + tl.arange(0, block_p)
    channel = tl.arange(0, block_c)
    inside = (p < area)[:, None] & (channel < channels)[None, :]
    y, x = p // width, p % width
    plain = p[:, None] * channels + channel[None, :]
    placed = ((y + border) * (width + 2 * border) + x + border)[:, None] * channels + channel[None, :]
    frame = area * channels
    halo_frame = (height + 2 * border) * (width + 2 * border) * channels
    if layout == 2:
        where = (y // 2 + y % 2) * (width // 2 + 1) + x // 2 + x % 2
        source = (where * 4 + y % 2 * 2 + x % 2)[:, None] * channels + channel[None, :]
        source_frame = (height // 2 + 1) * (width // 2 + 1) * channels * 4
    elif layout == 1:
        source = p[:, None] * (2 * channels) + channel[None, :]
        source_frame = frame * 2
    else:
        source = plain
        source_frame = frame
    if bias is not None and layout != 1:
        shift = tl.load(bias + channel, channel < channels, 0.0).to(tl.float32)[None, :]
    if gamma is not None:
        scale = tl.load(gamma + channel, channel < channels, 0.0).to(tl.float32)[None, :]

    first = 0
    if data is not None:
        first = 2
        stream = tl.load(slot).to(tl.int64) * 2
        data += stream * frame
        older = tl.load(data + plain, inside)
        newer = tl.load(data + frame + plain, inside)
        if span is not None:
            span += stream * area * 2
            low0 = tl.load(span + p * 2, p < area)
            step0 = tl.load(span + p * 2 + 1, p < area)
            low1 = tl.load(span + (area + p) * 2, p < area)
            step1 = tl.load(span + (area + p) * 2 + 1, p < area)
            code0, code1 = older.to(tl.float32), newer.to(tl.float32)
            a = low0[:, None] + code0 * code0 * step0[:, None]
            b = low1[:, None] + code1 * code1 * step1[:, None]
        else:
            a, b = older.to(tl.float32), newer.to(tl.float32)
        if not minimal:
            tl.store(halo + placed, a, inside)
            tl.store(halo + halo_frame + placed, b, inside)
        tl.debug_barrier()  # the cache is read before any thread of this program overwrites it
        if frames == 1:
            tl.store(data + plain, newer, inside)
            if span is not None:
                tl.store(span + p * 2, low1, p < area)
                tl.store(span + p * 2 + 1, step1, p < area)

    for f in tl.static_range(frames):
        if layout == 3:
            if f % 2 == 0:
                value, odd = _two_of_four(branch + (f // 2) * frame + plain, (frames // 2) * frame, inside, limit)
            else:
                value = odd
        elif layout == 1:
            value = tl.load(branch + (f // 2) * source_frame + source + (f % 2) * channels, inside, 0.0)
        else:
            value = tl.load(branch + f * source_frame + source, inside, 0.0)
        value = value.to(tl.float32)
        if bias is not None:
            if layout == 1:
                shift = tl.load(bias + (f % 2) * channels + channel, channel < channels, 0.0).to(tl.float32)[None, :]
            value += shift
        if residual is not None:
            value += tl.load(residual + f * frame + plain, inside, 0.0).to(tl.float32)
        if limit is not None:
            value = tl.clamp(value, -limit, limit)
        if total is not None:
            tl.store(total + f * frame + plain, value, inside)
        if gamma is not None:
            norm = tl.sqrt(tl.sum(value * value, 1))  # channels beyond the last are zero
            value *= (tl.sqrt(channels * 1.0) / tl.maximum(norm, 1e-12))[:, None] * scale
            if silu:
                value *= tl.sigmoid(value)
        if not minimal:
            tl.store(halo + (first + f) * halo_frame + placed, value, inside)
        elif f % 2 == 0:
            c = value
        else:
            tile = halo + (f // 2) * halo_frame + placed
            tl.store(tile, a - c, inside)
            tl.store(tile + (frames // 2) * halo_frame, b + c, inside)
            tl.store(tile + frames * halo_frame, c - b, inside)
            tl.store(tile + (frames // 2 * 3) * halo_frame, b - value, inside)
            a, b = c, value
        if data is not None and f >= frames - 2:
            kept = data + (f - frames + 2) * frame + plain
            if span is not None:
                _write_codes(value, inside, kept, span + ((f - frames + 2) * area + p) * 2, block_c)
            else:
                tl.store(kept, value, inside)
