"""Makes latents: sound and idle motion in, the next latent frame out."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from actors.header import Header
from actors.loop import LoopRole
from actors.session import Session
from actors.topology import Role
from characters.errors import UserError
from characters.model.sampler import Sampler
from characters.motion import LIVE_SWAY, IdleMotion
from characters.stream import CharacterModel


class DitShard(LoopRole):
    """The DiT of one session, with its cache.

    Args:
        networks: loaded on this process's device.
        dtype: of the latents that it sends.
        role: which part of the DiT it is; the whole by default.
        exact_timings: wait for the GPU before returning.

    Raises:
        UserError: a part of the DiT, which the library cannot run yet.
    """

    def __init__(
        self,
        networks: CharacterModel,
        dtype: torch.dtype = torch.float32,
        role: Role | None = None,
        *,
        exact_timings: bool = True,
    ) -> None:
        layers = networks.config.dit.num_layers
        if role is not None and (role.layers != (0, layers) or role.ranks != 1):
            raise UserError("this version runs the DiT on one GPU a session: set pipeline and sequence to 1")
        self._networks, self._dtype, self._exact_timings = networks, dtype, exact_timings
        self._sampler: Sampler | None = None
        self._idle = IdleMotion(1)

    def reset(self, session: Session) -> None:
        """Start over with the session's portrait: prefill the cache from it.

        Raises:
            UserError: the portrait does not fit the model.
        """
        networks = self._networks
        sampler = Sampler(networks.dit, networks.encode_portrait(session.portrait.copy()), seed=session.seed)
        with torch.inference_mode():
            sampler.prefill(networks.dit.conditioning.reference(1).to(networks.dtype))
        self._sampler = sampler
        self._idle = IdleMotion(1, seed=session.seed, sway=LIVE_SWAY)

    @torch.inference_mode()
    def generate(self, window: Tensor) -> Tensor:
        """The next latent. If it raises, nothing has advanced and it can be called again.

        Args:
            window: float32 [48, 80], log-mel frames as `AudioAligner` makes them, on any device.

        Returns:
            [channels, h, w] on this shard's device.
        """
        assert self._sampler is not None, "reset comes first"
        networks = self._networks
        idle = copy.copy(self._idle)  # its chunks replace its fields and change none in place
        mel = window[None].to(networks.device, networks.dtype)
        motion = idle.next_chunk().to(networks.device, networks.dtype)
        tokens, _ = networks.dit.conditioning(mel=mel, motion=motion)
        latent = self._sampler.sample(tokens)[0].to(self._dtype)
        if self._exact_timings and networks.device.type == "cuda":
            torch.cuda.current_stream(networks.device).synchronize()
        self._idle = idle
        return latent

    def step(self, header: Header | None, inputs: Mapping[str, Tensor]) -> tuple[Header, dict[str, Tensor]]:
        """See `LoopRole.step`: "window" in, "latent" out."""
        assert header is not None
        return header, {"latent": self.generate(inputs["window"])}

    def snapshot(self) -> dict[str, Any]:
        """See `LoopRole.snapshot`. The cache is not in it: gigabytes for a large model, refilled from the portrait."""
        return {"idle": copy.copy(self._idle)}

    def restore(self, state: dict[str, Any]) -> None:
        """See `LoopRole.restore`: the character goes on moving where it was."""
        self._idle = state["idle"]
