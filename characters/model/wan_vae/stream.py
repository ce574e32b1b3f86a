"""The Wan VAE's decoder for live sessions: one captured graph, and frames that each session remembers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from characters.model.graph import Graph
from characters.model.wan_vae.rows import Rows
from characters.model.wan_vae.vae import WanVae
from characters.model.wan_vae.workspace import Workspace
from kernels.i420 import signal_to_i420, signal_to_rgb


class WanStreams:
    """A decoder that several sessions share, each with frames of its own.

    The graphs (one for a session's first chunk, one for all others) read the number of the session at work from device
    memory, so that they serve every session as they were captured.

    Args:
        vae: in eval mode.
        size: (h, w) of a latent frame.
        streams: how many sessions can be open at once; memory for all is allocated here.
        compact: see `Workspace`.
        i420: see `FrameDecoder.decode`.
        capture: on a GPU, replay the decoder as CUDA graphs.
        rows: how the picture's rows are dealt to GPUs. All of them must make their `WanStreams` at the same time, and
            later call the same methods together.
    """

    def __init__(
        self,
        vae: WanVae,
        size: tuple[int, int],
        *,
        streams: int = 1,
        compact: bool = True,
        i420: bool = True,
        capture: bool = False,
        rows: Rows | None = None,
    ) -> None:
        self._vae, self._i420 = vae, i420
        self._device, self._dtype = vae.mean.device, vae.mean.dtype
        self._shape = (1, len(vae.post_quant_conv.weight), *size)
        self.workspace = Workspace(slots=streams, compact=compact, rows=rows)
        self._band = self.workspace.rows.band
        self._slots = [torch.tensor(i, device=self._device) for i in range(streams)]
        self._free = list(range(streams))
        graph = Graph if capture else lambda function: function
        self._first = graph(lambda latent, slot: self._frames(latent, slot, first=True))
        self._next = graph(lambda latent, slot: self._frames(latent, slot, first=False))
        # Makes all buffers and captures the graphs, before there is a session to wait for it.
        nothing = torch.zeros(self._shape, device=self._device, dtype=self._dtype)
        self.start(0, nothing)
        self.advance(0, nothing)

    def open(self) -> WanStream:
        """A session's decoder; close it to make room for another.

        Raises:
            RuntimeError: as many are open as there is room for.
        """
        if not self._free:
            raise RuntimeError(f"all {len(self._slots)} streams of this decoder are open")
        return WanStream(self, self._free.pop(0))

    def close(self, slot: int) -> None:
        """Take a stream back."""
        self._free.append(slot)

    @torch.inference_mode()
    def start(self, slot: int, portrait: Tensor) -> Tensor:
        """Forget what a stream has seen and decode its first chunk, a single frame."""
        self.check(portrait)
        self.workspace.clear(slot)
        return self._first(self._band(portrait.to(self._dtype)), self._slots[slot])

    @torch.inference_mode()
    def advance(self, slot: int, latent: Tensor) -> Tensor:
        """Decode a stream's next chunk.

        Raises:
            ValueError: see `check`; nothing has changed.
            Exception: anything else leaves the stream between two chunks, since every layer writes what it remembers
                as it goes; it must be started anew.
        """
        self.check(latent)
        return self._next(self._band(latent.to(self._dtype)), self._slots[slot])

    def check(self, latent: Tensor) -> None:
        """Raise ValueError for a latent of another size or kind, before anything is overwritten."""
        if tuple(latent.shape) != self._shape or not latent.is_floating_point():
            raise ValueError(f"expected a latent {self._shape} of floats, got {tuple(latent.shape)} of {latent.dtype}")

    def _frames(self, latent: Tensor, slot: Tensor, *, first: bool) -> Tensor:
        self.workspace.slot = slot
        with fastest_convolutions(self._dtype):
            picture = self._vae.decode(latent, self.workspace, first=first)
        if self._i420:
            return self.workspace.rows.join(signal_to_i420(picture.branch, picture.bias))
        return signal_to_rgb(picture.branch, picture.bias)[None]


class WanStream:
    """One session of a `WanStreams`; a `FrameDecoder`."""

    # Each convolution sees two frames back. 12 of them (with the first upsampling's) run at one frame a latent, 7 at
    # two and 13 at four: together they see 12 * 2 + 7 * 2 / 2 + 13 * 2 / 4 = 37.5 latents back. One more fills the
    # chunk. The oldest must be out of sight, because a fresh decoder takes it for the first of a video.
    history = 40

    def __init__(self, streams: WanStreams, slot: int) -> None:
        self._streams, self._slot = streams, slot

    def reset(self, portrait: Tensor) -> None:
        """See `FrameDecoder.reset`."""
        self._streams.start(self._slot, portrait)

    def decode(self, latent: Tensor) -> Tensor:
        """See `FrameDecoder.decode`."""
        return self._streams.advance(self._slot, latent)

    def close(self) -> None:
        """Make room for another stream."""
        self._streams.close(self._slot)


@contextlib.contextmanager
def fastest_convolutions(dtype: torch.dtype) -> Iterator[None]:
    """Let cuDNN time its algorithms at the first call of each size, in each thread.

    Not in float32, which is for comparisons: timing its slow algorithms would take longer than all that follows.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = dtype != torch.float32
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
