"""A channel between two threads of one process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from actors.channels.protocol import SLOTS, ChannelAborted, TensorSpec
from actors.pipeline.header import Header


class LocalChannel:
    """Both ends of a channel in one object. On a GPU both threads must use the same stream.

    Args:
        spec: what it carries.
        slots: of the ring.
        device: of the buffers.
    """

    def __init__(self, spec: TensorSpec, slots: int = SLOTS, device: torch.device | str = "cpu") -> None:
        self.spec = spec
        self._buffers = [torch.empty(spec.shape, dtype=spec.torch_dtype, device=device) for _ in range(slots)]
        self._changed = threading.Condition()
        self._headers: deque[Header] = deque()
        self._sent = self._received = self._released = 0
        self._aborted = False

    def reserve(self) -> None:
        """See `Channel.reserve`."""
        with self._changed:
            self._wait(lambda: self._sent - self._released < len(self._buffers))

    def send(self, tensor: Tensor | None, header: Header) -> None:
        """See `Channel.send`."""
        self.spec.check(tensor)
        self.reserve()
        if tensor is not None:
            self._buffers[self._sent % len(self._buffers)].copy_(tensor)
        with self._changed:
            self._headers.append(header)
            self._sent += 1
            self._changed.notify_all()

    def recv(self) -> tuple[Header, Tensor]:
        """See `Channel.recv`."""
        self.release()
        with self._changed:
            self._wait(lambda: bool(self._headers))
            header, slot = self._headers.popleft(), self._received % len(self._buffers)
            self._received += 1
        return header, self._buffers[slot]

    def release(self) -> None:
        """See `Channel.release`."""
        with self._changed:
            self._released = self._received
            self._changed.notify_all()

    def abort(self) -> None:
        """See `Channel.abort`."""
        with self._changed:
            self._aborted = True
            self._changed.notify_all()

    def close(self) -> None:
        """See `Channel.close`."""
        self.abort()

    def _wait(self, ready: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._aborted or ready())
        if self._aborted:
            raise ChannelAborted("the channel was aborted")
