"""Chromium, as the tests need it: a microphone that plays a file, and no way to anything but this machine."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
    "--allow-loopback-in-peer-connection",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


@contextlib.contextmanager
def open_browser(microphone: Path | None = None) -> Iterator[Browser]:
    """A browser. `microphone`: WAV, 48 kHz mono 16 bit, played again and again; None for a beep."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    assert found, f"these tests need one of {', '.join(_NAMES)} on PATH: apt-get install chromium"
    arguments = [*_ARGUMENTS]
    if microphone is not None:
        arguments.append(f"--use-file-for-fake-audio-capture={microphone}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


def watch(page: Page) -> list[str]:
    """What goes wrong on a page from now on: errors of its scripts, and requests to other machines."""
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(f"{error.name}: {error.message}"))

    def requested(url: str) -> None:
        if urlsplit(url).hostname not in ("127.0.0.1", None):
            wrong.append(f"contacted {url}")

    page.on("request", lambda request: requested(request.url))
    page.on("websocket", lambda socket: requested(socket.url))
    return wrong
