"""The roles of a session that talks: those of `factory`, with a conversation beside the publisher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from actors.pipeline.context import StageContext
from actors.pipeline.header import Header
from actors.pipeline.loop import LoopRole
from actors.pipeline.session import SessionSpec
from actors.pipeline.topology import StageSpec, Topology
from actors.roles.aligner import AudioAligner
from actors.roles.outlet import Outlet
from actors.roles.publisher import RoomPublisher
from actors.room import factory
from actors.room.avatar import Avatar
from actors.room.conversation import Conversation
from actors.room.livekit import LivekitRoom
from actors.voice.config import VoiceConfig
from actors.voice.parts import OpenParts, load_parts


def build_roles(topology: Topology, stage: StageSpec) -> dict[str, LoopRole]:
    """See `factory.build_roles`; loads the models of the voice agent too.

    Raises:
        UserError: a model cannot be loaded, or a package, file or key that the voice needs is missing.
    """
    built = factory.build_roles(topology, stage)
    for role in stage.roles:
        publisher = built[role.name]
        if isinstance(publisher, RoomPublisher):
            aligner = built["aligner"]
            assert isinstance(aligner, AudioAligner)
            config = topology.profile.voice
            built[role.name] = TalkingPublisher(
                publisher.join, aligner, load_parts(config), config, len(topology.spans)
            )
    return built


class TalkingPublisher(RoomPublisher):
    """A publisher with a conversation in its room if the session has a character, or with an agent's avatar.

    Args:
        join: see `RoomPublisher`.
        aligner: of the same process.
        parts: opens the parts of the voice bridge.
        config: as given to the parts.
        spans: that a chunk has when it is published.
    """

    def __init__(
        self,
        join: Callable[[SessionSpec], Outlet],
        aligner: AudioAligner,
        parts: OpenParts,
        config: VoiceConfig,
        spans: int,
    ) -> None:
        super().__init__(join, aligner.clock, aligner, cuts=aligner.cuts)
        self._aligner, self._parts, self._config, self._spans = aligner, parts, config, spans
        self._session: SessionSpec | None = None
        self._state: dict[str, Any] | None = None
        self.conversation: Conversation | None = None
        self.avatar: Avatar | None = None

    def attach(self, context: StageContext) -> None:
        """See `LoopRole.attach`."""
        self._context = context

    def reset(self, session: SessionSpec) -> None:
        """See `RoomPublisher.reset`."""
        super().reset(session)
        self._session = session

    def restore(self, state: dict[str, Any]) -> None:
        """See `LoopRole.restore`: the conversation goes on from its newest snapshot."""
        super().restore(state)
        self._state = state.get("conversation")

    def connect(self, path: str) -> None:
        """See `LoopRole.connect`. An agent may send before the first chunk."""
        session = self._session
        if session is None or session.room.agent is None or self.avatar or not isinstance(self.room, LivekitRoom):
            return
        state = self._state or ({"open": []} if session.again else None)
        response_id = self._newest_response()
        self.avatar = Avatar(self.room, session.room.agent, self._aligner, self._context, response_id, state)

    def resume(self) -> None:
        """See `LoopRole.resume`."""
        if self.conversation is not None:
            self.conversation.interrupted()

    def step(self, header: Header | None, inputs: Mapping[str, Tensor]) -> tuple[Header, dict[str, Tensor]]:
        """See `LoopRole.step`."""
        if self.conversation is None:
            self._open()
        if self.avatar is not None and header is not None:
            self.avatar.leaving(header.response_id, self.deadline.due(self._now()))
        published, outputs = super().step(header, inputs)
        if self.avatar is not None:
            self.avatar.published()
        if self.conversation is not None:
            self.conversation.published(published, self._spans)
        return published, outputs

    def snapshot(self) -> dict[str, Any]:
        """See `LoopRole.snapshot`."""
        talks = self.conversation or self.avatar
        return super().snapshot() | {"conversation": talks.snapshot() if talks else self._state}

    def alone(self) -> float:
        """See `LoopRole.alone`; 0 before the first chunk."""
        return self.conversation.alone if self.conversation is not None else 0.0

    def ended(self) -> str:
        """See `LoopRole.ended`: the other side has hung up, or an avatar was sent out of the room."""
        return self.room.ended if isinstance(self.room, LivekitRoom) else ""

    def close(self) -> None:
        """See `RoomPublisher.close`."""
        if self.avatar is not None:
            self.avatar.close()
            self.avatar = None
        if self.conversation is not None:
            self.conversation.close()
            self.conversation = None
        super().close()

    def report(self, index: int, samples: int) -> None:
        """See `RoomPublisher.report`."""
        played = self._aligner.played(index, samples)
        if played and self.conversation is not None:
            self.conversation.played(*played)
        if played and self.avatar is not None:
            self.avatar.played(*played)

    def _newest_response(self) -> int:
        """No response of the process before this one goes on."""
        return max(self._cancelled, (self._state or {}).get("response_id", 0), 0)

    def _open(self) -> None:
        """With the first chunk: a state that there was to restore has been restored before it."""
        session = self._session
        if session is None or session.character is None or not isinstance(self.room, LivekitRoom):
            return
        if session.room.agent is not None:
            return
        self.conversation = Conversation(
            session.character,
            self._parts(session.character),
            self._config,
            self.room,
            self._aligner,
            self._context,
            self.misses,
            self._state,
            self._newest_response(),
            session.user,
            session.room.plain,
            clock=self.clock,
        )
