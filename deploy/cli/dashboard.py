"""Ray's dashboard over HTTP: what is deployed, and how much of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from characters.errors import UserError
from deploy.http import NO_ANSWER, check_address, request

ADDRESS = "http://127.0.0.1:8265"
_SECONDS = 30.0
_LATE, _CHUNKS = "ray_characters_late_chunks_total", "ray_characters_chunk_latency_seconds_count"


@dataclass(frozen=True)
class Deployment:
    """A deployment as Serve sees it.

    Attributes:
        application, name: whose and what it is called.
        status: e.g. "HEALTHY".
        message: Serve's own words, if it has any.
        target: replicas asked for.
        replicas: by state, e.g. {"RUNNING": 2, "STARTING": 1}.
    """

    application: str
    name: str
    status: str
    message: str
    target: int
    replicas: dict[str, int] = field(default_factory=dict)


class Dashboard:
    """One cluster's.

    Args:
        address: http:// or https://; RAY_DASHBOARD_ADDRESS or Ray's default if empty.
        token: of a cluster that asks for one; from RAY_AUTH_TOKEN if empty.

    Raises:
        UserError: that is no address.
    """

    def __init__(self, address: str = "", token: str = "") -> None:
        address = address or os.environ.get("RAY_DASHBOARD_ADDRESS", "") or ADDRESS
        self._address = check_address(address, "the dashboard's address")
        self._token = token or os.environ.get("RAY_AUTH_TOKEN", "")

    def scale(self, replicas: int, application: str, deployment: str) -> None:
        """Ask for so many replicas; Serve starts and drains them by itself.

        Raises:
            UserError: no dashboard, no such deployment, or an application that may not be scaled from outside.
        """
        app, name = (quote(part, safe="") for part in (application, deployment))
        path = f"/api/v1/applications/{app}/deployments/{name}/scale"
        self._call("POST", path, {"target_num_replicas": replicas})

    def deployments(self) -> list[Deployment]:
        """What is deployed.

        Raises:
            UserError: no dashboard.
        """
        applications = self._call("GET", "/api/serve/applications/").get("applications", {})
        found = []
        for app, details in applications.items():
            for name, deployment in details.get("deployments", {}).items():
                replicas: dict[str, int] = {}
                for replica in deployment.get("replicas", []):
                    replicas[replica["state"]] = replicas.get(replica["state"], 0) + 1
                found.append(
                    Deployment(
                        application=app,
                        name=name,
                        status=deployment["status"],
                        message=deployment.get("message", ""),
                        target=deployment.get("target_num_replicas", 0),
                        replicas=replicas,
                    )
                )
        return found

    def late_chunks(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Chunks that missed their deadline, and all chunks, by model and plan: those that the hosts' exporters count.

        Raises:
            UserError: no dashboard.
        """
        counts: dict[tuple[str, str], list[int]] = {}
        for group in self._call("GET", "/api/prometheus/sd"):
            for target in group["targets"]:
                try:
                    text = request(f"http://{target}/metrics", timeout=_SECONDS).text
                    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
                except NO_ANSWER:
                    continue  # a host that is just going
                for sample in samples:
                    if sample.name in (_LATE, _CHUNKS):
                        both = counts.setdefault((sample.labels["model"], sample.labels["plan"]), [0, 0])
                        both[sample.name == _CHUNKS] += int(sample.value)
        return {key: (late, chunks) for key, (late, chunks) in counts.items()}

    def ingress(self) -> dict[str, Any] | None:
        """What the application says of its own sessions (GET /healthz); None if it cannot be reached from here."""
        details = self._call("GET", "/api/serve/applications/")
        http = details.get("http_options") or {}
        address = f"http://{http.get('host') or '127.0.0.1'}:{http.get('port') or 8000}".replace("0.0.0.0", "127.0.0.1")
        try:
            health: dict[str, Any] = request(f"{address}/healthz", timeout=_SECONDS).json()
            return health
        except NO_ANSWER:
            return None

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            return request(self._address + path, method, timeout=_SECONDS, headers=headers, json=body).json()
        except httpx2.HTTPStatusError as error:
            raise UserError(f"Ray's dashboard refuses: {_message(error.response)}") from None
        except NO_ANSWER as error:
            raise UserError(f"no Ray dashboard at {self._address} ({error}); name it with --dashboard") from None


def _message(answer: httpx2.Response) -> str:
    if answer.status_code == 401:
        return "it wants a token; set RAY_AUTH_TOKEN to the one that `characters up` printed"
    try:
        return str(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        return (answer.text.strip().splitlines() or [answer.reason_phrase])[-1]
