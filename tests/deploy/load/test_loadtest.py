"""The load test: its report from made-up visits, and one short run against the whole application."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from characters.cli.main import main
from characters.errors import UserError
from deploy.load.report import STALL, admission, fps, lines, report, write
from deploy.load.users import LoadTest, Visit, loadtest
from tests.deploy.conftest import Application

HEALTH = {"status": "ok", "pipelines": 1, "running": 0, "queued": 0}


def frames(seconds: float, rate: float, since: float = 0.0) -> list[float]:
    return [since + i / rate for i in range(round(seconds * rate) + 1)]


def outing() -> LoadTest:
    """One who talks with a stall, one let in when that one has gone, one still queued, one refused, one unlucky."""
    stalled = [*frames(10, 24, 1.0), *frames(10, 24, 12.0)]
    return LoadTest(
        url="http://there",
        seconds=60.0,
        health=HEALTH,
        visits=[
            Visit(0, "talked", seated=0.1, ended=23.0, frames=stalled, turns=[1.5, 2.5], late=3),
            Visit(
                1, "talked", asked=0.5, position=1, seated=24.5, ended=60.0, frames=frames(30, 24, 26.0), turns=[2.0]
            ),
            Visit(2, "queued", asked=1.0, position=2, ended=60.0),
            Visit(3, "refused", "queue_full: too many are waiting (try again after 30 s)", asked=1.5, ended=1.6),
            Visit(4, "failed", "no picture", asked=2.0, seated=30.0, position=3, ended=50.0),
        ],
        lags=[0.001, 0.002],
    )


def test_admission_tells_every_fate_apart() -> None:
    found = admission(outing().visits)
    assert found["admitted"] == 3 and found["admitted_at_once"] == 1 and found["admitted_after_a_wait"] == 2
    assert found["still_queued_at_the_end"] == found["refused"] == found["failed"] == 1
    assert found["most_at_a_time"] == 2
    assert found["wait_s"]["min"] == 24.0 and found["wait_s"]["max"] == 28.0
    assert found["reasons"] == {"queue_full: too many are waiting (try again after 30 s)": 1, "no picture": 1}


def test_figures_are_those_of_the_visits() -> None:
    found = report(outing())
    assert found["picture_stalls"] == {"n": 1, "seconds": 1.0, "longest_s": 1.0}
    assert found["turn_ms"] == {"n": 3, "min": 1500.0, "median": 2000.0, "p95": 2500.0, "p99": 2500.0, "max": 2500.0}
    assert found["late_chunks"] == 3 and found["skew_ms"] is None
    assert fps(outing().visits[1]) == pytest.approx(24)
    assert found["fps"]["min"] == pytest.approx(481 / 21, abs=0.01)
    assert 1 / 6 < STALL < 2 / 6


def test_the_report_is_json_with_a_picture_beside_it(tmp_path: Path) -> None:
    found, picture = write(outing(), tmp_path / "load.json")
    assert json.loads((tmp_path / "load.json").read_text()) == found
    with Image.open(picture) as image:
        assert image.size == (1320, 880)
    told = "\n".join(lines(found))
    assert "1 let in at once, 2 after a wait, 1 still queued at the end, 1 refused, 1 failed" in told
    assert "1 x queue_full" in told


@pytest.mark.parametrize(
    ("out", "message"),
    [("no/load.json", "does not exist"), (".", "a folder"), ("load.png", "JSON"), ("a", "a.png: it")],
)
def test_a_report_that_cannot_be_written_is_said_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], out: str, message: str
) -> None:
    (tmp_path / "a.png").mkdir()
    with pytest.raises(SystemExit) as end:
        main(["loadtest", "--url", "http://127.0.0.1:9", "--out", str(tmp_path / out)])
    error = capsys.readouterr().err
    assert end.value.code == 2 and message in error and error.count("\n") == 1


def test_a_user_does_not_wait_for_ever() -> None:
    """Without assertions too, and in a process of its own, as the one below."""
    story = """
import asyncio
from deploy.load.user import NotSeen, User

async def story():
    user = User()
    for wait in (user.until(lambda: False, "no answer", 0.1), user.type("Hello?", -1.0)):
        try:
            await wait
        except NotSeen as error:
            print(error)

asyncio.run(story())
"""
    told = subprocess.run([sys.executable, "-O", "-c", story], capture_output=True, text=True, timeout=60)
    assert told.stdout == "no answer\n'Hello?' did not arrive\n", told.stderr


def test_nobody_there_is_said_in_a_line() -> None:
    with pytest.raises(UserError, match=r"no application at http://127\.0\.0\.1:9"):
        loadtest("http://127.0.0.1:9", 1, 0.1, "ruby")
    with pytest.raises(UserError, match="must begin with http"):
        loadtest("127.0.0.1:8000", 1, 0.1, "ruby")


def test_two_users_at_one_pipeline(
    application: Application, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As from a shell: the users' native library and the test's own would share a process otherwise."""
    session = application.open_session("ruby")  # waits until the pipeline is free of the test before
    application.request("DELETE", f"/v1/sessions/{session['id']}")
    out = tmp_path / "load.json"
    command = [sys.executable, "-m", "characters.cli.main", "loadtest", "--url", application.address]
    told = subprocess.run(
        [*command, "--users", "2", "--minutes", "0.4", "--out", str(out)], capture_output=True, text=True, timeout=120
    )
    assert told.returncode == 0, told.stderr
    with capsys.disabled():
        print(f"\n{told.stdout}")
    found: dict[str, Any] = json.loads(out.read_text())
    one, two = found["visits"]
    assert (one["outcome"], one["position"]) == ("talked", 0), one
    assert (two["outcome"], two["position"], two["seated_s"]) == ("queued", 1, None), two
    assert found["admission"]["most_at_a_time"] == 1 and found["admission"]["refused"] == 0
    assert one["fps"] > 1 and found["between_frames_ms"]["n"] == one["frames"] - 1
    assert found["turn_ms"]["n"] == len(one["turns_ms"]) >= 1
    assert found["server_before"]["pipelines"] == 1
    assert application.request("GET", "/healthz")["queued"] == 0
