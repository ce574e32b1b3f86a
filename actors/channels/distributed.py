"""A channel between two processes through a torch.distributed communicator of its own: NCCL on GPUs, gloo on CPUs.

The link carries headers and credits, the communicator only tensors. A sender calls the communicator only when the
receiver has a free slot. The receiver answers a header at once, from a thread of its own. So no NCCL kernel ever waits
on a GPU for a stage that is busy. NCCL gives every communicator its own stream; the host never waits.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from actors.channels.link import Link
from actors.channels.protocol import SLOTS, ChannelAborted, End, TensorSpec
from actors.pipeline.header import Header

Backend = Literal["nccl", "gloo"]

_RANK: dict[End, int] = {"send": 0, "recv": 1}


@dataclass
class _Slot:
    """A buffer, and what must have happened before it may be written again."""

    buffer: Tensor
    work: Any = None  # sender: the communicator's handle of the last send
    filled: torch.cuda.Event | None = None
    read: torch.cuda.Event | None = None


class DistributedChannel:
    """One end of a channel.

    Args:
        spec: what it carries.
        end: "send" or "recv"; the constructor waits for the other end.
        path: of a socket file that does not exist, at most 100 bytes, the same for both ends. The communicator's ends
            meet through the file `path` + ".store", which stays.
        backend: "nccl" or "gloo". With NCCL the two ends must be on different GPUs.
        device: of the tensors.
        slots: of the ring.
        timeout: seconds to wait for the other end.

    Raises:
        TimeoutError: the other end did not come.
        RuntimeError: the communicator could not be made.
    """

    def __init__(
        self,
        spec: TensorSpec,
        end: End,
        path: str,
        *,
        backend: Backend,
        device: torch.device | str = "cpu",
        slots: int = SLOTS,
        timeout: float = 60.0,
    ) -> None:
        self.spec = spec
        self._device = torch.device(device)
        self._cuda = self._device.type == "cuda"
        self._peer = 1 - _RANK[end]
        self._link = (Link.listen if end == "recv" else Link.connect)(path, slots, timeout)
        store = dist.FileStore(f"{path}.store", 2)
        self._group = _communicator(backend, store, _RANK[end], timedelta(seconds=timeout))
        self._slots = [
            _Slot(torch.empty(spec.shape, dtype=spec.torch_dtype, device=self._device)) for _ in range(slots)
        ]
        self._sent = 0
        self._held: _Slot | None = None
        self._aborted = threading.Event()
        # The first transfer makes NCCL's connection, which takes a while: the first chunk must not wait for it.
        first = self._slots[0].buffer
        (self._group.recv if end == "recv" else self._group.send)([first], self._peer, 0).wait()
        if end == "recv":
            self._free: deque[_Slot] = deque(self._slots)
            self._ready: queue.SimpleQueue[tuple[Header, _Slot] | None] = queue.SimpleQueue()
            threading.Thread(target=self._pump, name=f"channel {path}", daemon=True).start()

    def reserve(self) -> None:
        """See `Channel.reserve`."""
        self._link.await_credit()

    def send(self, tensor: Tensor | None, header: Header) -> None:
        """See `Channel.send`."""
        self.spec.check(tensor)
        self._link.await_credit()
        slot = self._slots[self._sent % len(self._slots)]
        self._sent += 1
        try:
            if slot.work is not None:
                slot.work.wait()  # this stream waits until NCCL has read the buffer
            if tensor is not None:
                slot.buffer.copy_(tensor)
            self._link.send_header(header)
            work = self._group.send([slot.buffer], self._peer, 0)
            if self._cuda:
                slot.work = work
            else:
                work.wait()  # gloo's handles may be waited for only once, and by the host
        except RuntimeError as e:
            raise ChannelAborted(f"the other end has gone: {e}") from e

    def recv(self) -> tuple[Header, Tensor]:
        """See `Channel.recv`. On a GPU the caller's current stream waits for the tensor; the host does not."""
        self.release()
        taken = None if self._aborted.is_set() else self._ready.get()
        if taken is None or self._aborted.is_set():
            self._ready.put(None)  # for the next call
            raise ChannelAborted("the channel was aborted or the other end has gone")
        header, self._held = taken
        if self._held.filled is not None:
            torch.cuda.current_stream(self._device).wait_event(self._held.filled)
        return header, self._held.buffer

    def release(self) -> None:
        """See `Channel.release`. On a GPU the slot is free when the work queued on the current stream is done."""
        if self._held is None:
            return
        slot, self._held = self._held, None
        if self._cuda:
            slot.read = torch.cuda.current_stream(self._device).record_event()
        self._free.append(slot)
        self._link.send_credit()

    def abort(self) -> None:
        """See `Channel.abort`."""
        self._aborted.set()
        self._link.abort()
        if hasattr(self, "_ready"):
            self._ready.put(None)
        with contextlib.suppress(RuntimeError):
            self._group.abort()  # frees a GPU whose NCCL kernel waits for a process that has died

    def close(self) -> None:
        """See `Channel.close`."""
        self.abort()
        self._link.close()
        self._slots = []

    def _pump(self) -> None:
        """Receive into free slots as headers come."""
        try:
            stream = torch.cuda.Stream(self._device) if self._cuda else None
            with torch.cuda.stream(stream):  # no-op for None
                while True:
                    header = self._link.receive_header()
                    slot = self._free.popleft()  # the credits say that there is one
                    if stream is not None and slot.read is not None:
                        stream.wait_event(slot.read)
                    self._group.recv([slot.buffer], self._peer, 0).wait()
                    slot.filled = stream.record_event() if stream is not None else None
                    self._ready.put((header, slot))
        except (ChannelAborted, RuntimeError):
            self._ready.put(None)


def _communicator(backend: Backend, store: dist.Store, rank: int, timeout: timedelta) -> Any:
    if backend == "gloo":
        return dist.ProcessGroupGloo(store, rank, 2, timeout)
    # The gang deals with a dead neighbour. PyTorch's watchdog would end this process because of it.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    os.environ["NCCL_NVLS_ENABLE"] = "0"  # no NVLink multicast: see kernels.comm.group
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, 2, options)
