"""Builds the roles of one process, wired to each other."""

from __future__ import annotations

import torch

from actors.pipeline.loop import LoopRole
from actors.pipeline.session import SessionSpec
from actors.pipeline.topology import StageSpec, Topology
from actors.roles.aligner import AudioAligner
from actors.roles.decoder import Decoder
from actors.roles.frame_generator import FrameGenerator
from actors.roles.generator_shard import GeneratorShard
from actors.roles.outlet import Outlet
from actors.roles.publisher import RoomPublisher
from actors.room.livekit import LivekitRoom
from actors.room.stub import StubRoom
from characters.generate.cached import CachedGenerator
from characters.generate.decoder import LatentDecoder
from characters.generate.hearing import hearing_of
from characters.generate.networks import load_networks
from characters.generate.window import WindowGenerator
from characters.media.mark import Mark
from characters.model.config import ModelConfig


def build_roles(topology: Topology, stage: StageSpec) -> dict[str, LoopRole]:
    """The roles of `stage` by name, models loaded.

    Raises:
        UserError: the model cannot be loaded on the stage's device.
    """
    profile, model = topology.profile, topology.model
    built: dict[str, LoopRole] = {}
    exact, networks = profile.exact_timings, None
    if any(role.kind in ("dit", "decoder", "generator") for role in stage.roles):
        shard = next((role.shard for role in stage.roles if role.shard is not None), None)
        layers = shard.layers if shard is not None else None if model.window is not None else (0, 0)
        networks = load_networks(
            model, stage.device, layers=layers, precision=profile.precision, random_weights=model.random_weights
        )
    for role in stage.roles:
        match role.kind:
            case "aligner":
                built[role.name] = AudioAligner(model.clock, hearing_of(model), cuts=topology.cuts)
            case "dit":
                assert networks is not None
                dtype = getattr(torch, profile.dtype)
                generator = CachedGenerator(networks, role.shard, profile.plan, dtype=dtype, exact_timings=exact)
                built[role.name] = GeneratorShard(generator)
            case "generator":
                assert networks is not None
                built[role.name] = FrameGenerator(WindowGenerator(networks, exact_timings=exact))
            case "decoder":
                assert networks is not None
                bands = max(profile.plan.decoder, 1)
                built[role.name] = Decoder(LatentDecoder(networks, role.band, bands, exact_timings=exact))
            case "publisher":
                aligner = built["aligner"]
                assert isinstance(aligner, AudioAligner)
                built[role.name] = RoomPublisher(
                    lambda session: _join(session, model, profile.mark), model.clock, aligner, cuts=topology.cuts
                )
    return built


def _join(session: SessionSpec, model: ModelConfig, mark: bool) -> Outlet:
    if session.room.kind == "stub":
        return StubRoom()
    drawn = Mark(model.height, model.width) if mark else None
    return LivekitRoom(session.room, model.height, model.width, model.clock.fps, drawn)
