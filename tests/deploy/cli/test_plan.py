"""The commands about placement, without a cluster."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from characters.cli.main import main
from deploy.planning.rates import How, load_rates
from deploy.serving.api import Health


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return int(end.value.code or 0)


def test_plan_shows_what_is_kept_and_why_the_rest_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", "--model", "reference-57b", "--gpus", "8xH200") == 0
    captured = capsys.readouterr()
    lines = [*captured.out.splitlines(), *captured.err.splitlines()]  # remarks leave a pipe clean
    kept = [line for line in lines if "kept: " in line]
    assert "pipeline 1 x sequence 5 + 0 decoder" in kept[0]
    assert any("pipeline 1 x sequence 3 + 1 decoder" in line and "too slow at p99" in line for line in lines)
    assert any(line.startswith("`standby: all` takes one H200 more a session of the best plan, ") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus", "8xH300"], "there is no kind of GPU 'H300' in conf/gpus; did you mean 'H200'"),
        (["--gpus", "0xH200"], "'0xH200' has no GPU in it"),
        (["--gpus", "H200", "--rates", "no/rates"], "no/rates does not exist"),
        (["--gpus", "H200", "--model", "smal"], "there is no model 'smal'"),
        (["--gpus", "H200", "--context", "1"], "needs at least 2"),
        (["--gpus", "2xA100", "--model", "reference-57b"], "no plan of model 'reference-57b' keeps up on 2xA100"),
    ],
)
def test_bad_input_gets_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", *arguments) == 2
    error = capsys.readouterr().err
    *remarks, last = error.splitlines()
    assert last.startswith("error: ") and message in last
    assert not any("error" in line for line in remarks)


def test_calibrate_writes_what_plan_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rates.yaml"
    assert run("calibrate", "--seconds", "0.05", "--out", str(out)) == 0
    rates = load_rates(str(out))
    assert rates.gemm_bf16.how is How.measured
    assert rates.network.how is How.estimated
    assert "not measured here" in rates.network.source
    small = rates.models["small"]
    assert small.dit > 0 and small.decoder > 0
    capsys.readouterr()
    (tmp_path / "rates").write_bytes(out.read_bytes())  # a file by any name
    # A busy machine may be too slow to keep up; that too is an answer.
    assert run("plan", "--gpus", rates.name, "--rates", str(tmp_path / "rates")) in (0, 2)
    assert rates.name in capsys.readouterr().out


def test_calibrate_names_a_file_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for out, message in [(tmp_path / "no" / "rates.yaml", "no does not exist"), (tmp_path, "it is a folder")]:
        assert run("calibrate", "--seconds", "0.05", "--out", str(out)) == 2
        said = capsys.readouterr()
        assert message in said.err and not said.out  # nothing was measured


METRICS = """# HELP ray_characters_late_chunks_total Chunks that left late
ray_characters_late_chunks_total{model="small",plan="1x1+0",stage="room"} 2.0
ray_characters_late_chunks_total{model="small",plan="1x1+0",stage="room",pid="2"} 1.0
ray_characters_chunk_latency_seconds_count{model="small",plan="1x1+0",stage="room"} 600.0
"""


HEALTH: dict[str, Any] = {
    "status": "ok",
    "livekit": True,
    "pipelines": 1,
    "running": 1,
    "queued": 2,
    "target": 1,
    "capacity": 4,
    "shortfall": "",
    "note": "the deadline is not checked",
    "random_weights": True,
}


class _Ray(http.server.BaseHTTPRequestHandler):
    """Answers as Ray's dashboard does, for one deployment."""

    asked: list[tuple[str, dict[str, int]]] = []  # noqa: RUF012
    http_port = 9

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append((self.path, body))
        if "/applications/default/" in self.path:
            self._answer(200, {"message": "Scaling request received."})
        else:
            self._answer(404, {"error": "Application or Deployment not found"})

    def do_GET(self) -> None:
        if self.path == "/api/prometheus/sd":
            return self._answer(
                200, [{"labels": {}, "targets": [f"127.0.0.1:{self.server.server_port}", "127.0.0.1:9"]}]
            )
        if self.path == "/metrics":
            return self._answer(200, METRICS)
        if self.path == "/healthz":
            return self._answer(200, Health(**HEALTH).model_dump())
        replicas = [{"state": "RUNNING"}, {"state": "STARTING"}]
        pipeline = {"status": "UPDATING", "message": "", "target_num_replicas": 3, "replicas": replicas}
        http_options = {"host": "127.0.0.1", "port": self.http_port}
        self._answer(
            200, {"http_options": http_options, "applications": {"default": {"deployments": {"Pipeline": pipeline}}}}
        )

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, status: int, body: object) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write((body if isinstance(body, str) else json.dumps(body)).encode())


@pytest.fixture
def dashboard() -> Iterator[str]:
    _Ray.asked.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Ray) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_scale_asks_the_dashboard(dashboard: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("scale", "3", "--dashboard", dashboard) == 0
    path = "/api/v1/applications/default/deployments/Pipeline/scale"
    assert _Ray.asked == [(path, {"target_num_replicas": 3})]
    assert run("scale", "3", "--dashboard", dashboard, "--application", "other") == 2
    assert capsys.readouterr().err == "error: Ray's dashboard refuses: Application or Deployment not found\n"


def test_status_shows_replicas(dashboard: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("status", "--dashboard", dashboard) == 0
    out = capsys.readouterr().out
    assert "1 of 3 (1 starting)" in out
    assert "cannot be reached from here" in out
    assert "small, plan 1x1+0: 3 of 600 chunks late" in out


def test_status_shows_what_the_application_says_of_itself(
    dashboard: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Ray, "http_port", int(dashboard.rpartition(":")[2]))
    assert run("status", "--dashboard", dashboard) == 0
    out = capsys.readouterr().out
    assert "1 session(s) running, 2 queued, room for 4; the media server answers" in out
    assert "the pictures are noise: the model has random weights" in out
    assert "note: the deadline is not checked" in out
    monkeypatch.setitem(HEALTH, "random_weights", False)
    assert run("status", "--dashboard", dashboard) == 0
    assert "noise" not in capsys.readouterr().out


def test_no_dashboard_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("status", "--dashboard", "http://127.0.0.1:9") == 2
    assert "no Ray dashboard at http://127.0.0.1:9" in capsys.readouterr().err
    assert run("scale", "1", "--dashboard", "127.0.0.1:8265") == 2
    assert "must begin with http://" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["http://[::1", "http://127.0.0.1:abc", "http://a b", "http://:80", "http://a:99999"])
def test_what_is_no_address_is_said(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["status", "--dashboard", url], ["loadtest", "--url", url]):
        assert run(*arguments) == 2
        error = capsys.readouterr().err
        assert "must begin with http:// or https:// and name a host" in error and error.count("\n") == 1


def test_json_holds_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", "--gpus", "8xH200", "--json") == 0
    first, *others = json.loads(capsys.readouterr().out)
    assert first["kept"] and first["gpu"] == "H200" and 0 < first["p99_ms"] <= 166.7 and first["sessions"] > 0
    assert all(one["kept"] or one["sessions"] == 0 for one in others)
