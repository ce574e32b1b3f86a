"""`serve run deploy.app:app`, or `serve run deploy.app:build profile=h200 pipelines=4`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RequestCancelledError
from ray.serve.handle import DeploymentHandle

from actors.pipeline.session import SessionSpec
from actors.pipeline.topology import Profile, Topology, check_weights, load_profile, plan_topology
from actors.pipeline.trace import Trace
from characters.errors import UserError
from deploy.planning.capacity import Capacity, capacity
from deploy.planning.scaling import INGRESS, PIPELINE, WarmSpares
from deploy.serving.api import create_api
from deploy.serving.live import Live, changed
from deploy.serving.livekit_server import LivekitServer, require_server
from deploy.serving.pipeline import REPLICA_CPUS, Pipeline, PipelineBroken
from deploy.serving.records import ClusterStore, Records, Run
from deploy.serving.session_manager import PipelineGone, Replicas, SessionManager
from deploy.serving.session_metrics import SessionMetrics
from deploy.serving.settings import LOOPBACK, LivekitAccess, Settings, load_settings

log = logging.getLogger("ray.serve")

APPLICATION = "default"
_CONTROLLER_SECONDS = 5.0


class ServePipelines:
    """See `session_manager.Pipelines`: the replicas of a deployment."""

    def __init__(self, handle: DeploymentHandle, topology: Topology) -> None:
        self._handle = handle.options(stream=True)
        self._topology = topology
        self._capacity: tuple[list[Any], Capacity] = ([], Capacity(0))

    async def look(self) -> Replicas:
        """See `session_manager.Pipelines.look`."""
        return await asyncio.to_thread(self._look)

    def _look(self) -> Replicas:
        # `serve.status` counts the replicas, and does not name them.
        applications = _get_global_client().get_serve_details()["applications"]
        found = applications[serve.get_replica_context().app_name]["deployments"].get(PIPELINE)
        if found is None:
            return Replicas()
        states = {replica["replica_id"]: replica["state"] for replica in found["replicas"]}
        nodes = ray.nodes()
        there = [(node["NodeID"], node["Alive"]) for node in nodes]
        if there != self._capacity[0]:
            self._capacity = there, capacity(self._topology, _bundles(self._topology), nodes)
        held = self._capacity[1]
        return Replicas(
            ready=frozenset(name for name, state in states.items() if state == "RUNNING"),
            there=frozenset(states),
            target=found["target_num_replicas"],
            capacity=held.sessions,
            lacking=held.lacking,
            note=held.note,
        )

    async def run(self, session: SessionSpec) -> AsyncIterator[Run]:
        """See `session_manager.Pipelines.run`.

        Raises:
            PipelineGone: the replica has ended, it cannot take sessions any more, or its call was cancelled.
        """
        call = self._handle.session.remote(session)
        try:
            async for event in call:
                yield event
        except (ray.exceptions.RayActorError, ray.exceptions.TaskCancelledError, RequestCancelledError) as error:
            raise PipelineGone(str(error).splitlines()[0]) from error
        except PipelineBroken as error:
            raise PipelineGone(str(error).strip().splitlines()[-1]) from error
        finally:
            call.cancel()

    async def trace(self, room: str) -> dict[str, Any]:
        """See `session_manager.Pipelines.trace`."""
        actor: Any = await asyncio.to_thread(ray.get_actor, room)
        trace: Trace = await actor.trace.remote()
        return trace.chrome_trace()

    async def stay(self) -> bool:
        """See `session_manager.Pipelines.stay`."""
        name = serve.get_replica_context().app_name
        try:
            async with asyncio.timeout(_CONTROLLER_SECONDS):
                details = await asyncio.to_thread(_get_global_client().get_serve_details)
            return details["applications"][name]["status"] != "DELETING"
        except Exception as error:  # without its controller the application is at its end
            log.warning("cannot ask whether the application goes on: %r", error)
            return False


@serve.deployment(name="Livekit", num_replicas=1, max_ongoing_requests=4, health_check_period_s=1)
class MediaServer:
    """A livekit-server of our own. The health check starts it again if it has ended."""

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
            # Not in another thread: the server dies with the thread that started it.
            self._server = LivekitServer(self._access, self._webhook)

    def __del__(self) -> None:
        if hasattr(self, "_server"):
            self._server.stop()


@serve.deployment(name=INGRESS, num_replicas=1, max_ongoing_requests=1000, health_check_period_s=2)
@serve.ingress()
class Ingress:
    """The HTTP interface. There is one replica, because it holds the queue."""

    def __init__(
        self,
        settings: Settings,
        profile: Profile,
        pipelines: DeploymentHandle,
        media: DeploymentHandle | None = None,
    ) -> None:
        topology, metrics = plan_topology(profile), SessionMetrics(profile)
        size = (topology.model.height, topology.model.width)
        records = Records(serve.get_replica_context().app_name, ClusterStore())
        self._manager = SessionManager(
            settings,
            ServePipelines(pipelines, topology),
            size,
            records,
            metrics=metrics,
            random_weights=topology.model.random_weights,
            framing=topology.model.framing,
            portraits=topology.model.portraits,
        )

    def reconfigure(self, user_config: Mapping[str, Any]) -> None:
        """See `Live`. A wrong value is logged and changes nothing: Serve would end this replica if this raised."""
        try:
            live = changed(Live(), user_config, "ingress")
            for slug, found in self._manager.characters.items():
                live.applied(slug, found.character)
        except UserError as error:
            log.error("%s", error)
            return
        self._manager.live = live

    def __serve_build_asgi_app__(self) -> FastAPI:
        return create_api(self._manager)


def build(args: Mapping[str, Any]) -> Application:
    """The application; `args` are the fields of `settings.Settings` that are not secret.

    Raises:
        UserError: a wrong setting or profile, a model with random weights that the profile does not ask for, or no
            livekit-server and no LIVEKIT_URL.
    """
    settings = load_settings(args)
    profile = load_profile(settings.profile)
    topology = plan_topology(profile)
    check_weights(topology)
    media = None
    if settings.livekit.own:
        require_server()
        webhook = f"http://{LOOPBACK}:{settings.http_port}/livekit/webhook"
        media = MediaServer.options(ray_actor_options={"num_cpus": 0}).bind(settings.livekit, webhook)
    ingress = Ingress.options(ray_actor_options={"num_cpus": 0})
    return ingress.bind(settings, profile, _pipelines(settings, topology), media)


def scaled_from_outside(args: Mapping[str, Any]) -> bool:
    """Whether the number of pipelines is set through the dashboard's API. If not, it follows the demand.

    Raises:
        UserError: a wrong setting or profile.
    """
    return not load_profile(load_settings(args).profile).scaling.most


def _pipelines(settings: Settings, topology: Topology) -> Application:
    scaling = topology.profile.scaling
    number: dict[str, Any] = {"num_replicas": settings.pipelines}
    if scaling.most:
        number = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=min(settings.pipelines, scaling.most),
                max_replicas=scaling.most,
                target_ongoing_requests=1,
                upscale_delay_s=0,
                policy=AutoscalingPolicy(policy_function=WarmSpares, policy_kwargs={"spare": scaling.spares}),
            )
        }
    deployment = serve.deployment(
        Pipeline,
        name=PIPELINE,
        **number,
        max_ongoing_requests=1,
        health_check_period_s=1,
        health_check_timeout_s=10,
        graceful_shutdown_timeout_s=settings.drain_s,
        ray_actor_options={"num_cpus": REPLICA_CPUS},
        placement_group_bundles=_bundles(topology),
        placement_group_strategy="STRICT_PACK",
    )
    return deployment.bind(topology.profile)


def _bundles(topology: Topology) -> list[dict[str, float]]:
    """Of a replica: its own, and its processes'."""
    return [{"CPU": REPLICA_CPUS}, *topology.bundles]


def __getattr__(name: str) -> Application:
    """Makes `app` when it is asked for, not at import: it takes a port and makes keys."""
    if name == "app":
        return build({})
    raise AttributeError(name)
