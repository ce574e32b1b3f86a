"""The role that makes pictures in one go: what is heard in, the next chunk's I420 frames out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from actors.pipeline.header import Header
from actors.pipeline.loop import LoopRole
from actors.pipeline.session import SessionSpec
from characters.generate.window import WindowGenerator


class FrameGenerator(LoopRole):
    """Runs a `WindowGenerator` between its channels.

    Where a chunk begins earlier than the one before it would have ended, the rest of that one was cut away.

    Args:
        generator: of this process.
    """

    # Aligner and publisher count every chunk: one whose response is over is shown without sound until it is cut.
    drops = False

    def __init__(self, generator: WindowGenerator) -> None:
        self._generator = generator
        self._end: int | None = None  # number of the frame after the newest chunk; None if that chunk is not known

    def reset(self, session: SessionSpec) -> None:
        """See `LoopRole.reset`.

        Raises:
            UserError: the portrait does not fit the model.
        """
        self._generator.start(session.portrait, session.seed)
        self._end = None

    def step(self, header: Header | None, inputs: Mapping[str, Tensor]) -> tuple[Header, dict[str, Tensor]]:
        """See `LoopRole.step`: "heard" in, "frames" out."""
        assert header is not None
        frames = self._generator.clock.frames
        if self._end is not None and header.first < self._end:
            self._generator.cut(frames - (self._end - header.first))
            self._end = header.first
        made = self._generator.generate(inputs["heard"])
        self._end = header.first + frames
        return header, {"frames": made}

    def close(self) -> None:
        """See `LoopRole.close`."""
        self._generator.close()

    def snapshot(self) -> dict[str, Any]:
        """See `LoopRole.snapshot`."""
        return self._generator.snapshot()

    def restore(self, state: dict[str, Any]) -> None:
        """See `LoopRole.restore`."""
        self._generator.restore(state)
        self._end = None
