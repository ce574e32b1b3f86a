"""Roles that stand in for the networks: a frame is bright exactly if the model heard sound under it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from actors.pipeline.context import StageContext
from actors.pipeline.header import Header
from actors.pipeline.loop import LoopRole
from actors.pipeline.topology import StageSpec, Topology
from actors.room.factory import build_roles
from characters.generate.hearing import PAST_FRAMES, SILENCE

DARK, BRIGHT = 20, 200


class FakeDit(LoopRole):
    """latent[f, 0, 0] says whether frame f has sound."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.steps = 0
        self.delay = 0.0
        self.faults = 0
        self.portraits: list[float] = []

    def reset(self, session: Any) -> None:
        self.portraits.append(float(session.portrait.mean()))

    def attach(self, context: StageContext) -> None:
        self.context = context

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "context"}

    def step(self, header: Header | None, inputs: Mapping[str, Tensor]) -> tuple[Header, dict[str, Tensor]]:
        assert header is not None
        time.sleep(self.delay)
        if self.faults:
            self.faults -= 1
            raise RuntimeError("a fault that was asked for")
        latent = torch.zeros(self.shape)
        for frame in range(4):
            mel = inputs["heard"][PAST_FRAMES + 4 * frame + 3]
            latent[frame, 0, 0] = float((mel > SILENCE + 0.01).any())
        self.steps += 1
        return header, {"latent": latent}

    def snapshot(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def restore(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


class FakeDecoder(LoopRole):
    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def step(self, header: Header | None, inputs: Mapping[str, Tensor]) -> tuple[Header, dict[str, Tensor]]:
        assert header is not None
        luma = DARK + (BRIGHT - DARK) * inputs["latent"][:4, 0, 0]
        return header, {"frames": luma.to(torch.uint8)[:, None, None].expand(self.shape).contiguous()}


def build(topology: Topology, stage: StageSpec) -> dict[str, LoopRole]:
    """A factory for `actors.pipeline.stage`."""
    if stage.name == "room":
        return build_roles(topology, stage)
    built: dict[str, LoopRole] = {}
    for role in stage.roles:
        shape = topology.outputs(role.name)[0].spec.shape
        built[role.name] = FakeDit(shape) if role.kind == "dit" else FakeDecoder(shape)
    return built


def build_on_pretended_gpus(topology: Topology, stage: StageSpec) -> dict[str, LoopRole]:
    """The same, and each role knows the GPU that its process was given."""
    roles = build(topology, stage)
    for role in roles.values():
        role.gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")  # type: ignore[attr-defined]
    return roles
