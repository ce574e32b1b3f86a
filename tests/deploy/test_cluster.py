"""Several hosts with GPUs that are numbers: the real application, Serve, dashboard and media server, users in real
rooms; pipelines that do nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from livekit import rtc

from deploy.cli.dashboard import Dashboard
from deploy.cli.up import ENVIRONMENT
from deploy.planning.cluster import ISLAND_LABEL
from deploy.planning.scaling import PIPELINE
from deploy.serving.livekit_server import LivekitServer
from deploy.serving.settings import LivekitAccess, free_ports
from tests.deploy.conftest import Application, wait_for
from tests.deploy.stub_pipeline import StubPipeline

HOSTS, GPUS, ISLAND = 3, 8, 4
PROFILE = """
model: reference-57b
random_weights: true
device: cuda
dtype: bfloat16
precision: fp8
cpus: 0.01
plan: {pipeline: 3, sequence: 1, decoder: 1}
"""
SLOW = 120.0  # seconds, for Serve to start what is asked for


class Users:
    """Participants of rooms, who say nothing."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._rooms: dict[str, rtc.Room] = {}

    def join(self, name: str, url: str, token: str) -> None:
        """Connect."""
        self._rooms[name] = self._do(self._connect(url, token))

    def leave(self, name: str) -> None:
        """Disconnect."""
        self._do(self._rooms.pop(name).disconnect())

    def close(self) -> None:
        """Everybody goes."""
        for name in list(self._rooms):
            self.leave(name)
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _connect(self, url: str, token: str) -> rtc.Room:
        room = rtc.Room(self._loop)
        await room.connect(url, token)
        return room

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


