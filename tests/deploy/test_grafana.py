"""The dashboard's queries, put to a real Prometheus that scrapes a real run."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import math
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.dashboard.modules.reporter.reporter_agent import METRICS_GAUGES

from actors.pipeline.stage import SHARES
from deploy.grafana.panels import DEADLINE, ROWS, Panel, Query
from deploy.grafana.provision import dashboard, provision
from deploy.load.user import User
from deploy.serving.settings import free_ports
from tests.deploy.conftest import Application, processes, wait_for
from tests.deploy.ports import listening

PANELS = [panel for row in ROWS for panel in row.panels]


class Prometheus:
    """A server on loopback that scrapes once a second.

    Args:
        target: host:port of Ray's metrics.
        folder: for what it stores.
    """

    def __init__(self, target: str, folder: Path) -> None:
        program = shutil.which("prometheus")
        assert program, "no prometheus: apt-get install prometheus"
        port = free_ports(19090, 1)
        self._address = f"http://127.0.0.1:{port}"
        scrape = {"job_name": "ray", "static_configs": [{"targets": [target]}]}
        config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        options = [
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen([program, *options], stdout=self._log, stderr=self._log)
        wait_for(self._ready, f"Prometheus does not start: {(folder / 'log').read_text()}")

    def names(self) -> set[str]:
        """Of all metrics that it has seen."""
        return set(self._get("label/__name__/values"))

    def ask(self, query: Query) -> list[dict[str, Any]]:
        """The series of a query that have a number now. Raises HTTPError if it is not PromQL."""
        promql = query.promql.replace("$__rate_interval", "15s")
        found = self._get(f"query?query={urllib.parse.quote(promql, safe='')}")["result"]
        return [series for series in found if not math.isnan(float(series["value"][1]))]

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(20)
        self._log.close()

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self._address}/api/v1/{path}", timeout=10) as answer:
            return json.load(answer)["data"]

    def _ready(self) -> bool:
        with contextlib.suppress(OSError):
            self._get("query?query=1")
            return True
        return False


def metrics() -> str:
    """host:port where Ray exports what its processes count, "" if nowhere."""
    for port in listening():
        with (
            contextlib.suppress(OSError, http.client.HTTPException),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2) as answer,
        ):
            if b"ray_serve_" in answer.read():
                return f"127.0.0.1:{port}"
    return ""


@pytest.fixture
def prometheus(application: Application, tmp_path: Path) -> Iterator[Prometheus]:
    """Scrapes the application's Ray."""
    server = Prometheus(wait_for(metrics, "nobody exports Serve's metrics"), tmp_path)
    yield server
    server.close()


def empty(prometheus: Prometheus) -> list[str]:
    """Queries without an answer, of panels that need no GPU."""
    asked = [(panel.title, query) for panel in PANELS if not panel.needs_gpu for query in panel.queries]
    return [f"{title}: {query.promql}" for title, query in asked if not prometheus.ask(query)]


def refuse(application: Application) -> None:
    """Ask for a room that somebody else has, who waits in the queue and has just said so."""
    application.request("POST", "/token", {"room_name": "taken", "participant_identity": "ada"})
    with pytest.raises(urllib.error.HTTPError, match="409"):
        application.request("POST", "/token", {"room_name": "taken", "participant_identity": "eve"})


def test_every_panel_has_data_from_a_real_run(
    application: Application, prometheus: Prometheus, capsys: pytest.CaptureFixture[str]
) -> None:
    session = application.open_session("ruby")

    async def play() -> None:
        user = User()
        await user.join(session["server_url"], session["participant_token"])
        await user.until(lambda: user.said_by("character"), "no greeting", 60)
        give_up = time.monotonic() + 120
        while missing := await asyncio.to_thread(empty, prometheus):
            assert time.monotonic() < give_up, "\n".join(["no data:", *missing])
            asked = time.monotonic()
            await user.type("What is your name?")
            await asyncio.to_thread(refuse, application)
            await user.until(lambda asked=asked: user.said_by("character", since=asked), "no answer", 60)
            for pid in processes("ray::Stage"):  # a moment that no deadline survives
                os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(1.0)
            for pid in processes("ray::Stage"):
                os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(2.0)
        await user.leave()

    asyncio.run(play())
    sessions = next(p for p in PANELS if p.title == "Sessions")
    counted = {q.legend: float(prometheus.ask(q)[0]["value"][1]) for q in sessions.queries}
    assert counted["pipelines"] == 1 and counted["running"] == 1 and counted["queued"] == 1, counted
    refused = next(p for p in PANELS if p.title.startswith("Refused"))
    assert {series["metric"]["reason"] for series in prometheus.ask(refused.queries[0])} == {"room_taken"}
    own = {name for name in prometheus.names() if name.startswith("ray_characters_")}
    assert own
    with capsys.disabled():
        print("\n" + "\n".join(sorted(own)))
    application.request("DELETE", f"/v1/sessions/{session['id']}")


@pytest.mark.parametrize("panel", [p for p in PANELS if p.needs_gpu], ids=lambda panel: panel.title)
def test_what_needs_a_gpu_is_exported_by_ray_under_that_name(panel: Panel) -> None:
    for query in panel.queries:
        name = re.search(r"ray_(\w+)", query.promql)
        assert name and name[1] in METRICS_GAUGES


def test_the_deadline_is_an_edge_of_the_buckets() -> None:
    assert DEADLINE in SHARES


def test_it_stands_beside_rays_own(tmp_path: Path) -> None:
    ours, rays = tmp_path / "provisioning/dashboards/characters.yml", tmp_path / "provisioning/dashboards/default.yml"
    rays.parent.mkdir(parents=True)
    rays.write_text("Ray's")
    file = provision(tmp_path)
    assert rays.read_text() == "Ray's"
    provider = yaml.safe_load(ours.read_text())["providers"][0]
    assert list(Path(provider["options"]["path"]).glob("*.json")) == [file]
    assert json.loads(file.read_text()) == dashboard()


def test_panels_have_places_of_their_own_and_the_line_is_drawn() -> None:
    board = dashboard()
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    lines = [p for p in board["panels"] if "thresholds" in p.get("fieldConfig", {}).get("defaults", {})]
    assert [p["fieldConfig"]["defaults"]["thresholds"]["steps"][1]["value"] for p in lines] == [DEADLINE]
