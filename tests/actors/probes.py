"""What tests ask of the roles of a running gang."""

from __future__ import annotations

import numpy as np

from actors.pipeline.deadline import Deadline
from actors.pipeline.gang import Gang
from actors.roles.aligner import Account, AudioAligner
from actors.roles.publisher import RoomPublisher
from actors.room.stub import StubRoom
from tests.actors.fakes import FakeDit


def push(gang: Gang, response_id: int, pcm: np.ndarray) -> int:
    def question(aligner: AudioAligner) -> int:
        return aligner.push(response_id, pcm)

    return gang.ask("aligner", question)


def account(gang: Gang, response_id: int) -> Account:
    def question(aligner: AudioAligner) -> Account:
        return aligner.account(response_id)

    return gang.ask("aligner", question)


def issued(gang: Gang) -> int:
    """Chunks that the aligner has decided on."""

    def question(aligner: AudioAligner) -> int:
        return int(aligner.snapshot()["index"])

    return gang.ask("aligner", question)


def deadline(gang: Gang) -> Deadline:
    def question(publisher: RoomPublisher) -> Deadline:
        return publisher.deadline

    return gang.ask("publisher", question)


def room(gang: Gang) -> StubRoom:
    def question(publisher: RoomPublisher) -> StubRoom:
        assert isinstance(publisher.room, StubRoom)
        return publisher.room

    return gang.ask("publisher", question)


def model(gang: Gang) -> FakeDit:
    """A copy of the model."""

    def question(dit: FakeDit) -> FakeDit:
        return dit

    return gang.ask("dit.0.0", question)


def change_model(gang: Gang, *, delay: float = 0.0, faults: int = 0) -> None:
    def question(dit: FakeDit) -> None:
        dit.delay, dit.faults = delay, faults

    gang.ask("dit.0.0", question)
