"""The whole system, started as a user starts it: a question spoken into a browser is answered by voice and face."""

from __future__ import annotations

import base64
import difflib
import io
import re
import subprocess
import time
from pathlib import Path

import av
import grpc
import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect
from ray.serve.generated import serve_pb2, serve_pb2_grpc

from actors.voice.config import SttConfig
from actors.voice.stt import open_stt
from characters.character import list_characters
from tests.deploy.browser.browser import watch
from tests.deploy.conftest import Application, up
from tests.deploy.ports import is_loopback, listening

CHARACTER = "ruby"
TURN_MS = 60_000
LOUD, QUIET = 0.01, 0.001  # RMS of speech, and of silence
EDGE_SECONDS = 0.4  # around speech, in which neither is certain
SILENCE_SECONDS = 6


def test_spoken_question_spoken_answer(application: Application, browser: Browser, artefacts: Path) -> None:
    with browser.new_page(viewport={"width": 1280, "height": 860}) as page:
        wrong = watch(page)
        page.goto(application.address)
        _greeted(page)

        page.evaluate((Path(__file__).parent / "recorder.js").read_text())
        page.get_by_role("button", name="Unmute").click()  # the microphone opens, and its file begins
        expect(page.locator("#lines .mine:not([data-interim]) p").first).to_have_text(
            re.compile("name", re.IGNORECASE), timeout=TURN_MS
        )
        page.wait_for_function("() => recording.seen.some(([, , loud]) => loud > 0.02)", timeout=TURN_MS)
        page.screenshot(path=artefacts / "conversation.png")
        expect(page.locator("#lines .theirs:not([data-interim])")).to_have_count(2, timeout=TURN_MS)
        expect(page.locator("#state")).to_have_text("Listening", timeout=TURN_MS)
        time.sleep(SILENCE_SECONDS)
        seen = np.array(page.evaluate("recording.seen"))
        picture = Image.open(io.BytesIO(base64.b64decode(page.evaluate("recording.picture()"))))
        sound = _decode(base64.b64decode(page.evaluate("recording.sound()")))
        written = page.locator("#lines .theirs p").last.inner_text()
        page.get_by_role("button", name="Figures").click()
        expect(page.locator("[data-figure=render] dd")).to_have_text(re.compile(r"^\d+ ms$"), timeout=TURN_MS)
        delay = page.locator("[data-figure=render] dd").inner_text()
        page.get_by_role("button", name="Hang up").click()
        expect(page.locator("#notice")).to_contain_text("You talked with")

    heard = open_stt(SttConfig()).transcribe(sound).text
    speaking, still = _mouth(seen)
    lasted = seen[-1, 0] - seen[0, 0]
    print(f"answer {written!r}, heard {heard!r}; {len(seen) / lasted:.1f} fps seen over {lasted:.0f} s;", end=" ")
    print(f"a frame reaches the eye after {delay};", end=" ")
    print(f"mouth changes by {speaking:.2f} a frame when it speaks, by {still:.2f} when it does not")
    assert CHARACTER in written.lower()
    alike = difflib.SequenceMatcher(None, heard.lower(), written.lower()).ratio()
    assert alike > 0.7, f"{heard!r} is not {written!r}"
    assert _nearest(picture) == CHARACTER
    assert speaking > 3 * still
    assert not wrong


def test_a_second_up_finds_the_first(application: Application) -> None:
    port = int(application.address.rpartition(":")[2])
    done = subprocess.run(up(port), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, f"already running: {application.address}")


def test_other_machines_are_kept_out(application: Application) -> None:
    ports = listening()
    assert is_loopback(ports[int(application.address.rpartition(":")[2])])
    open_ones = [port for port, where in ports.items() if not is_loopback(where)]
    # Ray Serve has no setting for where a replica's own port listens; nothing is answered there without the token.
    for port in open_ones:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as refused:
            serve_pb2_grpc.ASGIServiceStub(channel).HandleRequest(serve_pb2.ASGIRequest(), timeout=10)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED, port


def _greeted(page: Page) -> None:
    """Join without a microphone and hear the greeting out."""
    page.locator(f"input[value={CHARACTER}]").check(force=True)
    page.get_by_role("button", name="Type instead").click()
    expect(page.locator("#frame[data-live]")).to_be_visible(timeout=TURN_MS)
    expect(page.locator("#lines .theirs:not([data-interim])")).to_have_count(1, timeout=TURN_MS)
    time.sleep(3)  # its last words are still on their way


def _decode(webm: bytes) -> np.ndarray:
    """float32 [n], mono at 16 kHz, from the first loud sample to the last."""
    resampler = av.AudioResampler("flt", "mono", 16_000)
    with av.open(io.BytesIO(webm)) as file:
        frames = [out for frame in file.decode(audio=0) for out in resampler.resample(frame)]
    sound = np.concatenate([frame.to_ndarray()[0] for frame in frames])
    loud = np.flatnonzero(np.abs(sound) > LOUD)
    assert len(loud), "no sound was received"
    return sound[loud[0] : loud[-1] + 1]


def _nearest(picture: Image.Image) -> str:
    """The character whose portrait is most like a picture."""

    def pixels(image: Image.Image) -> np.ndarray:
        return np.asarray(image.convert("RGB").resize((44, 68)), float)

    found = pixels(picture)
    return min(list_characters(), key=lambda c: np.abs(pixels(Image.open(c.portrait)) - found).mean()).slug


def _mouth(seen: np.ndarray) -> tuple[float, float]:
    """Change of the lower face from frame to frame: while the character speaks, and while it surely does not."""
    times, change, loud = seen.T
    spoken = times[loud > LOUD]
    assert len(spoken), "nothing was heard"
    far = np.abs(times[:, None] - spoken[None, :]).min(1)
    still = (far > EDGE_SECONDS) & (loud < QUIET)
    assert still.sum() > 24, "there was no silence to compare with"
    return float(change[loud > LOUD].mean()), float(change[still].mean())
