"""The generator whose memory is a KV cache. A process holds the whole DiT or a part of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from characters.chunk import FRAMES_PER_CHUNK, MEL_BINS, MOTION_CHANNELS, Clock
from characters.errors import UserError, did_you_mean
from characters.generate.generator import StageClock
from characters.generate.group import ModelPeers
from characters.generate.hearing import WINDOW_FRAMES, Hearing, hearing_of
from characters.generate.injected_sound import InjectedSound
from characters.generate.motion import LIVE_SWAY, IdleMotion
from characters.generate.networks import Networks
from characters.model.calibrate import CHUNKS, calibrate
from characters.model.framepack import PIXEL_FRAMES
from characters.model.graph import Graph
from characters.model.plan import ParallelPlan, Shard, shards
from characters.model.quantise import needs_calibration
from characters.model.sampler import Sampler
from kernels.comm.exchange import Exchange, LocalExchange

# Empty text tokens that a model without sound is conditioned on.
TEXT_TOKENS = 64


class CachedGenerator:
    """See `Generator`; and, of a plan over several processes, one process's part of it.

    The first part of a pipeline hears the sound and moves the character. It hands its rows of the residual stream to
    the next part, with the condition tokens below them. The last part has the latent, on each of its ranks.

    What several processes hold is one state. It starts over from the portrait in all of them at every `connect`,
    because a chunk may have been lost between them.

    Args:
        networks: this part's, loaded on this process's device.
        shard: which part of the DiT it is; the whole by default.
        plan: of the session.
        dtype: of what is returned; default: the networks'.
        exact_timings: wait for the GPU after each stage.
    """

    emits: Literal["latents", "frames"] = "latents"

    def __init__(
        self,
        networks: Networks,
        shard: Shard | None = None,
        plan: ParallelPlan | None = None,
        *,
        dtype: torch.dtype | None = None,
        exact_timings: bool = True,
    ) -> None:
        self._networks, self._exact_timings = networks, exact_timings
        self._dtype = dtype or networks.dtype
        self._plan = plan or ParallelPlan()
        self._shard = shard or shards(self._plan, networks.config)[0]
        self.whole, self.last = self._plan.gpus == 1, networks.dit.head is not None
        self.clock: Clock
        self.hearing: Hearing
        self.timings: dict[str, float] = {}
        self._peers: ModelPeers | None = None
        self._exchanges: Mapping[str, Exchange] = {"local": LocalExchange(networks.device)}
        self._sampler: Sampler | None = None
        self._sound = InjectedSound(networks) if networks.config.s2v is not None else None
        self.clock, self.hearing = networks.config.clock, hearing_of(networks.config)
        self._reference: Tensor | None = None
        self._clip: Tensor | None = None
        self._seed = 0
        self._idle = IdleMotion(1)
        self._condition = Graph(lambda mel, motion: networks.dit.conditioning(mel=mel, motion=motion)[0])

    @property
    def index(self) -> int:
        """The chunk that `generate` will make next."""
        assert self._sampler is not None, "start comes first"
        return self._sampler.index

    def start(self, portrait: np.ndarray, seed: int = 0) -> None:
        """See `Generator.start`: fill the cache from the portrait, or be ready to when all parts have met."""
        if self._sound is None:
            self._reference = self._networks.encode_portrait(portrait)
        else:
            self._reference = self._networks.encode_still(portrait, 5)[1:]
            self._clip = self._networks.encode_still(portrait, PIXEL_FRAMES)
        self._seed = seed
        self._idle = IdleMotion(1, seed=seed, sway=LIVE_SWAY)
        if self.whole:
            self._begin()

    def connect(self, path: str) -> None:
        """Meet the other parts, which all call this at once, and start over from the portrait.

        Args:
            path: of a file that does not exist yet, the same for all parts and different at every call.

        Raises:
            RuntimeError: another part did not come.
        """
        if self.whole:
            return
        self.close()
        self._peers = ModelPeers(path, self._shard, self._plan, self._networks.device)
        self._exchanges = self._peers.exchanges
        self._idle = self._peers.agree_in_sequence(self._idle)
        self._begin()

    @torch.inference_mode()
    def generate(self, heard: Tensor | None = None, hidden: Tensor | None = None) -> Tensor:
        """The next chunk, or this part of it. If the only part raises, nothing has advanced and it can be called again.

        Args:
            heard: float32, from `hearing`, on any device; for the first part.
            hidden: [rows + conditions, dim], what the part before returned; for the others.

        Returns:
            On this part's device: [channels, h, w], the latent, or [latents, channels, h, w]; or [rows + conditions,
            dim], what the next part takes.

        Raises:
            ExchangeBroken: another process of this part has gone, or `cancel` was called.
        """
        assert self._sampler is not None, "start comes first"
        networks, rows = self._networks, self._shard.rows
        clock = StageClock(networks.device, self._exact_timings)
        idle = copy.copy(self._idle)  # its chunks replace its fields and change none in place
        stream, tokens, sound = None, None, None
        if hidden is not None:
            # A copy: the channel's slot will be overwritten.
            stream = hidden[:rows].to(networks.device, networks.dtype, copy=True)
        if networks.config.dit.audio_dim:
            if hidden is not None:
                tokens = hidden[rows:].to(networks.device, networks.dtype, copy=True)[None]
            else:
                assert heard is not None
                mel = heard[None].to(networks.device, networks.dtype)
                motion = idle.next_chunk().to(networks.device, networks.dtype)
                tokens = self._condition(mel, motion)
                clock.stage("audio")
        if self._sound is not None:
            assert heard is not None
            sound = self._sound.listen(heard)
            clock.stage("audio")
        made = self._sampler.sample(tokens, stream, sound)
        if self.last and len(made) == 1:
            made = made[0]
        elif not self.last and tokens is not None:
            made = torch.cat((made, tokens[0]))
        made = made.to(self._dtype)
        clock.stage("dit")
        self._sampler.exchange.check()
        self._idle, self.timings = idle, clock.seconds
        return made

    def switch(self, exchange: str) -> None:
        """Join the sequence group another way from the next chunk on, without a pause.

        Args:
            exchange: "peer" (fused, straight into the other GPUs' memory) or "collective" (NCCL). Every rank of every
                part must switch at the same chunk.

        Raises:
            UserError: there is no such way here.
        """
        self.check_exchange(exchange)
        assert self._sampler is not None, "start comes first"
        self._sampler.exchange = self._exchanges[exchange]

    def check_exchange(self, exchange: str) -> None:
        """Raise UserError if there is no such way to join the sequence group."""
        if exchange not in self._exchanges:
            raise UserError(f"there is no exchange {exchange!r}; {did_you_mean(exchange, list(self._exchanges))}")

    def snapshot(self) -> dict[str, Any]:
        """See `Generator.snapshot`. The cache is not in it: it is gigabytes, and is filled again from the portrait."""
        return {"idle": copy.copy(self._idle)}

    def restore(self, state: dict[str, Any]) -> None:
        """See `Generator.restore`: the character goes on moving where it was."""
        self._idle = state["idle"]

    def cancel(self) -> None:
        """See `Generator.cancel`."""
        if self._peers is not None:
            self._peers.abort("the session's channels were aborted")

    def close(self) -> None:
        """See `Generator.close`."""
        self._sampler = None
        peers, self._peers = self._peers, None
        if peers is not None:
            self._exchanges = {}
            peers.close()

    @torch.inference_mode()
    def _begin(self) -> None:
        """Fill the cache from the portrait, part after part, and capture what a step replays."""
        assert self._reference is not None
        networks, dit, reference = self._networks, self._networks.dit, self._reference
        still = self._still()
        if needs_calibration(dit):
            counts = (dit.config.sink + CHUNKS, dit.config.tokens, dit.config.dit.dim)
            before, sound = self._from_before(counts), self._noise_heard()
            self._hand_on(calibrate(dit, reference, still, still, hidden=before, clip=self._clip, sound=sound))
        exchange, *others = self._exchanges.values()
        sampler = Sampler(dit, reference, seed=self._seed, capture=True, exchange=exchange)
        told = None
        if not networks.config.dit.audio_dim:
            sampler.tell(still)
        else:
            told = still
        rows = (dit.config.sink, self._shard.rows, dit.config.dit.dim)
        self._hand_on(sampler.prefill(still, self._from_before(rows), self._clip))
        if networks.device.type == "cuda":
            if networks.config.dit.audio_dim and self._shard.stage == 0:
                window = reference.new_zeros(1, WINDOW_FRAMES, MEL_BINS)
                self._condition(window, reference.new_zeros(1, FRAMES_PER_CHUNK, len(MOTION_CHANNELS)))
            stream = None if self._shard.stage == 0 else reference.new_zeros(rows[1:])
            for sampler.exchange in (*others, exchange):
                sampler.warm(told, stream, self._noise_heard())
        self._sampler = sampler

    def _noise_heard(self) -> tuple[Tensor, Tensor] | None:
        """What a model with s2v makes of noise."""
        if self._sound is None:
            return None
        return self._sound.listen(torch.randn(self.hearing.shape, generator=torch.Generator().manual_seed(0)))

    def _still(self) -> Tensor:
        """[1, conditions, dim], conditions of the reference image."""
        networks, dit = self._networks, self._networks.config.dit
        conditioning = networks.dit.conditioning
        if dit.audio_dim:
            return conditioning.reference(1).to(networks.dtype)
        if networks.prompt is not None:
            return conditioning(text=networks.prompt)[0]
        text = torch.zeros(1, TEXT_TOKENS, dit.text_dim, device=networks.device, dtype=networks.dtype)
        return conditioning(text=text)[0]

    def _from_before(self, shape: tuple[int, ...]) -> Tensor | None:
        if self._shard.stage == 0:
            return None
        assert self._peers is not None
        return self._peers.receive(shape, self._networks.dtype)

    def _hand_on(self, made: Tensor) -> None:
        if not self.last:
            assert self._peers is not None
            self._peers.send(made)
