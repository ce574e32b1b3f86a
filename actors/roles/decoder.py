"""The role that makes pictures: a latent frame in, four I420 frames out; of the whole picture or a band of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from actors.channels.protocol import ChannelAborted
from actors.pipeline.header import Header
from actors.pipeline.loop import LoopRole
from actors.pipeline.session import SessionSpec
from characters.generate.decoder import LatentDecoder
from kernels.comm.breakable_group import ExchangeBroken


class Decoder(LoopRole):
    """Runs a `LatentDecoder` between its channels.

    Args:
        decoder: of this process.
    """

    def __init__(self, decoder: LatentDecoder) -> None:
        self._decoder = decoder
        self.drops = decoder.whole

    def reset(self, session: SessionSpec) -> None:
        """See `LoopRole.reset`.

        Raises:
            UserError: the portrait does not fit the model.
        """
        self._decoder.start(session.portrait)

    def connect(self, path: str) -> None:
        """See `LoopRole.connect`."""
        self._decoder.connect(f"{path}-decoder")  # the DiT's processes meet at `path` itself

    def step(self, header: Header | None, inputs: Mapping[str, Tensor]) -> tuple[Header, dict[str, Tensor]]:
        """See `LoopRole.step`: "latent" in, "frames" out."""
        assert header is not None
        try:
            return header, {"frames": self._decoder.decode(inputs["latent"])}
        except ExchangeBroken as error:  # nothing is wrong with this process
            raise ChannelAborted(str(error)) from error

    def abort(self) -> None:
        """See `LoopRole.abort`."""
        self._decoder.cancel()

    def close(self) -> None:
        """See `LoopRole.close`."""
        self._decoder.close()

    def snapshot(self) -> dict[str, Any]:
        """See `LoopRole.snapshot`."""
        return self._decoder.snapshot()

    def restore(self, state: dict[str, Any]) -> None:
        """See `LoopRole.restore`."""
        self._decoder.restore(state)
