"""`serve run deploy.app:app`, or `serve run deploy.app:build profile=h200 pipelines=4`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle

from actors.ledger import Ledger
from actors.session import Session
from actors.topology import Profile, load_profile, plan_topology
from deploy.api import create_api
from deploy.director import Director
from deploy.livekit import LivekitServer, require_server
from deploy.pipeline import REPLICA_CPUS, Pipeline
from deploy.settings import LOOPBACK, LivekitAccess, Settings, load_settings

log = logging.getLogger("ray.serve")

APPLICATION = "default"
PIPELINE = "Pipeline"


class ServePipelines:
    """See `director.Pipelines`: the replicas of a deployment."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle.options(stream=True)

    async def count(self) -> int:
        """Replicas that run."""
        status = await asyncio.to_thread(serve.status)
        name = serve.get_replica_context().app_name
        deployment = status.applications[name].deployments.get(PIPELINE)
        return deployment.replica_states.get("RUNNING", 0) if deployment else 0

    async def run(self, session: Session) -> AsyncIterator[Mapping[str, Any]]:
        """See `director.Pipelines.run`."""
        call = self._handle.session.remote(session)
        try:
            async for event in call:
                yield event
        finally:
            call.cancel()

    async def ledger(self, stage: Any) -> dict[str, Any]:
        """See `director.Pipelines.ledger`."""
        ledger: Ledger = await stage.ledger.remote()
        return ledger.chrome_trace()


@serve.deployment(name="Livekit", num_replicas=1, max_ongoing_requests=4, health_check_period_s=1)
class MediaServer:
    """A livekit-server of our own; a health check that finds it dead starts it again."""

    def __init__(self, access: LivekitAccess, webhook: str) -> None:
        self._access, self._webhook = access, webhook
        self._server = LivekitServer(access, webhook)

    async def pid(self) -> int:
        """Of the server."""
        return self._server.pid

    async def check_health(self) -> None:
        """Raises UserError if the server cannot be started again."""
        if not self._server.running:
            log.warning("livekit-server has ended: starting it again")
            # In this thread, on purpose: the server dies with the thread that started it.
            self._server = LivekitServer(self._access, self._webhook)

    def __del__(self) -> None:
        if hasattr(self, "_server"):
            self._server.stop()


@serve.deployment(name="Ingress", num_replicas=1, max_ongoing_requests=1000, health_check_period_s=2)
@serve.ingress()
class Ingress:
    """The HTTP side. One replica: it holds the queue."""

    def __init__(
        self,
        settings: Settings,
        frame_size: tuple[int, int],
        pipelines: DeploymentHandle,
        media: DeploymentHandle | None = None,
    ) -> None:
        self._director = Director(settings, ServePipelines(pipelines), frame_size)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return create_api(self._director)


def build(args: Mapping[str, Any]) -> Application:
    """The application; `args` are the fields of `settings.Settings` that are not secret.

    Raises:
        UserError: a wrong setting or profile, or no livekit-server and no LIVEKIT_URL.
    """
    settings = load_settings(args)
    profile = load_profile(settings.profile)
    topology = plan_topology(profile)
    media = None
    if settings.livekit.own:
        require_server()
        webhook = f"http://{LOOPBACK}:{settings.http_port}/livekit/webhook"
        media = MediaServer.options(ray_actor_options={"num_cpus": 0}).bind(settings.livekit, webhook)
    size = (topology.model.height, topology.model.width)
    ingress = Ingress.options(ray_actor_options={"num_cpus": 0})
    return ingress.bind(settings, size, _pipelines(settings, profile, topology.bundles), media)


def _pipelines(settings: Settings, profile: Profile, bundles: list[dict[str, float]]) -> Application:
    deployment = serve.deployment(
        Pipeline,
        name=PIPELINE,
        num_replicas=settings.pipelines,
        max_ongoing_requests=1,
        health_check_period_s=1,
        health_check_timeout_s=10,
        graceful_shutdown_timeout_s=10,
        ray_actor_options={"num_cpus": REPLICA_CPUS},
        placement_group_bundles=[{"CPU": REPLICA_CPUS}, *bundles],
        placement_group_strategy="STRICT_PACK",
    )
    return deployment.bind(profile)


def __getattr__(name: str) -> Application:
    """`app`, made when it is asked for: it takes a port and makes keys."""
    if name == "app":
        return build({})
    raise AttributeError(name)
