"""The room's process of a session that talks: the roles of `factory`, with a conversation beside the publisher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from actors.pipeline.header import Header
from actors.pipeline.loop import LoopRole
from actors.pipeline.session import SessionSpec
from actors.pipeline.topology import StageSpec, Topology
from actors.roles.aligner import AudioAligner
from actors.roles.outlet import Outlet
from actors.roles.publisher import RoomPublisher
from actors.room import factory
from actors.room.conversation import Conversation
from actors.room.livekit import LivekitRoom
from actors.voice.config import VoiceConfig
from actors.voice.parts import Parts, open_model
from actors.voice.stt import open_stt
from actors.voice.tts import open_speaker
from actors.voice.turn import open_end_of_turn
from actors.voice.vad import SileroVad
from characters.character import Character, Voice

OpenParts = Callable[[Character], Parts]


def build_roles(topology: Topology, stage: StageSpec) -> dict[str, LoopRole]:
    """See `factory.build_roles`; what the voice agent hears and speaks with is loaded as well.

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
                publisher.join, aligner, warm_parts(config), config, len(topology.places)
            )
    return built


def warm_parts(config: VoiceConfig) -> OpenParts:
    """Load what every session needs, before there is one.

    Returns:
        A function that adds what belongs to one session.

    Raises:
        UserError: a package, file or key is missing.
    """
    stt, end_of_turn = open_stt(config.stt), open_end_of_turn(config.turn)

    def parts(character: Character) -> Parts:
        return Parts(
            activity=SileroVad(),
            end_of_turn=end_of_turn,
            stt=stt,
            model=open_model(config, character),
            speaker=open_speaker(config.tts, character.voice),
        )

    trial = parts(Character(name="trial", portrait="none", voice=Voice()))
    trial.warm_stt()
    trial.warm_tts()
    return parts


class TalkingPublisher(RoomPublisher):
    """A publisher whose room is a conversation's, if the session has a character.

    Args:
        join: see `RoomPublisher`.
        aligner: of the same process.
        parts: opens the parts of the voice bridge.
        config: that they are opened with.
        places: that stamp a chunk.
    """

    def __init__(
        self,
        join: Callable[[SessionSpec], Outlet],
        aligner: AudioAligner,
        parts: OpenParts,
        config: VoiceConfig,
        places: int,
    ) -> None:
        super().__init__(join, aligner.played)
        self._aligner, self._parts, self._config, self._places = aligner, parts, config, places
        self._session: SessionSpec | None = None
        self._state: dict[str, Any] | None = None
        self.conversation: Conversation | None = None

    def reset(self, session: SessionSpec) -> None:
        """See `RoomPublisher.reset`."""
        super().reset(session)
        self._session = session

    def restore(self, state: dict[str, Any]) -> None:
        """See `LoopRole.restore`: the conversation goes on, as far as it was remembered."""
        super().restore(state)
        self._state = state.get("conversation")

    def resume(self) -> None:
        """See `LoopRole.resume`."""
        if self.conversation is not None:
            self.conversation.notice("one of the character's processes ended and was started again")

    def step(self, header: Header | None, inputs: Mapping[str, Tensor]) -> tuple[Header, dict[str, Tensor]]:
        """See `LoopRole.step`."""
        if self.conversation is None:
            self._open()
        published, outputs = super().step(header, inputs)
        if self.conversation is not None:
            self.conversation.chunk(published, self._places)
        return published, outputs

    def snapshot(self) -> dict[str, Any]:
        """See `LoopRole.snapshot`."""
        return super().snapshot() | {"conversation": self.conversation.snapshot() if self.conversation else self._state}

    def alone(self) -> float:
        """Seconds since the last user left; 0 while one is there, or before the first chunk."""
        return self.conversation.alone if self.conversation is not None else 0.0

    def close(self) -> None:
        """See `RoomPublisher.close`."""
        if self.conversation is not None:
            self.conversation.close()
            self.conversation = None
        super().close()

    def _open(self) -> None:
        """With the first chunk: by then all that was to be restored has been."""
        session = self._session
        if session is None or session.character is None or not isinstance(self.room, LivekitRoom):
            return
        # Whatever the process before this one may have said under a response is over.
        response_id = max(self._cancelled, (self._state or {}).get("response_id", 0), 0)
        self.conversation = Conversation(
            session.character,
            self._parts(session.character),
            self._config,
            self.room,
            self._aligner,
            lambda: self.deadline.misses,
            lambda turn: self.record(turn),
            lambda frame, at: self.shown(frame, at),
            self._state,
            response_id,
        )
