"""The layers of the Wan VAE (Wan 2.1 technical report, section 4.1), written for streaming.

Activations are channels-last, [frames, height, width, channels], of one video. A layer takes a `Sum`, which it adds up
while it prepares its first convolution's input, and returns a `Sum`. Parameters have the shapes of the published
checkpoints. `first` marks the first chunk of a video: one frame, which no layer doubles or halves in time.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from characters.model.wan_vae.workspace import Workspace
from kernels.halo import PAST, PRODUCTS, Sum, fill_halo, minimal_weights


class RmsNorm(nn.Module):
    """Parameters of the norm over channels that `fill_halo` computes."""

    def __init__(self, channels: int, axes: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels, *[1] * axes))


def convolve(x: Tensor, weight: Tensor, stride: int | tuple[int, ...] = 1) -> Tensor:
    """Convolution without padding or bias.

    Args:
        x: [t, h, w, c].
        weight: [out, c, kh, kw] for each frame on its own, [out, c, kt, kh, kw] across frames.

    Returns:
        [t', h', w', out], contiguous.
    """
    if weight.ndim == 4:
        return F.conv2d(x.permute(0, 3, 1, 2), weight, stride=stride).permute(0, 2, 3, 1).contiguous()
    # The batch axis goes on before the axes are permuted: strides then say channels-last.
    return F.conv3d(x[None].permute(0, 4, 1, 2, 3), weight, stride=stride).permute(0, 2, 3, 4, 1)[0].contiguous()


def convolve_into(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """`convolve` for one weight [out, c, kh, kw] and a given output, [t, h', w', out]."""
    if not x.is_cuda:
        out.copy_(convolve(x, weight))
        return
    cudnn = torch.backends.cudnn
    torch.ops.aten.cudnn_convolution.out(
        x.permute(0, 3, 1, 2),
        weight,
        (0, 0),
        (1, 1),
        (1, 1),
        1,
        cudnn.benchmark,
        cudnn.deterministic,
        cudnn.allow_tf32,
        out=out.permute(0, 3, 1, 2),
    )


def channels_last(weight: Tensor) -> Tensor:
    """A convolution's weight in the layout of its input."""
    form = torch.channels_last if weight.ndim == 4 else torch.channels_last_3d
    return weight.contiguous(memory_format=form)


class CausalConv3d(nn.Conv3d):
    """A convolution over the current and the two frames before, [t, h, w, c] -> [t, h, w, out].

    Channels of the input beyond the convolution's own are padding.
    The kernel is 3 in time and 1 or 3 in space. The reader of the output adds the bias. If the number of frames is even
    and the kernel is 3 in space, it takes minimal filtering in time (`kernels.halo`): a third less work.

    Attributes:
        exact: never remember frames as bytes (see `Workspace`).
    """

    exact = False

    def forward(self, x: Sum, workspace: Workspace, norm: RmsNorm | None = None, total: Tensor | None = None) -> Sum:
        """`norm` and SiLU come first if given; `total`, [t, h, w, c], receives x."""
        t, h, w, c = x.shape
        border = self.kernel_size[1] // 2
        minimal = border > 0 and t % 2 == 0
        halo = workspace.halo((PRODUCTS, t // 2) if minimal else (PAST + t,), h, w, c, border, x.branch)
        fill_halo(
            x,
            halo,
            gamma=None if norm is None else norm.gamma.flatten(),
            cache=workspace.cache(self, h, w, c, x.branch, exact=self.exact),
            slot=workspace.slot,
            total=total,
        )
        if border:
            workspace.rows.exchange(halo.view(-1, *halo.shape[-3:]))
        if workspace.fresh and t == 1:
            # Nothing but zeros in front of the frame.
            last = workspace.weight((self, "last"), lambda: channels_last(self._weight(c)[:, :, -1]))
            return Sum(convolve(halo[PAST:], last), self.bias)
        if not minimal:
            return Sum(convolve(halo, workspace.weight(self, lambda: channels_last(self._weight(c)))), self.bias)
        # Each product's weight is [out, c, kh, kw], channels-last.
        weights = workspace.weight(
            (self, "minimal"), lambda: minimal_weights(self._weight(c)).movedim(2, -1).contiguous().movedim(-1, 2)
        )
        products = halo.new_empty(PRODUCTS, t // 2, h, w, self.out_channels)
        for frames, weight, product in zip(halo, weights, products, strict=True):
            convolve_into(frames, weight, product)
        return Sum(products, self.bias, layout="minimal")

    def _weight(self, channels: int) -> Tensor:
        """With zeros for those of `channels` that are padding."""
        return F.pad(self.weight, (0, 0) * 3 + (0, channels - self.in_channels))


class ResidualBlock(nn.Module):
    """x + conv(silu(norm(conv(silu(norm(x)))))), with a 1x1 convolution on the shortcut where the width changes."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.norm1 = RmsNorm(width, 3)
        self.conv1 = CausalConv3d(width, out, 3)
        self.norm2 = RmsNorm(out, 3)
        self.conv2 = CausalConv3d(out, out, 3)
        self.conv_shortcut = nn.Conv3d(width, out, 1) if width != out else None

    def forward(self, x: Sum, workspace: Workspace) -> Sum:
        """[t, h, w, width] -> [t, h, w, out]."""
        total = x.branch.new_empty(x.shape)
        inner = self.conv1(x, workspace, self.norm1, total)
        branch = self.conv2(inner, workspace, self.norm2)
        return branch._replace(residual=total if self.conv_shortcut is None else linear(self.conv_shortcut, total))


def linear(layer: nn.Conv2d | nn.Conv3d, x: Tensor) -> Tensor:
    """A 1x1 convolution of channels-last x."""
    return F.linear(x, layer.weight.flatten(1), layer.bias)


class Attention(nn.Module):
    """One head over all pixels of a frame; frames don't see each other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = RmsNorm(width, 2)
        self.to_qkv = nn.Conv2d(width, 3 * width, 1)
        self.proj = nn.Conv2d(width, width, 1)

    def forward(self, x: Sum, workspace: Workspace) -> Sum:
        """[t, h, w, c] -> [t, h, w, c]."""
        total, normed = (x.branch.new_empty(x.shape) for _ in range(2))
        fill_halo(x, normed, gamma=self.norm.gamma.flatten(), silu=False, total=total)
        q, k, v = linear(self.to_qkv, normed.flatten(1, 2)).chunk(3, -1)
        out = attend(q, workspace.rows.gather(k), workspace.rows.gather(v))
        return Sum(linear(self.proj, out).view(x.shape), residual=total)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention, q [frames, queries, c], k and v [frames, keys, c] -> like q.

    On a GPU by two matrix products with float32 scores in between: fused kernels stop at a head of 256.
    """
    if not q.is_cuda or q.dtype == torch.float32:
        return F.scaled_dot_product_attention(q, k, v)
    scores = torch.bmm(q * q.shape[-1] ** -0.5, k.transpose(1, 2), out_dtype=torch.float32)
    return torch.bmm(scores.softmax(-1).to(v.dtype), v)


class Upsample(nn.Module):
    """Twice the height and width, and, with `time`, twice the frames.

    Doubling pixels and then convolving 3x3 equals four 2x2 convolutions of the small picture, one for each position in
    the doubled pixel. That is 2.25 times less work, and nothing is copied.
    """

    def __init__(self, width: int, out: int, *, time: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, out, 3)
        self.time_conv = CausalConv3d(width, 2 * width, (3, 1, 1)) if time else None
        if self.time_conv is not None:
            self.time_conv.exact = True  # its frames have no norm: large values would leave a byte too few levels

    def forward(self, x: Sum, workspace: Workspace, *, first: bool) -> Sum:
        """[t, h, w, width] -> [t or 2 t, 2 h, 2 w, out]."""
        if self.time_conv is not None and not first:
            x = self.time_conv(x, workspace)._replace(layout="frames")
        t, *size = x.shape
        halo = workspace.halo((t,), *size, 1, x.branch)
        fill_halo(x, halo)
        workspace.rows.exchange(halo)
        branch = convolve(halo, workspace.weight(self, lambda: channels_last(fold_doubling(self.conv.weight))))
        return Sum(branch, self.conv.bias, layout="pixels")


def fold_doubling(weight: Tensor) -> Tensor:
    """3x3 weights for a doubled picture -> 2x2 weights for the picture itself.

    Args:
        weight: [out, c, 3, 3].

    Returns:
        [4 out, c, 2, 2]: the outputs for positions (0, 0), (0, 1), (1, 0), (1, 1) in the doubled pixel; their layout is
        "pixels" of `kernels.halo`.
    """
    # A 3x3 convolution reads the rows above, at and below. At an upper half pixel the last two of them are one pixel,
    # at a lower half pixel the first two.
    merge = torch.tensor([[[1, 0, 0], [0, 1, 1]], [[1, 1, 0], [0, 0, 1]]], dtype=torch.float32, device=weight.device)
    folded = torch.einsum("apk,bql,ockl->abocpq", merge, merge, weight.float())
    return folded.reshape(-1, weight.shape[1], 2, 2).to(weight.dtype)


class Downsample(nn.Module):
    """Half the height and width, and, with `time`, half the frames."""

    def __init__(self, width: int, *, time: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride=2)
        self.time_conv = nn.Conv3d(width, width, (3, 1, 1), stride=(2, 1, 1)) if time else None

    def forward(self, x: Sum, workspace: Workspace, *, first: bool) -> Sum:
        """[t, h, w, width] -> [t or t / 2, h / 2, w / 2, width]."""
        t, *size = x.shape
        halo = workspace.halo((t,), *size, 1, x.branch)
        fill_halo(x, halo)
        # The border is zero on all sides, and the picture is padded at the right and below only.
        y = convolve(halo[:, 1:, 1:], workspace.weight(self, lambda: channels_last(self.conv.weight)), 2)
        time = self.time_conv
        if time is None:
            return Sum(y, self.conv.bias)
        y = y + self.conv.bias
        before = workspace.swap(self, y[-1:])
        if first:
            return Sum(y)
        assert before is not None
        weight = workspace.weight(time, lambda: channels_last(time.weight))
        return Sum(convolve(torch.cat((before, y)), weight, (2, 1, 1)), time.bias)


def duplicate_up(x: Tensor, out: int, *, time: bool, first: bool) -> Tensor:
    """Shortcut around an upsampling block of Wan 2.2: channels become frames and pixels, repeated as needed.

    Args:
        x: [t, h, w, c]. `first`: the doubled frame before the first one is dropped.

    Returns:
        [t or 2 t, 2 h, 2 w, out].
    """
    steps = 2 if time else 1
    x = x.repeat_interleave(out * steps * 4 // x.shape[-1], -1).unflatten(-1, (out, steps, 2, 2))
    x = x.permute(0, 4, 1, 5, 2, 6, 3).flatten(4, 5).flatten(2, 3).flatten(0, 1)
    return x[steps - 1 :] if first else x


def average_down(x: Tensor, out: int, *, time: bool, space: bool) -> Tensor:
    """Shortcut around a downsampling block of Wan 2.2: frames and pixels become channels, averaged in groups.

    Args:
        x: [t, h, w, c]; an odd t is filled up with a zero frame in front.

    Returns:
        [t or t / 2, h or h / 2, w or w / 2, out].
    """
    steps, side = 2 if time else 1, 2 if space else 1
    x = F.pad(x, (0, 0, 0, 0, 0, 0, -len(x) % steps, 0))
    x = x.unflatten(2, (-1, side)).unflatten(1, (-1, side)).unflatten(0, (-1, steps))
    x = x.permute(0, 2, 4, 6, 1, 3, 5).flatten(3)
    return x.unflatten(-1, (out, -1)).mean(-1)
