"""Whole sessions in real Ray processes: lockstep, hops, back-pressure, barge-in, and death of each stage."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from actors.pipeline.gang import Gang, GangFailed
from actors.pipeline.session import RoomAddress, SessionSpec
from actors.pipeline.topology import Profile, Topology, plan_topology
from characters.chunk import CHUNK_SECONDS
from characters.errors import UserError
from characters.model.plan import ParallelPlan
from tests.actors import probes
from tests.actors.fakes import BRIGHT, DARK
from tests.actors.probes import account, change_model, deadline, issued, push

pytestmark = pytest.mark.usefixtures("ray_started")

FAKES = "tests.actors.fakes:build"
STAGES = ("room", "dit.0.0", "decoder")
OPTIONS = {"on_state": lambda state, reason: None, "health_timeout": 10.0, "stall_timeout": 20.0, "max_rebuilds": 5}

Start = Callable[..., Gang]


def portrait(value: int = 90) -> np.ndarray:
    return np.full((64, 48, 3), value, np.uint8)


@pytest.fixture(scope="module")
def kept(ray_started: None) -> Iterator[list[Gang]]:
    """At most one gang of the fakes, which the tests that need nothing else renew and use one after the other."""
    gangs: list[Gang] = []
    yield gangs
    for gang in gangs:
        gang.stop()


@pytest.fixture
def start(tiny_model: str, kept: list[Gang]) -> Iterator[Start]:
    """Starts gangs, and sees that nothing is left of them but the one that is kept."""
    gangs: list[Gang] = []

    def start_gang(
        *,
        session: SessionSpec | None = None,
        profile: dict[str, Any] | None = None,
        topology: Topology | None = None,
        factory: str = FAKES,
        **options: Any,
    ) -> Gang:
        settings = {"model": tiny_model, "cpus": 0.1, "flight": 2} | (profile or {})
        special = profile or topology or factory != FAKES
        if kept and special:
            kept.pop().stop()
        if kept:
            gang = kept.pop()
            gang.renew(gang.topology)
            for name, value in (OPTIONS | options).items():
                setattr(gang, name if name == "on_state" else f"_{name}", value)
            gang.ask("dit.0.0", lambda dit: dit.portraits.clear())
        else:
            topology = topology or plan_topology(Profile(**settings))
            gang = Gang(topology, factory=factory, health_period=0.3, **OPTIONS | options)
        gangs.append(gang)
        gang.start(session or SessionSpec(portrait()))
        if not special:
            kept.append(gang)
        return gang

    yield start_gang
    gone = [gang for gang in gangs if gang not in kept or gang.state != "running"]
    pids = [pid for gang in gone for pid in pids_of(gang).values()]
    for gang in gone:
        gang.stop()
    kept[:] = [gang for gang in kept if gang not in gone]
    used = sum(bundle["CPU"] for gang in kept for bundle in gang.topology.bundles)
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "a stage's process is still there")
    eventually(lambda: free("CPU") == round(4 - used, 3) and free("GPU") == 4, "resources are still taken")
    assert len(list(Path(tempfile.gettempdir()).glob("characters-*"))) <= len(kept), "a folder of sockets is left"


def free(resource: str) -> float:
    return round(ray.available_resources().get(resource, 0.0), 3)


def eventually(condition: Callable[[], bool], what: str, timeout: float = 20.0) -> None:
    give_up = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < give_up, what
        time.sleep(0.02)


def pids_of(gang: Gang) -> dict[str, int]:
    return {name: ray.get(stage.pid.remote()) for name, stage in gang._stages.items()}


def published(gang: Gang) -> list[int]:
    return [header.index for header in gang.trace().chunks]


def wait_for_chunks(gang: Gang, count: int) -> None:
    eventually(lambda: len(published(gang)) >= count, f"{count} chunks were not published")


def assert_goes_on(gang: Gang) -> None:
    wait_for_chunks(gang, len(published(gang)) + 3)


def bursts(blocks: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Noise that is on or off for a frame's length at random: float32 [1000 * blocks], and bool [blocks]."""
    rng = np.random.default_rng(seed)
    on = rng.random(blocks) < 0.5
    on[0] = on[-1] = True
    return (np.repeat(on, 1000) * rng.uniform(-0.5, 0.5, 1000 * blocks)).astype(np.float32), on


