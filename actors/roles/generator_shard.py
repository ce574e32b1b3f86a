"""Makes latents: sound and idle motion in, the next latent frame out. A process holds the whole DiT or a part of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from actors.channels.protocol import ChannelAborted
from actors.pipeline.header import Header
from actors.pipeline.loop import LoopRole
from actors.pipeline.session import SessionSpec
from actors.roles.model_group import ModelGroup
from characters.chunk import FRAMES_PER_CHUNK, MEL_BINS, MOTION_CHANNELS
from characters.errors import UserError, did_you_mean
from characters.generate.hearing import WINDOW_FRAMES
from characters.generate.motion import LIVE_SWAY, IdleMotion
from characters.generate.stream import CharacterModel
from characters.model.calibrate import CHUNKS, calibrate
from characters.model.graph import Graph
from characters.model.plan import ParallelPlan, Shard, shards
from characters.model.quantise import needs_calibration
from characters.model.sampler import Sampler
from kernels.comm.exchange import Exchange, ExchangeBroken, LocalExchange

# Empty text tokens that a model without sound is conditioned on.
TEXT_TOKENS = 64


class DitShard(LoopRole):
    """The DiT of one session with its cache, or one GPU's part of both.

    The first part of a pipeline hears the sound and moves the character; it hands its rows of the residual stream to
    the next part, with the condition tokens below them. The last part has the latent, on each of its ranks.

    What several processes hold is one state: it starts over from the portrait in all of them whenever their channels
    are new, because a chunk may have been lost between them.

    Args:
        networks: this part's, loaded on this process's device.
        dtype: of what it sends.
        shard: which part of the DiT it is; the whole by default.
        plan: of the session.
        exact_timings: wait for the GPU before returning.
    """

    def __init__(
        self,
        networks: CharacterModel,
        dtype: torch.dtype = torch.float32,
        shard: Shard | None = None,
        plan: ParallelPlan | None = None,
        *,
        exact_timings: bool = True,
    ) -> None:
        self._networks, self._dtype, self._exact_timings = networks, dtype, exact_timings
        self._plan = plan or ParallelPlan()
        self._shard = shard or shards(self._plan, networks.config)[0]
        self._last = networks.dit.head is not None
        self._group: ModelGroup | None = None
        self._exchanges: Mapping[str, Exchange] = {"local": LocalExchange(networks.device)}
        self._sampler: Sampler | None = None
        self._session: SessionSpec | None = None
        self._reference: Tensor | None = None
        self._idle = IdleMotion(1)
        self._condition = Graph(lambda mel, motion: networks.dit.conditioning(mel=mel, motion=motion)[0])
        self._switch: tuple[int, str] | None = None
        self.drops = self._plan.gpus == 1

    def reset(self, session: SessionSpec) -> None:
        """Start over with the session's portrait: prefill the cache from it, or be ready to when all parts have met.

        Raises:
            UserError: the portrait does not fit the model.
        """
        self._reference = self._networks.encode_portrait(session.portrait.copy())
        self._session = session
        self._idle = IdleMotion(1, seed=session.seed, sway=LIVE_SWAY)
        if self._plan.gpus == 1:
            self._start()

    def connect(self, path: str) -> None:
        """See `LoopRole.connect`.

        Raises:
            RuntimeError: another part did not come.
        """
        if self._plan.gpus == 1:
            return
        self._leave()
        self._group = ModelGroup(path, self._shard, self._plan, self._networks.device)
        self._exchanges = self._group.exchanges
        self._idle = self._group.agree(self._idle)
        self._start()

    @torch.inference_mode()
    def generate(self, window: Tensor | None = None, hidden: Tensor | None = None) -> Tensor:
        """The next chunk, or this part of it. If the only part raises, nothing has advanced and it can be called again.

        Args:
            window: float32 [48, 80], log-mel frames as `AudioAligner` makes them, on any device; for the first part.
            hidden: [rows + conditions, dim], what the part before returned; for the others.

        Returns:
            On this shard's device: [channels, h, w], the latent; or [rows + conditions, dim], what the next part takes.

        Raises:
            ExchangeBroken: another process of this part has gone.
        """
        assert self._sampler is not None, "reset comes first"
        networks, rows = self._networks, self._shard.rows
        idle = copy.copy(self._idle)  # its chunks replace its fields and change none in place
        stream, tokens = None, None
        if hidden is not None:
            # A copy: the channel's slot will be overwritten.
            stream = hidden[:rows].to(networks.device, networks.dtype, copy=True)
        if networks.config.dit.audio_dim:
            if hidden is not None:
                tokens = hidden[rows:].to(networks.device, networks.dtype, copy=True)[None]
            else:
                assert window is not None
                mel = window[None].to(networks.device, networks.dtype)
                motion = idle.next_chunk().to(networks.device, networks.dtype)
                tokens = self._condition(mel, motion)
        made = self._sampler.sample(tokens, stream)
        if self._last:
            made = made[0]
        elif tokens is not None:
            made = torch.cat((made, tokens[0]))
        made = made.to(self._dtype)
        if self._exact_timings and networks.device.type == "cuda":
            torch.cuda.current_stream(networks.device).synchronize()
        self._sampler.exchange.check()
        self._idle = idle
        return made

    def step(self, header: Header | None, inputs: Mapping[str, Tensor]) -> tuple[Header, dict[str, Tensor]]:
        """See `LoopRole.step`: "window" or "hidden" in, "hidden" or "latent" out."""
        assert header is not None
        if self._switch is not None and header.index >= self._switch[0]:
            assert self._sampler is not None
            self._sampler.exchange = self._exchanges[self._switch[1]]
            self._switch = None
        try:
            return header, {"latent" if self._last else "hidden": self.generate(**inputs)}
        except ExchangeBroken as error:  # nothing is wrong with this process
            raise ChannelAborted(str(error)) from error

    def switch(self, exchange: str, chunk: int) -> None:
        """Join the sequence group another way from a chunk on, without a pause. From any thread.

        Every rank of every part must be told the same, before the chunk is at the first of them.

        Args:
            exchange: "peer" (fused, straight into the other GPUs' memory) or "collective" (NCCL).
            chunk: index of the first chunk.

        Raises:
            UserError: there is no such way here.
        """
        if exchange not in self._exchanges:
            raise UserError(f"there is no exchange {exchange!r}; {did_you_mean(exchange, list(self._exchanges))}")
        self._switch = chunk, exchange

    def abort(self) -> None:
        """See `LoopRole.abort`."""
        if self._group is not None:
            self._group.abort("the session's channels were aborted")

    def close(self) -> None:
        """See `LoopRole.close`."""
        self._leave()

    def snapshot(self) -> dict[str, Any]:
        """See `LoopRole.snapshot`. The cache is not in it: gigabytes for a large model, refilled from the portrait."""
        return {"idle": copy.copy(self._idle)}

    def restore(self, state: dict[str, Any]) -> None:
        """See `LoopRole.restore`: the character goes on moving where it was."""
        self._idle = state["idle"]

    @torch.inference_mode()
    def _start(self) -> None:
        """Fill the cache from the portrait, part after part, and capture what a step replays."""
        assert self._reference is not None and self._session is not None
        networks, dit, reference = self._networks, self._networks.dit, self._reference
        still = self._still()
        if needs_calibration(dit):
            counts = (dit.config.sink + CHUNKS, dit.config.tokens, dit.config.dit.dim)
            self._hand_on(calibrate(dit, reference, still, still, hidden=self._from_before(counts)))
        exchange, *others = self._exchanges.values()
        sampler = Sampler(
            dit, reference, seed=self._session.seed, capture=networks.device.type == "cuda", exchange=exchange
        )
        told = None
        if not networks.config.dit.audio_dim:
            sampler.tell(still)
        else:
            told = still
        rows = (dit.config.sink, self._shard.rows, dit.config.dit.dim)
        self._hand_on(sampler.prefill(still, self._from_before(rows)))
        if networks.device.type == "cuda":
            if networks.config.dit.audio_dim and self._shard.stage == 0:
                window = reference.new_zeros(1, WINDOW_FRAMES, MEL_BINS)
                self._condition(window, reference.new_zeros(1, FRAMES_PER_CHUNK, len(MOTION_CHANNELS)))
            stream = None if self._shard.stage == 0 else reference.new_zeros(rows[1:])
            for sampler.exchange in (*others, exchange):
                sampler.warm(told, stream)
        self._sampler = sampler

    def _still(self) -> Tensor:
        """[1, conditions, dim], conditions of the reference image."""
        networks, dit = self._networks, self._networks.config.dit
        conditioning = networks.dit.conditioning
        if dit.audio_dim:
            return conditioning.reference(1).to(networks.dtype)
        text = torch.zeros(1, TEXT_TOKENS, dit.text_dim, device=networks.device, dtype=networks.dtype)
        return conditioning(text=text)[0]

    def _from_before(self, shape: tuple[int, ...]) -> Tensor | None:
        if self._shard.stage == 0:
            return None
        assert self._group is not None
        return self._group.receive(shape, self._networks.dtype)

    def _hand_on(self, made: Tensor) -> None:
        if not self._last:
            assert self._group is not None
            self._group.send(made)

    def _leave(self) -> None:
        self._sampler = self._switch = None
        group, self._group = self._group, None
        if group is not None:
            self._exchanges = {}
            group.close()
