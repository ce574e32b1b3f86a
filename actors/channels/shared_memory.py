"""A channel between two processes of one host, through memory that both have mapped.

The memory has no name: the receiver makes it and hands it over through the link. So a killed process leaves nothing
behind that somebody would have to clean up.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from actors.channels.link import Link
from actors.channels.protocol import SLOTS, End, TensorSpec
from actors.pipeline.header import Header

_PAGE = 4096  # slots start on pages


class SharedMemoryChannel:
    """One end of a channel. It sends tensors of any device and receives them on the CPU.

    Args:
        spec: what it carries.
        end: "send" or "recv"; the constructor waits for the other end.
        path: of a socket file that does not exist, at most 100 bytes, the same for both ends.
        slots: of the ring.
        pin: whether CUDA copies into the memory directly, for a sender whose tensors are on a GPU.
        timeout: seconds to wait for the other end.

    Raises:
        TimeoutError: the other end did not come.
    """

    def __init__(
        self, spec: TensorSpec, end: End, path: str, *, slots: int = SLOTS, pin: bool = False, timeout: float = 30.0
    ) -> None:
        self.spec = spec
        stride = -(-spec.nbytes // _PAGE) * _PAGE
        if end == "recv":
            self._link = Link.listen(path, slots, timeout)
            descriptor = _anonymous_file(slots * stride)
            self._link.send_file(descriptor)
        else:
            self._link = Link.connect(path, slots, timeout)
            descriptor = self._link.receive_file(timeout)
        # The mapping lives as long as the tensors that use it.
        memory = torch.frombuffer(mmap.mmap(descriptor, slots * stride), dtype=torch.uint8)
        os.close(descriptor)
        self._memory = memory if pin and _pin(memory) else None
        self._slots = [
            memory[i * stride : i * stride + spec.nbytes].view(spec.torch_dtype).view(spec.shape) for i in range(slots)
        ]
        self._count = 0  # sent or received
        self._held = False

    def reserve(self) -> None:
        """See `Channel.reserve`."""
        self._link.await_credit()

    def send(self, tensor: Tensor | None, header: Header) -> None:
        """See `Channel.send`."""
        self.spec.check(tensor)
        self._link.await_credit()
        if tensor is not None:
            self._slots[self._count % len(self._slots)].copy_(tensor)
        self._count += 1
        self._link.send_header(header)

    def recv(self) -> tuple[Header, Tensor]:
        """See `Channel.recv`."""
        self.release()
        header = self._link.receive_header()
        slot = self._slots[self._count % len(self._slots)]
        self._count += 1
        self._held = True
        return header, slot

    def release(self) -> None:
        """See `Channel.release`."""
        if self._held:
            self._held = False
            self._link.send_credit()

    def abort(self) -> None:
        """See `Channel.abort`."""
        self._link.abort()

    def close(self) -> None:
        """See `Channel.close`."""
        self._link.close()
        if self._memory is not None:
            _unpin(self._memory)
            self._memory = None
        self._slots = []


def _anonymous_file(size: int) -> int:
    """A file in memory without a name, of `size` zero bytes."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("channel", os.MFD_CLOEXEC)
    else:
        descriptor, name = tempfile.mkstemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        os.unlink(name)
    os.ftruncate(descriptor, size)
    return descriptor


def _pin(memory: Tensor) -> bool:
    """Register host memory with CUDA, which makes copies faster; whether it succeeded."""
    with contextlib.suppress(RuntimeError, AssertionError):
        return int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)) == 0
    return False


def _unpin(memory: Tensor) -> None:
    with contextlib.suppress(RuntimeError, AssertionError):
        torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())
