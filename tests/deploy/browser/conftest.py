from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from deploy.serving.api import WEB
from tests.deploy.browser.browser import open_browser, watch, write_question
from tests.deploy.browser.site import Site, open_site

OpenPage = Callable[..., Page]


@pytest.fixture(scope="session", autouse=True)
def client() -> None:
    assert (WEB / "livekit-client.umd.min.js").is_file(), "run deploy/web/fetch.sh first (it needs npm)"


@pytest.fixture(scope="session")
def artefacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures are kept: $CHARACTERS_ARTEFACTS, else pytest's own folder."""
    given = os.environ.get("CHARACTERS_ARTEFACTS")
    folder = Path(given) if given else tmp_path_factory.mktemp("artefacts")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="package")
def browser(client: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Its microphone asks what the name is."""
    path = tmp_path_factory.mktemp("microphone") / "question.wav"
    write_question(path)
    with open_browser(path) as browser:
        yield browser


@pytest.fixture(scope="module")
def site(client: None) -> Iterator[Site]:
    with open_site(grace_s=8) as site:
        yield site


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens a page in a profile of its own; fails at the end if anything went wrong on one."""
    contexts, wrongs = [], []

    def make(url: str, script: str = "", **options: Any) -> Page:
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 860}} | options))
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        wrongs.append(watch(page))
        if script:
            page.add_init_script(script)
        page.goto(url)
        return page

    yield make
    for context in contexts:
        for page in context.pages:
            if page.locator("#end").is_visible():
                page.click("#end")
                page.wait_for_selector("#lobby:not([hidden])")
        context.close()
    assert not [wrong for page in wrongs for wrong in page]
