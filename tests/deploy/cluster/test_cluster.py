"""The files for clusters, each put to the schema or the program that will read it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray._private.label_utils import parse_node_labels_string, validate_label_selector, validate_node_label_syntax
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.serve.schema import ServeDeploySchema

from actors.pipeline.topology import load_profile, plan_topology
from deploy.app import PIPELINE, build, scaled_from_outside
from deploy.planning.cluster import ISLAND_LABEL, cluster_of_ray
from deploy.serving.livekit_server import answers, require_server
from deploy.serving.settings import free_ports, load_settings
from tests.deploy.cluster.modules import COMPOSE, KUBERAY, module_folder, strict
from tests.deploy.conftest import wait_for

CLUSTER = Path(__file__).resolve().parents[3] / "deploy" / "cluster"
LIVEKIT = {"LIVEKIT_URL": "ws://livekit:7880", "LIVEKIT_API_KEY": "characters", "LIVEKIT_API_SECRET": "s" * 32}


def read(name: str) -> Any:
    return yaml.safe_load((CLUSTER / name).read_text())


def serve_config() -> ServeDeploySchema:
    """What the RayService hands to Serve, as Serve reads it."""
    return ServeDeploySchema.model_validate(yaml.safe_load(read("rayservice.yaml")["spec"]["serveConfigV2"]))


def test_the_rayservice_is_what_kuberay_takes() -> None:
    definition = module_folder(KUBERAY) / "config/crd/bases/ray.io_rayservices.yaml"
    defined = yaml.load(definition.read_text(), yaml.CSafeLoader)  # 20,000 lines
    versions = {v["name"]: v for v in defined["spec"]["versions"]}
    kuberay = jsonschema.Draft202012Validator(strict(versions["v1"]["schema"]["openAPIV3Schema"]))
    service = read("rayservice.yaml")
    kuberay.validate(service)
    service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["labelz"] = {}
    with pytest.raises(jsonschema.ValidationError, match="labelz"):  # so the check above does see a slip of the pen
        kuberay.validate(service)


def test_the_rayservice_starts_the_application_that_this_code_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    (application,) = serve_config().applications
    assert application.import_path == "deploy.app:build"
    settings = load_settings(application.args, LIVEKIT)
    for key, value in LIVEKIT.items():
        monkeypatch.setenv(key, value)
    assert build(application.args) is not None
    assert application.external_scaler_enabled == scaled_from_outside(application.args)
    (pipeline,) = application.deployments
    topology = plan_topology(load_profile(settings.profile))
    assert pipeline.name == PIPELINE and pipeline.num_replicas == settings.pipelines
    assert pipeline.placement_group_bundles[1:] == topology.bundles


def test_the_rayservice_has_machines_for_its_pipelines() -> None:
    (pipeline,) = serve_config().applications[0].deployments
    groups = read("rayservice.yaml")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    (selector,) = pipeline.placement_group_bundle_label_selector
    assert validate_label_selector(selector) is None
    fit = 0
    for group in groups:
        validate_node_label_syntax(group["labels"])
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        has = {"GPU": float(limits["nvidia.com/gpu"]), "CPU": float(limits["cpu"])}
        needs = {kind: sum(b.get(kind, 0.0) for b in pipeline.placement_group_bundles) for kind in has}
        if selector.items() <= group["labels"].items():
            fit += group["replicas"] * int(min(has[kind] / needs[kind] for kind in has))
    assert fit >= pipeline.num_replicas


def test_nvlink_islands_are_labelled_as_the_planner_reads_them() -> None:
    (group,) = read("rayservice.yaml")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    found = {"rayservice.yaml": (group["labels"], float(limits["nvidia.com/gpu"]))}
    up = read("ray-up.yaml")
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        found[key] = parse_node_labels_string(up[key][-1].split("--labels=")[1].split()[0]), 8.0
    for labels, gpus in found.values():
        resources = {"GPU": gpus, "accelerator_type:H200": 1.0}
        (node,) = cluster_of_ray([{"NodeID": "a", "Alive": True, "Resources": resources, "Labels": labels}]).nodes
        assert node.islands == (int(labels[ISLAND_LABEL]),)
    for file in CLUSTER.iterdir():
        for label in re.findall(r"[\w.-]+/[\w-]*island[\w-]*", file.read_text()):
            assert label == ISLAND_LABEL, file.name


def test_ray_up_takes_the_cluster_file() -> None:
    prepared = prepare_config(read("ray-up.yaml"))
    validate_config(prepared)
    for command in (prepared["head_start_ray_commands"][-1], prepared["worker_start_ray_commands"][-1]):
        labels = command.split("--labels=")[1].split()[0]
        assert parse_node_labels_string(labels)["characters/gpu-pool"] == "h200"


@pytest.mark.parametrize("names", [["compose.yaml"], ["compose.yaml", "compose.gpu.yaml"]], ids=["cpu", "gpu"])
def test_compose_files_fit_the_schema(names: list[str]) -> None:
    schema = json.loads((module_folder(COMPOSE) / "schema/compose-spec.json").read_text())
    services: dict[str, Any] = {}
    for name in names:
        jsonschema.validate(read(name), schema)
        services |= {key: services.get(key, {}) | service for key, service in read(name)["services"].items()}
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (CLUSTER / source).is_file() if source.startswith(".") else source in read(names[0])["volumes"]


def test_compose_gives_the_application_settings_that_it_takes() -> None:
    services = read("compose.yaml")["services"]
    environment = services["characters"]["environment"] | {"LIVEKIT_API_SECRET": "s" * 32}
    access = load_settings({"profile": "laptop"}, environment).livekit
    assert not access.own and access.url == "ws://livekit:7880"
    livekit = read("livekit.yaml")
    assert services["livekit"]["environment"]["LIVEKIT_KEYS"].startswith(f"{access.key}: ")
    assert livekit["webhook"]["api_key"] == access.key
    assert {f"127.0.0.1:{livekit['port']}:{livekit['port']}", f"{livekit['rtc']['udp_port']}:7882/udp"} <= set(
        services["livekit"]["ports"]
    )


def test_prometheus_takes_its_configuration_and_finds_what_compose_starts() -> None:
    promtool = shutil.which("promtool")
    assert promtool, "no promtool: apt-get install prometheus"
    subprocess.run([promtool, "check", "config", str(CLUSTER / "prometheus.yaml")], check=True)
    targets = {t for job in read("prometheus.yaml")["scrape_configs"] for t in job["static_configs"][0]["targets"]}
    assert targets == {"characters:8080", f"livekit:{read('livekit.yaml')['prometheus']['port']}"}
    assert {target.split(":")[0] for target in targets} <= set(read("compose.yaml")["services"])


def test_livekit_takes_its_configuration(tmp_path: Path) -> None:
    """All of it except Redis, which isn't there, and with ports that are free here."""
    config = read("livekit.yaml")
    del config["redis"]
    port = free_ports(17600, 4)
    config |= {"port": port, "prometheus": {"port": port + 3}, "bind_addresses": ["127.0.0.1"]}
    config["rtc"] |= {"udp_port": port + 1, "tcp_port": port + 2, "node_ip": "127.0.0.1"}
    file, log = tmp_path / "livekit.yaml", tmp_path / "log"
    file.write_text(yaml.safe_dump(config))
    environment = os.environ | {"LIVEKIT_KEYS": f"characters: {'s' * 32}"}
    with (
        log.open("wb") as out,
        subprocess.Popen([require_server(), "--config", file], env=environment, stdout=out, stderr=out) as server,
    ):
        try:
            wait_for(lambda: server.poll() is not None or answers(f"ws://127.0.0.1:{port}"), "neither up nor down")
            assert server.poll() is None, log.read_text()
        finally:
            server.kill()


def test_the_compose_files_name_stages_of_the_dockerfile() -> None:
    stages = [line.split()[-1] for line in (CLUSTER / "Dockerfile").read_text().splitlines() if line.startswith("FROM")]
    for name in ("compose.yaml", "compose.gpu.yaml"):
        assert f"torch-{read(name)['services']['characters']['build']['args']['FLAVOUR']}" in stages
    subprocess.run(["sh", "-n", CLUSTER / "head.sh"], check=True)
