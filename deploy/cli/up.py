"""`characters up`: starts everything on this machine, prints the address, and stops everything at Ctrl-C."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from characters.cli.waiting import Waiting
from characters.errors import UserError
from deploy.cli import web_client
from deploy.cli.watch import RayEnded, adopt_orphans, end_descendants, keep_watch
from deploy.serving import livekit_server
from deploy.serving.settings import LOOPBACK, check_port, load_settings

_READY_SECONDS = 300.0
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # one machine: Ray keeps to loopback
    "RAY_worker_niceness": "0",  # by default Ray's workers give way to everything else: a live picture would stutter
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # A proxy that has died misses three checks before it is started again; by default they are 10 s apart.
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
    "RAY_task_events_max_num_task_in_gcs": "1000",  # calls that Ray remembers, at 3 KB each: by default 100,000
}


@click.command()
@click.option("--profile", default="laptop", show_default=True, help="What it runs on: a name from conf/deploy.")
@click.option("--pipelines", type=click.IntRange(1), default=1, show_default=True, help="Sessions at a time.")
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="Of the page.")
@click.option("--host", default=LOOPBACK, show_default=True, help="Where the page is served.")
@click.option("--dashboard/--no-dashboard", default=True, show_default=True, help="Ray's dashboard.")
def up(profile: str, pipelines: int, port: int, host: str, dashboard: bool) -> None:
    """Start everything and print the address. Ctrl-C stops everything.

    Starts Ray, a LiveKit server (unless LIVEKIT_URL names one) and the application, all on loopback.
    """
    stop = threading.Event()
    reached = LOOPBACK if host == "0.0.0.0" else host
    address = f"http://{reached}:{port}"
    key = os.environ.get("CHARACTERS_API_KEY", "")
    page = f"{address}/#key={key}" if key else address
    if running_at(address):
        click.echo(f"already running: {page}")
        return
    with _only_one(port) as first:
        if not first:
            click.echo("another `characters up` is just starting; waiting for it")
            _await(address, stop)
            click.echo(f"already running: {page}")
            return
        check_port(port, reached)
        args = {"profile": profile, "pipelines": pipelines, "http_port": port, "hosts": host}
        _check_profile(args)  # before anything is installed
        if not os.environ.get("LIVEKIT_URL") and livekit_server.find_server() is None:
            click.echo("livekit-server is not there yet: building it with Go, which takes some minutes, once")
            livekit_server.install_server()
        if not web_client.is_there():
            click.echo("fetching the page's LiveKit client, once")
            web_client.fetch()
        ended: RayEnded | None = None
        with temporary_folder():
            try:
                _serve(args, host, dashboard, page, stop)
            except RayEnded as error:
                ended = error
        if ended is not None:
            click.echo(f"error: {ended}", err=True)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(2)  # Ray's part of this process would wait for what is gone


def _check_profile(args: dict[str, Any]) -> None:
    """Raise UserError for a wrong setting or profile, or a model with random weights that it does not ask for."""
    from actors.pipeline.topology import check_weights, load_profile, plan_topology  # takes seconds to import

    check_weights(plan_topology(load_profile(load_settings(args).profile)))


def _serve(args: dict[str, Any], host: str, dashboard: bool, page: str, stop: threading.Event) -> None:
    """Start Ray and the application, wait for `stop`, and take everything down.

    Raises:
        UserError: a wrong setting, or the application does not start.
    """
    for key, value in ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    # Ray has no setting that keeps one port of each replica on loopback: that port asks for this token.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    import ray
    from ray import serve

    from deploy.app import APPLICATION, build, scaled_from_outside
    from deploy.grafana.provision import provision

    application = build(args)  # before anything is started: it checks the settings
    click.echo("starting Ray")
    ray.init(
        "local",  # not one that somebody else has started here
        _node_ip_address=LOOPBACK,
        include_dashboard=dashboard,
        dashboard_host=LOOPBACK,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=500 << 20,
    )
    # Ray has put its own handler on SIGTERM.
    adopt_orphans()
    handlers = [(s, signal.signal(s, lambda *_: stop.set())) for s in (signal.SIGINT, signal.SIGTERM)]
    try:
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        serve.start(http_options={"host": host, "port": args["http_port"]})
        _run(serve, application, APPLICATION, scaled_from_outside(args), stop)
        if not stop.is_set():
            if dashboard:
                node = ray.get_runtime_context().worker.node
                click.echo(f"dashboard: http://{node.address_info['webui_url']}")
                click.echo(f"  its token: {os.environ.get('RAY_AUTH_TOKEN', 'none')}")
                # Ray has written its own dashboards by now; before that, it empties the folder.
                provision(Path(node.get_session_dir_path()) / "metrics" / "grafana")
            click.echo(f"open {page} in a browser and allow the microphone; Ctrl-C stops everything")
        started = ray.get_runtime_context().worker.node.all_processes
        own = {name: found[0].process for name, found in started.items()}
        keep_watch(own, lambda: running_at(page.split("/#")[0]), stop, click.echo)
        click.echo("stopping")
    except RayEnded:
        end_descendants()
        raise
    except BaseException:
        _stop(ray, serve)
        raise
    else:
        _stop(ray, serve)
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)


def _stop(ray: Any, serve: Any) -> None:
    with contextlib.suppress(Exception):
        serve.shutdown()
    ray.shutdown()


def _run(serve: Any, application: Any, name: str, external: bool, stop: threading.Event) -> None:
    """Deploy the application, and wait until it runs or `stop` is set.

    Raises:
        UserError: the application failed; the message holds what Serve says about it.
    """
    handle: Any = None
    failure: list[BaseException] = []

    def deploy() -> None:
        nonlocal handle
        try:
            handle = serve.run(application, name=name, external_scaler_enabled=external)
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=deploy, name="deploy", daemon=True)
    thread.start()
    give_up = time.monotonic() + _READY_SECONDS
    with Waiting("starting the application"):
        while thread.is_alive() and not stop.is_set() and time.monotonic() < give_up:
            thread.join(0.2)
    if failure or (thread.is_alive() and not stop.is_set()):
        status = serve.status().applications.get(name)
        told = [d.message for d in status.deployments.values() if d.message] if status else []
        raise UserError(f"the application does not start: {' '.join(told) or failure}")


def running_at(address: str) -> bool:
    """Whether our application answers there."""
    from deploy.http import NO_ANSWER, request

    try:
        return bool(request(f"{address}/healthz", timeout=5).json()["application"] == "characters")
    except (*NO_ANSWER, TypeError, KeyError):  # another program
        return False


def _await(address: str, stop: threading.Event) -> None:
    give_up = time.monotonic() + _READY_SECONDS
    while not running_at(address):
        if stop.wait(1.0) or time.monotonic() > give_up:
            raise UserError("the other `characters up` has not come up")


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for the temporary files of all processes that are started: those of Ray leave some behind."""
    before, folder = os.environ.get("TMPDIR"), tempfile.mkdtemp(prefix=".characters-up-")
    os.environ["TMPDIR"] = folder
    try:
        yield Path(folder)
    finally:
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _only_one(port: int) -> Iterator[bool]:
    """Whether this is the only `characters up` of this user on this port. The lock goes with the process."""
    # The file stays behind: if it were removed, two others could lock two files of the same name.
    path = Path(tempfile.gettempdir()) / f".characters-up-{os.getuid()}-{port}.lock"
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)
