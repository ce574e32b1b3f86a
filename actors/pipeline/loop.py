"""The loop around a role: gather a chunk's inputs, work, send. Knows channels and roles, not processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from actors.channels.protocol import Channel
from actors.pipeline.header import DROPPED, NONE_CANCELLED, Header
from actors.pipeline.trace import Turn

Outputs = Mapping[str, Tensor]


class LoopRole:
    """What a role shows to its loop and to the gang; a role overrides what concerns it.

    Attributes:
        broadcast: cancels a response in every role of the session, this one's included; from any thread. Set by the
            process that the role runs in.
        record: enters a finished turn in the session's trace; from any thread. Set likewise.
        drops: whether its loop may drop a chunk of a cancelled response_id. Not where several processes hold one state:
            they hear of it at different times, and one that worked on a chunk would wait for one that did not.
        shown: enters there when a user saw a frame (see `Trace.add_shown`); from any thread. Set likewise.
    """

    drops: bool = True
    broadcast: Callable[[int], None] = staticmethod(lambda response_id: None)
    record: Callable[[Turn], None] = staticmethod(lambda turn: None)
    shown: Callable[[int, float], float | None] = staticmethod(lambda frame, at: None)

    def step(self, header: Header | None, inputs: Mapping[str, Tensor]) -> tuple[Header, Outputs]:
        """Work on one chunk. If it raises, nothing has advanced.

        Args:
            header: of the inputs; None for a role without inputs, which makes the header.
            inputs: tensors by port, valid during the call.

        Returns:
            The chunk's header and what to send, by port.
        """
        raise NotImplementedError

    def cancel(self, response_id: int) -> None:
        """Response `response_id` and older ones are over. Called from any thread."""

    def reset(self, session: Any) -> None:
        """Start a session."""

    def resume(self) -> None:
        """The channels are new; what was in them is lost."""

    def connect(self, path: str) -> None:
        """Meet the other processes that share this role's state, before every `run`; all roles are called at once.

        Args:
            path: of a file that does not exist yet, the same for all roles and different at every call.
        """

    def abort(self) -> None:
        """From any thread: `step` must not go on waiting for another process; it raises ChannelAborted if it was."""

    def snapshot(self) -> dict[str, Any]:
        """What `restore` needs to go on from here in another process. Cheap; called between steps."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """After `reset`: go on where a `snapshot` was taken."""

    def close(self) -> None:
        """Let go of what the role holds."""


@dataclass
class Counts:
    """What a loop has done: chunks worked on, and chunks dropped because their response_id was cancelled."""

    chunks: int = 0
    dropped: int = 0


class Loop:
    """Runs one role between its channels.

    Args:
        role: what works.
        place: which stamps are its own.
        inputs, outputs: port and channel. A port may stand several times among the outputs.
        finished: called with the stamped header after each chunk.
        clock: seconds.
    """

    def __init__(
        self,
        role: LoopRole,
        place: int,
        inputs: Sequence[tuple[str, Channel]],
        outputs: Sequence[tuple[str, Channel]],
        *,
        finished: Callable[[Header], None] = lambda header: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts = Counts()
        self.cancelled = NONE_CANCELLED
        self._role, self._place = role, place
        self._inputs, self._outputs = inputs, outputs
        self._finished, self._clock = finished, clock

    def cancel(self, response_id: int) -> None:
        """From any thread: from the next chunk on, drop `response_id` and older ones."""
        self.cancelled = max(self.cancelled, response_id)
        self._role.cancel(response_id)

    def run(self) -> None:
        """Work until a channel is aborted or the role fails.

        Raises:
            ChannelAborted: the end that is wanted.
            Exception: whatever the role raised; the chunk that it failed on was not sent.
        """
        while True:
            self.once()

    def once(self) -> None:
        """Work on one chunk, or drop it."""
        if self._inputs:
            header, tensors = self._gather()
        else:
            # A source must not decide what a chunk is before there is room for it.
            for _, channel in self._outputs:
                channel.reserve()
            header, tensors = None, {}
        began = self._clock()
        cancelled = self.cancelled if self._role.drops else NONE_CANCELLED
        if header is not None and header.cancelled_by(cancelled):
            for _, channel in self._outputs:
                channel.send(None, header.dropped())
            self.counts.dropped += 1
        else:
            header, outputs = self._role.step(header, tensors)
            header = header.stamped(self._place, began, self._clock())
            for port, channel in self._outputs:
                channel.send(outputs[port], header)
            self.counts.chunks += 1
            self._finished(header)
        for _, channel in self._inputs:
            channel.release()

    def _gather(self) -> tuple[Header, dict[str, Tensor]]:
        """One tensor from every input, all of the same chunk: every chunk travels every edge, in order."""
        got = [(port, *channel.recv()) for port, channel in self._inputs]
        joined = got[0][1]
        for _, header, _ in got[1:]:
            if header.index != joined.index:
                raise RuntimeError(f"chunk {joined.index} met chunk {header.index}: an edge has lost one")
            joined = header.joined(joined) if header.response_id == DROPPED else joined.joined(header)
        return joined, {port: tensor for port, _, tensor in got}
