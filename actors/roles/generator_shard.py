"""The role that makes latents: what is heard in, the next latent out; or one process's part of that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from actors.channels.protocol import ChannelAborted
from actors.pipeline.header import Header
from actors.pipeline.loop import LoopRole
from actors.pipeline.session import SessionSpec
from characters.generate.cached import CachedGenerator
from kernels.comm.breakable_group import ExchangeBroken


class GeneratorShard(LoopRole):
    """Runs a `CachedGenerator` between its channels.

    Args:
        generator: of this process.
    """

    def __init__(self, generator: CachedGenerator) -> None:
        self._generator = generator
        self._switch: tuple[int, str] | None = None
        self.drops = generator.whole

    def reset(self, session: SessionSpec) -> None:
        """See `LoopRole.reset`.

        Raises:
            UserError: the portrait does not fit the model.
        """
        self._generator.start(session.portrait, session.seed)

    def connect(self, path: str) -> None:
        """See `LoopRole.connect`."""
        self._switch = None
        self._generator.connect(path)

    def step(self, header: Header | None, inputs: Mapping[str, Tensor]) -> tuple[Header, dict[str, Tensor]]:
        """See `LoopRole.step`: "heard" or "hidden" in, "hidden" or "latent" out."""
        assert header is not None
        if self._switch is not None and header.index >= self._switch[0]:
            self._generator.switch(self._switch[1])
            self._switch = None
        try:
            return header, {"latent" if self._generator.last else "hidden": self._generator.generate(**inputs)}
        except ExchangeBroken as error:  # nothing is wrong with this process
            raise ChannelAborted(str(error)) from error

    def switch(self, exchange: str, chunk: int) -> None:
        """See `CachedGenerator.switch`, from a chunk on that is not at the first part yet. From any thread.

        Raises:
            UserError: there is no such exchange here.
        """
        self._generator.check_exchange(exchange)
        self._switch = chunk, exchange

    def abort(self) -> None:
        """See `LoopRole.abort`."""
        self._generator.cancel()

    def close(self) -> None:
        """See `LoopRole.close`."""
        self._generator.close()

    def snapshot(self) -> dict[str, Any]:
        """See `LoopRole.snapshot`."""
        return self._generator.snapshot()

    def restore(self, state: dict[str, Any]) -> None:
        """See `LoopRole.restore`."""
        self._generator.restore(state)
