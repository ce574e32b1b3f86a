"""fill_halo: the reference against plain operations, the kernel against the reference."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from kernels.halo import (
    Cache,
    Sum,
    fill_halo,
    fill_halo_reference,
    fill_halo_triton,
    minimal_inputs,
    minimal_weights,
)

H, W, C = 4, 6, 12  # no power of two, and a height and width to halve


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def sums(layout, t, c=C):
    """A sum of t frames with bias and residual, and its value by plain operations."""
    residual = noise(t, H, W, c, seed=1)
    if layout == "plain":
        branch, bias = noise(t, H, W, c, seed=2), noise(c, seed=3)
        value = branch + bias
    elif layout == "frames":
        branch, bias = noise(t // 2, H, W, 2 * c, seed=2), noise(2 * c, seed=3)
        value = (branch + bias).view(t // 2, H, W, 2, c).movedim(3, 1).reshape(t, H, W, c)
    elif layout == "minimal":
        branch, bias = noise(4, t // 2, H, W, c, seed=2), noise(c, seed=3)
        value = torch.empty(t, H, W, c)
        value[0::2] = branch[0] + branch[1] + branch[2] + bias
        value[1::2] = branch[1] - branch[2] - branch[3] + bias
    else:
        branch, bias = noise(t, H // 2 + 1, W // 2 + 1, 4 * c, seed=2), noise(c, seed=3)
        value = torch.empty(t, H, W, c)
        for y in range(H):
            for x in range(W):
                group = 2 * (y % 2) + x % 2
                value[:, y, x] = branch[:, y // 2 + y % 2, x // 2 + x % 2, group * c : (group + 1) * c] + bias
    return Sum(branch, bias, residual, layout), value + residual


def caches(kind, c=C):
    if kind is None:
        return None
    data, span = noise(3, 2, H, W, c, seed=5), None
    if kind == "compact":
        data = torch.randint(0, 256, data.shape, generator=torch.Generator().manual_seed(5)).to(torch.uint8)
        span = noise(3, 2, H, W, 2, seed=6).abs() * 1e-4
    return Cache(data, span)


LAYOUTS = [("plain", 1), ("plain", 4), ("frames", 2), ("pixels", 1), ("pixels", 2), ("pixels", 4)]
LAYOUTS += [("minimal", 2), ("minimal", 4)]


def test_minimal_filtering_is_the_convolution_in_time():
    x, weight = noise(6, H, W, C).double(), noise(5, C, 3, 3, 3, seed=1).double()
    wanted = F.conv3d(x.movedim(-1, 0), weight, padding=(0, 1, 1)).movedim(0, -1)
    products = [
        F.conv2d(frames.movedim(-1, 1), g, padding=1).movedim(1, -1)
        for frames, g in zip(minimal_inputs(x), minimal_weights(weight), strict=True)
    ]
    torch.testing.assert_close(Sum(torch.stack(products), layout="minimal").value(), wanted)


@pytest.mark.parametrize(("layout", "t"), LAYOUTS)
@pytest.mark.parametrize("cached", [False, True])
def test_reference_is_cat_pad_norm_silu(layout, t, cached):
    x, value = sums(layout, t)
    assert x.shape == value.shape
    torch.testing.assert_close(x.value(), value)
    gamma = noise(C, seed=4)
    wanted = F.silu(F.normalize(value, dim=-1) * C**0.5 * gamma)
    past = 2 if cached else 0
    halo, total = torch.zeros(past + t, H + 2, W + 2, C), torch.empty_like(value)
    cache = caches("exact") if cached else None
    before = None if cache is None else cache.data.clone()
    fill_halo(x, halo, gamma=gamma, cache=cache, slot=torch.tensor(1), total=total)
    torch.testing.assert_close(total, value)
    if before is not None:
        wanted = torch.cat((before[1], wanted))
        torch.testing.assert_close(cache.data[1], wanted[-2:])
        assert torch.equal(cache.data[0], before[0]) and torch.equal(cache.data[2], before[2])
    torch.testing.assert_close(halo, F.pad(wanted, (0, 0, 1, 1, 1, 1)))


def test_compact_cache_is_off_by_half_a_code_at_most():
    frames = noise(4, H, W, C) * 3
    cache = Cache(torch.zeros(2, 2, H, W, C, dtype=torch.uint8), torch.zeros(2, 2, H, W, 2))
    cache.write(1, frames)
    step = (frames.amax(-1, keepdim=True) - frames.amin(-1, keepdim=True))[-2:] / 255**2
    code = cache.data[1].float()
    assert ((cache.read(1) - frames[-2:]).abs() <= step * ((code + 0.5) ** 2 - code**2) * 1.001).all()
    assert code.amin() == 0 and code.amax() == 255
    newest = cache.read(1)[1]
    cache.write(1, frames[:1])
    assert torch.equal(cache.read(1)[0], newest)
    assert cache.read(0).abs().max() == 0


@pytest.mark.parametrize(("layout", "t"), LAYOUTS)
@pytest.mark.parametrize("kind", [None, "exact", "compact"])
@pytest.mark.parametrize("mode", ["norm silu", "norm", "copy"])
def test_kernel_equals_reference(device, layout, t, kind, mode):
    x, _ = sums(layout, t)
    x = Sum(*(part.to(device) for part in x[:3]), layout)
    gamma = None if mode == "copy" else noise(C, seed=4).to(device)
    border = 1 if mode == "norm silu" else 0
    results = []
    for fill in (fill_halo_reference, fill_halo_triton):
        cache = caches(kind)
        cache = None if cache is None else Cache(*(None if part is None else part.to(device) for part in cache))
        frames = (0 if cache is None else 2) + t
        halo = torch.full((frames, H + 2 * border, W + 2 * border, C), 7.0, device=device)
        total = torch.zeros(t, H, W, C, device=device)
        slot = torch.tensor(1, device=device)
        fill(x, halo, gamma=gamma, silu=mode == "norm silu", cache=cache, slot=slot, total=total)
        results.append((halo, total, cache))
    (halo, total, cache), (halo2, total2, cache2) = results
    torch.testing.assert_close(halo2, halo, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(total2, total)
    if cache is not None:
        wrong = (cache.data.float() - cache2.data.float()).abs()
        # The same sums in another order may cross the border between two codes.
        assert wrong.max() <= (1 if kind == "compact" else 1e-5)
        assert (wrong > 1e-5).float().mean() < 0.01
        if kind == "compact":
            torch.testing.assert_close(cache2.span, cache.span, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("layout", "t"), [pair for pair in LAYOUTS if pair[1] > 1])
@pytest.mark.parametrize(("kind", "dtype"), itertools.product(["exact", "compact"], [torch.float32, torch.float16]))
@pytest.mark.parametrize("fill", [fill_halo_reference, fill_halo_triton])
def test_halo_for_minimal_filtering(device, layout, t, kind, dtype, fill):
    """It holds the transform of what the plain halo holds; what is remembered and passed on is the same."""
    x = Sum(*(part.to(device, dtype) for part in sums(layout, t)[0][:3]), layout)
    gamma, slot = noise(C, seed=4).to(device, dtype), torch.tensor(1, device=device)
    results = []
    for frames in ((2 + t,), (4, t // 2)):
        data, span = caches(kind)
        cache = Cache(
            data.to(device, data.dtype if span is not None else dtype), None if span is None else span.to(device)
        )
        halo, total = (
            torch.full((*n, H + 2 * b, W + 2 * b, C), 7.0, dtype=dtype, device=device)
            for n, b in ((frames, 1), ((t,), 0))
        )
        fill(x, halo, gamma=gamma, silu=True, cache=cache, slot=slot, total=total)
        results.append((halo, total, cache))
    (plain, total, cache), (minimal, total2, cache2) = results
    inner = (..., slice(1, -1), slice(1, -1), slice(None))
    rounding = 4 * torch.finfo(dtype).eps
    wanted = minimal_inputs(plain[inner].float()).to(dtype)
    torch.testing.assert_close(minimal[inner], wanted, rtol=rounding, atol=rounding)
    assert torch.equal(total2, total) and torch.equal(cache2.data, cache.data)
    border = minimal.clone()
    border[inner] = 7
    assert (border == 7).all()


def test_kernel_with_more_channels_than_a_tile_and_many_tiles(device):
    x = Sum(noise(2, 5, 70, 96).to(device))
    halos = [torch.zeros(4, 7, 72, 96, device=device) for _ in range(2)]
    cache = Cache(torch.zeros(1, 2, 5, 70, 96, device=device))
    slot, gamma = torch.tensor(0, device=device), torch.ones(96, device=device)
    fill_halo_reference(x, halos[0], gamma=gamma, cache=Cache(cache.data.clone()), slot=slot)
    fill_halo_triton(x, halos[1], gamma=gamma, silu=True, cache=cache, slot=slot, total=None)
    torch.testing.assert_close(halos[1], halos[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_kernel_rounds_as_the_reference_does(device, dtype):
    x = Sum(*(part.to(device, dtype) for part in sums("plain", 2)[0][:3]))
    gamma, slot = noise(C, seed=4).to(device, dtype), torch.tensor(0, device=device)
    results = []
    for fill in (fill_halo_reference, fill_halo_triton):
        cache = Cache(noise(1, 2, H, W, C, seed=5).to(device, dtype))
        halo, total = (torch.zeros(n, H, W, C, dtype=dtype, device=device) for n in (4, 2))
        fill(x, halo, gamma=gamma, silu=True, cache=cache, slot=slot, total=total)
        results.append((halo, total, cache.data))
    for ours, theirs in zip(*results, strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, theirs, rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("fill", [fill_halo_reference, fill_halo_triton])
def test_float16_saturates(device, fill):
    """A convolution's output too large for float16 is an infinity; neither the halo nor the cache may see a NaN."""
    branch = noise(1, H, W, C).to(device, torch.float16)
    branch[0, 0, 0, :2] = torch.tensor([float("inf"), float("-inf")], dtype=torch.float16)
    branch[0, 1, 1, 0] = 60000
    residual = torch.full_like(branch, 30000)
    for gamma in (None, torch.ones(C, dtype=torch.float16, device=device)):
        cache = Cache(*(part.to(device) for part in caches("compact")))
        halo, total = (torch.zeros(n, H, W, C, dtype=torch.float16, device=device) for n in (3, 1))
        slot = torch.tensor(1, device=device)
        fill(Sum(branch, None, residual), halo, gamma=gamma, silu=True, cache=cache, slot=slot, total=total)
        assert total.isfinite().all() and halo.isfinite().all() and cache.span.isfinite().all()
        assert total[0, 0, 0, :2].tolist() == [65504, -65504] and total[0, 1, 1, 0] == 65504