def seen_and_heard(gang: Gang) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of every frame: whether it was bright, whether it had sound, and how far apart the two left (seconds)."""
    room = probes.room(gang)
    video, audio = list(room.video), list(room.audio)
    count = min(len(video), len(audio))
    bright = np.array([luma > (DARK + BRIGHT) / 2 for _, _, luma, _ in video[:count]])
    loud = np.array([peak > 0 for _, _, peak in audio[:count]])
    skew = np.array([v[0] - a[0] for v, a in zip(video, audio, strict=False)])
    return bright, loud, skew


def test_lockstep(start: Start) -> None:
    """Real sound through real processes: every frame shows what is heard under it, and nothing is lost."""
    gang = start()
    pcm, on = bursts(60)
    assert push(gang, 0, pcm) == len(pcm)
    eventually(lambda: account(gang, 0).played == len(pcm), "the sound was not played")
    assert gang.alone() == 0.0, "a stub room has no users who could leave"
    bright, loud, skew = seen_and_heard(gang)
    assert np.array_equal(bright, loud)
    first = int(np.argmax(loud))
    assert np.array_equal(loud[first : first + len(on)], on)
    assert np.abs(skew).max() < 0.045
    indices = published(gang)
    assert indices == list(range(len(indices)))
    left = deadline(gang)
    print(f"\n{left.chunks} chunks, {left.misses} late, A/V skew at most {np.abs(skew).max() * 1e3:.2f} ms")


def test_a_slow_model_slows_everything_and_nothing_piles_up(start: Start) -> None:
    gang = start()
    wait_for_chunks(gang, 3)
    change_model(gang, delay=0.4)
    before = deadline(gang)
    time.sleep(3)
    after = deadline(gang)
    chunks = after.chunks - before.chunks
    assert 5 <= chunks <= 9, "it runs at the model's pace"
    assert after.misses - before.misses >= chunks - 3
    assert issued(gang) - deadline(gang).chunks <= 4
    # The clock has moved on by the time lost: sound that was not played has not been skipped.
    bright, loud, _ = seen_and_heard(gang)
    assert np.array_equal(bright, loud)
    change_model(gang, delay=0.0)
    misses = deadline(gang).misses
    time.sleep(1.5)
    assert deadline(gang).misses - misses <= 2


def test_a_fast_model_does_not_run_ahead(start: Start) -> None:
    gang = start()
    wait_for_chunks(gang, 2)
    for _ in range(20):
        decided, shown = issued(gang), deadline(gang).chunks
        assert decided - shown <= 3
        time.sleep(0.03)


def test_barge_in(start: Start) -> None:
    gang = start()
    wait_for_chunks(gang, 3)
    reactions = []
    for response_id in range(0, 8, 2):
        push(gang, response_id, np.full(200_000, 0.5, np.float32))
        eventually(lambda r=response_id: account(gang, r).played > 0, "the reply was not played")
        time.sleep(0.2 + 0.04 * response_id)
        asked = time.monotonic()
        gang.cancel(response_id)
        time.sleep(0.6)
        reactions.append(max(t for t, _, peak in probes.room(gang).audio if peak > 0) - asked)
        heard = account(gang, response_id)
        assert 0 < heard.played < heard.pushed
        push(gang, response_id + 1, np.full(8_000, 0.5, np.float32))
        eventually(
            lambda r=response_id: account(gang, r + 1).played == 8_000,
            "the next reply was not played",
        )
    print(f"\nsilent after {', '.join(f'{max(r, 0) * 1e3:.0f}' for r in reactions)} ms")
    assert max(reactions) < CHUNK_SECONDS
    dropped = [sum(d for _, d in ray.get(s.counts.remote()).values()) for s in gang._stages.values()]
    assert sum(dropped) > 0


def test_a_role_can_cancel_a_response_everywhere(start: Start) -> None:
    gang = start()
    push(gang, 3, np.full(200_000, 0.5, np.float32))
    eventually(lambda: account(gang, 3).played > 0, "the reply was not played")
    gang.ask("dit.0.0", lambda dit: dit.context.cancel(3))
    time.sleep(0.5)
    assert gang.ask("aligner", lambda aligner: aligner.queued) == 0
    bright, loud, _ = seen_and_heard(gang)
    assert not bright[-4:].any() and not loud[-4:].any()
    eventually(lambda: gang._states.get("aligner", {}).get("cancelled") == 3, "the gang has not heard of it")


@pytest.mark.parametrize("victim", STAGES)
def test_a_killed_stage_is_replaced_and_the_session_goes_on(start: Start, victim: str) -> None:
    states: list[tuple[str, str]] = []
    gang = start(
        on_state=lambda state, reason: states.append((state, reason)), session=SessionSpec(portrait(123), seed=4)
    )
    pcm, on = bursts(120, seed=1)
    push(gang, 5, pcm)
    eventually(lambda: account(gang, 5).played > 20_000, "the sound was not played")
    time.sleep(0.8)  # long enough for a snapshot to have been fetched
    before, last = pids_of(gang), published(gang)[-1]
    killed = time.monotonic()
    os.kill(before[victim], signal.SIGKILL)
    eventually(lambda: [s for s, _ in states] == ["running", "rebuilding", "running"], f"not rebuilt: {states}")
    rebuilt = time.monotonic() - killed
    eventually(lambda: published(gang)[-1:] > [last], "no chunk after the rebuild")
    shown = time.monotonic() - killed
    print(f"\nSIGKILL of {victim}: running again after {rebuilt:.2f} s, next chunk after {shown:.2f} s")
    after = pids_of(gang)
    assert {name for name in STAGES if before[name] != after[name]} == {victim}
    assert probes.model(gang).portraits == [123.0]
    assert probes.model(gang).steps > 0
    if victim == "room":
        assert published(gang)[0] > last - 10, "the clock did not go on"
        return
    eventually(lambda: account(gang, 5).played == len(pcm), "the sound was not played to its end")
    bright, loud, _ = seen_and_heard(gang)
    assert np.array_equal(bright, loud)
    first = int(np.argmax(loud))
    assert np.array_equal(loud[first : first + len(on)], on), "sound was lost or repeated"
    indices = published(gang)
    assert indices == list(range(len(indices)))
    assert deadline(gang).misses >= 1


def test_a_role_that_raises_is_replaced(start: Start) -> None:
    states: list[tuple[str, str]] = []
    gang = start(on_state=lambda state, reason: states.append((state, reason)))
    wait_for_chunks(gang, 3)
    change_model(gang, faults=1)
    eventually(lambda: len(states) == 3, "not rebuilt")
    assert states[1][0] == "rebuilding" and "a fault that was asked for" in states[1][1]
    assert_goes_on(gang)


def test_a_stage_that_hangs_is_killed_and_replaced(start: Start) -> None:
    states: list[str] = []
    gang = start(on_state=lambda state, reason: states.append(state), health_timeout=1.0)
    wait_for_chunks(gang, 3)
    pid = pids_of(gang)["decoder"]
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: states == ["running", "rebuilding", "running"], "not rebuilt")
    assert not Path(f"/proc/{pid}").exists()
    assert_goes_on(gang)


def test_a_standby_takes_the_place_of_who_dies_or_hangs(start: Start) -> None:
    """Its weights are loaded: the user waits for the notice, the room and the channels only."""
    states: list[tuple[float, str]] = []
    gang = start(profile={"standby": "all"}, on_state=lambda state, reason: states.append((time.monotonic(), state)))
    told = []
    for victim, blow in (("decoder", signal.SIGSTOP), ("room", signal.SIGKILL), ("dit.0.0", signal.SIGSTOP)):
        wait_for_chunks(gang, 8)
        standby = ray.get(gang._standbys["standby"].pid.remote())
        eventually(lambda: bool(ray.wait([gang._loading["standby"]], timeout=0)[0]), "no standby is loaded")
        before, last, count = pids_of(gang), published(gang)[-1], len(states)
        struck = time.monotonic()
        os.kill(before[victim], blow)
        eventually(lambda c=count: len(states) >= c + 2, f"not rebuilt after {victim}")
        noticed = states[count][0] - struck
        eventually(lambda n=last: published(gang)[-1:] > [n], "no chunk after the rebuild")
        shown = time.monotonic() - struck
        told.append(f"{victim}: noticed after {noticed:.2f} s, next chunk after {shown:.2f} s")
        after = pids_of(gang)
        assert after == before | {victim: standby}
        eventually(lambda b=before, v=victim: not Path(f"/proc/{b[v]}").exists(), "the old process is still there")
        assert noticed <= 1.5 and shown <= noticed + 3.0, told
        eventually(lambda: "standby" in gang._standbys, "no other standby is loaded")
    print("\n" + "\n".join(told))
    assert [state for _, state in states] == ["running"] + ["rebuilding", "running"] * 3


def test_without_its_standby_a_stage_is_loaded_as_before(start: Start) -> None:
    states: list[str] = []
    gang = start(profile={"standby": "room"}, on_state=lambda state, reason: states.append(state))
    wait_for_chunks(gang, 3)
    os.kill(ray.get(gang._standbys["standby.room"].pid.remote()), signal.SIGSTOP)
    os.kill(pids_of(gang)["room"], signal.SIGKILL)
    eventually(lambda: states == ["running", "rebuilding", "running"], f"not rebuilt: {states}")
    assert_goes_on(gang)


def test_a_session_in_which_nothing_moves_is_connected_anew(start: Start) -> None:
    states: list[str] = []
    gang = start(on_state=lambda state, reason: states.append(state), stall_timeout=2.0)
    wait_for_chunks(gang, 3)
    assert states == ["running"]
    change_model(gang, delay=600.0)  # it answers all the same
    eventually(lambda: states == ["running", "rebuilding", "running"], "not rebuilt", timeout=40.0)
    assert_goes_on(gang)


def test_another_session_in_the_same_processes(start: Start) -> None:
    states: list[str] = []
    gang = start(session=SessionSpec(portrait(123)), on_state=lambda state, reason: states.append(state))
    gang.cancel(3)
    wait_for_chunks(gang, 8)
    before = pids_of(gang)
    began = time.monotonic()
    gang.renew(gang.topology)
    after = pids_of(gang)
    assert {name for name in STAGES if before[name] != after[name]} == {"room"}
    gang.renew(gang.topology)  # nobody came
    gang.start(SessionSpec(portrait(45)))
    wait_for_chunks(gang, 4)
    print(f"\nanother session's fourth chunk after {time.monotonic() - began:.2f} s")
    assert states == ["running", "starting", "starting", "running"]
    assert probes.model(gang).portraits == [123.0, 45.0]
    assert published(gang)[0] == 0
    pcm, _ = bursts(20)
    assert push(gang, 0, pcm) == len(pcm)  # a response that was cancelled in the last session
    eventually(lambda: account(gang, 0).played == len(pcm), "the sound was not played")
    os.kill(pids_of(gang)["decoder"], signal.SIGKILL)
    eventually(lambda: states[-2:] == ["rebuilding", "running"], "not rebuilt")


def test_what_died_is_replaced_for_the_next_session(start: Start) -> None:
    gang = start()
    wait_for_chunks(gang, 3)
    change_model(gang, delay=600.0)  # it will not stop
    time.sleep(1)
    before = pids_of(gang)
    gang.renew(gang.topology)
    after = pids_of(gang)
    assert {name for name in STAGES if before[name] != after[name]} == {"room", "dit.0.0"}
    gang.start(SessionSpec(portrait()))
    wait_for_chunks(gang, 3)
    gang.stop()
    with pytest.raises(GangFailed):
        gang.renew(gang.topology)


def test_a_session_that_keeps_failing_ends(start: Start) -> None:
    states: list[tuple[str, str]] = []
    gang = start(on_state=lambda state, reason: states.append((state, reason)), max_rebuilds=1)
    wait_for_chunks(gang, 2)
    os.kill(pids_of(gang)["decoder"], signal.SIGKILL)
    eventually(lambda: [state for state, _ in states] == ["running", "rebuilding", "running"], "not rebuilt")
    os.kill(pids_of(gang)["decoder"], signal.SIGKILL)
    eventually(lambda: gang.state == "failed", "it did not end")
    assert "2 failures within 60 s" in gang.reason
    eventually(lambda: not gang._stages, "stages are left")
    gang.stop()
    assert gang.state == "failed"


def test_a_room_that_cannot_be_joined_is_the_users_error(start: Start) -> None:
    address = RoomAddress("livekit", "ws://127.0.0.1:9", "no token")
    gang = start()
    gang.renew(gang.topology)
    before = pids_of(gang)
    with pytest.raises(UserError, match="cannot join the LiveKit room"):
        gang.start(SessionSpec(portrait(), room=address))
    gang.renew(gang.topology)
    gang.start(SessionSpec(portrait()))
    wait_for_chunks(gang, 5)
    after = pids_of(gang)
    assert {name for name in before if before[name] == after[name]} == {"dit.0.0", "decoder"}, "weights were lost"


def test_networks_in_the_pipeline_and_the_cost_of_hops(start: Start) -> None:
    gang = start(factory="actors.room.factory:build_roles")
    wait_for_chunks(gang, 40)
    table = gang.trace().percentiles([50, 99])
    print()
    for name, (median, p99) in table.items():
        print(f"{name:24} median {median * 1e3:7.2f} ms   p99 {p99 * 1e3:7.2f} ms")
    assert table["hops"][0] < 0.015
    indices = published(gang)
    assert indices == list(range(len(indices)))
    times = np.array([t for t, *_ in probes.room(gang).video])
    lost = deadline(gang).lost
    assert times[-1] - times[0] == pytest.approx((len(times) - 1) / 24 + lost, abs=0.05)
    trace = gang.trace().chrome_trace()["traceEvents"]
    assert {event["args"]["name"] for event in trace if event["ph"] == "M"} >= {"dit.0", "decoder"}  # type: ignore[index]


def test_the_decoder_in_the_process_of_the_dit(start: Start) -> None:
    gang = start(factory="actors.room.factory:build_roles", profile={"plan": ParallelPlan(1, 1, 0)})
    assert len(pids_of(gang)) == 2
    wait_for_chunks(gang, 10)


def test_a_bad_portrait_is_the_users_error(start: Start) -> None:
    with pytest.raises(UserError, match="portrait"):
        start(factory="actors.room.factory:build_roles", session=SessionSpec(np.zeros((5, 5, 3), np.uint8)))


def test_a_process_that_dies_while_starting(start: Start) -> None:
    with pytest.raises(GangFailed):
        start(factory="os:abort")


def test_each_gpu_role_has_its_own_gpu(start: Start, tiny_model: str) -> None:
    topology = plan_topology(Profile(model=tiny_model, cpus=0.1, device="cuda"))
    assert "nccl" in {edge.kind for edge in topology.edges}
    # The GPUs are not there, so their channel cannot be either.
    edges = tuple(replace(edge, kind="shared_memory" if edge.kind == "nccl" else edge.kind) for edge in topology.edges)
    gang = start(topology=replace(topology, edges=edges), factory="tests.actors.fakes:build_on_pretended_gpus")
    gpus = [gang.ask(role, lambda found: found.gpus) for role in ("dit.0.0", "decoder")]
    assert len(set(gpus)) == 2 and all(gpu.isdigit() for gpu in gpus)
    assert free("GPU") == 2
    wait_for_chunks(gang, 3)


def test_no_room_for_the_bundles(tiny_model: str) -> None:
    gang = Gang(plan_topology(Profile(model=tiny_model, cpus=100.0)), factory=FAKES)
    with pytest.raises(UserError, match="no host has room"):
        gang.start(SessionSpec(portrait()), timeout=1.0)
    assert gang.state == "failed"
