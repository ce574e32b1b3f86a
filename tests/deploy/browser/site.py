"""The real ingress and the real LiveKit server, with understudies for characters, in this process."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import uvicorn

from deploy.serving.api import create_api
from deploy.serving.livekit_server import LivekitServer
from deploy.serving.records import Records
from deploy.serving.session_manager import SessionManager
from deploy.serving.settings import LOOPBACK, LivekitAccess, Settings, free_ports
from tests.deploy.browser.understudy import Understudies
from tests.deploy.store import FakeStore

FRAME_SIZE = (272, 176)


class Site:
    """Attributes:
    url: of the page.
    cast: plays the characters.
    livekit: the media server, to be stopped and started again.
    """

    def __init__(
        self,
        pipelines: int,
        random_weights: bool = False,
        portraits: Sequence[str] = (),
        cast: Any = None,
        **settings: Any,
    ) -> None:
        with socket.create_server((LOOPBACK, 0)) as probe:
            port = probe.getsockname()[1]
        first = free_ports(17880)
        self.access = self._access = LivekitAccess(f"ws://{LOOPBACK}:{first}", "key", "s" * 32, own=True, port=first)
        self.url = f"http://{LOOPBACK}:{port}"
        self.cast = cast or Understudies(pipelines)
        self.livekit = self.start_livekit()
        self.manager = manager = SessionManager(
            Settings(self._access, **settings),
            self.cast,
            FRAME_SIZE,
            Records("test", FakeStore()),
            random_weights=random_weights,
            portraits=portraits,
        )
        self._server = uvicorn.Server(
            uvicorn.Config(create_api(manager), host=LOOPBACK, port=port, log_level="warning")
        )
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise RuntimeError("the ingress has not started")
            time.sleep(0.02)

    def start_livekit(self) -> LivekitServer:
        self.livekit = LivekitServer(self._access, f"{self.url}/livekit/webhook")
        return self.livekit

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self.livekit.stop()


@contextlib.contextmanager
def open_site(pipelines: int = 1, **settings: Any) -> Iterator[Site]:
    site = Site(pipelines, **settings)
    try:
        yield site
    finally:
        site.close()
