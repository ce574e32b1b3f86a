from __future__ import annotations

import math
from unittest.mock import ANY

import pytest

from deploy.planning.waiting import AdmissionConfig, Tenant
from deploy.serving.sessions import Action, Failure, NotAdmitted, RoomTaken, Session, Sessions, State
from tests.deploy.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> Sessions:
    made = Sessions(AdmissionConfig(queue=3, tenants={"gold": Tenant(1), "one": Tenant(0, 1)}), 20, 60, 30, clock)
    made.capacity = 2
    return made


def kinds(actions: list[Action]) -> list[tuple[str, Session]]:
    return [(a.kind, a.session) for a in actions]


def run(sessions: Sessions, name: str = "") -> Session:
    session = sessions.create("amara", name)
    sessions.joined(session.room, session.identity)
    return session


def test_a_session_from_beginning_to_end(sessions: Sessions, clock: Clock) -> None:
    session = sessions.create("amara", "Ada")
    assert session.state is State.READY
    assert kinds(sessions.joined(session.room, session.identity)) == [("start", session)]
    assert session.state is State.RUNNING
    assert sessions.joined(session.room, session.identity) == [], "the same webhook twice"
    assert sessions.left(session.room, session.identity) == []
    clock.now += 19
    assert sessions.tick() == []
    clock.now += 2
    assert kinds(sessions.tick()) == [("stop", session)]
    assert session.state is State.COMPLETED
    assert session.seated, "its pipeline is not free yet"
    assert sessions.freed(session) == []
    assert not session.seated


def test_who_comes_back_within_the_grace_period_finds_the_same_character(sessions: Sessions, clock: Clock) -> None:
    session = run(sessions)
    sessions.left(session.room, session.identity)
    clock.now += 15
    assert sessions.joined(session.room, session.identity) == []
    clock.now += 100
    assert sessions.tick() == []
    assert session.state is State.RUNNING


def test_the_third_waits_and_gets_in_when_one_leaves(sessions: Sessions, clock: Clock) -> None:
    first, _second = run(sessions), run(sessions)
    third, fourth = sessions.create("bao"), sessions.create("bao")
    assert (third.state, sessions.position(third), sessions.position(fourth)) == (State.NOT_READY, 1, 2)
    clock.now += 20
    assert sessions.estimated_wait(third) == pytest.approx(100, abs=1)
    assert kinds(sessions.cancel(first)) == [("stop", first)]
    assert first.state is State.COMPLETED
    assert third.state is State.NOT_READY, "the pipeline is still busy with the first"
    sessions.freed(first)
    assert (third.state, fourth.state) == (State.READY, State.NOT_READY)
    assert sessions.position(fourth) == 1


def test_admission_is_in_arrival_order(sessions: Sessions) -> None:
    first, second = run(sessions), run(sessions)
    waiting = [sessions.create("bao") for _ in range(3)]
    sessions.capacity = 3
    sessions.tick()
    assert [s.state for s in waiting] == [State.READY, State.NOT_READY, State.NOT_READY]
    for session in (first, second):
        sessions.cancel(session)
        sessions.freed(session)
    assert [s.state for s in waiting] == [State.READY] * 3


def test_a_newcomer_does_not_pass_those_who_wait(sessions: Sessions) -> None:
    run(sessions), run(sessions)
    waiting = sessions.create("bao")
    sessions.capacity = 3
    newcomer = sessions.create("bao")
    assert (waiting.state, newcomer.state) == (State.READY, State.NOT_READY)


def test_the_queue_is_bounded(sessions: Sessions) -> None:
    for _ in range(5):
        sessions.create("amara")
    with pytest.raises(NotAdmitted) as caught:
        sessions.create("amara")
    assert (caught.value.refused.code, caught.value.refused.retry_after) == ("queue_full", 120)


def test_keys_have_priorities_and_quotas(sessions: Sessions) -> None:
    first = sessions.create("amara", tenant="one")
    with pytest.raises(NotAdmitted, match="may have no more"):
        sessions.create("amara", tenant="one")
    run(sessions)
    waiting, gold = sessions.create("amara"), sessions.create("amara", tenant="gold")
    assert (sessions.position(gold), sessions.position(waiting)) == (1, 2)
    sessions.cancel(first)
    assert (gold.state, waiting.state) == (State.READY, State.NOT_READY)
    assert sessions.create("amara", tenant="one").state is State.NOT_READY, "its session is over"