@dataclass
class Hosts(Application):
    """The application on a cluster."""

    dashboard: Dashboard
    cluster: Any
    others: list[Any]
    settings: dict[str, Any] = field(default_factory=dict)
    users: Users = field(default_factory=Users)

    def health(self) -> dict[str, Any]:
        """Of the application."""
        return self.request("GET", "/healthz")

    def scale(self, pipelines: int, wait: bool = True) -> None:
        """Through the dashboard's API."""
        self.dashboard.scale(pipelines, "default", PIPELINE)
        if wait:
            wait_for(lambda: self.replicas().get("RUNNING") == pipelines, f"never {pipelines} pipelines", SLOW)

    def replicas(self) -> dict[str, int]:
        """By state."""
        return next(d.replicas for d in self.dashboard.deployments() if d.name == PIPELINE)

    def talk(self) -> dict[str, Any]:
        """A session that runs."""
        session = self.open_session("amara")
        self.users.join(session["room_name"], session["server_url"], session["participant_token"])
        wait_for(lambda: self.state(session) == "RUNNING", "it does not start")
        return session

    def walk_in(self, room: str) -> None:
        """A user who joins a room as LiveKit's own clients do, and waits there for the character."""
        told = self.request("POST", "/token", {"room_name": room, "participant_identity": "late"})
        self.users.join(room, told["server_url"], told["participant_token"])

    def hang_up(self, session: dict[str, Any]) -> None:
        """Its user leaves."""
        self.request("DELETE", f"/v1/sessions/{session['id']}")
        self.users.leave(session["room_name"])


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Three hosts of eight GPUs in two islands each, one pipeline."""
    import ray
    from ray import cloudpickle
    from ray.cluster_utils import Cluster

    if ray.is_initialized():
        ray.shutdown()
    from ray import serve

    from deploy import app
    from tests.deploy import stub_pipeline

    profile = tmp_path_factory.mktemp("cluster") / "57b.yaml"
    profile.write_text(PROFILE)
    port, memory = free_ports(18200, 1), {"object_store_memory": 100 << 20}
    settings = {"profile": str(profile), "http_port": port, "grace_s": 1}
    dashboard = {"include_dashboard": True, "dashboard_port": free_ports(18265, 1)}
    kind, label = {"accelerator_type:H200": 1}, {ISLAND_LABEL: str(ISLAND)}
    host = {"num_cpus": 1, "num_gpus": GPUS, "resources": kind, "labels": label, **memory}
    # A media server beside the application, as in production: it is not part of an upgrade.
    access = LivekitAccess("", "key", "a secret of more than 32 characters", own=True, port=free_ports(17900))
    access = replace(access, url=f"ws://127.0.0.1:{access.port}")
    environment = ENVIRONMENT | {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    livekit = {"URL": access.url, "API_KEY": access.key, "API_SECRET": access.secret}
    environment |= {f"LIVEKIT_{key}": value for key, value in livekit.items()}
    with pytest.MonkeyPatch.context() as patch:
        for key, value in environment.items():
            patch.setenv(key, value)
        media = LivekitServer(access, f"http://127.0.0.1:{port}/livekit/webhook")
        cluster = Cluster(initialize_head=True, head_node_args=host | dashboard)
        patch.setattr(app, "Pipeline", StubPipeline)
        cloudpickle.register_pickle_by_value(stub_pipeline)
        try:
            ray.init(address=cluster.address, log_to_driver=False)
            # These hosts share one machine: with a proxy on each, a request could be answered by one that is killed.
            serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
            serve.run(app.build(settings), external_scaler_enabled=True)
            page = f"http://{cluster.head_node.address_info['webui_url']}"
            # Added only now, so that the ingress and the media server are on the first, which stays.
            others = [cluster.add_node(**host) for _ in range(HOSTS - 1)]
            hosts = Hosts(f"http://127.0.0.1:{port}", Dashboard(page), cluster, others, settings)
            yield hosts
            hosts.users.close()
        finally:
            serve.shutdown()
            ray.shutdown()
            cluster.shutdown()
            media.stop()
            cloudpickle.unregister_pickle_by_value(stub_pipeline)


def test_scaling_under_live_sessions_cuts_none(hosts: Hosts) -> None:
    first = hosts.talk()
    hosts.scale(3)
    sessions = [first, hosts.talk(), hosts.talk()]
    hosts.scale(1, wait=False)
    wait_for(lambda: hosts.replicas() == {"RUNNING": 1, "STOPPING": 2}, "nobody was told to go")
    time.sleep(3)
    assert [hosts.state(s) for s in sessions] == ["RUNNING"] * 3
    assert hosts.health()["pipelines"] == 3, "each session keeps its seat, and nobody else gets one"
    for session in sessions:
        hosts.hang_up(session)
    wait_for(lambda: hosts.replicas() == {"RUNNING": 1}, "who has finished does not go", SLOW)
    wait_for(lambda: hosts.health()["pipelines"] == 1, "a seat too many")


def test_another_version_under_live_sessions_cuts_none(hosts: Hosts) -> None:
    """As by `serve deploy`: every deployment is replaced, the pipelines when their conversations are over."""
    from ray import serve

    from deploy import app

    first = hosts.talk()
    newer = app.build(hosts.settings | {"seed": 1})
    # It waits until the last replica of the version before has gone.
    upgrade = threading.Thread(target=lambda: serve.run(newer, external_scaler_enabled=True))
    upgrade.start()
    wait_for(lambda: hosts.replicas() == {"RUNNING": 1, "STOPPING": 1}, "no other version", SLOW)
    began = time.monotonic()
    while time.monotonic() - began < 8:
        assert hosts.state(first) == "RUNNING"
        time.sleep(0.3)
    second = hosts.talk()
    assert hosts.state(first) == "RUNNING" and hosts.health()["running"] == 2
    assert hosts.replicas() == {"RUNNING": 1, "STOPPING": 1}, "the second is in the new version"
    hosts.hang_up(first)
    wait_for(lambda: hosts.replicas() == {"RUNNING": 1}, "the old version does not go", SLOW)
    assert hosts.state(first) == "COMPLETED"
    hosts.hang_up(second)
    wait_for(lambda: hosts.health()["running"] == 0, "it does not end")
    upgrade.join(SLOW)
    assert not upgrade.is_alive()


def test_sessions_fill_the_islands_and_move_from_a_host_that_is_gone(hosts: Hosts) -> None:
    import ray

    wait_for(lambda: hosts.health()["capacity"] == 6, "the hosts are not seen")
    hosts.scale(7, wait=False)
    wait_for(lambda: hosts.replicas().get("RUNNING") == 6, "not six", SLOW)
    told = wait_for(lambda: hosts.health()["shortfall"], "the seventh is not missed")
    assert told == "7 pipelines are asked for and the cluster has room for 6: 1 cannot start"
    hosts.scale(6)
    groups = [g for g in ray.util.placement_group_table().values() if g["state"] == "CREATED"]
    per_host = Counter(tuple({*group["bundles_to_node_id"].values()}) for group in groups)
    assert sorted(per_host.values()) == [2, 2, 2]
    assert all(len(nodes) == 1 for nodes in per_host), "every pipeline is within one host"

    sessions = [hosts.talk() for _ in range(6)]
    hosts.walk_in("lobby")
    assert hosts.health()["queued"] == 1
    left = time.monotonic()
    hosts.hang_up(sessions.pop())
    wait_for(lambda: hosts.health()["queued"] == 0, "the seventh does not get in")
    took = time.monotonic() - left
    print(f"\nthe seventh started {took:.2f} s after a departure")
    assert took < 2
    assert hosts.health()["running"] == 6

    for session in sessions[:3]:
        hosts.hang_up(session)
    wait_for(lambda: hosts.health()["running"] == 3, "they do not end")
    began = time.monotonic()
    hosts.cluster.remove_node(hosts.others.pop(), allow_graceful=False)
    wait_for(lambda: hosts.health()["capacity"] == 4, "the host is not missed", SLOW)
    wait_for(lambda: hosts.health()["running"] == 3, "its sessions do not move", SLOW)
    print(f"all sessions ran again {time.monotonic() - began:.1f} s after a host had been killed")
    assert [hosts.state(s) for s in sessions[3:]] == ["RUNNING"] * 2

    for session in sessions[3:]:
        hosts.hang_up(session)
    wait_for(lambda: hosts.health()["running"] == 1, "who came late does not talk alone")
    hosts.users.leave("lobby")
    hosts.scale(0, wait=False)
    wait_for(lambda: ray.available_resources().get("GPU") == (HOSTS - 1) * GPUS, "a GPU is stranded", SLOW)
