"""The memory of a network of causal convolutions: input buffers, remembered frames, prepared weights."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor, nn

from characters.model.wan_vae.rows import Rows, WholeFrame
from kernels.halo import PAST, Cache


class Workspace:
    """Buffers of one network for streams of one picture size.

    Everything is made at first use and stays where it is, so that a network that has run once can be captured as a CUDA
    graph. Layers of the same size share their input buffers; a stream owns nothing but its frames in the caches.
    Whoever clears a stream and runs the network says so by `fresh`.

    Args:
        slots: streams that it remembers.
        compact: remember frames as bytes with a range for each pixel, instead of in the activations' dtype, except for
            layers that ask for exact ones. It takes little more than half the memory, at about 1 % error a value.
        rows: how the picture's rows are dealt to GPUs.
    """

    def __init__(self, *, slots: int = 1, compact: bool = False, rows: Rows | None = None) -> None:
        self.slots, self.compact = slots, compact
        self.rows = WholeFrame() if rows is None else rows
        self.slot: Tensor | None = None  # int64 [], the stream at work
        self.fresh = False  # the stream at work has seen nothing yet
        self._halos: dict[tuple[int, ...], Tensor] = {}
        self._caches: dict[nn.Module, Cache] = {}
        self._weights: dict[Hashable, Tensor] = {}
        self._frames: dict[nn.Module, Tensor] = {}

    def halo(
        self, frames: tuple[int, ...], height: int, width: int, channels: int, border: int, like: Tensor
    ) -> Tensor:
        """The input buffer [*frames, height + 2 border, width + 2 border, channels], shared by all that ask for one.

        Its border is zero except where `Rows` puts neighbouring rows.
        """
        key = (*frames, height, width, channels, border)
        if key not in self._halos:
            shape = (*frames, height + 2 * border, width + 2 * border, channels)
            self._halos[key] = torch.zeros(shape, dtype=like.dtype, device=like.device)
        return self._halos[key]

    def cache(
        self, layer: nn.Module, height: int, width: int, channels: int, like: Tensor, *, exact: bool = False
    ) -> Cache:
        """The frames that `layer` remembers. `exact`: always in the dtype of `like`."""
        if layer not in self._caches:
            shape, compact = (self.slots, PAST, height, width), self.compact and not exact
            data = torch.zeros(*shape, channels, dtype=torch.uint8 if compact else like.dtype, device=like.device)
            span = torch.zeros(*shape, 2, device=like.device) if compact else None
            self._caches[layer] = Cache(data, span)
        return self._caches[layer]

    def weight(self, of: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """A layer's weight as a kernel wants it, made once."""
        if of not in self._weights:
            self._weights[of] = make()
        return self._weights[of]

    def swap(self, layer: nn.Module, frame: Tensor) -> Tensor | None:
        """Remember a frame for `layer`; returns the one before, None at first. For one stream, outside graphs."""
        before = self._frames.get(layer)
        self._frames[layer] = frame
        return before

    def clear(self, slot: int) -> None:
        """Forget a stream."""
        for cache in self._caches.values():
            cache.data[slot].zero_()
            if cache.span is not None:
                cache.span[slot].zero_()

    @property
    def bytes_per_stream(self) -> int:
        """Bytes of one stream's remembered frames."""
        tensors = [x for cache in self._caches.values() for x in cache if x is not None]
        return sum(x.nbytes for x in tensors) // self.slots
