"""Two hosts in network namespaces of their own, and an application from a config file, as `serve deploy` takes it.

It is changed while it runs, grows and shrinks with its users, and loses the link to one of the hosts. As a test of a
cluster it comes before those that share the one application of conftest.py, which would not outlive it.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from characters.character import load_character
from deploy.cli.dashboard import Dashboard
from deploy.cli.up import ENVIRONMENT
from deploy.planning.cluster import ISLAND_LABEL
from deploy.planning.scaling import INGRESS, PIPELINE
from deploy.serving.settings import free_ports
from tests.deploy.conftest import wait_for
from tests.deploy.quiet_pipeline import HEARD
from tests.deploy.serving.test_webhook import ACCESS
from tests.deploy.test_cluster import PROFILE, SLOW, Hosts
from tests.deploy.two_networks import TwoNetworks

ISLAND, MOST, SPARES = 4, 3, 1
SCALING = f"scaling: {{most: {MOST}, spares: {SPARES}}}\n"
# What takes Ray and Serve minutes by default, in seconds.
AUTOSCALING = {
    "min_replicas": 1,
    "max_replicas": MOST,
    "target_ongoing_requests": 1,
    "upscale_delay_s": 0,
    "downscale_delay_s": 1,
    "metrics_interval_s": 0.5,
    "look_back_period_s": 1,
    "policy": {"policy_function": "deploy.planning.scaling:WarmSpares", "policy_kwargs": {"spare": SPARES}},
}
QUICK = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
}


@dataclass(kw_only=True)
class TwoHosts(Hosts):
    """The application here, with room for two pipelines, and another host, which joins when it is told to."""

    networks: TwoNetworks
    config: dict[str, Any]
    heard: Path
    far: subprocess.Popen[bytes] | None = None

    def page(self, method: str = "GET", body: Any = None) -> dict[str, Any]:
        """Serve, as the dashboard tells it, or another config for it."""
        request = urllib.request.Request(
            f"http://{self.cluster.head_node.address_info['webui_url']}/api/serve/applications/",
            None if body is None else json.dumps(body).encode(),
            {"content-type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
            return json.loads(text) if text else {}

    def configure(self, **user_configs: Any) -> None:
        """Deploy the config with other `user_config`s, by deployment."""
        config = copy.deepcopy(self.config)
        for deployment in config["applications"][0]["deployments"]:
            deployment["user_config"] = user_configs.get(deployment["name"], {})
        self.page("PUT", config)
        time.sleep(1)  # until then the old status stands
        wait_for(self.healthy, "the application does not get ready", SLOW)

    def healthy(self) -> bool:
        """Whether all is as it was configured."""
        application = self.page()["applications"].get("default", {})
        assert application.get("status") != "DEPLOY_FAILED", application["message"]
        return application.get("status") == "RUNNING"

    def names(self) -> set[str]:
        """Of the pipelines that take sessions."""
        replicas = self.page()["applications"]["default"]["deployments"][PIPELINE]["replicas"]
        return {replica["replica_id"] for replica in replicas if replica["state"] == "RUNNING"}

    def began(self, session: dict[str, Any]) -> list[dict[str, Any]]:
        """What its pipelines were told each time that it began; once at least."""
        return wait_for(lambda: self._lines(session["room_name"]), "no pipeline was told of it")

    def _lines(self, room: str) -> list[dict[str, Any]]:
        lines = self.heard.read_text().splitlines() if self.heard.exists() else []
        return [told for line in lines if (told := json.loads(line))["room"] == room]

    def settle(self, pipelines: int) -> None:
        """Wait until there are so many and no others."""
        wait_for(lambda: self.replicas() == {"RUNNING": pipelines}, f"not {pipelines} pipelines", SLOW)

    def join_far(self) -> None:
        """Start the other host's raylet, in its namespace."""
        ray = str(Path(sys.executable).with_name("ray"))
        what = ["--num-cpus=1", f"--num-gpus={ISLAND}", "--object-store-memory=100000000"]
        what += ["--resources", '{"accelerator_type:H200": 1}', "--labels", f"{ISLAND_LABEL}={ISLAND}"]
        address = ["--address", self.cluster.address, "--node-ip-address", self.networks.far]
        self.far = self.networks.there(ray, "start", "--block", *address, *what)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    """One host with two islands of four GPUs, one pipeline; the other has not joined."""
    import ray
    from ray.cluster_utils import Cluster

    if ray.is_initialized():
        ray.shutdown()
    from ray import serve

    folder, port = tmp_path_factory.mktemp("partition"), free_ports(18400, 1)
    (folder / "57b.yaml").write_text(PROFILE + SCALING)
    settings = {"profile": str(folder / "57b.yaml"), "http_port": port, "livekit_port": free_ports(17950)}
    application = {
        "name": "default",
        "route_prefix": "/",
        "import_path": "tests.deploy.quiet_pipeline:build",
        "args": settings | {"grace_s": 3600},
        "deployments": [{"name": INGRESS}, {"name": PIPELINE, "autoscaling_config": AUTOSCALING}],
    }
    http = {"host": "127.0.0.1", "port": port}
    config = {"proxy_location": "HeadOnly", "http_options": http, "applications": [application]}
    environment = ENVIRONMENT | QUICK | {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    environment |= {"PYTHONPATH": os.getcwd(), HEARD: str(folder / "heard.jsonl")}
    environment |= {"LIVEKIT_API_KEY": ACCESS.key, "LIVEKIT_API_SECRET": ACCESS.secret}
    with TwoNetworks() as networks, pytest.MonkeyPatch.context() as patch:
        for key, value in environment.items():
            patch.setenv(key, value)
        head = {
            "node_ip_address": networks.near,
            "num_cpus": 2,
            "num_gpus": 2 * ISLAND,
            "resources": {"accelerator_type:H200": 1},
            "labels": {ISLAND_LABEL: str(ISLAND)},
            "object_store_memory": 100 << 20,
            "include_dashboard": True,
            "dashboard_port": free_ports(18465, 1),
        }
        cluster = Cluster(initialize_head=True, head_node_args=head)
        found = TwoHosts(
            address=f"http://127.0.0.1:{port}",
            dashboard=Dashboard(f"http://{cluster.head_node.address_info['webui_url']}"),
            cluster=cluster,
            others=[],
            networks=networks,
            config=config,
            heard=folder / "heard.jsonl",
        )
        try:
            ray.init(address=cluster.address, log_to_driver=False)
            found.configure()
            yield found
        finally:
            found.users.close()
            serve.shutdown()
            ray.shutdown()
            cluster.shutdown()


def test_a_changed_config_holds_for_the_next_session_and_cuts_none(hosts: TwoHosts) -> None:
    session = hosts.talk()
    hosts.settle(1 + SPARES)
    before, amara = hosts.names(), load_character("amara").character
    (first,) = hosts.began(session)
    assert (first["persona"], first["bitrate"], first["llm"]) == (amara.persona, 1_500_000, "")

    shy = {"persona": "You are shy.", "voice": {"pitch": 2.0}}
    ingress = {"bitrate": 800_000, "characters": {"amara": shy}}
    hosts.configure(**{INGRESS: ingress, PIPELINE: {"llm": {"engine": "openai", "model": "other"}}})
    assert hosts.state(session) == "RUNNING"
    assert hosts.names() == before, "no pipeline was started anew"
    assert len(hosts.began(session)) == 1, "and the session not either"

    others = [hosts.talk() for _ in range(SPARES)]
    hosts.hang_up(session)
    others.append(hosts.talk())
    for other in others:
        (told,) = hosts.began(other)
        assert (told["persona"], told["pitch"], told["bitrate"]) == ("You are shy.", 2.0, 800_000)
        assert told["llm"] == "other"
    assert first["process"] in {hosts.began(other)[0]["process"] for other in others}, "the same process"
    for other in others:
        hosts.hang_up(other)


@pytest.fixture(scope="module")
def talks(hosts: TwoHosts) -> list[dict[str, Any]]:
    """As many sessions as there may be pipelines; the last one has waited for the other host."""
    hosts.settle(SPARES)
    first = hosts.talk()
    hosts.settle(1 + SPARES)
    began = time.monotonic()
    second = hosts.talk()
    print(f"\nthe spare took the second session {time.monotonic() - began:.2f} s after it was asked for")
    third = hosts.request("POST", "/v1/sessions", {"character": "amara", "participant_name": "Eve"})
    assert (third["state"], third["position"]) == ("NOT_READY", 1)
    told = wait_for(lambda: hosts.health()["shortfall"], "nobody says that a host is missing")
    assert told == "3 pipelines are asked for and the cluster has room for 2: 1 cannot start"
    hosts.join_far()
    wait_for(lambda: hosts.state(third) == "READY", "the queued session does not get its pipeline", SLOW)
    third = hosts.request("GET", f"/v1/sessions/{third['id']}")
    hosts.users.join(third["room_name"], third["server_url"], third["participant_token"])
    hosts.settle(MOST)
    sessions = [first, second, third]
    assert {len(hosts.began(s)) for s in sessions} == {1}
    return sessions


def test_a_cut_link_loses_no_session(hosts: TwoHosts, talks: list[dict[str, Any]]) -> None:
    import ray

    here = ray.get_runtime_context().get_node_id()
    (away,) = [s for s in talks if hosts.began(s)[-1]["node"] != here]
    near = [s for s in talks if s is not away]

    hosts.networks.cut()
    time.sleep(1)
    hosts.networks.heal()
    time.sleep(4)
    assert [hosts.state(s) for s in talks] == ["RUNNING"] * MOST, "a short cut is not noticed"
    assert len(hosts.began(away)) == 1

    hosts.networks.cut()
    began = time.monotonic()
    wait_for(lambda: hosts.state(away) == "NOT_READY", "the far session's loss is not noticed", SLOW)
    seen = hosts.request("GET", f"/v1/sessions/{away['id']}")
    print(f"\nqueued again {time.monotonic() - began:.1f} s after the link was cut")
    assert (seen["position"], seen["error"]) == (1, None)
    assert [hosts.state(s) for s in near] == ["RUNNING"] * len(near)

    hosts.networks.heal()
    began = time.monotonic()
    assert hosts.far is not None
    hosts.far.wait(SLOW)  # Ray has given it up, and it ends by itself; whoever runs hosts starts another
    print(f"the other host's raylet gave up {time.monotonic() - began:.1f} s after the link was back")
    hosts.join_far()
    wait_for(lambda: len(hosts.began(away)) == 2, "the far session does not go on", SLOW)
    print(f"it ran again {time.monotonic() - began:.1f} s after the link was back")
    assert [hosts.state(s) for s in talks] == ["RUNNING"] * MOST
    assert {len(hosts.began(s)) for s in near} == {1}, "nobody else was moved"


def test_pipelines_go_when_their_users_have_gone(hosts: TwoHosts, talks: list[dict[str, Any]]) -> None:
    first, second, third = talks
    begun = len(hosts.began(third))
    hosts.hang_up(second)
    time.sleep(2 * AUTOSCALING["downscale_delay_s"])  # two sessions and a spare: nothing to take away
    assert hosts.replicas() == {"RUNNING": 2 + SPARES}
    hosts.hang_up(first)
    wait_for(lambda: hosts.replicas()["RUNNING"] <= 1 + SPARES, "nobody goes", SLOW)
    time.sleep(2)  # Serve may have chosen the one that is talking: it stays until it has finished
    print(f"\none session is left, and of the pipelines {hosts.replicas()}")
    assert hosts.state(third) == "RUNNING"
    assert len(hosts.began(third)) == begun, "it was not cut"
    hosts.hang_up(third)
    hosts.settle(SPARES)
    assert [hosts.state(s) for s in talks] == ["COMPLETED"] * MOST
