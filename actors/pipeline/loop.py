"""The loop around a role: gather a chunk's inputs, work, send. Knows channels and roles, not processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from actors.channels.protocol import Channel
from actors.pipeline.context import StageContext
from actors.pipeline.header import DROPPED, NONE_CANCELLED, Header

Outputs = Mapping[str, Tensor]


class LoopRole:
    """What a loop and a stage ask of a role. A role overrides the methods that concern it.

    Attributes:
        drops: whether the loop may drop a chunk of a cancelled response. It may not where several processes hold one
            state: they hear of the cancellation at different times, and a process that worked on the chunk would wait
            for one that did not.
    """

    drops: bool = True

    def attach(self, context: StageContext) -> None:
        """Called once, before the first session, with what the role's process offers."""

    def step(self, header: Header | None, inputs: Mapping[str, Tensor]) -> tuple[Header, Outputs]:
        """Work on one chunk. If it raises, the role's state has not advanced.

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
        """New channels will replace the old ones, and the chunks in those are lost."""

    def connect(self, path: str) -> None:
        """Meet the other processes that share this role's state, before every `run`. All roles are called at once.

        Args:
            path: of a file that does not exist yet; the same for all roles, another one at every call.
        """

    def abort(self) -> None:
        """From any thread: a `step` that waits for another process stops waiting and raises ChannelAborted."""

    def snapshot(self) -> dict[str, Any]:
        """What `restore` needs to go on from here in another process. Called between steps, so it must be cheap."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """After `reset`: go on from a `snapshot`."""

    def misses(self) -> int:
        """Chunks of this session that left late; 0 for a role that does not pace chunks. From any thread."""
        return 0

    def alone(self) -> float:
        """Seconds since the last user left; 0 while one is there or if the role meets no users. From any thread."""
        return 0.0

    def ended(self) -> str:
        """Why the session is over by itself, which is no failure; "" while it goes on. From any thread."""
        return ""

    def close(self) -> None:
        """Release what the role holds."""


@dataclass
class Counts:
    """What a loop has done: chunks worked on, and chunks dropped because their response was cancelled."""

    chunks: int = 0
    dropped: int = 0


class Loop:
    """Runs one role between its channels.

    Args:
        role: what works.
        span: number of the role's span in a header.
        inputs, outputs: port and channel. A port may stand several times among the outputs.
        finished: called with the stamped header after each chunk.
        clock: seconds.
    """

    def __init__(
        self,
        role: LoopRole,
        span: int,
        inputs: Sequence[tuple[str, Channel]],
        outputs: Sequence[tuple[str, Channel]],
        *,
        finished: Callable[[Header], None] = lambda header: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts = Counts()
        self.cancelled = NONE_CANCELLED
        self._role, self._span = role, span
        self._inputs, self._outputs = inputs, outputs
        self._finished, self._clock = finished, clock

    def cancel(self, response_id: int) -> None:
        """From any thread: from the next chunk on, drop chunks of response `response_id` and older ones."""
        self.cancelled = max(self.cancelled, response_id)
        self._role.cancel(response_id)

    def run(self) -> None:
        """Work until a channel is aborted or the role fails.

        Raises:
            ChannelAborted: the expected end.
            Exception: whatever the role raised; the chunk that it failed on was not sent.
        """
        while True:
            self.once()

    def once(self) -> None:
        """Work on one chunk, or drop it."""
        if self._inputs:
            header, tensors = self._gather()
        else:
            # A source must not decide what a chunk holds before there is room for the chunk.
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
            header = header.stamped(self._span, began, self._clock())
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
