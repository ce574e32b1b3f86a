"""Tensor channels: one fixed shape from one sender to one receiver, bounded and abortable."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from actors.pipeline.header import Header

# Slots of a channel's ring: one that is being filled or waits, one that is being read.
SLOTS = 2

End = Literal["send", "recv"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "uint8": torch.uint8}


class ChannelAborted(Exception):
    """The channel was aborted or closed, at this end or the other, or the process at the other end has died."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a channel carries.

    Attributes:
        shape: fixed.
        dtype: "float32", "bfloat16", "float16" or "uint8".
    """

    shape: tuple[int, ...]
    dtype: str

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as PyTorch's."""
        return _DTYPES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Size of one tensor."""
        return math.prod(self.shape) * self.torch_dtype.itemsize

    def check(self, tensor: Tensor | None) -> None:
        """Raise ValueError if a tensor is not what the channel carries; None, of a dropped chunk, is."""
        if tensor is not None and (tuple(tensor.shape) != self.shape or tensor.dtype != self.torch_dtype):
            raise ValueError(f"expected {self.dtype} {self.shape}, got {tensor.dtype} {tuple(tensor.shape)}")


class Channel(Protocol):
    """One end of a channel. Each end belongs to one thread, except that `abort` may be called from any.

    A channel is a ring of preallocated slots. While every slot holds a tensor that the receiver has not released, the
    sender waits. So nothing piles up, and a slow consumer slows its producer.
    """

    spec: TensorSpec

    def reserve(self) -> None:
        """Sender: wait until a slot is free, so that the next `send` does not wait.

        Raises:
            ChannelAborted
        """

    def send(self, tensor: Tensor | None, header: Header) -> None:
        """Sender: copy a tensor into the next slot, waiting until it is free; the tensor may be reused at once.

        None sends the header of a dropped chunk; the receiver finds old values in the slot.

        Raises:
            ChannelAborted
            ValueError: the tensor is not of the channel's shape and dtype; nothing was sent.
        """

    def recv(self) -> tuple[Header, Tensor]:
        """Receiver: wait for the next tensor. The view is valid until `release` or the next `recv`.

        Raises:
            ChannelAborted
        """

    def release(self) -> None:
        """Receiver: free the slot of the last `recv`. A second call does nothing."""

    def abort(self) -> None:
        """From any thread: wake who waits at either end, within 100 ms. Every later call raises ChannelAborted."""

    def close(self) -> None:
        """Free the buffers. The other end receives what was sent before, then it is aborted."""
