"""The signalling under a channel between two processes of one host: a pair of Unix sockets.

A blocked read costs nothing and wakes within tens of microseconds. An abort needs no more than the socket: the kernel
closes the socket of a process that dies, however it dies, and `shutdown` wakes both ends from any thread.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time

from actors.channels.protocol import ChannelAborted
from actors.pipeline.header import HEADER_BYTES, Header

_CREDIT = b"\1"


class Link:
    """A connected socket. It carries headers one way and credits the other way; at the start also a file descriptor.

    Args:
        connection: a connected stream socket.
        credits: slots that the sender may fill before the first credit comes back.
    """

    def __init__(self, connection: socket.socket, credits: int) -> None:
        self._socket = connection
        self._socket.setblocking(True)
        self._credits = credits
        self._aborted = False

    @staticmethod
    def listen(path: str, credits: int, timeout: float) -> Link:
        """The receiver's side: wait for the sender at the socket file `path`, which is removed afterwards.

        Raises:
            TimeoutError: nobody came.
        """
        with socket.socket(socket.AF_UNIX) as listener:
            temporary = f"{path}~"  # a sender must not find the file before anyone listens
            listener.bind(temporary)
            listener.listen(1)
            os.rename(temporary, path)
            try:
                listener.settimeout(timeout)
                connection, _ = listener.accept()
            finally:
                os.unlink(path)
        return Link(connection, credits)

    @staticmethod
    def connect(path: str, credits: int, timeout: float) -> Link:
        """The sender's side.

        Raises:
            TimeoutError: nobody listened.
        """
        give_up = time.monotonic() + timeout
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(path)
                return Link(connection, credits)
            except (FileNotFoundError, ConnectionRefusedError):
                connection.close()
                if time.monotonic() > give_up:
                    raise TimeoutError(f"no receiver at {path}") from None
                time.sleep(0.005)

    def send_file(self, descriptor: int) -> None:
        """Hand a file descriptor to the other end."""
        socket.send_fds(self._socket, [_CREDIT], [descriptor])

    def receive_file(self, timeout: float) -> int:
        """The descriptor from `send_file`; the caller closes it.

        Raises:
            TimeoutError, ChannelAborted: it did not come.
        """
        self._socket.settimeout(timeout)
        _, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1)
        self._socket.settimeout(None)
        if not descriptors:
            raise ChannelAborted("the other end has gone")
        return descriptors[0]

    def await_credit(self) -> None:
        """Wait until at least one slot is free."""
        if self._credits == 0:
            self._credits = len(self._read(64, exactly=False))
        elif self._aborted:
            raise ChannelAborted("the channel was aborted")

    def send_header(self, header: Header) -> None:
        """Announce a filled slot; this takes a credit."""
        self._credits -= 1
        self._write(header.pack())

    def receive_header(self) -> Header:
        """Wait for the next announcement."""
        return Header.unpack(self._read(HEADER_BYTES, exactly=True))

    def send_credit(self) -> None:
        """Tell the sender that a slot is free. If the sender has closed its end, nothing happens."""
        with contextlib.suppress(ChannelAborted):
            self._write(_CREDIT)

    def abort(self) -> None:
        """Wake both ends, from any thread."""
        self._aborted = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end. What was written before still arrives."""
        self._aborted = True
        self._socket.close()

    def _read(self, count: int, *, exactly: bool) -> bytes:
        data = b""
        while not data or (exactly and len(data) < count):
            if self._aborted:
                raise ChannelAborted("the channel was aborted")
            try:
                part = self._socket.recv(count - len(data))
            except OSError as e:
                raise ChannelAborted(f"the other end has gone: {e}") from e
            if not part:
                raise ChannelAborted("the channel was aborted" if self._aborted else "the other end has gone")
            data += part
        return data

    def _write(self, data: bytes) -> None:
        if self._aborted:
            raise ChannelAborted("the channel was aborted")
        try:
            self._socket.sendall(data)
        except OSError as e:
            raise ChannelAborted(f"the other end has gone: {e}") from e