def test_who_loses_the_pipeline_goes_on_in_the_next_that_is_free(sessions: Sessions) -> None:
    first, second, waiting = run(sessions), run(sessions), sessions.create("bao")
    sessions.capacity = 1
    assert sessions.displaced(first) == []
    assert (first.state, first.seated, sessions.position(first)) == (State.NOT_READY, False, 1)
    assert sessions.position(waiting) == 2
    sessions.cancel(second)
    assert kinds(sessions.freed(second)) == [("start", first)]
    assert (first.state, first.moves, waiting.state) == (State.RUNNING, 1, State.NOT_READY)


def test_where_nothing_can_run_nobody_is_let_in(sessions: Sessions) -> None:
    sessions.refuse("the decoder is too slow here")
    with pytest.raises(NotAdmitted, match="too slow") as caught:
        sessions.create("amara")
    assert caught.value.refused.code == "no_plan"
    sessions.refuse(None)
    assert sessions.create("amara").state is State.READY


def test_who_does_not_join_or_ask_loses_the_place(sessions: Sessions, clock: Clock) -> None:
    idle = sessions.create("amara")
    run(sessions)
    gone, patient = sessions.create("amara"), sessions.create("amara")
    for _ in range(7):
        clock.now += 10
        sessions.get(patient.id)
        actions = sessions.tick()
        if clock.now == 1040:
            assert kinds(actions) == [("close", gone)]
            assert gone.failure is not None
            assert gone.failure.code == "left_queue"
    assert idle.state is State.CANCELLED
    assert idle.failure is not None
    assert idle.failure.code == "not_joined"
    assert patient.state is State.READY


def test_a_user_who_waits_in_the_room_starts_at_once(sessions: Sessions, clock: Clock) -> None:
    first, _ = run(sessions), run(sessions)
    waiting = sessions.create("bao", room="lobby", identity="ada", waits_in_room=True)
    assert sessions.joined(waiting.room, "ada") == []
    clock.now += 1000
    sessions.get(first.id)
    assert waiting.state is State.NOT_READY
    sessions.cancel(first)
    assert kinds(sessions.freed(first)) == [("start", waiting)]
    assert waiting.state is State.RUNNING


def test_a_room_belongs_to_one_user(sessions: Sessions) -> None:
    session = sessions.create("bao", room="lobby", identity="ada")
    assert sessions.create("bao", room="lobby", identity="ada") is session
    with pytest.raises(RoomTaken):
        sessions.create("bao", room="lobby", identity="eve")
    with pytest.raises(RoomTaken):
        sessions.create("amara", room="lobby", identity="ada")
    assert sessions.create("bao", room="lobby", identity="eve", client="another").room != session.room
    assert sessions.joined(session.room, "eve") == []
    assert session.state is State.READY
    sessions.cancel(session)
    after = sessions.create("bao", room="lobby", identity="eve")
    assert after is not session and after.room != session.room, "a token of before opens another room"


def test_a_conversation_may_have_a_longest_length(clock: Clock) -> None:
    sessions = Sessions(AdmissionConfig(), 20, 60, 30, clock, longest=300)
    sessions.capacity = 1
    session = run(sessions)
    clock.now += 200
    sessions.displaced(session)
    assert session.state is State.RUNNING, "it goes on elsewhere"
    clock.now += 99
    assert sessions.tick() == []
    clock.now += 2
    assert kinds(sessions.tick()) == [("stop", session)]
    assert (session.state, session.failure) == (State.COMPLETED, Failure("time_limit", ANY))


def test_failures_have_a_code(sessions: Sessions) -> None:
    session = run(sessions)
    assert kinds(sessions.failed(session, "pipeline_failed", "it died")) == [("stop", session)]
    assert session.state is State.FAILED
    assert session.failure is not None
    assert session.failure.code == "pipeline_failed"
    assert sessions.failed(session, "again", "") == []
    assert sessions.cancel(session) == []


def test_without_pipelines_everybody_waits_and_nobody_is_promised_anything(sessions: Sessions) -> None:
    sessions.capacity = 0
    session = sessions.create("amara")
    assert session.state is State.NOT_READY
    assert math.isinf(sessions.estimated_wait(session))


def test_twenty_joins_and_leaves_in_a_second_leave_one_session(sessions: Sessions, clock: Clock) -> None:
    session = sessions.create("amara")
    starts = []
    for _ in range(20):
        starts += sessions.joined(session.room, session.identity)
        starts += sessions.left(session.room, session.identity)
        clock.now += 0.05
    assert kinds(starts) == [("start", session)]
    clock.now += 21
    assert kinds(sessions.tick()) == [("stop", session)]


def test_what_is_over_is_forgotten_in_the_end(sessions: Sessions, clock: Clock) -> None:
    session = sessions.create("amara")
    sessions.cancel(session)
    assert sessions.get(session.id) is session
    clock.now += 601
    sessions.tick()
    assert sessions.get(session.id) is None
    assert sessions.of_room(session.room) is None
