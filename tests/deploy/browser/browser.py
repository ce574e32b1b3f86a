"""Chromium, as the tests need it: a microphone that plays a file, and no way to anything but this machine."""

from __future__ import annotations

import contextlib
import shutil
import wave
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from playwright.sync_api import Browser, Page, sync_playwright

from characters.speech import open_voice

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
def open_browser(microphone: Path) -> Iterator[Browser]:
    """A browser. `microphone`: WAV, 48 kHz mono 16 bit, played from its beginning whenever the microphone is opened."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    assert found, f"these tests need one of {', '.join(_NAMES)} on PATH: apt-get install chromium"
    arguments = [*_ARGUMENTS, f"--use-file-for-fake-audio-capture={microphone}"]
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


def write_question(path: Path) -> None:
    """ "What is your name?" as Chromium's fake microphone wants it: 48 kHz, mono, 16 bit.

    The microphone is opened long before the character hears on a busy machine: hence the silence before the question.
    That after it is longer than a test.
    """
    pcm = np.concatenate([piece.pcm for piece in open_voice("hibari").speak("What is your name?")])
    doubled = np.interp(np.arange(2 * len(pcm)) / 2, np.arange(len(pcm)), pcm)  # 24 -> 48 kHz
    before, after = np.zeros(12 * 48_000), np.zeros(120 * 48_000)
    sound = np.concatenate([before, doubled / np.abs(doubled).max() * 0.6, after])
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(48_000)
        file.writeframes((sound * 32767).astype("<i2").tobytes())
